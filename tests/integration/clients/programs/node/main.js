// amqplib against a broker: everything, recover, blocked, delayed. Used by test_other_languages.py and
// test_delays.py.
// Says "ready" when the test may do its part, and ends with status 0 when all held.
'use strict';
const assert = require('node:assert');
const { once } = require('node:events');
const { setTimeout: pause } = require('node:timers/promises');
const amqp = require('amqplib');

const [scenario, port] = process.argv.slice(2);
const url = `amqp://guest:guest@127.0.0.1:${port}`;
const PATIENCE_MS = 40_000;

const within = (promise, what) => Promise.race([
  promise,
  pause(PATIENCE_MS, undefined, { ref: false }).then(() => { throw new Error(`not within time: ${what}`); }),
]);
const word = () => within(once(process.stdin, 'data'), 'the test\'s word');

// An array of deliveries that can be awaited one by one.
class Inbox {
  constructor() { this.items = []; this.waiting = []; }
  put(item) { const first = this.waiting.shift(); first ? first(item) : this.items.push(item); }
  next(what) {
    if (this.items.length) return this.items.shift();
    return within(new Promise((resolve) => this.waiting.push(resolve)), what);
  }
}

async function work(ch) {
  await ch.assertQueue('node.dead', { durable: true });
  await ch.assertQueue('node.work', {
    durable: true,
    arguments: { 'x-queue-type': 'quorum', 'x-dead-letter-exchange': '', 'x-dead-letter-routing-key': 'node.dead' },
  });
  const big = Buffer.alloc(1 << 20, '0123456789abcdef');
  ch.sendToQueue('node.work', big, { persistent: true });
  for (let i = 1; i < 20; i++) ch.sendToQueue('node.work', Buffer.from(String(i)), { persistent: true });
  await ch.waitForConfirms();
  const returned = once(ch, 'return');
  ch.publish('', 'node.nowhere', Buffer.from('x'), { mandatory: true });
  const [message] = await within(returned, 'return');
  assert.strictEqual(message.fields.replyCode, 312);
  await ch.waitForConfirms();

  await ch.prefetch(5);
  const inbox = new Inbox();
  await ch.consume('node.work', (item) => inbox.put(item), { consumerTag: 'worker' });
  const held = [];
  while (held.length < 5) held.push(await inbox.next('delivery'));
  assert.ok(held[0].content.equals(big));
  await pause(300);
  assert.strictEqual(inbox.items.length, 0, 'a sixth delivery within a prefetch of 5');
  ch.nack(held[0], false, true);
  ch.reject(held[1], false);
  ch.ack(held[4], true);
  let redelivered = 0;
  for (let seen = 3; seen < 19; seen++) {
    const item = await inbox.next('delivery');
    if (item.fields.redelivered) {
      redelivered += 1;
      assert.ok(item.content.equals(big));
    }
    ch.ack(item);
  }
  assert.strictEqual(redelivered, 1);
  await ch.cancel('worker');
}

async function letter(ch) {
  const deadline = Date.now() + PATIENCE_MS;
  for (;;) {
    const found = await ch.get('node.dead', { noAck: true });
    if (found) {
      const [death] = found.properties.headers['x-death'];
      assert.strictEqual(death.reason, 'rejected');
      assert.strictEqual(death.queue, 'node.work');
      return;
    }
    assert.ok(Date.now() < deadline, 'dead letter');
    await pause(20);
  }
}

async function everything() {
  const connection = await amqp.connect(url);
  const ch = await connection.createConfirmChannel();
  await work(ch);
  await letter(ch);
  await ch.assertQueue('node.gone', { durable: true });
  const inbox = new Inbox();
  await ch.consume('node.gone', (item) => inbox.put(item));
  const other = await connection.createChannel();
  await other.deleteQueue('node.gone');
  // amqplib tells a consumer with null that the server has cancelled it.
  assert.strictEqual(await inbox.next('cancel'), null);
  const failed = once(other, 'error');
  await assert.rejects(other.checkQueue('node.missing'), /404/);
  assert.strictEqual((await within(failed, 'channel error'))[0].code, 404);
  ch.sendToQueue('node.dead', Buffer.from('still here'));
  await ch.waitForConfirms();
  await connection.close();
}

