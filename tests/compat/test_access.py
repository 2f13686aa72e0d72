"""Who may do what: permissions, topic permissions, vhosts and limits (R-PERM, R-TP, R-VH)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika import exceptions

from brokerd.amqp import methods as M
from brokerd.amqp.properties import BasicProperties
from tests.compat.handshakes import Dialogue, plain, start_ok, tune_ok
from tests.compat.servers import Closed, Server, closed_by, expect
from tests.integration.members import eventually
from tests.integration.raw_client import HEADER, publish

SENTINEL = M.BasicQos(99, 0, False).encode(1)
ACCEPTED = Closed("connection", 540, "NOT_IMPLEMENTED - prefetch_size!=0 (99)", (60, 10))

Rights = dict[str, tuple[str, str]]


@pytest.fixture
def user(server: Server, vhost: str) -> Iterator[str]:
    """A user of this test's own, without any right; exchanges x, y, t and queue q exist."""
    name = f"user-of-{vhost}"
    server.admin.add_user(name, name)
    with server.raw(vhost) as raw:
        raw.open(1)
        for exchange, kind in (("x", "direct"), ("y", "direct"), ("t", "topic")):
            raw.send(1, M.ExchangeDeclare(0, exchange, kind, durable=True))
            raw.expect(M.ExchangeDeclareOk)
        raw.declare(1, "q", durable=True)
    yield name
    server.admin.delete_user(name)


#: R-PERM-4: what is sent, and which right it needs on what.
OPERATIONS: dict[str, tuple[bytes, Rights]] = {
    "exchange.declare": (
        M.ExchangeDeclare(0, "n", "direct").encode(1),
        {"configure": ("exchange", "n")},
    ),
    "exchange.declare again": (
        M.ExchangeDeclare(0, "x", "direct", durable=True).encode(1),
        {"configure": ("exchange", "x")},
    ),
    "exchange.delete": (
        M.ExchangeDelete(0, "x").encode(1),
        {"configure": ("exchange", "x")},
    ),
    "exchange.declare with alternate": (
        M.ExchangeDeclare(0, "n", "direct", arguments={"alternate-exchange": "a"}).encode(1),
        {
            "configure": ("exchange", "n"),
            "read": ("exchange", "n"),
            "write": ("exchange", "a"),
        },
    ),
    "queue.declare": (M.QueueDeclare(0, "n").encode(1), {"configure": ("queue", "n")}),
    "queue.declare again": (
        M.QueueDeclare(0, "q", durable=True).encode(1),
        {"configure": ("queue", "q")},
    ),
    "queue.delete": (M.QueueDelete(0, "q").encode(1), {"configure": ("queue", "q")}),
    "queue.declare with dead letter exchange": (
        M.QueueDeclare(0, "n", arguments={"x-dead-letter-exchange": "d"}).encode(1),
        {"configure": ("queue", "n"), "read": ("queue", "n"), "write": ("exchange", "d")},
    ),
    "exchange.bind": (
        M.ExchangeBind(0, "x", "y", "k").encode(1),
        {"write": ("exchange", "x"), "read": ("exchange", "y")},
    ),
    "exchange.unbind": (
        M.ExchangeUnbind(0, "x", "y", "k").encode(1),
        {"write": ("exchange", "x"), "read": ("exchange", "y")},
    ),
    "queue.bind": (
        M.QueueBind(0, "q", "x", "k").encode(1),
        {"write": ("queue", "q"), "read": ("exchange", "x")},
    ),
    "queue.unbind": (
        M.QueueUnbind(0, "q", "x", "k").encode(1),
        {"write": ("queue", "q"), "read": ("exchange", "x")},
    ),
    "basic.publish": (publish(1, "x", "k", b""), {"write": ("exchange", "x")}),
    "basic.publish to the default exchange": (
        publish(1, "", "q", b""),
        {"write": ("exchange", "amq.default")},
    ),
    "basic.get": (M.BasicGet(0, "q").encode(1), {"read": ("queue", "q")}),
    "basic.consume": (M.BasicConsume(0, "q").encode(1), {"read": ("queue", "q")}),
    "queue.purge": (M.QueuePurge(0, "q").encode(1), {"read": ("queue", "q")}),
}
MISSING = [(name, right) for name, (_, rights) in OPERATIONS.items() for right in rights]


