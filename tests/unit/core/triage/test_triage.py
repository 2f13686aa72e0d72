"""Histories, origins, groups: by the broker's record and frameworks' headers, also forged ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from brokerd.core.triage import framework_headers
from brokerd.core.triage.framework_headers import FRAMEWORKS, KEPT_MAX, framework_of
from brokerd.core.triage.groups import GROUPS_MAX, Group, Triage, fingerprint, group_of
from brokerd.core.triage.histories import (
    History,
    NoOrigin,
    Source,
    client_reason_of,
    history_of,
    origin_of,
    was_sent_back,
)
from tests.unit.core.filters.views import View, death, with_headers

PAGE = Path(__file__).resolve().parents[4] / "docs" / "reference" / "triage.md"
STAMP = "X-Message-Stamp-Symfony\\Component\\Messenger\\Stamp\\ErrorDetailsStamp"
TRACE = """org.springframework.amqp.ListenerExecutionFailedException: Listener threw exception
\tat org.springframework.Listener.invoke(Listener.java:1)
Caused by: com.shop.OrderException: wrapped
\tat com.shop.Orders.take(Orders.java:2)
Caused by: java.net.SocketTimeoutException: Read timed out
\t... 12 more"""


def died(**more: object) -> View:
    view = with_headers(**more)
    view.deaths = [death("retry", "expired", 3), death("work", "rejected", 2)]
    view.deaths[1].routing_keys = ["order.created"]
    view.first_death = ("rejected", "work", "events")
    return view


def test_the_brokers_record_is_the_history() -> None:
    """What headers say beside it, of a framework too, does not change where it died."""
    view = died(**{"x-death": [{"queue": "forged"}], "MT-Reason": "fault"})
    assert history_of(view) == History(
        Source.BROKER,
        framework="MassTransit",
        reason="expired",
        first_queue="work",
        last_queue="retry",
        exchange="events",
        routing_key="order.created",
    )
    assert origin_of(view, False) == origin_of(view, True) == "work"


def test_first_death_whose_record_is_gone_keeps_its_queue() -> None:
    view = died()
    view.first_death = ("maxlen", "gone", "ex")
    assert origin_of(view, False) == "gone"
    view.deaths[1].routing_keys = []
    assert history_of(view).routing_key == ""


FROM_FRAMEWORKS: list[tuple[dict[str, object], History]] = [
    (
        {
            "MT-Reason": "fault",
            "MT-Fault-InputAddress": "rabbitmq://host/shop/charge-card?durable=true",
            "MT-Fault-ExceptionType": "System.InvalidOperationException",
            "MT-Fault-MessageType": "Shop.ChargeCard",
        },
        History(
            Source.FRAMEWORK,
            framework="MassTransit",
            reason="fault",
            first_queue="charge-card",
            last_queue="charge-card",
            type="Shop.ChargeCard",
            exception="System.InvalidOperationException",
        ),
    ),
    (
        {
            "NServiceBus.FailedQ": "sales",
            "NServiceBus.ExceptionInfo.ExceptionType": "System.TimeoutException",
            "NServiceBus.EnclosedMessageTypes": "Shop.Order, Shop, Version=1.0.0.0;Shop.IOrder",
        },
        History(
            Source.FRAMEWORK,
            framework="NServiceBus",
            first_queue="sales",
            last_queue="sales",
            type="Shop.Order",
            exception="System.TimeoutException",
        ),
    ),
    (
        {"rbs2-source-queue": "consumer", "rbs2-msg-type": "Shop.Order, Shop"},
        History(
            Source.FRAMEWORK,
            framework="Rebus",
            first_queue="consumer",
            last_queue="consumer",
            type="Shop.Order",
        ),
    ),
    (
        {
            "x-exception-stacktrace": TRACE,
            "x-exception-message": "Read timed out",
            "x-original-exchange": "events",
            "x-original-routingKey": "order.created",
            "__TypeId__": "com.shop.Order",
        },
        History(
            Source.FRAMEWORK,
            framework="Spring",
            exchange="events",
            routing_key="order.created",
            type="com.shop.Order",
            exception="java.net.SocketTimeoutException",
        ),
    ),
    (
        {
            "x-exception-message": "late",
            "x-exception-stacktrace": "java.lang.Error: late",
            "x-original-exchange": "",
            "x-original-routingKey": "work",
        },
        History(
            Source.FRAMEWORK,
            framework="Spring",
            first_queue="work",
            last_queue="work",
            routing_key="work",
            exception="java.lang.Error",
        ),
    ),
    (
        {
            STAMP: json.dumps([{"exceptionClass": "Old"}, {"exceptionClass": "App\\Late"}]),
            "type": "App\\Order",
        },
        History(Source.FRAMEWORK, framework="Symfony", type="App\\Order", exception="App\\Late"),
    ),
]


@pytest.mark.parametrize(
    ("headers", "expected"), FROM_FRAMEWORKS, ids=[row[1].framework for row in FROM_FRAMEWORKS]
)
def test_a_frameworks_headers_are_a_history(headers: dict[str, object], expected: History) -> None:
    view = with_headers(**headers)
    view.exchange, view.routing_key = "errors", "errors"
    assert history_of(view) == expected
    assert origin_of(view, False) is NoOrigin.NOT_TRUSTED
    assert origin_of(view, True) == (expected.first_queue or NoOrigin.NO_QUEUE)


@pytest.mark.parametrize(
    "stamp", ["", "{", "[]", "{}", "[1]", '[{"exceptionClass": 1}]', "[" * 60_000]
)
def test_a_stamp_that_cannot_be_read_names_no_exception(stamp: str) -> None:
    assert history_of(with_headers(**{STAMP: stamp})).exception == ""


def test_an_x_death_from_elsewhere_is_a_history() -> None:
    """Of a real RabbitMQ, through a shovel; newest first."""
    entries = [
        {"queue": "retry", "reason": "expired", "exchange": "r", "routing-keys": ["r"]},
        {"queue": "work", "reason": "rejected", "exchange": "events", "routing-keys": ["a", "b"]},
    ]
    view = with_headers(**{"x-death": entries})
    assert history_of(view) == History(
        Source.X_DEATH,
        reason="expired",
        first_queue="work",
        last_queue="retry",
        exchange="events",
        routing_key="a",
    )
    assert origin_of(view, False) is NoOrigin.NOT_TRUSTED
    assert origin_of(view, True) == "work"
    view = with_headers(**{"x-death": entries, "x-first-death-queue": "first"})
    assert origin_of(view, True) == "first"


@pytest.mark.parametrize(
    "forged",
    [
        [{}],
        [{"queue": 5, "reason": [], "routing-keys": "a"}],
        [{"routing-keys": []}],
        [{"routing-keys": [5]}],
        [1, {"exchange": None}],
    ],
)
def test_a_forged_x_death_names_nothing(forged: list[object]) -> None:
    view = with_headers(**{"x-death": forged})
    assert history_of(view) == History(Source.X_DEATH)
    assert origin_of(view, True) is NoOrigin.NO_QUEUE


@pytest.mark.parametrize("forged", ["work", 5, [], ["work"], None, {"queue": "work"}])
def test_an_x_death_that_is_none_is_no_history(forged: object) -> None:
    view = with_headers(**{"x-death": forged})
    assert history_of(view) == History(Source.NONE, routing_key="orders")
    assert origin_of(view, True) is NoOrigin.NO_HISTORY


def test_a_message_that_never_died_has_its_own_exchange_key_and_type() -> None:
    view = View(exchange="ex", routing_key="key")
    view.properties.type = "order"
    assert history_of(view) == History(Source.NONE, exchange="ex", routing_key="key", type="order")


def test_the_type_is_the_property_or_a_header() -> None:
    view = with_headers(task="shop.tasks.charge")
    assert history_of(view).type == "shop.tasks.charge"
    view.properties.type = "own"
    assert history_of(view).type == "own"


def test_the_client_is_the_one_of_the_certificate() -> None:
    assert (
        history_of(died(**{"x-last-death-consumer": {"client": "pika 1.3"}})).client == "pika 1.3"
    )
    assert history_of(died(**{"x-last-death-consumer": "pika"})).client == ""
    assert history_of(died(**{"x-last-death-consumer": {"client": 5}})).client == ""


def test_the_reason_of_the_example_is_kept_with_its_group() -> None:
    """Reasons differ from message to message, so they are none of the fingerprint's."""
    triage = Triage()
    for reason in ("no such customer", "another"):
        header = {"client": "pika 1.3", "reason": reason}
        triage.add_message(died(**{"x-last-death-consumer": header}), 1_000)
    ((name, group),) = triage.groups.items()
    assert (group.count, group.client_reason) == (2, "no such customer")
    total = Triage()
    total.add_group(name, group_of(group.as_json()))
    total.add_group(name, Group(group.history, example=9, client_reason="later"))
    assert total.groups[name].client_reason == "no such customer"
    for wrong in ("pika", {"reason": 5}):
        assert client_reason_of(died(**{"x-last-death-consumer": wrong})) == ""


