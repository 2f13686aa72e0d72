# The main uses of bunny, each by itself: a line PASS or FAIL per use. Argument: the AMQP port, the HTTP port.
require "bunny"
require "json"
require "net/http"
require "timeout"
require "uri"

PORT = Integer(ARGV.fetch(0, "5672"))
HTTP_PORT = Integer(ARGV.fetch(1, "15672"))
LIMIT_S = 60

def check(holds, what = "does not hold")
  raise what.to_s unless holds
end

def until_true(seconds = 10, what = "in time")
  limit = Process.clock_gettime(Process::CLOCK_MONOTONIC) + seconds
  until (found = yield)
    raise "not #{what}" if Process.clock_gettime(Process::CLOCK_MONOTONIC) > limit
    sleep 0.02
  end
  found
end

def connect(**more)
  Bunny.new(**{ host: "127.0.0.1", port: PORT, log_level: :fatal, automatically_recover: false }.merge(more)).tap(&:start)
end

def raises(*kinds)
  yield
rescue *kinds => e
  e
else
  raise "no #{kinds.join(' or ')}"
end

def api(kind, path, body = nil)
  uri = URI("http://127.0.0.1:#{HTTP_PORT}/api/#{path}")
  asked = Net::HTTP.const_get(kind).new(uri)
  asked.basic_auth("guest", "guest")
  if body
    asked.body = JSON.generate(body)
    asked["Content-Type"] = "application/json"
  end
  Net::HTTP.start(uri.host, uri.port) { |http| http.request(asked) }
end

# What the server said when it closed a channel after what has no answer.
def close_text(channel)
  until_true { channel.closed? }
  raises(Bunny::ChannelAlreadyClosed) { channel.queue("", exclusive: true) }.message
end

USES = {}
def use(name, &block)
  USES[name] = block
end

# A name for what a use declares.
def name
  "bunny.#{Process.pid}.#{rand(1 << 40)}"
end

use("connection: server properties, heartbeat, frame and channel limits") do |c, _|
  check c.server_properties["product"].is_a?(String)
  check c.open?
  check c.heartbeat.is_a?(Integer)
  check c.channel_max.positive?
  check c.frame_max.positive?
  check c.server_capabilities["consumer_cancel_notify"] == true
end
use("connection: wrong password") { raises(Bunny::AuthenticationFailureError, Bunny::PossibleAuthenticationFailureError) { connect(username: "guest", password: "wrong") } }
use("connection: unknown vhost") do
  # Whether start says it depends on which of bunny's threads is first.
  c = Bunny.new(host: "127.0.0.1", port: PORT, vhost: "no-such-vhost", log_level: :fatal, automatically_recover: false)
  begin
    c.start
    until_true { c.closed? || c.session_error_handler.any? }
  rescue Bunny::Exception
    nil
  end
  check !c.open? || c.session_error_handler.any?
end
use("connection: by URI") do
  c = Bunny.new("amqp://guest:guest@127.0.0.1:#{PORT}/%2F?heartbeat=7", automatically_recover: false).tap(&:start)
  check c.heartbeat == 7
  c.close
  check c.closed?
end
use("connection: name is to be seen") do
  c = connect(connection_name: "my name")
  until_true { JSON.parse(api("Get", "connections").body).any? { |it| it.dig("client_properties", "connection_name") == "my name" || it["user_provided_name"] == "my name" } }
  c.close
end
use("connection: heartbeat of 1 s, idle for 6 s") do
  c = connect(heartbeat: 1)
  ch = c.create_channel
  sleep 6
  check c.open?
  check ch.queue("", exclusive: true).name.start_with?("amq.gen-")
  c.close
end
use("connection: blocked and unblocked are offered") { |c, _| check c.server_capabilities["connection.blocked"] == true }
use("connection: update-secret") do
  c = connect
  c.update_secret("guest", "time")
  check c.open?
  c.close
end
use("connection: existence of queues and exchanges") do |c, ch|
  q = ch.queue(name)
  check c.queue_exists?(q.name)
  check !c.queue_exists?("no-such-queue")
  check c.exchange_exists?("amq.direct")
  check !c.exchange_exists?("no-such-exchange")
  q.delete