def ask(server: Server, vhost: str, user: str, sent: bytes) -> Closed:
    """Send as this user; return how it ended."""
    with server.raw(vhost, user=user) as raw:
        raw.open(1)
        raw.send(1, sent, SENTINEL)
        return closed_by(raw)


def refused_text(server: Server, right: str, subject: str, vhost: str, user: str) -> str:
    """R-PERM-3: which right is missing is told since 3.13 only."""
    told = expect(server, rabbitmq="", brokerd=f"{right} ", difference="D-17")
    return (
        f"ACCESS_REFUSED - {told}access to {subject} in vhost '{vhost}' refused for user '{user}'"
    )


def regexes(rights: Rights, without: str = "") -> dict[str, str]:
    """Return patterns that grant exactly these rights but one."""
    return {
        right: f"^{rights[right][1]}$" if right in rights and right != without else "^$"
        for right in ("configure", "write", "read")
    }


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_needs_these_rights(server: Server, vhost: str, user: str, name: str) -> None:
    """R-PERM-4, R-PERM-2."""
    sent, rights = OPERATIONS[name]
    server.admin.set_permissions(vhost, user, **regexes(rights))
    assert ask(server, vhost, user, sent) == ACCEPTED


@pytest.mark.parametrize(("name", "missing"), MISSING)
def test_an_operation_is_refused_without_a_right(
    server: Server, vhost: str, user: str, name: str, missing: str
) -> None:
    """R-PERM-3, R-PERM-4."""
    sent, rights = OPERATIONS[name]
    server.admin.set_permissions(vhost, user, **regexes(rights, missing))
    closed = ask(server, vhost, user, sent)
    kind, subject = rights[missing]
    wanted = refused_text(server, missing, f"{kind} '{subject}'", vhost, user)
    assert (closed.level, closed.code, closed.text) == ("channel", 403, wanted)


@pytest.mark.parametrize(
    "sent",
    [
        M.ExchangeDeclare(0, "x", passive=True).encode(1),
        M.QueueDeclare(0, "q", passive=True).encode(1),
        M.BasicQos(0, 5, False).encode(1),
        M.ConfirmSelect().encode(1),
        M.TxSelect().encode(1) + M.TxCommit().encode(1) + M.TxRollback().encode(1),
        M.BasicCancel("c").encode(1),
        M.BasicRecover(True).encode(1),
        M.BasicAck(0, True).encode(1),
    ],
    ids=["passive exchange", "passive queue", "qos", "confirm", "tx", "cancel", "recover", "ack"],
)
def test_what_needs_no_right(server: Server, vhost: str, user: str, sent: bytes) -> None:
    """R-PERM-4, R-EX-5: a passive declare needs nothing in 3.10."""
    server.admin.set_permissions(vhost, user, "^$", "^$", "^$")
    assert ask(server, vhost, user, sent) == ACCEPTED


@pytest.mark.parametrize(
    ("pattern", "name", "is_granted"),
    [
        ("a", "bab", True),
        ("^a", "bab", False),
        ("", "q", False),
        ("^$", "q", False),
        (".*", "n", True),
        ("^(a|b)$", "b", True),
        ("A", "a", False),
        ("(?i)A", "a", True),
        (r"^a\.b$", "a.b", True),
        (r"^a\.b$", "axb", False),
        ("^(?!amq)", "amz", True),
        ("^(?!am)", "amz", False),
        (r"^\d+$", "42", True),
        ("^[[:alpha:]]+$", "abc", True),
        ("^ü$", "ü", True),
        ("a$", "a\n", True),
    ],
)
def test_patterns_are_unanchored(
    server: Server, vhost: str, user: str, pattern: str, name: str, is_granted: bool
) -> None:
    """R-PERM-1: the empty pattern grants nothing."""
    server.admin.set_permissions(vhost, user, pattern, "^$", "^$")
    closed = ask(server, vhost, user, M.QueueDeclare(0, name).encode(1))
    assert (closed.code == 540) == is_granted, closed
    assert closed.code in (403, 540)


