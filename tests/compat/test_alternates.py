"""Alternate exchanges (spec chapter 3.1): chains, cycles, missing ones, mandatory, rights."""

from __future__ import annotations

from typing import Any

import pytest

from tests.compat import steps
from tests.compat.servers import Server
from tests.integration.members import eventually


def test_the_example_of_the_documents(connection: Any) -> None:
    """R-AE-1, R-AE-2: the example of the alternate exchange page and of the 2009 extensions."""
    channel = steps.confirming(connection)
    steps.exchange(channel, "my-direct", alternate="my-ae")
    steps.exchange(channel, "my-ae", "fanout")
    routed = steps.bound(channel, "my-direct", "key1", name="routed")
    unrouted = steps.bound(channel, "my-ae", "", name="unrouted")
    assert steps.publish(channel, "my-direct", "key2", "two") == "ack"
    assert steps.publish(channel, "my-direct", "key1", "one") == "ack"
    assert steps.drain(channel, unrouted) == [b"two"]
    assert steps.drain(channel, routed) == [b"one"]


def test_a_chain_stops_where_the_message_is_routed(connection: Any) -> None:
    """R-AE-3: each alternate is routed in full, the next is asked only if it matches nothing."""
    channel = steps.confirming(connection)
    for i in range(4):
        steps.exchange(channel, f"x{i}", alternate=f"x{i + 1}")
    names = [steps.bound(channel, f"x{i}", f"k{i}") for i in range(4)]
    fates = [steps.publish(channel, "x0", f"k{i}", f"{i}", mandatory=True) for i in range(5)]
    assert fates == ["ack"] * 4 + ["returned"]
    assert [steps.drain(channel, name) for name in names] == [[b"0"], [b"1"], [b"2"], [b"3"]]


@pytest.mark.parametrize("ring", [["x"], ["x", "y"], ["x", "y", "z"]], ids=len)
def test_cycles_of_alternates_end(connection: Any, ring: list[str]) -> None:
    """R-AE-3, R-RT-4: an exchange is asked once; behind the cycle nothing is left to ask."""
    channel = steps.confirming(connection)
    for i, name in enumerate(ring):
        steps.exchange(channel, name, alternate=ring[(i + 1) % len(ring)])
    last = steps.bound(channel, ring[-1], "known")
    assert steps.publish(channel, "x", "unknown", mandatory=True) == "returned"
    assert steps.publish(channel, "x", "known", mandatory=True) == "ack"
    assert len(steps.drain(channel, last)) == 1


def test_a_cycle_of_alternates_and_bindings_ends(connection: Any) -> None:
    """R-RT-4: y is the alternate of x and is bound to x again."""
    channel = steps.confirming(connection)
    steps.exchange(channel, "x", alternate="y")
    steps.exchange(channel, "y", "fanout", alternate="x")
    channel.exchange_bind("x", "y", "")
    assert steps.publish(channel, "x", "k", mandatory=True) == "returned"
    name = steps.bound(channel, "y", "")
    assert steps.publish(channel, "x", "k", mandatory=True) == "ack"
    assert len(steps.drain(channel, name)) == 1


def test_an_alternate_comes_and_goes(connection: Any) -> None:
    """R-AE-4, R-AE-8: missing at declare, made later, deleted in use; every publish looks anew."""
    channel = steps.confirming(connection)
    steps.exchange(channel, "x", alternate="later")
    assert steps.publish(channel, "x", "k", mandatory=True) == "returned"
    assert steps.publish(channel, "x", "k") == "ack"
    steps.exchange(channel, "later", "fanout")
    name = steps.bound(channel, "later", "")
    assert steps.publish(channel, "x", "k", "found", mandatory=True) == "ack"
    channel.exchange_delete("later")
    assert steps.publish(channel, "x", "k", mandatory=True) == "returned"
    assert steps.drain(channel, name) == [b"found"]


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
def test_an_alternate_of_each_type_may_be_internal(connection: Any, kind: str) -> None:
    """R-AE-3, R-AE-8: it matches by its own type with the message's key and headers."""
    channel = steps.confirming(connection)
    steps.exchange(channel, "x", kind, alternate="ae")
    steps.exchange(channel, "ae", kind, internal=True)
    name = steps.queue(channel)
    key = "a.*" if kind == "topic" else "a.b"
    channel.queue_bind(name, "ae", key, {"h": 1})
    assert steps.publish(channel, "x", "a.b", mandatory=True, headers={"h": 1}) == "ack"
    fate = steps.publish(channel, "x", "other", mandatory=True, headers={"h": 2})
    assert fate == ("ack" if kind == "fanout" else "returned")
    assert len(steps.drain(channel, name)) == (2 if kind == "fanout" else 1)


