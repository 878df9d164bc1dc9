// The ways of a plan in which kafkajs logs in; the plan and what is printed are described in tests/interop/README.md.

const fs = require('node:fs')

const { Kafka, Partitioners, logLevel } = require('kafkajs')

const RECORDS = 100
const TIMEOUT_MS = 30_000

const newKafka = (way, settings = {}) =>
  new Kafka({
    clientId: 'secure',
    brokers: [way.bootstrap],
    logLevel: logLevel.NOTHING,
    ssl: {
      ca: [fs.readFileSync(way.ca, 'utf-8')],
      ...(way.cert && { key: fs.readFileSync(way.cert, 'utf-8'), cert: fs.readFileSync(way.cert, 'utf-8') }),
    },
    ...(way.mechanism && {
      sasl: { mechanism: way.mechanism.toLowerCase(), username: way.user, password: way.password },
    }),
    retry: { initialRetryTime: 100, maxRetryTime: 300, retries: 3 },
    ...settings,
  })

async function write(way, topic, count) {
  const producer = newKafka(way).producer({ createPartitioner: Partitioners.DefaultPartitioner })
  await producer.connect()
  try {
    await producer.send({ topic, acks: -1, messages: Array.from({ length: count }, () => ({ value: 'a record' })) })
    return count
  } finally {
    await producer.disconnect()
  }
}

async function read(way, groupId) {
  const consumer = newKafka(way).consumer({ groupId, retry: { retries: 0 } })
  let count = 0
  await consumer.connect()
  try {
    await consumer.subscribe({ topic: 'orders', fromBeginning: true })
    await new Promise((resolve, reject) => {
      setTimeout(() => reject(new Error('it hangs')), TIMEOUT_MS).unref()
      consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
      consumer.run({ eachMessage: async () => ++count >= RECORDS && resolve() }).catch(reject)
    })
    return RECORDS
  } finally {
    await consumer.disconnect()
  }
}

const outcome = async step => {
  try {
    return String(await step())
  } catch (error) {
    const cause = error.cause ?? error
    return [error.name, cause.type, cause.code, error.message].filter(Boolean).join(' ')
  }
}

async function secure(args) {
  for (const way of JSON.parse(fs.readFileSync(args.plan, 'utf-8'))) {
    const tell = async (step, run) =>
      console.log(JSON.stringify({ way: way.name, step, outcome: await outcome(run) }))
    // Each time by a new client, some of them at once.
    const repeat = async (step, run) => {
      let left = way.times
      const clients = Array.from({ length: way.at_once }, async () => {
        while (left-- > 0) await tell(step, run)
      })
      await Promise.all(clients)
    }
    if (!way.use) {
      await repeat('refused', () => write(way, 'orders', 1))
      continue
    }
    await tell('write', () => write(way, 'orders', RECORDS))
    await tell('read', () => read(way, `readers-node-${way.name}`))
    await repeat('denied topic', () => write(way, 'secret', 1))
    await repeat('denied group', () => read(way, 'others'))
  }
}

module.exports = { newKafka, outcome, secure }