def test_server_named_queues_need_a_right_too(server: Server, vhost: str, user: str) -> None:
    """R-PERM-2."""
    sent = M.QueueDeclare(0, "", exclusive=True).encode(1)
    server.admin.set_permissions(vhost, user, r"^amq\.gen-", "^$", "^$")
    assert ask(server, vhost, user, sent) == ACCEPTED
    server.admin.set_permissions(vhost, user, "^mine", "^$", "^$")
    closed = ask(server, vhost, user, sent)
    assert (closed.level, closed.code) == ("channel", 403)
    assert "access to queue 'amq.gen-" in closed.text


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (M.QueueDeclare(0, "amq.foo").encode(1), 403),
        (M.ExchangeDelete(0, "amq.direct").encode(1), 403),
        (M.ExchangeDelete(0, "").encode(1), 403),
        (M.BasicGet(0, "nope").encode(1), 403),
        (M.QueuePurge(0, "nope").encode(1), 403),
        (publish(1, "nope", "k", b""), 403),
        (M.QueueDelete(0, "nope").encode(1), 403),
        (M.QueueDeclare(0, "nope", passive=True).encode(1), 404),
        (M.ExchangeDeclare(0, "nope", passive=True).encode(1), 404),
        (M.ExchangeDeclare(0, "n", "zz").encode(1), 503),
        (M.QueueDeclare(0, "n", arguments={"x-queue-type": "zz"}).encode(1), 403),
        (M.QueueDeclare(0, "q").encode(1), 403),
        (M.BasicConsume(0, "q", exclusive=True).encode(1), 403),
    ],
)
def test_rights_are_looked_at_before_existence(
    server: Server, vhost: str, user: str, sent: bytes, code: int
) -> None:
    """R-PERM-6, R-PERM-7: the same refusal on both, whatever else is wrong."""
    server.admin.set_permissions(vhost, user, "^$", "^$", "^$")
    assert ask(server, vhost, user, sent).code == code


def test_a_vhost_without_any_record_cannot_be_opened(server: Server, vhost: str, user: str) -> None:
    """R-CON-11, R-ERR-21, R-PERM-1."""
    said = f"access to vhost '{vhost}' refused for user '{user}'"
    assert opening(server, vhost, user) == refused_to_open(said)


@pytest.mark.parametrize("tag", ["administrator", "monitoring", "policymaker", "management"])
def test_tags_are_no_rights(server: Server, vhost: str, tag: str) -> None:
    """R-PERM-9, R-PUB-3."""
    name = f"{tag}-of-{vhost}"
    server.admin.add_user(name, name, tag)
    server.admin.set_permissions(vhost, name, "^$", r"^amq\.direct$", "^$")
    sent = publish(1, "amq.direct", "k", b"", BasicProperties(user_id="bob").encode())
    assert ask(server, vhost, name, sent).code == 406
    assert ask(server, vhost, name, M.QueueDeclare(0, "n").encode(1)).code == 403
    server.admin.delete_user(name)


def test_impersonators_may_name_another_user(server: Server, vhost: str) -> None:
    """R-PUB-3, R-PERM-9."""
    name = f"impersonator-of-{vhost}"
    server.admin.add_user(name, name, "impersonator")
    server.admin.set_permissions(vhost, name)
    sent = publish(1, "amq.direct", "k", b"", BasicProperties(user_id="bob").encode())
    assert ask(server, vhost, name, sent) == ACCEPTED
    server.admin.delete_user(name)


# ---- topic permissions --------------------------------------------------------------------------