def test_long_headers_are_cut() -> None:
    long = "x" * (1 << 20)
    names = ("MT-Reason", "MT-Fault-InputAddress", "MT-Fault-ExceptionType")
    history = history_of(with_headers(**dict.fromkeys(names, long)))
    assert {len(history.reason), len(history.first_queue), len(history.exception)} == {KEPT_MAX}
    view = died(task=long)
    view.first_death = ("rejected", long, long)
    history = history_of(view)
    assert {len(history.type), len(history.first_queue), len(history.exchange)} == {KEPT_MAX}


def test_headers_of_wrong_types_are_as_if_they_were_not_there() -> None:
    for framework in FRAMEWORKS:
        for mark in framework.marks:
            assert framework_of({mark: 5}) is framework
            assert origin_of(with_headers(**{mark: 5}), True) is NoOrigin.NO_QUEUE


def test_the_page_has_the_headers_of_the_code() -> None:
    rows = [line.split("|")[1:] for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    by_name = {row[0].strip(): "|".join(row) for row in rows}
    for framework in FRAMEWORKS:
        named = (
            *framework.marks,
            *(framework.reason, framework.queue, framework.exchange, framework.routing_key),
            *(framework.exception, framework.type),
        )
        assert [name for name in named if name and f"`{name}`" not in by_name[framework.name]] == []
    assert f"{GROUPS_MAX:,} groups" in PAGE.read_text()


def test_messages_of_one_history_are_a_group() -> None:
    triage = Triage()
    for number, age_ms in ((5, 100), (6, None), (7, 900), (8, 500)):
        view = died(**({"x-redrive-id": "1-2"} if number == 7 else {}))
        view.number, view.age_ms, view.size = number, age_ms, 10
        assert was_sent_back(view) is (number == 7)
        triage.add_message(view, 10_000)
    (name, group), *rest = triage.largest_first()
    assert rest == []
    assert name == fingerprint(history_of(died()))
    assert (group.count, group.bytes, group.sent_back, group.example) == (4, 40, 1, 5)
    assert (group.first_seen_ms, group.last_seen_ms) == (9_100, 9_900)
    assert group.history == history_of(died())
    assert triage.others.count == 0


def test_the_largest_group_comes_first() -> None:
    triage = Triage()
    for key in ("a", "b", "b", "c"):
        triage.add_message(View(routing_key=key), 0)
    groups = triage.largest_first()
    assert [group.count for _, group in groups] == [2, 1, 1]
    assert groups[1][0] < groups[2][0]
    assert groups[0][1].first_seen_ms is None


def test_groups_beyond_the_bound_are_counted_together() -> None:
    triage = Triage(groups_max=2)
    for number, key in enumerate(["a", "b", "c", "d", "a"]):
        triage.add_message(View(number=number, routing_key=key, size=2), 0)
    assert sorted(group.count for group in triage.groups.values()) == [1, 2]
    others = triage.others
    assert (others.count, others.bytes, others.example, others.history) == (2, 4, 2, None)


def test_fingerprints_are_short_and_stay() -> None:
    """A redrive names a group that a triage showed, perhaps at another member, by this."""
    assert fingerprint(history_of(died())) == "0ce00a074eaa"
    assert fingerprint(History(Source.NONE, reason="ab", first_queue="c")) != fingerprint(
        History(Source.NONE, reason="a", first_queue="bc")
    )
    assert len(fingerprint(History(Source.NONE, type="\ud800\udc80"))) == 12


def test_each_part_of_a_history_tells_groups_apart() -> None:
    parts = ("framework", "reason", "first_queue", "last_queue", "exchange", "routing_key")
    more = ("type", "exception", "client")
    found = {fingerprint(History(Source.NONE, **{part: "x"})) for part in (*parts, *more)}
    found |= {fingerprint(History(source)) for source in Source}
    assert len(found) == 9 + 4


def test_values_are_read_in_the_form_of_the_framework() -> None:
    assert framework_headers.read({"a": "x" * 300}, "a", None) == "x" * KEPT_MAX
    assert framework_headers.read({}, "a", str.upper) == ""