end
use("channel: 1000 opened and closed") do |c, _|
  made = Array.new(1000) { c.create_channel }
  check made.map(&:id).uniq.size == 1000
  made.each(&:close)
end
use("channel: reopened after an error") do |c, _|
  ch = c.create_channel
  raises(Bunny::NotFound) { ch.queue("no-such-queue", passive: true) }
  check ch.closed?
  ch.open
  check ch.open?
  ch.close
end
use("channel: with_channel closes") do |c, _|
  kept = nil
  c.with_channel { |ch| kept = ch }
  check kept.closed?
end
use("channel: error is told to on_error") do |c, _|
  ch = c.create_channel
  heard = Queue.new
  ch.on_error { |_, close| heard << close }
  ch.ack(4711) # unknown tag
  close = Timeout.timeout(10) { heard.pop }
  check close.reply_code == 406, close.reply_code
  check close.reply_text.include?("unknown delivery tag"), close.reply_text
end
use("channel: flow") { |_, ch| check ch.flow(true).is_a?(AMQ::Protocol::Channel::FlowOk) }
use("queue: server-named, properties") do |_, ch|
  q = ch.queue("", exclusive: true)
  check q.server_named?
  check q.exclusive?
  check q.message_count.zero?
  check q.consumer_count.zero?
  q.delete
end
use("queue: durable, declared again") do |_, ch|
  n = name
  ch.queue(n, durable: true)
  ch.queue(n, durable: true).delete
end
use("queue: declared with other properties") do |c, ch|
  n = name
  q = ch.queue(n, durable: true)
  other = c.create_channel
  e = raises(Bunny::PreconditionFailed) { other.queue(n, durable: false) }
  check e.message.include?("inequivalent arg 'durable'"), e.message
  check other.closed?
  q.delete
end
use("queue: declared with another type") do |c, ch|
  n = name
  q = ch.durable_queue(n, "quorum")
  e = raises(Bunny::PreconditionFailed) { c.create_channel.durable_queue(n, "classic") }
  check e.message.include?("x-queue-type"), e.message
  q.delete
end
use("queue: quorum, confirmed and read") do |c, _|
  ch = c.create_channel
  q = ch.quorum_queue(name)
  ch.confirm_select
  ch.default_exchange.publish("x", routing_key: q.name, persistent: true)
  check ch.wait_for_confirms
  until_true { q.message_count == 1 }
  _, _, body = q.pop
  check body == "x"
  q.delete
  ch.close
end
use("queue: exclusive ones are locked for others") do |_, ch|
  q = ch.queue(name, exclusive: true)
  c2 = connect
  raises(Bunny::ResourceLocked) { c2.create_channel.queue(q.name, passive: true) }
  c2.close
  q.delete
end
use("queue: exclusive ones go with their connection") do |_, ch|
  n = name
  c2 = connect
  c2.create_channel.queue(n, exclusive: true)
  c2.close
  ch.queue(n, exclusive: true).delete
end
use("queue: x-message-ttl") do |_, ch|
  q = ch.queue("", exclusive: true, arguments: { "x-message-ttl" => 100 })
  3.times { q.publish("x") }
  until_true { q.message_count.zero? }
end
use("queue: x-expires") do |c, ch|
  n = name
  ch.queue(n, durable: true, arguments: { "x-expires" => 200 })
  sleep 0.5 # each look at it would be a use
  check !c.queue_exists?(n)
end
use("queue: x-max-length drops the head") do |_, ch|
  q = ch.queue("", exclusive: true, arguments: { "x-max-length" => 2 })
  5.times { |i| q.publish(i.to_s) }
  until_true { q.message_count == 2 }
  check [q.pop, q.pop].map(&:last) == %w[3 4]
end
use("queue: reject-publish") do |c, _|
  ch = c.create_channel
  q = ch.queue("", exclusive: true, arguments: { "x-max-length" => 1, "x-overflow" => "reject-publish" })
  ch.confirm_select
  3.times { q.publish("x") }
  check ch.wait_for_confirms == false
  check !ch.nacked_set.empty?
  ch.close
end
use("queue: priorities") do |_, ch|
  q = ch.queue("", exclusive: true, arguments: { "x-max-priority" => 5 })
  [1, 5, 3].each { |p| q.publish(p.to_s, priority: p) }
  until_true { q.message_count == 3 }
  check Array.new(3) { q.pop.last } == %w[5 3 1]
