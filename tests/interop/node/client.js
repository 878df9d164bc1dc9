// The kafkajs client under test: COMMAND key=value ...
//
// The commands, their arguments and the files that they read and write are the same for every client and are described
// in tests/interop/README.md.

const fs = require('node:fs')
const path = require('node:path')
const readline = require('node:readline')
const { randomUUID } = require('node:crypto')

const { CompressionCodecs, CompressionTypes, ConfigResourceTypes, Kafka, Partitioners, logLevel } = require('kafkajs')
const LZ4 = require('kafkajs-lz4')
const Snappy = require('kafkajs-snappy')
const zstd = require('@mongodb-js/zstd')

CompressionCodecs[CompressionTypes.Snappy] = Snappy
CompressionCodecs[CompressionTypes.LZ4] = new LZ4().codec
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async encoder => zstd.compress(encoder.buffer),
  decompress: async buffer => zstd.decompress(buffer),
})

const CODECS = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
}
const DEADLINE_MS = 90_000
// How many records go into one call of `send`, which has no queue behind it.
const SEND_RECORDS = 2_000

const newKafka = args =>
  new Kafka({
    clientId: 'interop',
    brokers: [args.bootstrap],
    logLevel: logLevel.WARN,
    // By default it gives up after five attempts.
    retry: { initialRetryTime: 100, maxRetryTime: 300, retries: Number.MAX_SAFE_INTEGER },
  })

function check(holds, what) {
  if (!holds) throw new Error(`does not hold: ${what}`)
}

async function withAdmin(args, body) {
  const admin = newKafka(args).admin()
  await admin.connect()
  try {
    return await body(admin)
  } finally {
    await admin.disconnect()
  }
}

async function create(args) {
  const topics = args.topics.split(',').map(topic => ({ topic, numPartitions: Number(args.partitions) }))
  await withAdmin(args, admin => admin.createTopics({ topics, waitForLeaders: false }))
}

// ---------------------------------------------------------------------------------------------------- produce

async function withProducer(args, body) {
  const producer = newKafka(args).producer({
    idempotent: true,
    maxInFlightRequests: 1,
    createPartitioner: Partitioners.DefaultPartitioner,
  })
  await producer.connect()
  await body(producer)
  await producer.disconnect()
}

function asMessage(record) {
  const headers = {}
  for (const [name, value] of record.h) headers[name] = name in headers ? [headers[name], value].flat() : value
  return { partition: record.p, key: record.k, value: record.v, headers }
}

async function sendAll(producer, topic, codec, messages) {
  for (let from = 0; from < messages.length; from += SEND_RECORDS) {
    const part = messages.slice(from, from + SEND_RECORDS)
    await producer.send({ topic, acks: -1, compression: CODECS[codec], messages: part })
  }
}

async function produce(args) {
  const lines = fs.readFileSync(args.input, 'utf8').trimEnd().split('\n')
  const messages = lines.map(line => asMessage(JSON.parse(line)))
  await withProducer(args, async producer => {
    for (const job of args.jobs.split(',')) {
      const [codec, topic] = job.split(':')
      await sendAll(producer, topic, codec, messages)
    }
  })
}

// ---------------------------------------------------------------------------------------------------- transact

async function transact(args) {
  const kafka = newKafka(args)
  const producer = kafka.producer({
    transactionalId: args.id,
    idempotent: true,
    maxInFlightRequests: 1,
    createPartitioner: Partitioners.DefaultPartitioner,
  })
  const consumer = kafka.consumer({ groupId: args.group, readUncommitted: false, maxBytesPerPartition: 16_384 })
  await producer.connect()
  await consumer.connect()
  const ends = await withAdmin(args, admin => admin.fetchTopicOffsets(args.input))
  const behind = new Map(ends.filter(end => end.high !== '0').map(end => [end.partition, BigInt(end.high)]))
  await consumer.subscribe({ topics: [args.input], fromBeginning: true })
  let chunks = 0
  const passOn = async (batch, commit) => {
    const transaction = await producer.transaction()
    const messages = batch.messages.map(m => ({ partition: batch.partition, key: m.key, value: m.value }))
    await transaction.send({ topic: args.output, acks: -1, messages })
    const offset = (BigInt(batch.lastOffset()) + 1n).toString()
    const topics = [{ topic: args.input, partitions: [{ partition: batch.partition, offset }] }]
    await transaction.sendOffsets({ consumerGroupId: args.group, topics })
    await (commit ? transaction.commit() : transaction.abort())
  }
  await new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`behind at the end: ${[...behind]}`)), DEADLINE_MS).unref()
    const eachBatch = async ({ batch, resolveOffset }) => {
      chunks += 1
      if (chunks % 3 === 0) await passOn(batch, false)
      await passOn(batch, true)
      resolveOffset(batch.lastOffset())
      if (BigInt(batch.lastOffset()) + 1n >= behind.get(batch.partition)) behind.delete(batch.partition)
      if (behind.size === 0) resolve()
    }
    consumer.run({ autoCommit: false, eachBatch }).catch(reject)
  })
  await consumer.disconnect()
  await producer.disconnect()
}

