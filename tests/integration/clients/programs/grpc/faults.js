// What goes wrong, and what a client is told: node faults.js ADDRESS, a member with a vhost "ü".
const assert = require("assert");
const grpc = require("@grpc/grpc-js");
const definition = require("@grpc/proto-loader").loadSync(
  "protos/brokerd/rpc/v1/messages.proto", { defaults: true, longs: Number });
const service = grpc.loadPackageDefinition(definition).brokerd.v1.Messages;
const { status } = grpc;

const options = { "grpc.max_receive_message_length": -1, "grpc.use_local_subchannel_pool": 1 };
const connect = () => new service(process.argv[2], grpc.credentials.createInsecure(), options);
const messages = connect();
function login(vhost) {
  const found = new grpc.Metadata();
  found.set("authorization", "Basic " + Buffer.from("guest:guest").toString("base64"));
  if (vhost) found.set("vhost-bin", Buffer.from(vhost));
  return found;
}
// A unary call; the answer, or [status, text].
const call = (method, request, vhost) => new Promise((resolve) =>
  messages[method](request, login(vhost), (error, answer) => resolve(error ? [error.code, error.details] : answer)));
const ended = (stream) => new Promise((resolve) => stream.on("error", resolve).on("end", () => resolve(null)));
const queue = (name) => call("declareQueue", { queue: { name, durable: true } });
const publish = (routingKey, more, vhost) => call("publishBatch", { publications: [{ sequence: 1, routingKey, ...more }] }, vhost);

function consume(client, subscribe) {
  const stream = client.consume(login());
  const answers = [];
  stream.answers = answers;
  stream.write({ subscribe });
  return stream;
}

// The call beyond those of a connection, and the same on another connection.
async function tooManyCalls() {
  const client = connect();
  const streams = [...Array(1000)].map(() => client.publish(login()));
  await Promise.all(streams.map((stream) => new Promise((resolve) => stream.on("metadata", resolve))));
  const error = await ended(client.publish(login()).resume());
  assert.strictEqual(error.code, status.RESOURCE_EXHAUSTED, error.details);
  assert.match(error.details, /open another one/);
  streams.forEach((stream) => { stream.on("error", () => {}); stream.cancel(); });
  client.close();
}

// A body that AMQP would not take.
async function tooLarge() {
  const most = 16 * 1024 * 1024;
  await queue("large");
  const [code, text] = await publish("large", { body: Buffer.alloc(most + 1) });
  assert.deepStrictEqual([code, /larger than configured max size/.test(text)], [status.INVALID_ARGUMENT, true]);
  assert.strictEqual((await publish("large", { body: Buffer.alloc(most) })).confirmed.length, 1);
  assert.strictEqual((await call("get", { queue: "large" })).deliveries[0].body.length, most);
  await call("deleteQueue", { name: "large" });
}

// Why a subscription ended.
async function cancelled() {
  await queue("going");
  const stream = consume(messages, { queue: "going", credit: 1 });
  stream.on("data", (answer) => {
    stream.answers.push(answer);
    if (answer.subscribed) call("deleteQueue", { name: "going" });
  });
  assert.strictEqual(await ended(stream), null);
  assert.strictEqual(stream.answers.pop().cancelled, "queue deleted");
}

// Octets that are no text, an explicit priority of 0, and a vhost that is not ASCII.
async function octets() {
  const id = Buffer.from([0xff, 0x41]), vhost = "ü";
  const made = await call("declareQueue", { queue: { name: "octets", durable: true } }, vhost);
  assert.strictEqual(made.name, "octets");
  const properties = { raw: { message_id: id }, priority: 0, clusterId: "c" };
  assert.strictEqual((await publish("octets", { properties }, vhost)).confirmed.length, 1);
  const [found] = (await call("get", { queue: "octets" }, vhost)).deliveries;
  assert.deepStrictEqual([...found.properties.raw.message_id], [...id]);
  assert.deepStrictEqual([found.properties.priority, found.properties.clusterId], [0, "c"]);
  assert.strictEqual((await call("get", { queue: "octets" }))[0], status.NOT_FOUND);
}

// Bytes that are no request, and settlements that say nothing.
async function mistakes() {
  const path = "/brokerd.v1.Messages/PublishBatch";
  const error = await new Promise((resolve) => messages.makeUnaryRequest(
    path, (octets) => octets, (octets) => octets, Buffer.from([0x0a, 0xff]), login(), resolve));
  assert.strictEqual(error.code, status.INVALID_ARGUMENT, error.details);
  await queue("mistakes");
  for (const [settle, code] of [
    [{ multiple: true }, status.INVALID_ARGUMENT],
    [{ deliveryTags: [7] }, status.FAILED_PRECONDITION],
  ]) {
    const stream = consume(messages, { queue: "mistakes", credit: 1 });
    stream.on("data", () => stream.write({ settle }));
    assert.strictEqual((await ended(stream)).code, code);
  }
  await call("deleteQueue", { name: "mistakes" });
}

(async () => {
  for (const each of [tooManyCalls, tooLarge, cancelled, octets, mistakes]) {
    await each();
    console.log(each.name);
  }
  process.exit(0);
})().catch((error) => { console.error(error); process.exit(1); });
