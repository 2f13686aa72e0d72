"""What a message of a federated queue becomes on its way (R-FQ-4, R-FQ-5)."""

from __future__ import annotations

import pytest

from brokerd.amqp import properties
from brokerd.amqp.properties import BasicProperties
from brokerd.amqp.values import Table, Value
from brokerd.federation import upstream
from brokerd.federation.link_events import Delivered
from brokerd.federation.link_headers import ExchangePassage, QueuePassage

URI = "amqp://there:1/up"


def passage(**definition: object) -> QueuePassage:
    """Our queue `q` with an upstream that is connected."""
    made = QueuePassage("v", "q", upstream.parse("u", {"uri": "amqp://h"} | definition))
    made.introduce(URI, "warehouse", "up")
    return made


def moved(made: QueuePassage, table: Table | None, **fields: str) -> tuple[Table, BasicProperties]:
    """Move a message; return its headers and its properties then."""
    header = BasicProperties(headers=table, message_id="m", **fields).encode()  # type: ignore[arg-type]
    message = Delivered(1, True, "source", "key", header, [b""], 0)
    passed = made.forward(message, properties.headers(header))
    assert isinstance(passed, tuple)
    assert passed[0] == "q"
    return properties.headers(passed[1]), BasicProperties.decode(passed[1])


def entry(**fields: Value) -> Table:
    """Our own entry of a first visit, with other fields."""
    mine: Table = {
        "uri": URI,
        "queue": "q",
        "cluster-name": "warehouse",
        "vhost": "up",
        "redelivered": True,
        "visit-count": 1,
    }
    return mine | fields


def test_the_first_move_keeps_where_the_message_was_published() -> None:
    """R-FQ-5: CC becomes x-original-cc, BCC goes nowhere."""
    table, fields = moved(passage(), {"CC": ["a"], "BCC": ["b"], "mine": 1})
    assert table == {
        "mine": 1,
        "x-original-cc": ["a"],
        "x-original-exchange": "source",
        "x-original-routing-key": "key",
        "x-received-from": [entry()],
    }
    assert fields.message_id == "m"


def test_a_visit_count_is_64_bits_wide() -> None:
    """R-FQ-5: RabbitMQ's own are."""
    made = passage()
    message = Delivered(1, False, "", "q", BasicProperties().encode(), [b""], 0)
    passed = made.forward(message, {})
    assert isinstance(passed, tuple)
    assert b"\x0bvisit-countl" in passed[1]


def test_another_visit_is_counted_and_moves_to_the_front() -> None:
    """R-FQ-5: what the first move noted stays; other places keep their order."""
    first: Table = {"uri": "amqp://x", "queue": "q", "visit-count": 4}
    second: Table = {"uri": URI, "queue": "other", "visit-count": 2}
    before: Table = {
        "x-original-exchange": "first",
        "x-received-from": [first, entry(redelivered=False, **{"visit-count": 6}), second],
    }
    table, _ = moved(passage(), before)
    assert table["x-original-exchange"] == "first"
    assert "x-original-routing-key" not in table
    assert table["x-received-from"] == [entry(**{"visit-count": 7}), first, second]


@pytest.mark.parametrize("count", ["many", None, -5, True])
def test_a_count_that_is_none_begins_anew(count: Value) -> None:
    """R-FQ-5: headers are people's."""
    before: Table = {"x-received-from": [entry(**{"visit-count": count}), "text"]}
    table, _ = moved(passage(), before)
    assert table["x-received-from"] == [entry(), "text"]


def test_a_count_does_not_grow_beyond_what_a_client_can_read() -> None:
    """R-FQ-5."""
    before: Table = {"x-received-from": [entry(**{"visit-count": 2**63 - 1})]}
    table, _ = moved(passage(), before)
    assert table["x-received-from"] == [entry(**{"visit-count": 2**62})]


def test_a_header_that_federation_did_not_write_is_replaced() -> None:
    """R-FQ-5."""
    table, _ = moved(passage(), {"x-received-from": "a client"})
    assert table["x-received-from"] == [entry()]
    assert table["x-original-exchange"] == "source"


def test_the_user_id_is_the_upstreams_word() -> None:
    """R-FED-2."""
    assert moved(passage(), None, user_id="me")[1].user_id is None
    assert moved(passage(**{"trust-user-id": True}), None, user_id="me")[1].user_id == "me"


def test_a_row_names_both_queues() -> None:
    """R-FED-6."""
    row = passage(queue="stock").row()
    assert (row["type"], row["vhost"], row["queue"]) == ("queue", "v", "q")
    assert (row["upstream_queue"], row["exchange"]) == ("stock", "")


def test_each_kind_of_link_compares_what_it_reads_only() -> None:
    """R-FX-17: another consumer tag must not cost an exchange's link its queue."""
    plain = upstream.parse("u", {"uri": "amqp://h"})
    queues = upstream.parse("u", {"uri": "amqp://h", "queue": "q", "consumer-tag": "t"})
    exchanges = upstream.parse("u", {"uri": "amqp://h", "exchange": "x", "max-hops": 3})
    assert queues.of_exchange() == plain
    assert queues.of_queue() == queues
    assert exchanges.of_queue() == plain
    assert exchanges.of_exchange() == exchanges


def test_a_set_may_take_several_queues_of_one_upstream() -> None:
    """R-FED-3, R-FED-4."""
    entries = [{"upstream": "u", "queue": "a"}, {"upstream": "u", "queue": "b"}]
    found, problems = upstream.select(
        upstream.Choice(upstream_set="s"), {"u": {"uri": "amqp://h"}}, {"s": entries}
    )
    assert [each.queue_name("q") for each in found] == ["a", "b"]
    assert problems == []


@pytest.mark.parametrize("kind", ["queue", "exchange"])
def test_equal_messages_become_equal_and_others_do_not(kind: str) -> None:
    """R-FQ-5, R-FX-13: what is kept of the last message counts for one like it only."""

    def made() -> QueuePassage | ExchangePassage:
        definition = upstream.parse("u", {"uri": "amqp://h"})
        if kind == "queue":
            found: QueuePassage | ExchangePassage = QueuePassage("v", "q", definition)
        else:
            found = ExchangePassage("c", "v", "x", definition)
        found.introduce(URI, "warehouse", "up")
        return found

    def forwarded(by: QueuePassage | ExchangePassage, message: Delivered) -> object:
        return by.forward(message, properties.headers(message.header))

    one, two = (BasicProperties(message_id=text).encode() for text in ("1", "2"))
    messages = [
        Delivered(1, redelivered, exchange, key, header, [b""], 0)
        for header, redelivered, exchange, key in (
            (one, False, "a", "k"),
            (one, False, "a", "k"),
            (two, False, "a", "k"),
            (two, True, "a", "k"),
            (two, True, "b", "k"),
            (two, True, "b", "l"),
        )
    ]
    same = made()
    found = [forwarded(same, message) for message in messages]
    assert found == [forwarded(made(), message) for message in messages]
    assert found[0] == found[1]
    assert len({str(each) for each in found}) == (5 if kind == "queue" else 4)
    same.introduce("amqp://elsewhere", "other", "up")
    assert forwarded(same, messages[-1]) != found[-1]


def test_a_row_of_a_queue_names_the_consumer_tag() -> None:
    """R-FQ-2: the one that is used, as rabbitmqadmin shows it."""
    assert passage().row()["consumer_tag"] == "federation-link-u"
    assert passage(**{"consumer-tag": "mine"}).row()["consumer_tag"] == "mine"
