// All verbs of the Messages service by a client that is not Google's C core: node verbs.js ADDRESS
const assert = require("assert");
const grpc = require("@grpc/grpc-js");
const definition = require("@grpc/proto-loader").loadSync(
  "protos/brokerd/rpc/v1/messages.proto", { defaults: true, longs: Number });
const { Messages } = grpc.loadPackageDefinition(definition).brokerd.v1;

const messages = new Messages(process.argv[2], grpc.credentials.createInsecure());
const login = new grpc.Metadata();
login.set("authorization", "Basic " + Buffer.from("guest:guest").toString("base64"));

// A unary call; the answer, or the status code.
const call = (method, request) => new Promise((resolve) =>
  messages[method](request, login, (error, answer) => resolve(error ? error.code : answer)));
const bodies = ({ deliveries }) => deliveries.map(({ body }) => body.toString());

// A Consume call whose answers are taken one after the other.
function consume() {
  const stream = messages.consume(login);
  const answers = [], waiting = [];
  const put = (answer) => (waiting.length ? waiting.shift()(answer) : answers.push(answer));
  stream.on("data", put);
  stream.on("end", () => put(null));
  stream.on("error", (error) => put(error.code));
  const next = () => answers.length ? Promise.resolve(answers.shift())
    : new Promise((resolve) => waiting.push(resolve));
  return { stream, next };
}

async function main() {
  const exchange = { name: "verbs", type: "direct", durable: true };
  await call("declareExchange", exchange);
  const queue = { name: "verbs", durable: true, arguments: { "x-queue-type": { text: "quorum" } } };
  const declared = await call("declareQueue", { queue });
  assert.deepStrictEqual([declared.name, declared.messages], ["verbs", 0]);
  assert.strictEqual(await call("declareQueue", { queue: { ...queue, durable: false } }), grpc.status.INVALID_ARGUMENT);
  await call("bind", { binding: { source: "verbs", destination: "verbs", routingKey: "k" } });

  const publications = [1, 2, 3, 4, 5].map((sequence) => (
    { sequence, exchange: "verbs", routingKey: "k", body: Buffer.from(`m${sequence}`) }));
  const { confirmed, rejected } = await call("publishBatch", { publications });
  assert.deepStrictEqual([confirmed, rejected], [[{ first: 1, last: 5 }], []]);
  assert.strictEqual(await call("publishBatch", { publications: [{ sequence: 1, exchange: "nowhere" }] }), grpc.status.NOT_FOUND);

  const got = await call("get", { queue: "verbs", count: 2 });
  assert.deepStrictEqual([bodies(got), got.messagesLeft], [["m1", "m2"], 3]);
  assert.strictEqual(await call("get", { queue: "nowhere" }), grpc.status.NOT_FOUND);

  const { stream, next } = consume();
  stream.write({ subscribe: { queue: "verbs", credit: 10 } });
  assert.strictEqual((await next()).subscribed.queue, "verbs");
  stream.write({ drain: {} });
  const tags = [], received = [];
  let answer = await next();
  for (; !answer.drained; answer = await next()) {
    received.push(...bodies(answer));
    tags.push(...answer.deliveries.map(({ deliveryTag }) => deliveryTag));
  }
  assert.deepStrictEqual([received, answer.drained.credit], [["m3", "m4", "m5"], 7]);
  stream.write({ settle: { deliveryTags: tags } });
  stream.write({ credit: 4 });
  stream.write({ withdraw: {} });
  assert.strictEqual((await next()).withdrawn.credit, 4);
  stream.write({ cancel: {} });
  assert.ok((await next()).cancelOk);
  stream.end();
  assert.strictEqual(await next(), null);

  await call("publishBatch", { publications: publications.slice(0, 2) });
  assert.deepStrictEqual(await call("purgeQueue", { name: "verbs" }), { messages: 2 });
  await call("unbind", { binding: { source: "verbs", destination: "verbs", routingKey: "k" } });
  const unrouted = [{ ...publications[0], mandatory: true }];
  assert.strictEqual((await call("publishBatch", { publications: unrouted })).returned[0].replyCode, 312);
  assert.deepStrictEqual(await call("deleteQueue", { name: "verbs", ifEmpty: true }), { messages: 0 });
  await call("deleteExchange", { name: "verbs" });
  assert.strictEqual(await call("get", { queue: "verbs" }), grpc.status.NOT_FOUND);
  console.log("all verbs");
  messages.close();
}

main().catch((error) => { console.error(error); process.exit(1); });
