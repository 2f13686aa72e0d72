"""Exchanges, bindings and routing (spec chapter 2): what a publish reaches, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.amqp import methods
from tests.compat import steps
from tests.compat.servers import Server

PATTERNS = ("", "#", "#.#", "*", "*.*", "*.#.*", "a", "a.*", "a.#", "#.a", ".", "..", "a.", ".a")
#: R-RT-T2, row by row.
TOPIC_TABLE = {
    "": {"", "#", "#.#"},
    "a": {"#", "*", "#.#", "a", "a.#", "#.a"},
    ".": {"#", "#.#", "*.*", "*.#.*", "."},
    "..": {"#", "#.#", "..", "*.#.*"},
    "a.": {"#", "#.#", "*.*", "a.*", "a.#", "*.#.*", "a."},
    ".a": {"#", "#.#", "*.*", "#.a", "*.#.*", ".a"},
    "a.b.c": {"#", "#.#", "a.#", "*.#.*"},
}


@pytest.mark.parametrize("key", TOPIC_TABLE, ids=lambda key: f"key[{key}]")
def test_topic_table(connection: Any, key: str) -> None:
    """R-RT-T1, R-RT-T2, R-TEST-2: which of fourteen patterns a key matches."""
    channel = steps.confirming(connection)
    queues = {pattern: steps.bound(channel, "amq.topic", pattern) for pattern in PATTERNS}
    assert steps.publish(channel, "amq.topic", key, mandatory=True) == "ack"
    assert {p for p, name in queues.items() if steps.drain(channel, name)} == TOPIC_TABLE[key]


def test_a_star_inside_a_word_is_a_letter(connection: Any) -> None:
    """R-RT-T1: wildcards are whole words."""
    channel = steps.confirming(connection)
    name = steps.bound(channel, "amq.topic", "a*", "b#")
    fates = [
        steps.publish(channel, "amq.topic", key, mandatory=True)
        for key in ("ab", "a*", "b", "b#", "b.c")
    ]
    assert fates == ["returned", "ack", "returned", "ack", "returned"]
    assert len(steps.drain(channel, name)) == 2


def test_a_long_key_of_many_words_is_matched(connection: Any) -> None:
    """R-RT-T3: 255 bytes, 128 words, several hashes."""
    channel = steps.confirming(connection)
    pattern = "#.a.#.z"
    name = steps.bound(channel, "amq.topic", pattern)
    key = ".".join("a" * 127) + ".z"
    assert len(key) == 255
    assert steps.publish(channel, "amq.topic", key, mandatory=True) == "ack"
    assert steps.publish(channel, "amq.topic", key[:-1] + "y", mandatory=True) == "returned"
    assert len(steps.drain(channel, name)) == 1


def test_direct_compares_keys_byte_for_byte(connection: Any) -> None:
    """R-RT-D1: an empty key is a key, wildcards and case mean nothing."""
    channel = steps.confirming(connection)
    names = {key: steps.bound(channel, "amq.direct", key) for key in ("", "k", "K", "#", "é")}
    for key in names:
        assert steps.publish(channel, "amq.direct", key, key, mandatory=True) == "ack"
    assert steps.publish(channel, "amq.direct", "k.", mandatory=True) == "returned"
    for key, name in names.items():
        assert steps.drain(channel, name) == [key.encode()]


def test_fanout_looks_at_no_key(connection: Any) -> None:
    """R-RT-F1: key and arguments of a binding are ignored."""
    channel = steps.confirming(connection)
    one, two = steps.bound(channel, "amq.fanout", "a"), steps.queue(channel)
    channel.queue_bind(two, "amq.fanout", "b", {"x-match": "nonsense", "h": 1})
    assert steps.publish(channel, "amq.fanout", "c", mandatory=True) == "ack"
    assert steps.drain(channel, one) == steps.drain(channel, two) == [b"m"]


def test_default_exchange_routes_to_the_queue_of_that_name(connection: Any) -> None:
    """R-RT-0."""
    channel = steps.confirming(connection)
    name = steps.queue(channel, "here")
    assert steps.publish(channel, "", "here", mandatory=True) == "ack"
    assert steps.publish(channel, "", "not-here", mandatory=True) == "returned"
    method, _, _ = steps.take(channel, name)
    assert (method.exchange, method.routing_key) == ("", "here")


def test_the_key_is_part_of_a_headers_binding(connection: Any) -> None:
    """R-RT-H6, R-BND-1, R-RT-2: two bindings that differ in the key, one copy, two unbinds."""
    channel = steps.confirming(connection)
    name = steps.queue(channel)
    for key in ("one", "two"):
        channel.queue_bind(name, "amq.headers", key, {"h": 1})
    assert steps.publish(channel, "amq.headers", "", headers={"h": 1}) == "ack"
    assert len(steps.drain(channel, name)) == 1
    channel.queue_unbind(name, "amq.headers", "one", {"h": 1})
    assert steps.publish(channel, "amq.headers", "", mandatory=True, headers={"h": 1}) == "ack"
    channel.queue_unbind(name, "amq.headers", "two", {"h": 1})
    fate = steps.publish(channel, "amq.headers", "", mandatory=True, headers={"h": 1})
    assert fate == "returned"


def test_one_copy_whatever_leads_to_the_queue(connection: Any) -> None:
    """R-RT-2: three bindings, two keys and an exchange in between."""
    channel = steps.confirming(connection)
    steps.exchange(channel, "behind", "fanout")
    channel.exchange_bind("behind", "amq.topic", "#")
    name = steps.bound(channel, "amq.topic", "a.*", "a.b", "#")
    channel.queue_bind(name, "behind", "")
    assert steps.publish(channel, "amq.topic", "a.b", headers={"CC": ["a.c", "a.b"]}) == "ack"
    assert len(steps.drain(channel, name)) == 1


# --- exchange to exchange ---------------------------------------------------------------------


def test_a_message_keeps_its_exchange_through_others(connection: Any) -> None:
    """R-RT-5, R-RT-E2: direct, topic and headers behind each other look at the same message."""
    channel = steps.confirming(connection)
    channel.exchange_bind("amq.topic", "amq.direct", "a.b")
    channel.exchange_bind("amq.headers", "amq.topic", "a.*")
    name = steps.queue(channel)
    channel.queue_bind(name, "amq.headers", "", {"h": "v"})
    assert steps.publish(channel, "amq.direct", "a.b", headers={"h": "v"}, mandatory=True) == "ack"
    method, properties, _ = steps.take(channel, name)
    assert (method.exchange, method.routing_key) == ("amq.direct", "a.b")
    assert properties.headers == {"h": "v"}
    fate = steps.publish(channel, "amq.direct", "a.b", headers={"h": "w"}, mandatory=True)
    assert fate == "returned"


def test_cycles_of_exchanges_end(connection: Any) -> None:
    """R-RT-4, R-BND-10: an exchange bound to itself, and a ring of three."""
    channel = steps.confirming(connection)
    ring = [steps.exchange(channel, name, "fanout") for name in ("r1", "r2", "r3")]
    channel.exchange_bind("r1", "r1", "")
    for i, name in enumerate(ring):
        channel.exchange_bind(ring[(i + 1) % 3], name, "")
    last = steps.bound(channel, "r3", "")
    assert steps.publish(channel, "r1", "", mandatory=True) == "ack"
    assert steps.publish(channel, "r3", "", mandatory=True) == "ack"
    assert len(steps.drain(channel, last)) == 2


def test_an_exchange_and_a_queue_of_one_name_are_two_destinations(connection: Any) -> None:
    """R-RT-E3."""
    channel = steps.confirming(connection)
    steps.exchange(channel, "twin", "fanout")
    behind = steps.bound(channel, "twin", "")
    steps.queue(channel, "twin")
    channel.queue_bind("twin", "amq.direct", "k")
    channel.exchange_bind("twin", "amq.direct", "k")
    assert steps.publish(channel, "amq.direct", "k") == "ack"
    channel.exchange_unbind("twin", "amq.direct", "k")
    assert steps.publish(channel, "amq.direct", "k") == "ack"
    assert len(steps.drain(channel, "twin")) == 2
    assert len(steps.drain(channel, behind)) == 1


def test_deleting_an_exchange_takes_its_bindings_along(connection: Any) -> None:
    """R-EX-7: bindings from it and to it; an auto-delete source that loses its last goes too."""
    channel = steps.confirming(connection)
    steps.exchange(channel, "source", "fanout", auto_delete=True)
    steps.exchange(channel, "middle", "fanout")
    channel.exchange_bind("middle", "source", "")
    name = steps.bound(channel, "middle", "")
    channel.exchange_delete("middle")
    assert not steps.is_there(connection, "exchange", "source")
    steps.exchange(channel, "middle", "fanout")
    assert steps.publish(channel, "middle", "", mandatory=True) == "returned"
    assert steps.is_empty(channel, name)


def test_internal_exchange(connection: Any) -> None:
    """R-EX-10, R-ERR-41: no client publishes to it, bindings reach it."""
    channel = steps.confirming(connection)
    steps.exchange(channel, "inside", "fanout", internal=True)
    channel.exchange_bind("inside", "amq.direct", "k")
    name = steps.bound(channel, "inside", "")
    assert steps.publish(channel, "amq.direct", "k", mandatory=True) == "ack"
    assert len(steps.drain(channel, name)) == 1
    scope, code, text = steps.refused(channel, lambda c: c.basic_publish("inside", "", b""))
    assert (scope, code) == ("channel", 403)
    assert text.startswith("ACCESS_REFUSED - cannot publish to internal exchange 'inside' in vhost")


# --- CC and BCC -------------------------------------------------------------------------------


def test_cc_routes_and_stays_bcc_routes_and_goes(connection: Any) -> None:
    """R-RT-C2: the delivered key is the publish's own."""
    channel = steps.confirming(connection)
    names = [steps.bound(channel, "amq.direct", key) for key in ("rk", "cc1", "cc2", "bcc")]
    headers = {"CC": ["cc1", "cc2"], "BCC": ["bcc"], "h": 1}
    assert steps.publish(channel, "amq.direct", "rk", headers=headers) == "ack"
    for name in names:
        method, properties, _ = steps.take(channel, name)
        assert method.routing_key == "rk"
        assert properties.headers == {"CC": ["cc1", "cc2"], "h": 1}


