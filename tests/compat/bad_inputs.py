"""Bad inputs of all kinds, as bytes on channel 1 of a vhost.

`stock` declares what they meet. What the servers answer stands in test_errors.py. For tests/compat.
"""

from __future__ import annotations

from typing import Any

from brokerd.amqp import methods as M
from brokerd.amqp.properties import BasicProperties
from tests.integration.raw_client import RawClient, frame, publish

VHOST = "stocked"
QUORUM = {"x-queue-type": "quorum"}
SAC = {"x-single-active-consumer": True}
#: Where no other says so: classic, durable.
QUEUES: dict[str, dict[str, Any]] = {
    "there": {"x-max-length": 5},
    "plain": {},
    "filled": {},
    "used": {},
    "expiring": {"x-message-ttl": 1000},
    "dlx": {"x-dead-letter-exchange": "amq.fanout"},
    "quorum": QUORUM,
    "quorum-sac": QUORUM | SAC,
    "exclusively-used": {},
}
EXCHANGES = {"inside": "direct", "by-headers": "headers", "by-topic": "topic", "auto": "fanout"}


def stock(raw: RawClient) -> None:
    """Declare what the bad inputs meet; the client has to stay connected for the consumers."""
    raw.open(1)
    for name, arguments in QUEUES.items():
        raw.declare(1, name, durable=True, arguments=arguments)
    raw.declare(1, "transient")
    raw.declare(1, "going", durable=True, auto_delete=True)
    raw.declare(1, "locked", exclusive=True)
    for name, kind in EXCHANGES.items():
        raw.send(1, M.ExchangeDeclare(0, name, kind, durable=True, internal=name == "inside"))
        raw.expect(M.ExchangeDeclareOk)
    raw.send(1, publish(1, "", "filled", b"x"))
    raw.send(1, M.BasicConsume(0, "used", "c"))
    raw.expect(M.BasicConsumeOk)
    raw.send(1, M.BasicConsume(0, "exclusively-used", "x", exclusive=True))
    raw.expect(M.BasicConsumeOk)


def declare(name: str, arguments: dict[str, Any] | None = None, **flags: Any) -> bytes:
    """Return a declare of a durable queue."""
    return M.QueueDeclare(0, name, arguments=arguments or {}, **({"durable": True} | flags)).encode(
        1
    )


def exchange(name: str, kind: str, arguments: dict[str, Any] | None = None, **flags: Any) -> bytes:
    """Return a declare of a durable exchange."""
    table = arguments or {}
    return M.ExchangeDeclare(0, name, kind, arguments=table, **({"durable": True} | flags)).encode(
        1
    )


def message(**properties: Any) -> bytes:
    """Return a publish with these properties."""
    return publish(1, "amq.direct", "k", b"x", BasicProperties(**properties).encode())


def bind(arguments: dict[str, Any], queue: str = "plain", exchange: str = "by-headers") -> bytes:
    """Return a queue.bind with arguments."""
    return M.QueueBind(0, queue, exchange, "", arguments=arguments).encode(1)


def header(size: int, class_id: int = 60, weight: int = 0, properties: bytes = b"\0\0") -> bytes:
    """Return the payload of a content header."""
    start = class_id.to_bytes(2, "big") + weight.to_bytes(2, "big")
    return start + size.to_bytes(8, "big") + properties


PUBLISH = M.BasicPublish(0, "amq.direct", "k", False, False).encode(1)

