// A user of kafkajs whose sessions end and are renewed under load; what is printed is described in
// tests/interop/README.md.

const fs = require('node:fs')
const { setTimeout: sleep } = require('node:timers/promises')

const { Partitioners } = require('kafkajs')
const { newKafka, outcome } = require('./secure')

const PACE_MS = 20
const TIMEOUT_MS = 30_000
// A session is renewed when this much of it is left.
const RENEWAL_MS = 1_000

const tell = (step, what) => console.log(JSON.stringify({ step, outcome: what }))

async function sessions(args) {
  const [way] = JSON.parse(fs.readFileSync(args.plan, 'utf-8'))
  const kafka = newKafka(way, { reauthenticationThreshold: RENEWAL_MS })
  const producer = kafka.producer({
    createPartitioner: Partitioners.DefaultPartitioner,
    idempotent: true,
    maxInFlightRequests: 1,
  })
  const consumer = kafka.consumer({ groupId: 'readers-sessions-node' })
  await Promise.all([producer.connect(), consumer.connect()])
  let read = 0
  const once = new Set()
  let crash
  consumer.on(consumer.events.CRASH, ({ payload }) => (crash ??= payload.error))
  await consumer.subscribe({ topic: args.topic, fromBeginning: true })
  await consumer.run({
    eachMessage: async ({ message }) => {
      if (read++ === 0) tell('begun', null)
      once.add(message.value.toString())
    },
  })
  let isStopping = false
  process.stdin.resume().on('end', () => (isStopping = true))
  let written = 0
  while (!isStopping) {
    await producer.send({ topic: args.topic, acks: -1, messages: [{ value: String(written++) }] })
    await sleep(PACE_MS)
    if (crash) throw crash
  }
  const waitFor = async holds => {
    const end = Date.now() + TIMEOUT_MS
    while (!holds() && Date.now() < end) await sleep(PACE_MS)
  }
  await waitFor(() => once.size >= written)
  tell('records', { written, read: once.size, repeated: read - once.size })
  await waitFor(() => crash)
  tell('rule removed', crash ? await outcome(() => Promise.reject(crash)) : null)
  process.exit(0)
}

module.exports = { sessions }