end
use("queue: bad arguments") do |c, _|
  raises(Bunny::PreconditionFailed) { c.create_channel.queue("", exclusive: true, arguments: { "x-message-ttl" => -1 }) }
  raises(Bunny::PreconditionFailed) { c.create_channel.queue("", exclusive: true, arguments: { "x-max-length" => "many" }) }
end
use("queue: amq. is refused") { |c, _| raises(Bunny::AccessRefused) { c.create_channel.queue("amq.mine") } }
use("queue: purge") do |_, ch|
  q = ch.queue("", exclusive: true)
  10.times { q.publish("x") }
  until_true { q.message_count == 10 }
  q.purge
  check q.message_count.zero?
end
use("queue: delete if empty, if unused") do |c, ch|
  n = name
  q = ch.queue(n, durable: true)
  q.publish("x")
  until_true { q.message_count == 1 }
  raises(Bunny::PreconditionFailed) { c.create_channel.queue_delete(n, if_empty: true) }
  q.purge
  consumer = q.subscribe { |*| }
  raises(Bunny::PreconditionFailed) { c.create_channel.queue_delete(n, if_unused: true) }
  consumer.cancel
  q.delete(if_empty: true, if_unused: true)
  check !c.queue_exists?(n)
  ch.queue_delete(n) # what is not there is no error
end
use("queue: bind and unbind") do |_, ch|
  q = ch.queue("", exclusive: true)
  x = ch.topic(name, auto_delete: true)
  q.bind(x, routing_key: "a.#")
  x.publish("1", routing_key: "a.b.c")
  until_true { q.message_count == 1 }
  q.unbind(x, routing_key: "a.#")
end
use("queue: bind to what is missing") do |c, _|
  ch = c.create_channel
  q = ch.queue("", exclusive: true)
  raises(Bunny::NotFound) { q.bind("no-such-exchange") }
end
use("exchange: all types") do |_, ch|
  %w[direct fanout topic headers].each do |type|
    x = ch.exchange(name, type: type, durable: true)
    check x.durable?
    x.delete
  end
end
use("exchange: unknown type, other type, predeclared") do |c, ch|
  c2 = connect(continuation_timeout: 2000)
  raises(Bunny::Exception, Timeout::Error) { c2.create_channel.exchange(name, type: "no-such-type") }
  n = name
  x = ch.direct(n)
  raises(Bunny::PreconditionFailed) { c.create_channel.fanout(n) }
  x.delete
  raises(Bunny::AccessRefused) { c.create_channel.fanout("amq.new") }
  check c.create_channel.fanout("amq.fanout").predeclared?
end
use("exchange: headers, all and any") do |_, ch|
  x = ch.headers(name, auto_delete: true)
  all, any = Array.new(2) { ch.queue("", exclusive: true) }
  all.bind(x, arguments: { "os" => "linux", "cores" => 8, "x-match" => "all" })
  any.bind(x, arguments: { "os" => "osx", "cores" => 4, "x-match" => "any" })
  x.publish("1", headers: { "os" => "linux", "cores" => 8 })
  x.publish("2", headers: { "os" => "osx" })
  x.publish("3", headers: { "os" => "linux", "cores" => 4 })
  until_true { all.message_count == 1 && any.message_count == 2 }
end
use("exchange: bound to another, unbound") do |_, ch|
  from = ch.fanout(name)
  to = ch.fanout(name)
  q = ch.queue("", exclusive: true).bind(to)
  to.bind(from)
  from.publish("x")
  until_true { q.message_count == 1 }
  to.unbind(from)
  from.publish("y")
  ch.default_exchange.publish("z", routing_key: q.name)
  until_true { q.message_count == 2 }
  sleep 0.2
  check q.message_count == 2
  [from, to].each(&:delete)
end
use("exchange: alternate exchange") do |_, ch|
  other = ch.fanout(name)
  x = ch.direct(name, arguments: { "alternate-exchange" => other.name })
  q = ch.queue("", exclusive: true).bind(other)
  x.publish("x", routing_key: "nowhere")
  until_true { q.message_count == 1 }
  [x, other].each(&:delete)
