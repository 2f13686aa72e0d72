// Publishes until told to end, going to the next member whenever a call fails, and counts what is
// confirmed: node load.js QUEUE ADDRESS...; an end of stdin is the word to end.
const grpc = require("@grpc/grpc-js");
const definition = require("@grpc/proto-loader").loadSync(
  "protos/brokerd/rpc/v1/messages.proto", { defaults: true, longs: Number });
const { Messages } = grpc.loadPackageDefinition(definition).brokerd.v1;

const [queue, ...addresses] = process.argv.slice(2);
const login = new grpc.Metadata();
login.set("authorization", "Basic " + Buffer.from("guest:guest").toString("base64"));
const clients = addresses.map((address) => new Messages(address, grpc.credentials.createInsecure()));
const UNARY = 8, STREAMS = 2, IN_FLIGHT = 200, PER_REQUEST = 20;
const statuses = {}, counts = {};
let ending = false;
process.stdin.on("end", () => { ending = true; }).resume();

const pause = () => new Promise((resolve) => setTimeout(resolve, 50));
function failed({ code, details }) {
  const status = `${grpc.status[code]}: ${details.split(/[.;]/)[0]}`;
  statuses[status] = (statuses[status] || 0) + 1;
  if (code !== grpc.status.UNAVAILABLE) throw new Error(status);
  return pause();
}

async function unary(name, at) {
  for (counts[name] = 0; !ending; counts[name]++) {
    const publications = [{ sequence: 1, routingKey: queue, body: Buffer.from(`${name}-${counts[name]}`) }];
    for (let error = true; error; at++) {
      const client = clients[at % clients.length];
      error = await new Promise((resolve) => client.publishBatch({ publications }, login, resolve));
      if (!error) break;
      await failed(error);
    }
  }
}

async function stream(name, at) {
  let made = 0, unconfirmed = [];
  for (; !ending || unconfirmed.length; at++) {
    // By sequence, which begin anew with each call.
    const waiting = new Map();
    const call = clients[at % clients.length].publish(login);
    let last = 0;
    const send = (numbers) => {
      if (!numbers.length) return;
      const publications = numbers.map((number) => {
        waiting.set(++last, number);
        return { sequence: last, routingKey: queue, body: Buffer.from(`${name}-${number}`) };
      });
      call.write({ publications });
    };
    const more = () => {
      while (!ending && waiting.size + PER_REQUEST <= IN_FLIGHT) {
        send([...Array(PER_REQUEST)].map(() => made++));
      }
      if (ending && !waiting.size) call.end();
    };
    const error = await new Promise((resolve) => {
      call.on("error", resolve).on("end", () => resolve(null));
      call.on("data", ({ confirmed }) => {
        for (const { first, last: end } of confirmed) {
          for (let n = first; n <= end; n++) waiting.delete(n);
        }
        more();
      });
      send(unconfirmed);
      more();
    });
    unconfirmed = [...waiting.values()].sort((one, other) => one - other);
    if (error) await failed(error);
  }
  counts[name] = made;
}

const all = [...Array(UNARY).keys()].map((n) => unary(`u${n}`, n));
all.push(...[...Array(STREAMS).keys()].map((n) => stream(`s${n}`, n)));
Promise.all(all).then(() => {
  console.log(JSON.stringify({ counts, statuses }));
  clients.forEach((client) => client.close());
}, (error) => { console.error(error); process.exit(1); });