def topic_refused(server: Server, right: str, key: str, vhost: str, user: str) -> str:
    """R-TP-2."""
    told = expect(server, rabbitmq="", brokerd=f"{right} ", difference="D-17")
    return (
        f"ACCESS_REFUSED - {told}access to topic '{key}' in exchange 't' in vhost '{vhost}' "
        f"refused for user '{user}'"
    )


TOPIC_OPERATIONS = {
    "publish": (publish(1, "t", "{}", b""), "write"),
    "queue.bind": (M.QueueBind(0, "q", "t", "{}").encode(1), "read"),
    "queue.unbind": (M.QueueUnbind(0, "q", "t", "{}").encode(1), "read"),
    "exchange.bind": (M.ExchangeBind(0, "x", "t", "{}").encode(1), "read"),
    "exchange.unbind": (M.ExchangeUnbind(0, "x", "t", "{}").encode(1), "read"),
}


def with_key(name: str, key: str) -> bytes:
    """Return the operation with this key, which has as many octets as the place holder."""
    sent, _ = TOPIC_OPERATIONS[name]
    assert len(key) == 2
    return sent.replace(b"{}", key.encode())


@pytest.mark.parametrize("name", TOPIC_OPERATIONS)
def test_topic_permissions(server: Server, vhost: str, user: str, name: str) -> None:
    """R-TP-1, R-TP-2."""
    server.admin.set_permissions(vhost, user)
    server.admin.set_topic_permissions(vhost, user, "t", "^a", "^a")
    assert ask(server, vhost, user, with_key(name, "a1")) == ACCEPTED
    closed = ask(server, vhost, user, with_key(name, "b1"))
    wanted = topic_refused(server, TOPIC_OPERATIONS[name][1], "b1", vhost, user)
    assert (closed.level, closed.code, closed.text) == ("channel", 403, wanted)


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_topic_permissions_hold_for_every_key(
    server: Server, vhost: str, user: str, header: str
) -> None:
    """R-TP-2."""
    server.admin.set_permissions(vhost, user)
    server.admin.set_topic_permissions(vhost, user, "t", "^a", "^a")
    properties = BasicProperties(headers={header: ["a2", "b2"]}).encode()
    closed = ask(server, vhost, user, publish(1, "t", "a1", b"", properties))
    text = f"access to topic 'b2' in exchange 't' in vhost '{vhost}' refused for user '{user}'"
    refused = Closed("channel", 403, f"ACCESS_REFUSED - write {text}", (60, 40))
    assert closed == expect(server, rabbitmq=ACCEPTED, brokerd=refused, difference="D-19")


def test_topic_permissions_do_not_hold_for_other_exchanges(
    server: Server, vhost: str, user: str
) -> None:
    """R-TP-1: neither other exchanges nor other types."""
    server.admin.set_permissions(vhost, user)
    server.admin.set_topic_permissions(vhost, user, "t", "^a", "^a")
    server.admin.set_topic_permissions(vhost, user, "x", "^a", "^a")
    assert ask(server, vhost, user, publish(1, "amq.topic", "b", b"")) == ACCEPTED
    assert ask(server, vhost, user, publish(1, "x", "b", b"")) == ACCEPTED
    assert ask(server, vhost, user, M.QueueBind(0, "q", "x", "b").encode(1)) == ACCEPTED


def test_topic_patterns_may_name_user_and_vhost(server: Server, vhost: str, user: str) -> None:
    """R-TP-3."""
    server.admin.set_permissions(vhost, user)
    server.admin.set_topic_permissions(vhost, user, "t", "^{username}-{vhost}-", "^$")
    sent = publish(1, "t", f"{user}-{vhost}-1", b"")
    assert ask(server, vhost, user, sent) == ACCEPTED
    assert ask(server, vhost, user, publish(1, "t", f"{user}-other-1", b"")).code == 403


# ---- vhosts and limits --------------------------------------------------------------------------