// Sends what has come in while the call before was under way.
async function feed(args) {
  let waiting = []
  let ended = false
  let wake = () => {}
  const input = readline.createInterface({ input: process.stdin })
  input.on('line', line => {
    const tab = line.indexOf('\t')
    waiting.push({ key: line.slice(0, tab), value: line.slice(tab + 1) })
    wake()
  })
  input.on('close', () => {
    ended = true
    wake()
  })
  let acknowledged = 0
  await withProducer(args, async producer => {
    while (!ended || waiting.length > 0) {
      if (waiting.length === 0) await new Promise(resolve => (wake = resolve))
      const messages = waiting.splice(0, SEND_RECORDS)
      if (messages.length > 0) await sendAll(producer, args.topic, 'lz4', messages)
      acknowledged += messages.length
    }
  })
  console.log('acknowledged', acknowledged)
}

// ---------------------------------------------------------------------------------------------------- consume

const text = data => (data === null ? null : data.toString('utf8'))

function asLine(partition, message) {
  const headers = Object.entries(message.headers).flatMap(([name, values]) =>
    [values].flat().map(value => [name, text(value)])
  )
  const { offset, key, value } = message
  return JSON.stringify({ p: partition, o: Number(offset), k: text(key), v: text(value), h: headers }) + '\n'
}

function newConsumer(args, groupId, sessionTimeout = 30_000) {
  return newKafka(args).consumer({
    groupId,
    sessionTimeout,
    heartbeatInterval: 500,
    maxWaitTimeInMs: 100,
  })
}

async function consume(args) {
  for (const topic of args.topics.split(',')) {
    await consumeTopic(args, topic, path.join(args.out, `${topic}.jsonl`))
  }
}

// It can read only as a member of a group.
async function consumeTopic(args, topic, file) {
  const offsets = await withAdmin(args, admin => admin.fetchTopicOffsets(topic))
  const behind = new Map(offsets.filter(p => p.high !== '0').map(p => [p.partition, Number(p.high)]))
  const out = fs.openSync(file, 'w')
  const consumer = newConsumer(args, `read-${topic}-${randomUUID()}`)
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`${topic}: not read up to ${[...behind]}`)), DEADLINE_MS).unref()
    if (behind.size === 0) resolve()
    consumer.run({
      autoCommit: false,
      eachBatch: async ({ batch }) => {
        fs.writeSync(out, batch.messages.map(message => asLine(batch.partition, message)).join(''))
        if (Number(batch.lastOffset()) + 1 >= behind.get(batch.partition)) behind.delete(batch.partition)
        if (behind.size === 0) resolve()
      },
    })
  })
  await consumer.disconnect()
  fs.closeSync(out)
}

// ----------------------------------------------------------------------------------------------------- member

// There is no call on revocation, so each batch is committed as soon as it is read.
async function member(args) {
  const out = fs.openSync(args.out, 'w')
  const note = lines => fs.writeSync(out, lines.join('\n') + '\n')
  const consumer = newConsumer(args, args.group, Number(args.session_ms))
  const left = new Promise(resolve => process.stdin.resume().on('end', resolve))
  const crashed = new Promise((_, reject) => {
    consumer.on(consumer.events.CRASH, event => reject(event.payload.error))
  })
  consumer.on(consumer.events.GROUP_JOIN, event => {
    const partitions = event.payload.memberAssignment[args.topic] ?? []
    if (partitions.length > 0) note(partitions.map(partition => `assigned ${partition}`))
  })
  await consumer.connect()
  await consumer.subscribe({ topics: [args.topic], fromBeginning: true })
  await consumer.run({
    autoCommit: false,
    eachBatchAutoResolve: false,
    eachBatch: async ({ batch, resolveOffset, commitOffsetsIfNecessary, isRunning, isStale }) => {
      if (!isRunning() || isStale()) return
      const { partition, messages } = batch
      note(messages.map(message => `r ${partition} ${message.offset} ${text(message.value)}`))
      const offset = String(Number(batch.lastOffset()) + 1)
      resolveOffset(batch.lastOffset())
      await commitOffsetsIfNecessary({ topics: [{ topic: args.topic, partitions: [{ partition, offset }] }] })
      note([`c ${partition} ${offset}`])
    },
  })
  await Promise.race([left, crashed])
  await consumer.disconnect()
}