// amqplib has no recovery of its own at this level: an application connects again.
async function recover() {
  const first = await amqp.connect(url);
  first.on('error', () => {});
  // Not once(): it would reject at the error that comes before.
  const ended = new Promise((resolve) => first.once('close', resolve));
  const ch = await first.createConfirmChannel();
  ch.on('error', () => {});
  await ch.assertQueue('node.recover', { durable: true, arguments: { 'x-queue-type': 'quorum' } });
  ch.sendToQueue('node.recover', Buffer.from('kept'), { persistent: true });
  await ch.waitForConfirms();
  console.log('ready');
  await within(ended, 'the end of the connection');
  const second = await connectAgain();
  const again = await second.createChannel();
  const found = await again.get('node.recover', { noAck: true });
  assert.strictEqual(found.content.toString(), 'kept');
  await second.close();
}

// A server that dies or starts may refuse, reset, or leave in the handshake: each is tried again.
async function connectAgain() {
  const deadline = Date.now() + PATIENCE_MS;
  for (;;) {
    try {
      return await amqp.connect(url);
    } catch (error) {
      if (Date.now() > deadline) throw error;
      await pause(100);
    }
  }
}

async function blocked() {
  const connection = await amqp.connect(url);
  const ch = await connection.createChannel();
  await ch.assertQueue('node.blocked', { durable: false, exclusive: true });
  const isBlocked = once(connection, 'blocked');
  const isFree = once(connection, 'unblocked');
  console.log('ready');
  await word();
  ch.sendToQueue('node.blocked', Buffer.from('x'));
  assert.ok((await within(isBlocked, 'blocked'))[0]);
  console.log('blocked');
  await within(isFree, 'unblocked');
  await connection.close();
}

// x-delayed-message: each message comes once for each of its tries, none before its time, and the
// header comes negated, so that a retry sets it anew.
async function delayed() {
  const COUNT = 200;
  // The broker counts in whole milliseconds of its clock.
  const GRAIN_MS = 1;
  const connection = await amqp.connect(url);
  const ch = await connection.createConfirmChannel();
  const durable = { durable: true };
  await ch.assertExchange('node.later', 'x-delayed-message', { ...durable, arguments: { 'x-delayed-type': 'direct' } });
  await ch.assertQueue('node.due', { ...durable, arguments: { 'x-queue-type': 'quorum' } });
  await ch.bindQueue('node.due', 'node.later', 'due');
  const waiting = new Map();
  const send = (number, attempt, delay) => {
    waiting.set(`${number}.${attempt}`, { delay, from: performance.now() });
    const headers = { 'x-delay': delay, attempt };
    ch.publish('node.later', 'due', Buffer.from(String(number)), { persistent: true, headers });
  };
  for (let number = 0; number < COUNT; number++) send(number, 0, (number * 37) % 1000);
  await ch.waitForConfirms();
  await ch.prefetch(20);
  const inbox = new Inbox();
  const { consumerTag } = await ch.consume('node.due', (item) => inbox.put(item));
  while (waiting.size) {
    const item = await inbox.next(`the messages that wait: ${[...waiting.keys()]}`);
    const number = Number(item.content);
    const { 'x-delay': said, attempt } = item.properties.headers;
    const key = `${number}.${attempt}`;
    const sent = waiting.get(key);
    assert.ok(sent, `${key} came twice`);
    waiting.delete(key);
    const took = performance.now() - sent.from;
    assert.ok(took >= sent.delay - GRAIN_MS, `${key} came after ${took} ms of ${sent.delay}`);
    assert.strictEqual(said, sent.delay ? -sent.delay : 0);
    if (attempt < number % 3) {
      send(number, attempt + 1, 100 * (attempt + 1));
      await ch.waitForConfirms();
    }
    ch.ack(item);
  }
  await ch.cancel(consumerTag);
  assert.strictEqual(inbox.items.length, 0, 'some came twice');
  assert.strictEqual((await ch.checkQueue('node.due')).messageCount, 0);
  await ch.deleteExchange('node.later', { ifUnused: false });
  await connection.close();
}

({ everything, recover, blocked, delayed })[scenario]().then(
  () => { console.log('done'); process.exit(0); },
  (error) => { console.error(error); process.exit(1); },
);
