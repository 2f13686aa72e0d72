"""Definitions of upstreams and sets before they are stored."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.federation import definitions
from brokerd.federation.definitions import NewQueue
from brokerd.federation.upstream import SEALED, UPSTREAMS_OF_EXCHANGE_MAX, Choice


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"uri": "http://u:secret@x"}, "uri must begin with amqp:// or amqps://"),
        ({"url": "amqp://u:secret@x"}, "unknown key 'url': is 'uri' meant?"),
        ({"uri": "amqp://x", "ack-mode": "on_confirm"}, "ack-mode must be one of"),
        ({"uri": "amqp://x", "max-hops": 0}, "max-hops must be a number"),
        ({}, "uri is missing"),
        ({"uri": None}, "uri is missing"),
        ([], "must be a table"),
        (None, "must be a table"),
    ],
)
def test_an_upstream_that_could_not_be_used_is_refused(value: Any, said: str) -> None:
    """R-FED-2: what is wrong is named; a password is not."""
    problem = definitions.problem_of_upstream(value, has_uri=False)
    assert problem is not None
    assert said in problem
    assert "secret" not in problem


def test_an_upstream_may_leave_out_the_uri_that_is_stored() -> None:
    """R-FED-2: an export without passwords can be imported; other keys are checked."""
    assert definitions.problem_of_upstream({"uri": "amqp://x"}, has_uri=False) is None
    assert definitions.problem_of_upstream({"max-hops": 2}, has_uri=True) is None
    assert definitions.problem_of_upstream({"uri": None}, has_uri=True) is None
    assert definitions.problem_of_upstream({"max-hops": "2"}, has_uri=True) is not None
    # Sealed texts are refused elsewhere, or are what an earlier version has stored.
    for uri in (f"{SEALED}ab:cd", [f"{SEALED}ab:cd"]):
        assert definitions.problem_of_upstream({"uri": uri}, has_uri=False) is None
    assert definitions.problem_of_upstream({"uri": [5]}, has_uri=False) is not None


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"upstream": "u"}, "must be a list of tables"),
        ("u", "must be a list of tables"),
        (["u"], "must be a table with the key upstream"),
        ([{"exchange": "x"}], "must be a table with the key upstream"),
        ([{"upstream": 1}], "must be a table with the key upstream"),
        ([{"upstream": "u", "bogus": 1}], "upstream 'u': unknown key 'bogus'"),
        ([{"upstream": "u", "max-hops": "2"}], "upstream 'u': max-hops must be"),
        ([{"upstream": "u", "uri": "amqp://s:secret@x"}], "a set cannot override uri"),
        ([{"upstream": "u"}] * (UPSTREAMS_OF_EXCHANGE_MAX + 1), "more than 256 upstreams"),
    ],
)
def test_a_set_that_could_not_be_used_is_refused(value: Any, said: str) -> None:
    """R-FED-3."""
    problem = definitions.problem_of_set(value)
    assert problem is not None
    assert said in problem
    assert "secret" not in problem


def test_a_set_may_name_what_is_made_later() -> None:
    """R-FED-3: as RabbitMQ 3.10.8 takes it (tried), an empty one too."""
    assert definitions.problem_of_set([{"upstream": "later", "exchange": "x"}]) is None
    assert definitions.problem_of_set([]) is None


BEFORE: dict[str, Any] = {"uri": "amqp://u:old@a/v"}
ONE = [("x", Choice(upstream="up"))]


def new_queues(after: dict[str, Any], before: dict[str, Any] = BEFORE) -> list[NewQueue]:
    return definitions.new_queues("v", ONE, ({"up": before}, {}), ({"up": after}, {}))


@pytest.mark.parametrize(
    "change",
    [
        {"uri": "amqp://u:new@a/v"},
        {"uri": "amqp://u:new@elsewhere"},
        {"uri": ["amqps://a/v", "amqp://b"]},
        {"prefetch-count": 1},
        {"reconnect-delay": 9},
        {"ack-mode": "no-ack"},
        {"max-hops": 3},
        {"trust-user-id": True},
        {"bind-nowait": True},
        {"exchange": "x"},
        {"resource-cleanup-mode": "never"},
        {"channel-use-mode": "single"},
    ],
)
def test_most_changes_keep_the_upstream_queue(change: dict[str, Any]) -> None:
    """R-FX-17: a vhost that is named or taken from here is the same one, an exchange as well."""
    assert new_queues(BEFORE | change) == []


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"exchange": "y"}, "exchange"),
        ({"queue-type": "quorum"}, "queue-type"),
        ({"expires": 1}, "expires"),
        ({"message-ttl": 0}, "message-ttl"),
        ({"uri": "amqp://a/other"}, "uri"),
        ({"uri": ["amqp://a/other", "amqp://b/third"]}, "uri"),
    ],
)
def test_some_changes_need_another_upstream_queue(change: dict[str, Any], key: str) -> None:
    """R-FX-2, R-FX-3, R-FX-17: its name or its arguments are others; back again as well."""
    assert new_queues(BEFORE | change) == [NewQueue("x", "up", (key,))]
    assert new_queues(BEFORE, BEFORE | change) == [NewQueue("x", "up", (key,))]


def test_overrides_of_a_set_count_and_members_that_leave_it_do_not() -> None:
    """R-FED-3."""
    upstreams = {"a": {"uri": "amqp://a"}, "b": {"uri": "amqp://b"}}
    choices = [("x", Choice(upstream_set="s")), ("y", Choice(upstream="a"))]

    def changed(before: list[Any], after: list[Any]) -> list[NewQueue]:
        return definitions.new_queues(
            "v", choices, (upstreams, {"s": before}), (upstreams, {"s": after})
        )

    both = [{"upstream": "a"}, {"upstream": "b"}]
    assert changed(both, [{"upstream": "a"}]) == []
    assert changed(both, [*both, {"upstream": "a", "exchange": "z"}]) == []
    assert changed([{"upstream": "a"}], [{"upstream": "a", "exchange": "z"}]) == [
        NewQueue("x", "a", ("exchange",))
    ]