end
use("exchange: internal") do |c, _|
  ch = c.create_channel
  x = ch.direct(name, internal: true, auto_delete: false)
  x.publish("x")
  check close_text(ch).include?("ACCESS_REFUSED")
  c.create_channel.exchange_delete(x.name)
end
use("exchange: delete if unused") do |c, ch|
  x = ch.fanout(name)
  q = ch.queue("", exclusive: true).bind(x)
  raises(Bunny::PreconditionFailed) { c.create_channel.exchange_delete(x.name, if_unused: true) }
  q.unbind(x)
  x.delete(if_unused: true)
end
use("publish: all properties") do |_, ch|
  q = ch.queue("", exclusive: true)
  now = Time.now
  given = { app_id: "a", priority: 3, type: "t", timestamp: now.to_i, correlation_id: "c", message_id: "m", reply_to: "r",
            content_type: "text/plain", content_encoding: "zip", expiration: "60000", user_id: "guest", persistent: true,
            headers: { "s" => "t", "i" => 7, "big" => 1 << 40, "f" => 1.5, "b" => true, "n" => nil, "l" => [1, "two"], "h" => { "x" => { "y" => 1 } }, "at" => now } }
  q.publish("x", **given)
  info, props, = until_true { (r = q.pop).first && r }
  check info.routing_key == q.name
  %i[app_id priority type correlation_id message_id reply_to content_type content_encoding expiration user_id].each { |k| check props.send(k) == given[k], k }
  check props.delivery_mode == 2
  check props.timestamp.to_i == now.to_i
  %w[s i big f b n l h].each { |k| check props.headers[k] == given[:headers][k], k }
  check props.headers["at"].to_i == now.to_i
end
use("publish: sizes from 0 to 8 MiB") do |_, ch|
  q = ch.queue("", exclusive: true)
  [0, 1, 131_064, 131_072, 131_073, 1 << 20, 8 << 20].each do |size|
    q.publish("a" * size)
    _, _, body = until_true { (r = q.pop).first && r }
    check body.bytesize == size, size
  end
end
use("publish: user id of another") do |c, _|
  ch = c.create_channel
  ch.default_exchange.publish("x", routing_key: "nowhere", user_id: "other")
  check close_text(ch).include?("PRECONDITION_FAILED")
end
use("publish: to an exchange that is missing") do |c, _|
  ch = c.create_channel
  ch.exchange("no-such-exchange", no_declare: true, type: "direct").publish("x")
  check close_text(ch).include?("NOT_FOUND")
end
use("publish: CC and BCC") do |_, ch|
  a, b, d = Array.new(3) { ch.queue("", exclusive: true) }
  ch.default_exchange.publish("x", routing_key: a.name, headers: { "CC" => [b.name], "BCC" => [d.name] })
  until_true { [a, b, d].all? { |q| q.message_count == 1 } }
  _, props, = d.pop
  check props.headers.key?("CC") && !props.headers.key?("BCC")
end
use("publish: mandatory is returned") do |_, ch|
  heard = Queue.new
  x = ch.default_exchange
  x.on_return { |info, props, body| heard << [info, props, body] }
  x.publish("x", routing_key: name, mandatory: true, message_id: "7")
  info, props, body = Timeout.timeout(10) { heard.pop }
  check info.reply_code == 312 && info.reply_text == "NO_ROUTE", info.reply_text
  check props.message_id == "7" && body == "x"
end
use("confirms: thousand, one by one and together") do |c, _|
  ch = c.create_channel
  q = ch.queue("", exclusive: true)
  ch.confirm_select
  1000.times { q.publish("x") }
  check ch.wait_for_confirms
  check ch.unconfirmed_set.empty?
  10.times { q.publish("x"); check ch.wait_for_confirms }
  check q.message_count == 1010
  ch.close
end
use("confirms: tracked by the client, with back pressure") do |c, _|
  ch = c.create_channel
  q = ch.queue("", exclusive: true)
  ch.confirm_select(tracking: true, outstanding_limit: 50)
  500.times { q.publish("x") }
  check ch.wait_for_confirms
  check q.message_count == 500
  ch.close
end
use("confirms: unroutable and mandatory") do |c, _|
  ch = c.create_channel
  ch.confirm_select
  ch.default_exchange.publish("x", routing_key: name, mandatory: true)
  ch.default_exchange.publish("x", routing_key: name)
  check ch.wait_for_confirms
  ch.close