def test_cc_alone_counts_as_routed(connection: Any) -> None:
    """R-RT-C4, R-RT-C5: the default exchange takes each key for a queue."""
    channel = steps.confirming(connection)
    names = [steps.queue(channel, name) for name in ("q1", "q2")]
    fate = steps.publish(
        channel, "", "none", mandatory=True, headers={"CC": ["q1", "q1"], "BCC": ["q2", "q1"]}
    )
    assert fate == "ack"
    assert [len(steps.drain(channel, name)) for name in names] == [1, 1]
    fate = steps.publish(channel, "", "none", mandatory=True, headers={"CC": ["neither"]})
    assert fate == "returned"


def test_cc_takes_part_in_topics(connection: Any) -> None:
    """R-RT-C2."""
    channel = steps.confirming(connection)
    name = steps.bound(channel, "amq.topic", "*.z")
    assert steps.publish(channel, "amq.topic", "a", headers={"CC": ["b.z"]}) == "ack"
    assert steps.publish(channel, "amq.topic", "a", headers={"cc": ["b.z"]}) == "ack"
    assert len(steps.drain(channel, name)) == 1


def test_cc_elements_that_are_no_text_are_skipped(connection: Any) -> None:
    """R-RT-C1."""
    channel = steps.confirming(connection)
    name = steps.bound(channel, "amq.direct", "k")
    headers = {"CC": [1, "k", True]}
    assert steps.publish(channel, "amq.direct", "x", mandatory=True, headers=headers) == "ack"
    assert steps.take(channel, name)[1].headers == headers


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_cc_that_is_no_array_is_refused(channel: Any, header: str) -> None:
    """R-RT-C1, R-ERR-32."""
    from pika import BasicProperties

    scope, code, text = steps.refused(
        channel,
        lambda c: c.basic_publish("amq.direct", "k", b"", BasicProperties(headers={header: "k"})),
    )
    assert (scope, code) == ("channel", 406)
    assert f'{{unacceptable_type_in_header,"{header}",longstr}}' in text