#: Rule and words: what is sent on channel 1.
BAD_INPUTS: dict[str, bytes] = {
    "R-ERR-1 publish to a missing exchange": publish(1, "nope", "k", b"x"),
    "R-ERR-2 consume": M.BasicConsume(0, "nope").encode(1),
    "R-ERR-2 get": M.BasicGet(0, "nope").encode(1),
    "R-ERR-2 purge": M.QueuePurge(0, "nope").encode(1),
    "R-BND-2 bind a missing queue": M.QueueBind(0, "nope", "amq.direct", "k").encode(1),
    "R-BND-2 bind to a missing exchange": M.QueueBind(0, "plain", "nope", "k").encode(1),
    "R-BND-2 bind exchanges, no source": M.ExchangeBind(0, "amq.direct", "nope", "k").encode(1),
    "R-BND-2 bind exchanges, no target": M.ExchangeBind(0, "nope", "amq.direct", "k").encode(1),
    "R-ERR-3 passive declare of a queue": declare("nope", passive=True),
    "R-ERR-3 passive declare of an exchange": exchange("nope", "direct", passive=True),
    "R-ERR-4 durable became transient": declare("plain", durable=False),
    "R-ERR-4 transient became durable": declare("transient"),
    "R-ERR-4 auto-delete differs": declare("going"),
    "R-ERR-4 exclusive differs": declare("plain", exclusive=True),
    "R-ERR-5 another max-length": declare("there", {"x-max-length": 6}),
    "R-ERR-5 max-length gone": declare("there"),
    "R-ERR-5 max-length came": declare("plain", {"x-max-length": 6}),
    "R-ERR-5 another ttl": declare("expiring", {"x-message-ttl": 1001}),
    "R-ERR-5 another dlx": declare("dlx", {"x-dead-letter-exchange": "amq.direct"}),
    "R-ERR-6 classic as quorum": declare("plain", QUORUM),
    "R-ERR-6 quorum as classic": declare("quorum"),
    "R-ERR-7 type of exchange": exchange("amq.topic", "fanout"),
    "R-ERR-7 durable of exchange": exchange("amq.topic", "topic", durable=False),
    "R-ERR-7 auto-delete of exchange": exchange("auto", "fanout", auto_delete=True),
    "R-ERR-7 internal of exchange": exchange("inside", "direct"),
    "R-ERR-7 alternate of exchange": exchange("auto", "fanout", {"alternate-exchange": "a"}),
    "R-ERR-8 unknown exchange type": exchange("z", "zz"),
    "R-ERR-9 queue amq.foo": declare("amq.foo"),
    "R-ERR-9 exchange amq.foo": exchange("amq.foo", "direct"),
    "R-ERR-9 delete of amq.direct": M.ExchangeDelete(0, "amq.direct").encode(1),
    "R-ERR-10 bind": M.QueueBind(0, "plain", "", "k").encode(1),
    "R-ERR-10 unbind": M.QueueUnbind(0, "plain", "", "plain").encode(1),
    "R-ERR-10 delete": M.ExchangeDelete(0, "").encode(1),
    "R-ERR-10 declare": exchange("", "direct"),
    "R-ERR-10 exchange.bind": M.ExchangeBind(0, "", "amq.direct", "k").encode(1),
    "R-ERR-11 declare": declare("locked", exclusive=True, durable=False),
    "R-ERR-11 passive": declare("locked", passive=True),
    "R-ERR-11 bind": M.QueueBind(0, "locked", "amq.direct", "k").encode(1),
    "R-ERR-11 unbind": M.QueueUnbind(0, "locked", "amq.direct", "k").encode(1),
    "R-ERR-11 consume": M.BasicConsume(0, "locked").encode(1),
    "R-ERR-11 get": M.BasicGet(0, "locked").encode(1),
    "R-ERR-11 purge": M.QueuePurge(0, "locked").encode(1),
    "R-ERR-11 delete": M.QueueDelete(0, "locked").encode(1),
    "R-ERR-12 second exclusive consumer": M.BasicConsume(0, "exclusively-used").encode(1),
    "R-ERR-12 exclusive beside another": M.BasicConsume(0, "used", exclusive=True).encode(1),
    "R-ERR-13 consumer tag again": M.BasicConsume(0, "plain", "t").encode(1)
    + M.BasicConsume(0, "plain", "t").encode(1),
    "R-ERR-14 ack": M.BasicAck(3, False).encode(1),
    "R-ERR-14 ack multiple": M.BasicAck(3, True).encode(1),
    "R-ERR-14 nack": M.BasicNack(3, False, True).encode(1),
    "R-ERR-14 reject": M.BasicReject(3, True).encode(1),
    "R-ERR-14 ack of 0": M.BasicAck(0, False).encode(1),
    "R-ERR-14 twice": M.BasicGet(0, "filled").encode(1)
    + M.BasicReject(1, True).encode(1)
    + M.BasicAck(1, False).encode(1),
    "R-ERR-15 immediate": M.BasicPublish(0, "amq.direct", "k", False, True).encode(1)
    + frame(2, 1, header(0)),
    "R-ERR-16 prefetch size": M.BasicQos(1, 0, False).encode(1),
    "R-ERR-17 recover without requeue": M.BasicRecover(False).encode(1),
    "R-ERR-17 recover-async without requeue": M.BasicRecoverAsync(False).encode(1),
    "R-ERR-18 commit": M.TxCommit().encode(1),
    "R-ERR-18 rollback": M.TxRollback().encode(1),
    "R-ERR-19 confirm on tx": M.TxSelect().encode(1) + M.ConfirmSelect().encode(1),
    "R-ERR-19 tx on confirm": M.ConfirmSelect().encode(1) + M.TxSelect().encode(1),
    "R-ERR-25 method on an unopened channel": M.BasicQos(0, 1, False).encode(7),
    "R-ERR-25 second open": M.ChannelOpen().encode(1),
    "R-ERR-26 wrong end octet": M.BasicQos(0, 1, False).encode(1)[:-1] + b"\xcd",
    "R-ERR-26 oversize frame": frame(3, 1, bytes(131_073)),
    "R-ERR-26 unknown frame type": frame(7, 1, b"x"),
    "R-ERR-27 body without header": PUBLISH + frame(3, 1, b"x"),
    "R-ERR-27 header of another class": PUBLISH + frame(2, 1, header(1, class_id=50)),
    "R-ERR-27 weight": PUBLISH + frame(2, 1, header(1, weight=1)),
    "R-ERR-27 method within a content": PUBLISH + M.BasicQos(0, 1, False).encode(1),
    "R-ERR-27 method within a body": PUBLISH
    + frame(2, 1, header(5))
    + M.BasicQos(0, 1, False).encode(1),
    "R-ERR-27 header without method": frame(2, 1, header(1)),
    "R-ERR-27 body without method": frame(3, 1, b"x"),
    "R-ERR-28 arguments missing": frame(1, 1, b"\0\x32\0\x0a\0\0\x05pla"),
    "R-ERR-28 arguments in excess": frame(1, 1, b"\0\x3c\0\x50\0\0\0\0\0\0\0\1\0\0"),
    "R-ERR-29 unknown field type": frame(1, 1, b"\0\x32\0\x0a\0\0\1e\2\0\0\0\4\1a?\1"),
    "R-ERR-30 unknown method": frame(1, 1, b"\0\x3c\0\xc8"),
    "R-ERR-30 unknown class": frame(1, 1, b"\0\x63\0\x0a"),
    "R-ERR-31 letters": message(expiration="abc"),
    "R-ERR-31 negative": message(expiration="-1"),
    "R-ERR-31 unit": message(expiration="10s"),
    "R-ERR-31 empty": message(expiration=""),
    "R-ERR-31 too large": message(expiration="315360000001"),
    "R-ERR-32 CC": message(headers={"CC": "k"}),
    "R-ERR-32 BCC": message(headers={"BCC": 1}),
    "R-ERR-33 user-id": message(user_id="bob"),
    "R-PUB-5 delivery mode": message(delivery_mode=3),
    "R-ERR-35 not empty": M.QueueDelete(0, "filled", if_empty=True).encode(1),
    "R-ERR-35 in use": M.QueueDelete(0, "used", if_unused=True).encode(1),
    "R-ERR-35 quorum if-unused": M.QueueDelete(0, "quorum", if_unused=True).encode(1),
    "R-ERR-35 quorum if-empty": M.QueueDelete(0, "quorum", if_empty=True).encode(1),
    "R-ERR-36 ttl -1": declare("e", {"x-message-ttl": -1}),
    "R-ERR-36 ttl text": declare("e", {"x-message-ttl": "s"}),
    "R-ERR-36 ttl too large": declare("e", {"x-message-ttl": 315_360_000_001}),
    "R-ERR-36 expires 0": declare("e", {"x-expires": 0}),
    "R-ERR-36 expires -1": declare("e", {"x-expires": -1}),
    "R-ERR-36 expires text": declare("e", {"x-expires": "s"}),
    "R-Q-6 max-length -1": declare("e", {"x-max-length": -1}),
    "R-Q-6 max-length text": declare("e", {"x-max-length": "5"}),
    "R-Q-6 max-length-bytes -1": declare("e", {"x-max-length-bytes": -1}),
    "R-Q-6 max-priority 256": declare("e", {"x-max-priority": 256}),
    "R-Q-6 max-priority -1": declare("e", {"x-max-priority": -1}),
    "R-Q-6 max-priority text": declare("e", {"x-max-priority": "5"}),
    "R-Q-6 overflow": declare("e", {"x-overflow": "explode"}),
    "R-Q-6 overflow 5": declare("e", {"x-overflow": 5}),
    "R-Q-6 strategy": declare("e", QUORUM | {"x-dead-letter-strategy": "often"}),
    "R-Q-6 sac text": declare("e", {"x-single-active-consumer": "yes"}),
    "R-Q-6 queue-mode": declare("e", {"x-queue-mode": "fast"}),
    "R-Q-6 queue-version": declare("e", {"x-queue-version": 3}),
    "R-Q-6 leader-locator": declare("e", {"x-queue-leader-locator": "here"}),
    "R-Q-1 unknown type": declare("e", {"x-queue-type": "zz"}),
    "R-Q-1 type 5": declare("e", {"x-queue-type": 5}),
    "R-ERR-37 key without exchange": declare("e", {"x-dead-letter-routing-key": "k"}),
    "R-ERR-37 key 5": declare("e", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": 5}),
    "R-ERR-38 dlx 5": declare("e", {"x-dead-letter-exchange": 5}),
    "R-ERR-38 ae 5": exchange("e", "direct", {"alternate-exchange": 5}),
    "R-ERR-39 non-durable": declare("e", QUORUM, durable=False),
    "R-ERR-39 exclusive": declare("e", QUORUM, exclusive=True),
    "R-ERR-39 auto-delete": declare("e", QUORUM, auto_delete=True),
    "R-ERR-39 server-named": declare("", QUORUM),
    "R-ERR-40 delivery-limit on classic": declare("e", {"x-delivery-limit": 3}),
    "R-ERR-40 group size on classic": declare("e", {"x-quorum-initial-group-size": 3}),
    "R-ERR-40 strategy on classic": declare("e", {"x-dead-letter-strategy": "at-most-once"}),
    "R-ERR-40 max-priority on quorum": declare("e", QUORUM | {"x-max-priority": 3}),
    "R-ERR-40 queue-mode on quorum": declare("e", QUORUM | {"x-queue-mode": "lazy"}),
    "R-QQ-3 group size 0": declare("e", QUORUM | {"x-quorum-initial-group-size": 0}),
    "R-QQ-3 group size -1": declare("e", QUORUM | {"x-quorum-initial-group-size": -1}),
    "R-QQ-3 group size text": declare("e", QUORUM | {"x-quorum-initial-group-size": "1"}),
    "R-QQ-3 in-memory length -1": declare("e", QUORUM | {"x-max-in-memory-length": -1}),
    "R-QQ-3 leader locator": declare("e", QUORUM | {"x-queue-leader-locator": "here"}),
    "R-QQ-3 delivery-limit text": declare("d1", QUORUM | {"x-delivery-limit": "3"}),
    "R-QQ-3 delivery-limit -1": declare("d2", QUORUM | {"x-delivery-limit": -1}),
    "R-QQ-3 delivery-limit 0": declare("d3", QUORUM | {"x-delivery-limit": 0}),
    "R-Q-5 in-memory length on classic": declare("e", {"x-max-in-memory-length": 1}),
    "R-Q-5 leader locator on classic": declare("d4", {"x-queue-leader-locator": "client-local"}),
    "R-Q-5 consumer timeout on classic": declare("d5", {"x-consumer-timeout": 60_000}),
    "R-Q-5 consumer timeout on quorum": declare("d6", QUORUM | {"x-consumer-timeout": 60_000}),
    "R-Q-5 unknown arguments": declare("d7", {"x-nobody": 1, "other": True, "x-ha-policy": "all"}),
    "R-Q-5 queue-mode 5": declare("e", {"x-queue-mode": 5}),
    "R-Q-5 lazy": declare("d8", {"x-queue-mode": "lazy"}),
    "R-Q-5 queue-version 0": declare("e", {"x-queue-version": 0}),
    "R-Q-5 queue-version 1": declare("d9", {"x-queue-version": 1}),
    "R-Q-5 queue-version 2": declare("d10", {"x-queue-version": 2}),
    "R-Q-5 queue-version text": declare("e", {"x-queue-version": "2"}),
    "R-Q-5 type stream": declare("d11", {"x-queue-type": "stream"}),
    "R-Q-5 type classic": declare("d12", {"x-queue-type": "classic"}),
    "R-Q-5 x-cancel-on-ha-failover": declare("d13", {"x-cancel-on-ha-failover": True}),
    "R-Q-5 age of a stream on classic": declare("e", {"x-max-age": "1h"}),
    "R-Q-5 segments of a stream on quorum": declare(
        "e", QUORUM | {"x-stream-max-segment-size-bytes": 1000}
    ),
    "R-Q-5 members of a stream on classic": declare("e", {"x-initial-cluster-size": "x"}),
    "R-Q-5 filter of a stream on classic": declare("d23", {"x-stream-filter-size-bytes": 20}),
    "R-Q-5 master locator on classic": declare("d22", {"x-queue-master-locator": "min-masters"}),
    "R-Q-5 master locator on quorum": declare("e", QUORUM | {"x-queue-master-locator": "random"}),
    "R-TEST-8 ttl 0": declare("d14", {"x-message-ttl": 0}),
    "R-TEST-8 ttl of ten years": declare("d15", {"x-message-ttl": 315_360_000_000}),
    "R-TEST-8 max-length 0": declare("d16", {"x-max-length": 0}),
    "R-TEST-8 max-length-bytes 0": declare("d17", {"x-max-length-bytes": 0}),
    "R-TEST-8 max-length of 2**63-1": declare("d18", {"x-max-length": 2**63 - 1}),
    "R-TEST-8 max-priority 0": declare("d19", {"x-max-priority": 0}),
    "R-TEST-8 max-priority 255": declare("d20", {"x-max-priority": 255}),
    "R-TEST-8 prefetch 65535": M.BasicQos(0, 65_535, False).encode(1),
    "R-TEST-8 queue name of 255 bytes": declare("q" * 255),
    "R-TEST-8 exchange name of 255 bytes": exchange("x" * 255, "direct"),
    "R-TEST-8 routing key of 255 bytes": publish(1, "amq.direct", "k" * 255, b""),
    "R-TEST-8 expires 1": declare("d21", {"x-expires": 1}, exclusive=True, durable=False),
    "R-ERR-41 publish to internal": publish(1, "inside", "k", b"x"),
    "R-ERR-42 flow off": M.ChannelFlow(False).encode(1),
    "R-ERR-43 x-match some": bind({"x-match": "some"}),
    "R-ERR-43 x-match 5": bind({"x-match": 5}),
    "R-ERR-44 get on quorum SAC": M.BasicGet(0, "quorum-sac").encode(1),
    "R-CS-4 priority text": M.BasicConsume(0, "plain", arguments={"x-priority": "5"}).encode(1),
    "R-CH-10 bind without queue": M.QueueBind(0, "", "amq.direct", "k").encode(1),
    "R-CH-10 consume without queue": M.BasicConsume(0, "").encode(1),
    "R-CH-10 get without queue": M.BasicGet(0, "").encode(1),
    "R-CH-10 purge without queue": M.QueuePurge(0, "").encode(1),
    "R-CH-10 delete without queue": M.QueueDelete(0, "").encode(1),
    "R-EX-6 exchange in use": M.QueueBind(0, "plain", "by-topic", "k").encode(1)
    + M.ExchangeDelete(0, "by-topic", if_unused=True).encode(1),
    "R-FRM-4 header on channel 0": frame(2, 0, header(1)),
    "R-FRM-4 body on channel 0": frame(3, 0, b"x"),
    "R-FRM-3 heartbeat on channel 1": frame(8, 1, b""),
    "R-FRM-4 connection method on channel 1": M.ConnectionTuneOk(1, 1, 1).encode(1),
    "R-FRM-4 second tune-ok": M.ConnectionTuneOk(10, 131_072, 0).encode(0),
    "R-FRM-4 second open": M.ConnectionOpen("/").encode(0),
    "R-FRM-4 channel method on 0": M.ChannelOpen().encode(0),
    "R-FRM-6 properties cut short": PUBLISH + frame(2, 1, header(0, properties=b"\x80\0\5ab")),
    "R-FRM-6 properties in excess": PUBLISH + frame(2, 1, header(0, properties=b"\0\0ab")),
    "R-DRT-1 reply consumer with ack": M.BasicConsume(0, "amq.rabbitmq.reply-to").encode(1),
    "R-DRT-1 reply consumer twice": M.BasicConsume(0, "amq.rabbitmq.reply-to", no_ack=True).encode(
        1
    )
    * 2,
    "R-DRT-2 no reply consumer": message(reply_to="amq.rabbitmq.reply-to"),
    "R-EX-4 client method of the server": M.QueueDeclareOk("q", 0, 0).encode(1),
    "R-FRM-5 method without method id": frame(1, 1, b"\0\x3c"),
    "R-FRM-3 heartbeat with payload": frame(8, 0, b"xx"),
    "R-FRM-3 unknown frame type, 20 octets": frame(7, 1, bytes(range(20))),
    "R-FRM-6 short header": PUBLISH + frame(2, 1, header(0)[:11]),
    "R-FRM-6 second header": PUBLISH + frame(2, 1, header(1)) * 2,
    "R-FRM-7 body longer than announced": PUBLISH + frame(2, 1, header(1)) + frame(3, 1, b"xx"),
    "R-FRM-9 empty body": PUBLISH + frame(2, 1, header(0)),
    "R-FRM-9 empty body frame": PUBLISH
    + frame(2, 1, header(1))
    + frame(3, 1, b"")
    + frame(3, 1, b"x"),
    "R-CH-6 flow on": M.ChannelFlow(True).encode(1),
    "R-CH-6 flow-ok unasked": M.ChannelFlowOk(True).encode(1),
    "R-CH-7 access.request": M.AccessRequest("/data", False, True, True, True, True).encode(1),
    "R-CH-4 close-ok unasked": M.ChannelCloseOk().encode(1),
    "R-CH-1 open-ok from a client": M.ChannelOpenOk().encode(1),
    "R-CH-1 channel.close on an unopened channel": M.ChannelClose(200, "", 0, 0).encode(9),
    "R-FRM-4 connection.close-ok unasked": M.ConnectionCloseOk().encode(0),
    "R-FRM-4 connection.blocked from a client": M.ConnectionBlocked("x").encode(0),
    "R-CON-13 update-secret": M.ConnectionUpdateSecret(b"guest", "again").encode(0),
    "R-CON-13 update-secret refused": M.ConnectionUpdateSecret(b"wrong", "again").encode(0),
    "R-BND-4 unbind what is not bound": M.QueueUnbind(0, "plain", "amq.direct", "zz").encode(1),
    "R-BND-4 unbind a missing queue": M.QueueUnbind(0, "nope", "amq.direct", "zz").encode(1),
    "R-BND-4 unbind a missing exchange": M.QueueUnbind(0, "plain", "nope", "zz").encode(1),
    "R-Q-12 delete a missing queue": M.QueueDelete(0, "nope").encode(1),
    "R-Q-3 nowait declare that is refused": M.QueueDeclare(0, "plain", nowait=True).encode(1),
    "R-CS-3 cancel of an unknown tag": M.BasicCancel("nobody").encode(1),
    "R-CS-5 no-local": M.BasicConsume(0, "plain", "n", no_local=True).encode(1),
    "R-CS-7 SAC and exclusive": M.BasicConsume(0, "quorum-sac", "e", exclusive=True).encode(1),
    "R-ACK-1 ack of nothing, multiple": M.BasicAck(0, True).encode(1),
    "R-PUB-5 delivery mode 0": message(delivery_mode=0),
    "R-PUB-4 expiration of ten years": message(expiration="315360000000"),
    "R-PUB-4 expiration 0": message(expiration="0"),
    "R-PUB-4 expiration with a plus": message(expiration="+5"),
    "R-PUB-4 expiration with a space": message(expiration=" 5"),
    "R-PUB-4 expiration with a fraction": message(expiration="5.5"),
    "R-PUB-3 own user-id": message(user_id="guest"),
    "R-FRM-5 queue name of 255 bytes and no more": frame(1, 1, b"\0\x32\0\x0a\0\0\xff" + b"q" * 9),
}