// ------------------------------------------------------------------------------------------------------ admin

async function until(condition, what) {
  const deadline = Date.now() + 15_000
  while (!(await condition())) {
    check(Date.now() < deadline, what)
    await new Promise(resolve => setTimeout(resolve, 20))
  }
}

async function expectError(type, promise) {
  try {
    await promise
  } catch (error) {
    const found = error.errors?.[0]?.type ?? error.type
    check(found === type, `error ${type}, not ${found}: ${error}`)
    return
  }
  throw new Error(`no error ${type}`)
}

async function admin(args) {
  const { topic } = args
  await withAdmin(args, async client => {
    const isListed = async () => (await client.listTopics()).includes(topic)
    const configEntries = [{ name: 'retention.ms', value: '3600000' }]
    const wanted = { topics: [{ topic, numPartitions: 2, configEntries }], waitForLeaders: false }
    check(await client.createTopics(wanted), 'created')
    check(!(await client.createTopics(wanted)), 'not created again')
    await until(isListed, 'listed after creation')
    await configs(client, topic)
    await client.createPartitions({ topicPartitions: [{ topic, count: 4 }] })
    const countOf = async () => (await client.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length
    await until(async () => (await countOf()) === 4, 'four partitions')
    const fewer = client.createPartitions({ topicPartitions: [{ topic, count: 3 }] })
    await expectError('INVALID_PARTITIONS', fewer)
    await deleteRecords(args, client, topic)
    await groups(client, topic)
    const cluster = await client.describeCluster()
    check(cluster.brokers.length > 0 && cluster.clusterId, 'a node and a cluster id')
    await client.deleteTopics({ topics: [topic] })
    await until(async () => !(await isListed()), 'gone after deletion')
  })
}

async function configs(client, topic) {
  const type = ConfigResourceTypes.TOPIC
  const read = async name => {
    const found = await client.describeConfigs({ resources: [{ type, name: topic }] })
    return found.resources[0].configEntries.find(entry => entry.configName === name).configValue
  }
  const alter = configEntries => client.alterConfigs({ resources: [{ type, name: topic, configEntries }] })
  check((await read('retention.ms')) === '3600000', 'retention.ms as created')
  check((await read('segment.bytes')) === '1073741824', 'segment.bytes by default')
  await alter([{ name: 'retention.ms', value: '7200000' }])
  await until(async () => (await read('retention.ms')) === '7200000', 'retention.ms set')
  // A configuration that is not named goes back to its default.
  await alter([{ name: 'flush.ms', value: '1000' }])
  await until(async () => (await read('retention.ms')) === '604800000', 'retention.ms back at its default')
  await expectError('INVALID_CONFIG', alter([{ name: 'segment.bytes', value: 'none' }]))
}

async function deleteRecords(args, client, topic) {
  const messages = Array.from({ length: 10 }, (_, i) => ({ partition: 0, value: `record ${i}` }))
  await withProducer(args, producer => sendAll(producer, topic, 'none', messages))
  await client.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '4' }] })
  const found = (await client.fetchTopicOffsets(topic)).find(({ partition }) => partition === 0)
  check(found.low === '4' && found.high === '10', `begins at 4, ends at 10: ${JSON.stringify(found)}`)
}

async function groups(client, topic) {
  const groupId = `${topic}-group`
  await client.setOffsets({ groupId, topic, partitions: [{ partition: 0, offset: '7' }] })
  const listed = (await client.listGroups()).groups
  check(listed.some(group => group.groupId === groupId), 'the group is listed')
  const described = (await client.describeGroups([groupId])).groups[0]
  check(described.members.length === 0, 'the group has no member')
  const offsets = await client.fetchOffsets({ groupId, topics: [topic] })
  const committed = offsets[0].partitions.find(({ partition }) => partition === 0)
  check(committed.offset === '7', 'the committed offset')
}

// -------------------------------------------------------------------------------------------------------------

const [command, ...pairs] = process.argv.slice(2)
const args = Object.fromEntries(pairs.map(pair => [pair.slice(0, pair.indexOf('=')), pair.slice(pair.indexOf('=') + 1)]))

process.on('unhandledRejection', fail)

function fail(error) {
  console.error(error)
  process.exit(1)
}

// Standard input, timers and sockets may still be open.
;({
  create,
  produce,
  consume,
  feed,
  member,
  admin,
  transact,
  secure: require('./secure.js').secure,
  sessions: require('./sessions.js').sessions,
})[command](args).then(() => process.exit(0), fail)