# --- bindings ---------------------------------------------------------------------------------


def test_binding_twice_is_one_binding(connection: Any) -> None:
    """R-BND-1: the order of the arguments does not matter either."""
    channel = steps.confirming(connection)
    name = steps.queue(channel)
    channel.queue_bind(name, "amq.headers", "", {"a": 1, "b": 2})
    channel.queue_bind(name, "amq.headers", "", {"b": 2, "a": 1})
    channel.queue_unbind(name, "amq.headers", "", {"b": 2, "a": 1})
    fate = steps.publish(channel, "amq.headers", "", mandatory=True, headers={"a": 1, "b": 2})
    assert fate == "returned"


def test_unbinding_what_is_not_bound_is_fine(channel: Any) -> None:
    """R-BND-4: nor do exchange and queue have to be there."""
    name = steps.queue(channel)
    channel.queue_unbind(name, "amq.direct", "never")
    channel.queue_unbind("no-queue", "amq.direct", "k")
    channel.queue_unbind(name, "no-exchange", "k")
    channel.exchange_unbind("no-exchange", "amq.direct", "k")
    channel.exchange_unbind("amq.direct", "no-exchange", "k")


BINDS: dict[str, tuple[Any, int, str]] = {
    "no exchange": (lambda c: c.queue_bind("q", "nope", "k"), 404, "no exchange 'nope' in vhost"),
    "no queue": (lambda c: c.queue_bind("nope", "amq.direct"), 404, "no queue 'nope' in vhost"),
    "neither": (lambda c: c.queue_bind("nope", "nope-x"), 404, "no exchange 'nope-x' in vhost"),
    "no source": (lambda c: c.exchange_bind("amq.direct", "nope"), 404, "no exchange 'nope' in"),
    "no target": (lambda c: c.exchange_bind("nope", "amq.direct"), 404, "no exchange 'nope' in"),
    "neither exchange": (lambda c: c.exchange_bind("n1", "n2"), 404, "no exchange 'n2' in vhost"),
    "queue to default": (
        lambda c: c.queue_bind("q", "", "k"), 403, "operation not permitted on the default exchange"
    ),
    "queue from default": (
        lambda c: c.queue_unbind("q", "", "k"),
        403,
        "operation not permitted on the default exchange",
    ),
    "default as source": (
        lambda c: c.exchange_bind("amq.direct", ""),
        403,
        "operation not permitted on the default exchange",
    ),
    "default as target": (
        lambda c: c.exchange_bind("", "amq.direct"),
        403,
        "operation not permitted on the default exchange",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BINDS)
def test_bindings_that_are_refused(channel: Any, case: str) -> None:
    """R-BND-2, R-BND-3, R-ERR-10: with both missing the source is named."""
    action, code, text = BINDS[case]
    steps.queue(channel, "q")
    scope, said_code, said = steps.refused(channel, action)
    assert (scope, said_code) == ("channel", code)
    assert text in said


def test_binding_somebody_elses_exclusive_queue_is_refused(server: Any, vhost: str) -> None:
    """R-BND-9."""
    owner, other = server.connect(vhost), server.connect(vhost)
    owner.channel().queue_declare("mine", exclusive=True)
    scope, code, text = steps.refused(
        other.channel(), lambda c: c.queue_bind("mine", "amq.direct", "k")
    )
    assert (scope, code) == ("channel", 405)
    assert "cannot obtain exclusive access to locked queue 'mine'" in text
    owner.close()
    other.close()


# --- exchanges --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("amq.direct", "direct"),
        ("amq.fanout", "fanout"),
        ("amq.topic", "topic"),
        ("amq.headers", "headers"),
        ("amq.match", "headers"),
    ],
)
def test_exchanges_that_every_vhost_has(channel: Any, name: str, kind: str) -> None:
    """R-EX-1, R-NAM-2: they may be declared again with what they are."""
    channel.exchange_declare(name, kind, durable=True)
    scope, code, text = steps.refused(channel, lambda c: c.exchange_declare(name, kind))
    assert (scope, code) == ("channel", 406)
    assert f"inequivalent arg 'durable' for exchange '{name}'" in text


