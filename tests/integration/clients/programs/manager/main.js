// amqp-connection-manager: RPC over a quorum queue with replies in an exclusive queue, and events
// over a fanout to an auto-delete queue; steady calls until the test has seen enough.
// Arguments: the ports in the order in which they are tried, then the longest time of a call in s.
// Says "ready" when calls get through, and "done" when each was answered and none took too long.
'use strict';
const assert = require('assert');
const readline = require('readline');
const amqp = require('amqp-connection-manager');

const CALLERS = 4;
const READY_CALLS = 12;
const PAUSE_MS = 100;
const CALL_TIMEOUT_MS = 3000;
const AGAIN_MS = 200;

const args = process.argv.slice(2);
const boundMs = Number(args.pop()) * 1000;
const urls = args.map((port) => `amqp://guest:guest@127.0.0.1:${port}`);
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const waiting = new Map();
const heard = new Set();
const failed = new Map();
let stopped = false;

function note(what) {
  if (!failed.has(what)) console.log(what);
  failed.set(what, (failed.get(what) || 0) + 1);
}

// Run again on each new connection, wherever it goes.
async function setup(channel) {
  await channel.assertQueue('manager.work', { durable: true, arguments: { 'x-queue-type': 'quorum' } });
  await channel.assertExchange('manager.events', 'fanout', { durable: true });
  await channel.assertQueue('manager.replies', { exclusive: true });
  await channel.assertQueue('manager.own', { durable: false, autoDelete: true });
  await channel.bindQueue('manager.own', 'manager.events', '');
  await channel.consume('manager.work', (message) => {
    if (message === null) return;
    const answer = String(2 * Number(message.content));
    const { replyTo, correlationId } = message.properties;
    channel.sendToQueue(replyTo, Buffer.from(answer), { correlationId });
    channel.ack(message);
  });
  await channel.consume('manager.replies', (message) => {
    if (message === null) return;
    const answered = waiting.get(message.properties.correlationId);
    if (answered) answered(Number(message.content));
  }, { noAck: true });
  await channel.consume('manager.own', (message) => {
    if (message !== null) heard.add(Number(message.content));
  }, { noAck: true });
}

async function call(wrapper, number, attempt) {
  const correlationId = `${number}.${attempt}`;
  try {
    const answer = new Promise((resolve, reject) => {
      waiting.set(correlationId, resolve);
      setTimeout(() => reject(new Error('no answer in time')), CALL_TIMEOUT_MS);
    });
    answer.catch(() => {});
    const options = { replyTo: 'manager.replies', correlationId, persistent: true, timeout: CALL_TIMEOUT_MS };
    await wrapper.sendToQueue('manager.work', Buffer.from(String(number)), options);
    assert.strictEqual(await answer, 2 * number);
  } finally {
    waiting.delete(correlationId);
  }
}

async function caller(wrapper, first, took, answered) {
  for (let number = first; !stopped; number += CALLERS) {
    const began = Date.now();
    for (let attempt = 0; ; attempt += 1) {
      try {
        await call(wrapper, number, attempt);
        break;
      } catch (error) {
        note(`${error.name}: ${error.message}`);
        assert(Date.now() - began < boundMs, `call ${number} without an answer`);
        await pause(AGAIN_MS);
      }
    }
    took.push(Date.now() - began);
    answered();
    await pause(PAUSE_MS);
  }
}

async function hears(wrapper) {
  for (let number = 1; number < 100; number += 1) {
    await wrapper.publish('manager.events', '', Buffer.from(String(number)), { timeout: CALL_TIMEOUT_MS }).catch(
      (error) => note(`${error.name}: ${error.message}`));
    await pause(PAUSE_MS);
    if (heard.size) return;
  }
  throw new Error('no event arrives');
}

async function main() {
  const connection = amqp.connect(urls, { heartbeatIntervalInSeconds: 5, reconnectTimeInSeconds: 1 });
  connection.on('connectFailed', ({ err }) => note(`connect: ${err.message}`));
  connection.on('disconnect', ({ err }) => note(`disconnect: ${err && err.message}`));
  const wrapper = connection.createChannel({ setup, confirm: true });
  wrapper.on('error', (error) => note(`channel: ${error.message}`));
  await wrapper.waitForConnect();
  const go = new Promise((resolve) => readline.createInterface({ input: process.stdin }).once('line', resolve));
  const took = [];
  let count = 0;
  const callers = [];
  for (let n = 0; n < CALLERS; n += 1) {
    callers.push(caller(wrapper, n, took, () => {
      count += 1;
      if (count === READY_CALLS) console.log('ready');
    }));
  }
  const all = Promise.all(callers);
  await Promise.race([go, all]);
  stopped = true;
  await all;
  const slowest = Math.max(...took);
  console.log(`${took.length} calls, slowest ${slowest / 1000} s, tries failed: ${JSON.stringify([...failed])}`);
  assert(slowest < boundMs, `a call took ${slowest / 1000} s`);
  heard.clear();
  await hears(wrapper);
  console.log('done');
  process.exit(0);
}

main().catch((error) => {
  console.log(error.stack);
  process.exit(1);
});