def test_a_message_is_unchanged(connection: Any) -> None:
    """R-AE-5, R-RT-5: original exchange and key, properties and headers, nothing added."""
    channel = steps.confirming(connection)
    steps.exchange(channel, "x", alternate="y")
    steps.exchange(channel, "y", alternate="z")
    name = steps.bound(channel, steps.exchange(channel, "z", "fanout"), "")
    properties: dict[str, Any] = {
        "headers": {"h": 1, "CC": ["c"]},
        "delivery_mode": 2,
        "priority": 3,
        "message_id": "id",
        "expiration": "60000",
        "app_id": "test",
    }
    assert steps.publish(channel, "x", "key", "body", **properties) == "ack"
    method, received, body = steps.take(channel, name)
    assert (method.exchange, method.routing_key, body) == ("x", "key", b"body")
    assert {key: value for key, value in vars(received).items() if value is not None} == properties


def test_an_alternate_named_nothing_is_no_default_exchange(connection: Any) -> None:
    """R-AE-12: the queue of that name is not reached."""
    channel = steps.confirming(connection)
    steps.exchange(channel, "x", alternate="")
    name = steps.queue(channel, "k")
    assert steps.publish(channel, "x", "k", mandatory=True) == "returned"
    assert steps.is_empty(channel, name)


def test_all_keys_go_to_the_alternate_when_none_matched(connection: Any) -> None:
    """R-RT-C4: one CC that matches keeps the message from the alternate."""
    channel = steps.confirming(connection)
    steps.exchange(channel, "x", alternate="ae")
    steps.exchange(channel, "ae")
    own = steps.bound(channel, "x", "hit")
    other = steps.bound(channel, "ae", "miss", "cc")
    assert steps.publish(channel, "x", "miss", "1", headers={"CC": ["hit"]}) == "ack"
    assert steps.publish(channel, "x", "nothing", "2", headers={"BCC": ["cc"]}) == "ack"
    assert (steps.drain(channel, own), steps.drain(channel, other)) == ([b"1"], [b"2"])


def test_a_binding_to_a_dead_end_keeps_from_the_alternate(connection: Any) -> None:
    """R-RT-E1: then the alternate of the dead end is tried."""
    channel = steps.confirming(connection)
    steps.exchange(channel, "x", alternate="ae-of-x")
    steps.exchange(channel, "ae-of-x", "fanout")
    steps.exchange(channel, "end")
    channel.exchange_bind("end", "x", "k")
    of_x = steps.bound(channel, "ae-of-x", "")
    assert steps.publish(channel, "x", "k", mandatory=True) == "returned"
    channel.exchange_delete("end")
    assert steps.publish(channel, "x", "k", "no binding left") == "ack"
    steps.exchange(channel, "end", alternate="ae-of-end")
    channel.exchange_bind("end", "x", "k")
    of_end = steps.bound(channel, steps.exchange(channel, "ae-of-end", "fanout"), "")
    assert steps.publish(channel, "x", "k", "of end", mandatory=True) == "ack"
    assert steps.drain(channel, of_x) == [b"no binding left"]
    assert steps.drain(channel, of_end) == [b"of end"]