def test_the_trace_exchange_is_internal(channel: Any) -> None:
    """R-EX-1."""
    channel.exchange_declare("amq.rabbitmq.trace", "topic", durable=True, internal=True)
    answer = steps.refused(channel, lambda c: c.basic_publish("amq.rabbitmq.trace", "", b""))
    assert answer[:2] == ("channel", 403)


REDECLARED: dict[str, tuple[dict[str, Any], str]] = {
    "type": (
        {"exchange_type": "fanout"},
        "inequivalent arg 'type' for exchange 'x' in vhost 'V': received 'fanout' but current is "
        "'direct'",
    ),
    "durable": (
        {"durable": False},
        "inequivalent arg 'durable' for exchange 'x' in vhost 'V': received 'false' but current is "
        "'true'",
    ),
    "auto-delete": (
        {"auto_delete": True},
        "inequivalent arg 'auto_delete' for exchange 'x' in vhost 'V': received 'true' but current "
        "is 'false'",
    ),
    "internal": (
        {"internal": True},
        "inequivalent arg 'internal' for exchange 'x' in vhost 'V': received 'true' but current is "
        "'false'",
    ),
    "no alternate": (
        {"arguments": {}},
        "inequivalent arg 'alternate-exchange' for exchange 'x' in vhost 'V': received none but "
        "current is the value 'b' of type 'longstr'",
    ),
    "another alternate": (
        {"arguments": {"alternate-exchange": "c"}},
        "inequivalent arg 'alternate-exchange' for exchange 'x' in vhost 'V': received 'c' but "
        "current is 'b'",
    ),
}