def test_a_new_vhost_has_the_seven_exchanges(server: Server, vhost: str) -> None:
    """R-VH-2."""
    rows = server.admin.exchanges(vhost)
    assert {name: row["type"] for name, row in rows.items()} == {
        "": "direct",
        "amq.direct": "direct",
        "amq.fanout": "fanout",
        "amq.topic": "topic",
        "amq.headers": "headers",
        "amq.match": "headers",
        "amq.rabbitmq.trace": "topic",
    }
    assert all(row["durable"] for row in rows.values())
    assert [name for name, row in rows.items() if row["internal"]] == ["amq.rabbitmq.trace"]


def test_vhosts_share_nothing(server: Server, vhost: str, channel: Any) -> None:
    """R-VH-1."""
    channel.queue_declare("same", durable=True)
    channel.basic_publish("", "same", b"here")
    other = f"{vhost}-other"
    server.admin.add_vhost(other)
    with server.connected(other) as connection:
        second = connection.channel()
        assert second.queue_declare("same", durable=True).method.message_count == 0
        second.basic_publish("", "same", b"there")
        assert second.basic_get("same", auto_ack=True)[2] == b"there"
    server.admin.delete_vhost(other)
    assert channel.basic_get("same", auto_ack=True)[2] == b"here"


def test_deleting_a_vhost_closes_its_connections(server: Server, vhost: str) -> None:
    """R-VH-2."""
    doomed = f"{vhost}-doomed"
    server.admin.add_vhost(doomed)
    with server.raw(doomed) as raw:
        raw.open(1)
        raw.declare(1, "q", durable=True)
        server.admin.delete_vhost(doomed)
        closed = closed_by(raw)
        # On a busy machine RabbitMQ's processes of the vhost may go before the news of it.
        ends = ("deleted", "down") if server.name == "rabbitmq" else ("deleted",)
        texts = [f"CONNECTION_FORCED - vhost '{doomed}' is {end}" for end in ends]
        assert closed in [Closed("connection", 320, text) for text in texts]
    server.admin.add_vhost(doomed)
    assert server.admin.queues(doomed) == {}
    server.admin.delete_vhost(doomed)


def opening(server: Server, vhost: str, user: str = "guest") -> Closed | str:
    """Return how an attempt to open a vhost ends; ConnectionCloseOk where it is let in."""
    sent = HEADER + start_ok(response=plain(user)) + tune_ok()
    sent += M.ConnectionOpen(vhost).encode(0) + M.ConnectionClose(200, "", 0, 0).encode(0)
    dialogue = Dialogue(server.port, sent)
    last = dialogue.hear().last
    dialogue.close()
    return last


def refused_to_open(text: str) -> Closed:
    """Return the 530 of connection.open."""
    return Closed("connection", 530, f"NOT_ALLOWED - {text}", (10, 40))


def test_connections_of_a_vhost_may_be_forbidden(server: Server, vhost: str) -> None:
    """R-VH-3, R-CON-12, O-4: 0 forbids, -1 does not limit."""
    server.admin.set_vhost_limit(vhost, "max-connections", 0)
    said = f"access to vhost '{vhost}' refused for user 'guest': connection limit (0) is reached"
    assert opening(server, vhost) == refused_to_open(said)
    server.admin.set_vhost_limit(vhost, "max-connections", -1)
    assert opening(server, vhost) == "ConnectionCloseOk"


def test_connections_of_a_user_are_limited(server: Server, vhost: str, user: str) -> None:
    """R-CON-12: RabbitMQ counts with a delay."""
    server.admin.set_permissions(vhost, user)
    server.admin.set_user_limit(user, "max-connections", 1)
    said = f"connection refused for user '{user}': user connection limit (1) is reached"
    with server.connected(vhost, user):
        eventually(lambda: opening(server, vhost, user) == refused_to_open(said), said)