def test_a_return_names_the_first_exchange(connection: Any) -> None:
    """R-AE-10, R-PUB-7: 312 with the exchange and key of the publish, after the whole chain."""
    channel = steps.confirming(connection)
    steps.exchange(channel, "x", alternate="y")
    steps.exchange(channel, "y", alternate="z")
    steps.exchange(channel, "z")
    returned: list[Any] = []
    channel.add_on_return_callback(lambda _, method, properties, body: returned.append(method))
    assert steps.publish(channel, "x", "k", mandatory=True) == "returned"
    connection.process_data_events(0)
    [method] = returned
    assert (method.reply_code, method.reply_text) == (312, "NO_ROUTE")
    assert (method.exchange, method.routing_key) == ("x", "k")


def test_the_alternate_s_queue_decides_the_confirm(connection: Any) -> None:
    """R-AE-11, R-AE-2: full is not unroutable, so nothing goes further."""
    channel = steps.confirming(connection)
    steps.exchange(channel, "x", alternate="y")
    steps.exchange(channel, "y", "fanout", alternate="z")
    limits: dict[str, Any] = {"x_max_length": 1, "x_overflow": "reject-publish"}
    name = steps.bound(channel, "y", "", **limits)
    last = steps.bound(channel, steps.exchange(channel, "z", "fanout"), "")
    assert [steps.publish(channel, "x", "k", mandatory=True) for _ in range(2)] == ["ack", "nack"]
    assert (steps.ready(channel, name), steps.ready(channel, last)) == (1, 0)


def test_a_vanished_binding_sends_to_the_alternate_again(connection: Any) -> None:
    """R-RT-3, R-AE-2: after the queue is deleted its binding is, too."""
    channel = steps.confirming(connection)
    steps.exchange(channel, "x", alternate="ae")
    other = steps.bound(channel, steps.exchange(channel, "ae", "fanout"), "")
    own = steps.bound(channel, "x", "k")
    assert steps.publish(channel, "x", "k", "own") == "ack"
    channel.queue_delete(own)
    assert steps.publish(channel, "x", "k", "other") == "ack"
    assert steps.drain(channel, other) == [b"other"]


def test_a_dead_letter_exchange_has_its_alternate(connection: Any) -> None:
    """R-AE-17, R-DLX-7: the broker's own publishes are routed as any."""
    channel = steps.confirming(connection)
    steps.exchange(channel, "dlx", alternate="ae")
    dead = steps.bound(channel, steps.exchange(channel, "ae", "fanout"), "")
    name = steps.queue(channel, "q", x_dead_letter_exchange="dlx")
    assert steps.publish(channel, "", name) == "ack"
    tag = steps.unacked(channel, name)[0].delivery_tag
    channel.basic_reject(tag, requeue=False)
    method, properties, _ = steps.take(channel, dead)
    assert (method.exchange, method.routing_key) == ("dlx", "q")
    assert [death["queue"] for death in steps.deaths(properties)] == ["q"]


# --- policies ---------------------------------------------------------------------------------


def test_a_policy_sets_and_takes_an_alternate(server: Server, vhost: str, connection: Any) -> None:
    """R-AE-1, R-AE-18, R-POL-5: of exchanges that exist, from the next publish on."""
    channel = steps.confirming(connection)
    steps.exchange(channel, "x")
    name = steps.bound(channel, "amq.fanout", "")

    def fate() -> str:
        return steps.publish(channel, "x", "k", mandatory=True)

    assert fate() == "returned"
    server.admin.set_policy(vhost, "ae", "^x$", {"alternate-exchange": "amq.fanout"}, "exchanges")
    eventually(lambda: fate() == "ack", "the policy's alternate", steps.SECONDS)
    # R-AE-9: it takes no part in what a declaration is compared with.
    steps.exchange(channel, "x")
    server.admin.clear_policy(vhost, "ae")
    eventually(lambda: fate() == "returned", "no alternate any more", steps.SECONDS)
    assert steps.drain(channel, name)