@pytest.mark.parametrize("case", REDECLARED)
def test_an_exchange_declared_again_must_be_the_same(channel: Any, vhost: str, case: str) -> None:
    """R-EX-4, R-ERR-7, R-AE-9."""
    first = {
        "exchange_type": "direct",
        "durable": True,
        "arguments": {"alternate-exchange": "b"},
    }
    channel.exchange_declare("x", **first)
    changes, text = REDECLARED[case]
    scope, code, said = steps.refused(channel, lambda c: c.exchange_declare("x", **first | changes))
    assert (scope, code) == ("channel", 406)
    assert said == f"PRECONDITION_FAILED - {text.replace('V', vhost)}"


def test_other_arguments_of_an_exchange_are_not_compared(channel: Any) -> None:
    """R-EX-4, R-EX-11, R-EX-5: nor does a passive declare look at type and flags."""
    steps.exchange(channel, "x", "fanout", arguments={"colour": "red"})
    steps.exchange(channel, "x", "fanout", arguments={"colour": 2})
    channel.exchange_declare("x", "topic", passive=True, durable=True)


EXCHANGES: dict[str, tuple[Any, tuple[str, int, str]]] = {
    "reserved name": (
        lambda c: c.exchange_declare("amq.foo", "direct"),
        ("channel", 403, "exchange name 'amq.foo' contains reserved prefix 'amq.*'"),
    ),
    "default": (
        lambda c: c.exchange_declare("", "direct"),
        ("channel", 403, "operation not permitted on the default exchange"),
    ),
    "passive, missing": (
        lambda c: c.exchange_declare("nope", passive=True),
        ("channel", 404, "no exchange 'nope' in vhost"),
    ),
    "unknown type": (
        lambda c: c.exchange_declare("x", "zz"),
        ("connection", 503, "unknown exchange type 'zz'"),
    ),
    "alternate of a wrong type": (
        lambda c: c.exchange_declare("x", "direct", arguments={"alternate-exchange": 1}),
        ("channel", 406, "invalid type 'signedint' for arg 'alternate-exchange' in exchange 'x'"),
    ),
    "delete default": (
        lambda c: c.exchange_delete(""),
        ("channel", 403, "operation not permitted on the default exchange"),
    ),
    "delete amq.": (
        lambda c: c.exchange_delete("amq.direct"),
        ("channel", 403, "deletion of system exchange 'amq.direct' in vhost"),
    ),
    "delete amq. that is not there": (
        lambda c: c.exchange_delete("amq.nope"),
        ("channel", 403, "deletion of system exchange 'amq.nope' in vhost"),
    ),
}


@pytest.mark.parametrize("case", EXCHANGES)
def test_exchange_methods_that_are_refused(channel: Any, case: str) -> None:
    """R-EX-2, R-EX-3, R-EX-6, R-NAM-2, R-AE-7, R-ERR-3, 8, 9, 10, 38."""
    action, (scope, code, text) = EXCHANGES[case]
    said = steps.refused(channel, action)
    assert said[:2] == (scope, code)
    assert text in said[2]


def test_delete_if_unused(channel: Any) -> None:
    """R-EX-6: bindings from it are use; being a destination or an alternate is none."""
    steps.exchange(channel, "x", "fanout", alternate="y")
    steps.exchange(channel, "y", "fanout")
    channel.exchange_bind("y", "x", "")
    channel.exchange_delete("y", if_unused=True)
    channel.exchange_delete("never-there", if_unused=True)
    steps.bound(channel, "x", "")
    scope, code, text = steps.refused(channel, lambda c: c.exchange_delete("x", if_unused=True))
    assert (scope, code) == ("channel", 406)
    assert "exchange 'x' in vhost" in text
    assert text.endswith("in use")