end
use("consume: automatic acknowledgement") do |c, ch|
  q = ch.queue("", exclusive: true)
  heard = Queue.new
  q.subscribe { |_, _, body| heard << body }
  100.times { |i| q.publish(i.to_s) }
  check Timeout.timeout(10) { Array.new(100) { heard.pop } } == (0...100).map(&:to_s)
end
use("consume: tag, cancelled and deliveries end") do |_, ch|
  q = ch.queue("", exclusive: true)
  consumer = q.subscribe(manual_ack: true) { |*| }
  check !consumer.consumer_tag.empty?
  until_true { q.consumer_count == 1 }
  check consumer.cancel.is_a?(AMQ::Protocol::Basic::CancelOk)
  check q.consumer_count.zero?
end
use("consume: same tag twice") do |_, _|
  c = connect(continuation_timeout: 2000)
  q = c.create_channel.queue("", exclusive: true)
  q.subscribe(consumer_tag: "t") { |*| }
  raises(Bunny::Exception, Timeout::Error) { q.subscribe(consumer_tag: "t") { |*| } }
  until_true { !c.open? || c.session_error_handler.any? }
end
use("consume: exclusive") do |c, ch|
  q = ch.queue(name, durable: true)
  q.subscribe(exclusive: true) { |*| }
  raises(Bunny::AccessRefused) { c.create_channel.queue(q.name, durable: true).subscribe { |*| } }
  q.delete
end
use("consume: cancel by the server when the queue goes") do |c, _|
  ch = c.create_channel
  q = ch.queue(name, durable: true)
  heard = Queue.new
  q.subscribe(on_cancellation: ->(m) { heard << m }) { |*| }
  c.create_channel.queue_delete(q.name)
  Timeout.timeout(10) { heard.pop }
  ch.close
end
use("consume: prefetch") do |c, _|
  ch = c.create_channel
  ch.prefetch(3)
  q = ch.queue("", exclusive: true)
  got = Queue.new
  q.subscribe(manual_ack: true) { |info, *| got << info.delivery_tag }
  10.times { q.publish("x") }
  until_true { got.size == 3 }
  sleep 0.3
  check got.size == 3, got.size
  ch.ack(3, true)
  until_true { got.size == 6 }
  ch.close
end
use("consume: prefetch of the channel (global)") do |c, _|
  ch = c.create_channel
  ch.prefetch(3, true)
  q = ch.queue("", exclusive: true)
  got = Queue.new
  2.times { q.subscribe(manual_ack: true) { |info, *| got << info.delivery_tag } }
  10.times { q.publish("x") }
  sleep 0.5
  check got.size == 3, got.size
  ch.close
end
use("consume: priorities") do |c, ch|
  q = ch.queue("", exclusive: true)
  low, high = Queue.new, Queue.new
  q.subscribe(arguments: { "x-priority" => 0 }) { low << 1 }
  q.subscribe(arguments: { "x-priority" => 10 }) { high << 1 }
  50.times { q.publish("x") }
  until_true { high.size + low.size == 50 }
  check low.empty?, low.size
end
use("ack: one, multiple, all") do |c, _|
  ch = c.create_channel
  q = ch.queue("", exclusive: true)
  6.times { q.publish("x") }
  until_true { q.message_count == 6 }
  tags = Array.new(6) { q.pop(manual_ack: true).first.delivery_tag }
  ch.ack(tags[0])
  ch.ack(tags[3], true)
  ch.ack(0, true)
  ch.close
  check c.create_channel.queue(q.name, passive: true).message_count.zero?
end
use("reject and nack: requeue, order, redelivered") do |_, ch|
  q = ch.queue("", exclusive: true)
  3.times { |i| q.publish(i.to_s) }
  until_true { q.message_count == 3 }
  info, _, body = q.pop(manual_ack: true)
  check body == "0" && !info.redelivered?
  ch.reject(info.delivery_tag, true)
  info, _, body = until_true { (r = q.pop(manual_ack: true)).first && r }
  check body == "0" && info.redelivered?
  other, = q.pop(manual_ack: true)
  ch.nack(other.delivery_tag, true, true)
  until_true { q.message_count == 3 }
  info, = q.pop(manual_ack: true)
  ch.nack(info.delivery_tag, false, false)
  until_true { q.message_count == 2 }