def test_the_argument_beats_the_policy(server: Server, vhost: str, connection: Any) -> None:
    """R-AE-1, R-POL-6."""
    channel = steps.confirming(connection)
    one, two = (
        steps.bound(channel, steps.exchange(channel, name, "fanout"), "") for name in ("a1", "a2")
    )
    server.admin.set_policy(vhost, "ae", "^x", {"alternate-exchange": "a2"}, "exchanges")
    steps.exchange(channel, "x-argument", alternate="a1")
    steps.exchange(channel, "x-policy")
    assert steps.publish(channel, "x-argument", "k", "argument") == "ack"
    assert steps.publish(channel, "x-policy", "k", "policy") == "ack"
    assert (steps.drain(channel, one), steps.drain(channel, two)) == ([b"argument"], [b"policy"])


def test_a_policy_gives_an_alternate_to_predeclared_exchanges(
    server: Server, vhost: str, connection: Any
) -> None:
    """R-POL-4, R-AE-13: to all but the default exchange."""
    channel = steps.confirming(connection)
    name = steps.bound(channel, "amq.fanout", "")
    server.admin.set_policy(vhost, "ae", "^(amq.direct)?$", {"alternate-exchange": "amq.fanout"})

    def is_routed() -> bool:
        return steps.publish(channel, "amq.direct", "k", mandatory=True) == "ack"

    eventually(is_routed, "the alternate of amq.direct", steps.SECONDS)
    assert steps.publish(channel, "", "no-queue", mandatory=True) == "returned"
    assert len(steps.drain(channel, name)) == 1


# --- permissions ------------------------------------------------------------------------------

#: configure, write, read of a user who declares exchange `x` with alternate `ae`; what is missing.
RIGHTS = {
    "enough": ("^x$", "^ae$", "^x$", ""),
    "no configure": ("^ae$", "^ae$", "^x$", "access to exchange 'x' in vhost 'V'"),
    "no read": ("^x$", "^ae$", "^ae$", "access to exchange 'x' in vhost 'V'"),
    "no write": ("^x$", "^x$", "^x$", "access to exchange 'ae' in vhost 'V'"),
}


@pytest.mark.parametrize("case", RIGHTS)
def test_rights_to_name_an_alternate(server: Server, vhost: str, case: str) -> None:
    """R-AE-6: configure and read on the exchange, write on the alternate; when it is made."""
    configure, write, read, missing = RIGHTS[case]
    server.admin.add_user(vhost, vhost)
    server.admin.set_permissions(vhost, vhost, configure, write, read)
    with server.connected(vhost, user=vhost) as connection:
        channel = connection.channel()

        def declare(channel: Any) -> None:
            steps.exchange(channel, "x", alternate="ae")

        if missing:
            scope, code, text = steps.refused(channel, declare)
            assert (scope, code) == ("channel", 403)
            missing = missing.replace("V", vhost)
            # Newer versions name the missing right before it.
            assert text.endswith(f"{missing} refused for user '{vhost}'"), text
        else:
            declare(channel)
            # Not asked again where the exchange exists, nor when something is published.
            server.admin.set_permissions(vhost, vhost, "^x$", "^x$", "^$")
            connection.close()
            with server.connected(vhost, user=vhost) as later:
                channel = steps.confirming(later)
                declare(channel)
                assert steps.publish(channel, "x", "k") == "ack"
    server.admin.delete_user(vhost)


def test_an_alternate_in_a_transaction(connection: Any) -> None:
    """R-AE-14: at the commit, or never."""
    channel = connection.channel()
    steps.exchange(channel, "x", alternate="ae")
    name = steps.bound(channel, steps.exchange(channel, "ae", "fanout"), "")
    channel.tx_select()
    channel.basic_publish("x", "k", b"1")
    assert steps.is_empty(channel, name)
    channel.tx_commit()
    assert steps.ready(channel, name) == 1
    channel.basic_publish("x", "k", b"2")
    channel.tx_rollback()
    assert steps.drain(channel, name) == [b"1"]