def test_auto_delete_after_the_last_binding_from_it(connection: Any, channel: Any) -> None:
    """R-EX-8: not before there was one, and not for one to it."""
    steps.exchange(channel, "auto", "fanout", auto_delete=True)
    channel.exchange_bind("auto", "amq.fanout", "")
    channel.exchange_unbind("auto", "amq.fanout", "")
    assert steps.is_there(connection, "exchange", "auto")
    one, two = steps.bound(channel, "auto", ""), steps.bound(channel, "auto", "")
    channel.queue_unbind(one, "auto", "")
    assert steps.is_there(connection, "exchange", "auto")
    channel.queue_delete(two)
    assert not steps.is_there(connection, "exchange", "auto")


def test_one_exchange_of_an_auto_delete_chain_takes_the_others_along(
    connection: Any, channel: Any
) -> None:
    """R-EX-7, R-EX-8: the last queue of the last of three."""
    chain = [steps.exchange(channel, f"c{i}", "fanout", auto_delete=True) for i in range(3)]
    channel.exchange_bind("c1", "c0", "")
    channel.exchange_bind("c2", "c1", "")
    name = steps.bound(channel, "c2", "")
    channel.queue_delete(name)
    assert [steps.is_there(connection, "exchange", name) for name in chain] == [False] * 3


def test_names_of_any_letters(connection: Any) -> None:
    """R-NAM-1: in names, keys and error texts."""
    channel = steps.confirming(connection)
    name = steps.queue(channel, "qu\u00e9\u4e2d")
    steps.exchange(channel, "x\u00e9", "topic")
    channel.queue_bind(name, "x\u00e9", "\u00e9.*")
    assert steps.publish(channel, "x\u00e9", "\u00e9.\u4e2d", mandatory=True) == "ack"
    method, _, _ = steps.take(channel, name)
    assert (method.exchange, method.routing_key) == ("x\u00e9", "\u00e9.\u4e2d")
    _, _, text = steps.refused(channel, lambda c: c.exchange_declare("n\u00f6", passive=True))
    assert "no exchange 'n\u00f6' in vhost" in text


def test_line_ends_are_taken_out_of_declared_names(server: Server, vhost: str) -> None:
    """R-Q-2, R-EX-2: of declared ones only."""
    with server.raw(vhost) as raw:
        raw.open(1)
        assert raw.declare(1, "a\r\nb") == "ab"
        assert raw.declare(1, " ab ") == " ab "
        raw.send(1, methods.ExchangeDeclare(0, "x\ny", "fanout"))
        raw.expect(methods.ExchangeDeclareOk)
        raw.send(1, methods.ExchangeDeclare(0, "xy", "fanout", passive=True))
        raw.expect(methods.ExchangeDeclareOk)


def test_two_bindings_between_two_exchanges(connection: Any) -> None:
    """R-BND-1, R-BND-4: unbinding one leaves the other."""
    channel = steps.confirming(connection)
    steps.exchange(channel, "from")
    name = steps.bound(channel, "amq.fanout", "")
    for key in ("1", "2"):
        channel.exchange_bind("amq.fanout", "from", key)
    channel.exchange_unbind("amq.fanout", "from", "1")
    fates = [steps.publish(channel, "from", key, mandatory=True) for key in ("1", "2")]
    assert fates == ["returned", "ack"]
    assert len(steps.drain(channel, name)) == 1


def test_a_returned_message_is_what_was_published(connection: Any) -> None:
    """R-PUB-7, R-RT-C2: but for BCC."""
    channel = steps.confirming(connection)
    returned: list[Any] = []
    channel.add_on_return_callback(lambda _, *message: returned.append(message))
    headers = {"a": [1, {"b": None}], "CC": ["c"], "BCC": ["b"]}
    properties = {"expiration": "5", "priority": 9, "delivery_mode": 2, "timestamp": 5}
    fate = steps.publish(
        channel, "amq.headers", "k", "body", mandatory=True, headers=headers, **properties
    )
    assert fate == "returned"
    connection.process_data_events(0)
    [(method, received, body)] = returned
    assert (method.exchange, method.routing_key, body) == ("amq.headers", "k", b"body")
    kept = {key: value for key, value in vars(received).items() if value is not None}
    assert kept == properties | {"headers": {"a": [1, {"b": None}], "CC": ["c"]}}