end
use("recover with requeue") do |c, _|
  ch = c.create_channel
  q = ch.queue("", exclusive: true)
  q.publish("x")
  until_true { q.message_count == 1 }
  q.pop(manual_ack: true)
  ch.recover
  info, = until_true { (r = q.pop).first && r }
  check info.redelivered?
  ch.close
end
use("requeued when the channel closes") do |c, ch|
  q = ch.queue("", exclusive: true)
  other = c.create_channel
  q.publish("x")
  until_true { q.message_count == 1 }
  other.basic_get(q.name, manual_ack: true)
  other.close
  info, = until_true { (r = q.pop).first && r }
  check info.redelivered?
end
use("get: of an empty queue; consumer acknowledges twice") do |c, ch|
  check ch.queue("", exclusive: true).pop == [nil, nil, nil]
end
use("dead letter: rejected, expired, maxlen; x-death") do |_, ch|
  x = ch.fanout(name)
  dead = ch.queue("", exclusive: true).bind(x)
  { "rejected" => {}, "expired" => { "x-message-ttl" => 50 }, "maxlen" => { "x-max-length" => 0 } }.each do |reason, more|
    q = ch.queue("", exclusive: true, arguments: { "x-dead-letter-exchange" => x.name }.merge(more))
    q.publish("x", headers: { "mine" => 1 })
    if reason == "rejected"
      info, = until_true { (r = q.pop(manual_ack: true)).first && r }
      ch.reject(info.delivery_tag)
    end
    _, props, = until_true { (r = dead.pop).first && r }
    death = props.headers["x-death"].first
    check death["reason"] == reason && death["queue"] == q.name && death["count"] == 1, death
    check props.headers["mine"] == 1
    check props.headers["x-first-death-reason"] == reason
  end
  x.delete
end
use("dead letter: by another key") do |_, ch|
  dead = ch.queue("", exclusive: true)
  q = ch.queue("", exclusive: true, arguments: { "x-dead-letter-exchange" => "", "x-dead-letter-routing-key" => dead.name, "x-message-ttl" => 20 })
  q.publish("x")
  until_true { dead.message_count == 1 }
end
use("quorum queue: delivery limit and dead letter") do |_, ch|
  dead = ch.queue("", exclusive: true)
  q = ch.quorum_queue(name, arguments: { "x-delivery-limit" => 2, "x-dead-letter-exchange" => "", "x-dead-letter-routing-key" => dead.name })
  q.publish("x")
  3.times do
    info, = until_true { (r = q.pop(manual_ack: true)).first && r }
    ch.reject(info.delivery_tag, true)
  end
  until_true { dead.message_count == 1 }
  q.delete
end
use("single active consumer") do |_, ch|
  q = ch.queue(name, durable: true, arguments: { "x-single-active-consumer" => true })
  one, two = Queue.new, Queue.new
  first = q.subscribe { one << 1 }
  q.subscribe { two << 1 }
  10.times { q.publish("x") }
  until_true { one.size == 10 }
  check two.empty?
  first.cancel
  q.publish("y")
  until_true { two.size == 1 }
  q.delete
end
use("transactions: commit and rollback") do |c, _|
  ch = c.create_channel
  q = ch.queue("", exclusive: true)
  ch.tx_select
  q.publish("x")
  check c.create_channel.queue(q.name, passive: true).message_count.zero?
  ch.tx_commit
  until_true { q.message_count == 1 }
  q.publish("x")
  ch.tx_rollback
  check q.message_count == 1
  ch.close
end
use("transactions: not on a channel with confirms") do |c, _|
  ch = c.create_channel
  ch.confirm_select
  raises(Bunny::PreconditionFailed, Bunny::ChannelLevelException) { ch.tx_select }
end
use("direct reply-to") do |c, ch|
  q = ch.queue("", exclusive: true)
  q.subscribe { |_, props, body| ch.default_exchange.publish(body * 2, routing_key: props.reply_to, correlation_id: props.correlation_id) }
  asks = c.create_channel
  heard = Queue.new
  asks.basic_consume("amq.rabbitmq.reply-to", "", true) { |_, props, body| heard << [props.correlation_id, body] }
  asks.default_exchange.publish("ab", routing_key: q.name, reply_to: "amq.rabbitmq.reply-to", correlation_id: "9")
  check Timeout.timeout(10) { heard.pop } == %w[9 abab]
  asks.close