def test_channels_of_a_user_are_limited(server: Server, vhost: str, user: str) -> None:
    """R-CH-3."""
    server.admin.set_permissions(vhost, user)
    server.admin.set_user_limit(user, "max-channels", 1)
    with server.raw(vhost, user=user) as raw:
        raw.open(1)
        numbers = iter(range(2, 100))
        closed: list[Closed] = []

        def over() -> bool:
            raw.send(next(numbers), M.ChannelOpen())
            found = raw.next_method()
            assert found is not None
            if isinstance(found[1], M.ConnectionClose):
                close = found[1]
                closed.append(Closed("connection", close.reply_code, close.reply_text))
            return bool(closed)

        eventually(over, "the limit")
        said = f"number of channels opened for user '{user}' has reached the maximum allowed"
        assert closed[0].code == 530
        assert closed[0].text.startswith(f"NOT_ALLOWED - {said} user limit of (1)"), closed


@pytest.mark.parametrize("limit", [0, 1])
def test_queues_of_a_vhost_are_limited(server: Server, vhost: str, limit: int) -> None:
    """R-VH-3, R-Q-2."""
    server.admin.set_vhost_limit(vhost, "max-queues", limit)
    with server.raw(vhost) as raw:
        raw.open(1)
        for number in range(limit):
            raw.declare(1, f"q{number}", durable=True)
        raw.send(1, M.QueueDeclare(0, "over", durable=True))
        said = (
            f"PRECONDITION_FAILED - cannot declare queue 'over': "
            f"queue limit in vhost '{vhost}' ({limit}) is reached"
        )
        assert closed_by(raw) == Closed("channel", 406, said, (50, 10))
        raw.send(1, M.ChannelCloseOk())
        raw.open(1)
        for number in range(limit):
            raw.declare(1, f"q{number}", durable=True)


def test_the_type_of_queues_may_be_the_vhosts(server: Server, vhost: str) -> None:
    """R-Q-1, R-VH-3: what the default type cannot serve is classic."""
    other = f"{vhost}-quorum"
    server.admin.add_vhost(other, "quorum")
    with server.raw(other) as raw:
        raw.open(1)
        raw.declare(1, "durable", durable=True)
        raw.declare(1, "told", durable=True, arguments={"x-queue-type": "classic"})
        types = {name: row["type"] for name, row in server.admin.queues(other).items()}
    default = expect(server, rabbitmq="classic", brokerd="quorum", difference="D-18")
    assert types == {"durable": default, "told": "classic"}
    server.admin.delete_vhost(other)


def test_a_revoked_right_is_missed_by_new_connections(
    server: Server, vhost: str, user: str
) -> None:
    """R-PERM-5: an open channel may see it late."""
    server.admin.set_permissions(vhost, user)
    sent = M.BasicGet(0, "q").encode(1)
    assert ask(server, vhost, user, sent) == ACCEPTED
    server.admin.set_permissions(vhost, user, read="^$")
    assert ask(server, vhost, user, sent).code == 403
    server.admin.clear_permissions(vhost, user)
    said = f"access to vhost '{vhost}' refused for user '{user}'"
    assert opening(server, vhost, user) == refused_to_open(said)


def test_a_deleted_user_cannot_log_in(server: Server, vhost: str) -> None:
    """R-CON-5."""
    name = f"gone-from-{vhost}"
    server.admin.add_user(name, name)
    server.admin.set_permissions(vhost, name)
    server.connect(vhost, name).close()
    server.admin.delete_user(name)
    with pytest.raises(exceptions.ProbableAuthenticationError):
        server.connect(vhost, name)


def test_the_password_may_change(server: Server, vhost: str, user: str) -> None:
    """R-CON-5: the old one is refused at once."""
    server.admin.set_permissions(vhost, user)
    server.admin.add_user(user, "other")
    with pytest.raises(exceptions.ProbableAuthenticationError):
        server.connect(vhost, user)
    with server.connected(vhost, user, password="other") as connection:
        channel = connection.channel()
        channel.basic_publish("", "q", b"x", pika.BasicProperties(user_id=user))
        assert channel.basic_get("q", auto_ack=True)[2] == b"x"