end
use("default queue type of a vhost") do
  v = name
  api("Put", "vhosts/#{v}", { "default_queue_type" => "quorum" })
  api("Put", "permissions/#{v}/guest", { "configure" => ".*", "write" => ".*", "read" => ".*" })
  c = connect(vhost: v)
  q = c.create_channel.queue("q", durable: true)
  check JSON.parse(api("Get", "queues/#{v}/#{q.name}").body)["type"] == "quorum"
  c.close
  api("Delete", "vhosts/#{v}")
end
use("limit of connections, of queues of a vhost") do
  v = name
  api("Put", "vhosts/#{v}", {})
  api("Put", "permissions/#{v}/guest", { "configure" => ".*", "write" => ".*", "read" => ".*" })
  api("Put", "vhost-limits/#{v}/max-queues", { "value" => 1 })
  c = connect(vhost: v)
  c.create_channel.queue("one", durable: true)
  raises(Bunny::PreconditionFailed, Bunny::ConnectionLevelException, Bunny::NotAllowedError) { c.create_channel.queue("two", durable: true) }
  api("Delete", "vhosts/#{v}")
end
use("recovery: connection, channel, queue, binding, consumer, confirms") do
  c = connect(automatically_recover: true, network_recovery_interval: 0.2, connection_name: "cut me", heartbeat: 4)
  ch = c.create_channel
  ch.confirm_select
  ch.prefetch(5)
  x = ch.topic(name, durable: true)
  q = ch.queue(name, durable: true).bind(x, routing_key: "#")
  own = ch.queue("", exclusive: true).bind(x, routing_key: "#")
  first = own.name
  heard, mine = Queue.new, Queue.new
  q.subscribe(manual_ack: true) { |info, _, body| heard << body; ch.ack(info.delivery_tag) }
  own.subscribe { |_, _, body| mine << body }
  closed = until_true(20) do
    found = JSON.parse(api("Get", "connections").body).find { |it| it.dig("client_properties", "connection_name") == "cut me" }
    found && api("Delete", "connections/#{URI.encode_www_form_component(found['name']).gsub('+', '%20')}").code.to_i == 204
  end
  check closed
  until_true(20) { own.name != first || !c.open? }
  until_true(20) { c.open? && ch.open? }
  until_true(20) do
    begin
      x.publish("after", routing_key: "k")
      sleep 0.2
    rescue StandardError
      sleep 0.1
    end
    !heard.empty? && !mine.empty?
  end
  check ch.wait_for_confirms
  q.delete
  x.delete
  c.close
end
use("threads: eight publishers, four consumers") do |c, _|
  q = c.create_channel.queue(name, durable: true)
  heard = Queue.new
  4.times { c.create_channel(nil, 2).queue(q.name, durable: true).subscribe(manual_ack: true) { |info, _, body| heard << body; info.channel.ack(info.delivery_tag) } }
  8.times.map do |n|
    Thread.new do
      ch = c.create_channel
      ch.confirm_select
      200.times { |i| ch.default_exchange.publish("#{n}.#{i}", routing_key: q.name) }
      check ch.wait_for_confirms
    end
  end.each(&:join)
  check Timeout.timeout(30) { Array.new(1600) { heard.pop } }.uniq.size == 1600
  q.delete
end

Thread.report_on_exception = false
failed = 0
USES.each do |title, block|
  c = nil
  begin
    Timeout.timeout(LIMIT_S) do
      c = connect
      block.call(c, c.create_channel)
    end
    puts "PASS #{title}"
  rescue StandardError, Timeout::Error => e
    failed += 1
    puts "FAIL #{title} | #{e.class}: #{e.message.to_s.lines.first.to_s.strip} (#{e.backtrace&.find { |l| l.include?(__FILE__) }&.slice(/:\d+/)})"
  ensure
    begin
      Timeout.timeout(5) { c&.close if c&.open? }
    rescue StandardError, Timeout::Error
      nil
    end
  end
  $stdout.flush
end
puts "#{USES.size - failed} of #{USES.size}"
exit!(failed.zero? ? 0 : 1)
