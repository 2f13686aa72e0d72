"""Policies: winners, merges, precedence against arguments and inline settings (R-POL)."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.core.catalog import (
    catalog_checks,
    catalog_commands,
    declare,
    policy,
    policy_keys,
)
from brokerd.core.profiles import profile
from brokerd.core.queue_options import QueueOptions
from tests.unit.core.catalog_driver import VHOST, CatalogDriver

QUORUM = {"x-queue-type": "quorum"}


@pytest.fixture
def catalog() -> CatalogDriver:
    return CatalogDriver()


def put(
    catalog: CatalogDriver,
    name: str,
    definition: dict[str, Any],
    pattern: str = ".*",
    apply_to: str = "all",
    priority: int = 0,
) -> None:
    spec = {
        "pattern": pattern,
        "apply-to": apply_to,
        "priority": priority,
        "definition": definition,
    }
    assert catalog.put("policy", name, spec)["code"] == "OK"


def put_operator(
    catalog: CatalogDriver, name: str, definition: dict[str, Any], apply_to: str = "queues"
) -> None:
    spec = {"pattern": ".*", "apply-to": apply_to, "definition": definition}
    assert catalog.put("operator_policy", name, spec)["code"] == "OK"


def values(catalog: CatalogDriver, queue: str = "q") -> dict[str, Any]:
    return policy.effective_queue(catalog.view, catalog.found(queue)).values


def options(catalog: CatalogDriver, queue: str = "q", profile_: str = "brokerd") -> QueueOptions:
    return policy.effective_queue_options(catalog.view, catalog.found(queue), profile(profile_))


def winner(catalog: CatalogDriver, queue: str = "q") -> str | None:
    return policy.effective_queue(catalog.view, catalog.found(queue)).policy


# Winners


def test_highest_priority_wins_then_the_smallest_name(catalog: CatalogDriver) -> None:
    """R-POL-3."""
    catalog.queue("q")
    put(catalog, "b", {"max-length": 2})
    put(catalog, "a", {"max-length": 1, "expires": 5})
    assert (winner(catalog), values(catalog)) == ("a", {"max-length": 1, "expires": 5})
    put(catalog, "z", {"max-length": 3}, priority=1)
    assert (winner(catalog), values(catalog)) == ("z", {"max-length": 3})
    put(catalog, "y", {"max-length": 4}, priority=-1)
    catalog.delete("policy", "z")
    assert winner(catalog) == "a"


def test_pattern_is_searched_anywhere_in_the_name(catalog: CatalogDriver) -> None:
    """R-POL-2: look-ahead included, as policies in the wild use it."""
    for queue in ("orders.dead", "orders.in"):
        catalog.queue(queue)
    put(catalog, "p", {"max-length": 1}, pattern=r"orders\.(?!dead)")
    assert (winner(catalog, "orders.in"), winner(catalog, "orders.dead")) == ("p", None)


@pytest.mark.parametrize(
    ("apply_to", "classic", "quorum", "exchange"),
    [
        ("all", True, True, True),
        ("queues", True, True, False),
        ("exchanges", False, False, True),
        ("classic_queues", True, False, False),
        ("quorum_queues", False, True, False),
        ("streams", False, False, False),
    ],
)
def test_apply_to(
    catalog: CatalogDriver, apply_to: str, classic: bool, quorum: bool, exchange: bool
) -> None:
    """R-POL-1, O-19."""
    catalog.queue("c")
    catalog.queue("q", arguments=QUORUM)
    catalog.exchange("x")
    put(catalog, "p", {"max-length": 1}, apply_to=apply_to)
    found = catalog.view.exchange(VHOST, "x")
    assert found is not None
    assert (winner(catalog, "c") == "p") is classic
    assert (winner(catalog, "q") == "p") is quorum
    assert (policy.effective_exchange(catalog.view, found).policy == "p") is exchange


def test_unsupported_key_voids_the_whole_policy_for_that_queue(catalog: CatalogDriver) -> None:
    """R-POL-9, R-ALO-2: a lower one that fits wins instead."""
    catalog.queue("c")
    catalog.queue("q", arguments=QUORUM)
    put(catalog, "high", {"max-length": 1, "delivery-limit": 2}, priority=9)
    put(catalog, "low", {"max-length": 7})
    assert (winner(catalog, "c"), values(catalog, "c")) == ("low", {"max-length": 7})
    assert winner(catalog, "q") == "high"


def test_policy_with_queue_keys_only_hides_exchange_policies(catalog: CatalogDriver) -> None:
    """R-POL-10."""
    catalog.exchange("x")
    put(catalog, "ae", {"alternate-exchange": "ae"}, apply_to="exchanges")
    put(catalog, "queues-only", {"max-length": 1}, priority=1)
    found = catalog.view.exchange(VHOST, "x")
    assert found is not None
    effective = policy.effective_exchange(catalog.view, found)
    assert (effective.policy, effective.alternate_exchange) == ("queues-only", None)


def test_policies_of_another_vhost_do_not_apply(catalog: CatalogDriver) -> None:
    """R-VH-1."""
    catalog.put("vhost", "v", {}, vhost="")
    catalog.queue("q")
    spec = {"pattern": ".*", "definition": {"max-length": 1}}
    catalog.put("policy", "p", spec, vhost="v")
    assert winner(catalog) is None


def test_change_of_policy_or_settings_is_live(catalog: CatalogDriver) -> None:
    """R-POL-5."""
    catalog.queue("q")
    assert options(catalog).max_length is None
    put(catalog, "p", {"max-length": 5})
    assert options(catalog).max_length == 5
    catalog.put("queue", "q", {"type": "classic", "settings": {"max-length": 3}})
    assert options(catalog).max_length == 3
    catalog.delete("policy", "p")
    catalog.put("queue", "q", {"type": "classic"})
    assert options(catalog).max_length is None


# Operator policies


@pytest.mark.parametrize(
    ("key", "user", "operator", "expected"),
    [
        # R-POL-8
        ("message-ttl", 10, 5, 5),
        ("max-length", 5, 10, 5),
        ("max-length-bytes", 7, 7, 7),
        ("expires", 10, 5, 5),
        ("delivery-limit", 10, 5, 5),
        ("delivery-limit", -1, 5, 5),
        ("delivery-limit", 5, -1, 5),
        ("delivery-limit", -1, -2, -1),
        ("overflow", "drop-head", "reject-publish", "reject-publish"),
        # R-POL-8, R-QQ-24, O-20
        ("target-group-size", 3, 5, 5),
        ("delayed-retry-type", "all", "failed", "failed"),
        ("delayed-retry-min", 10, 20, 20),
        ("delayed-retry-max", 10, 20, 10),
    ],
)
def test_operator_and_user_policy_merge_per_key(
    catalog: CatalogDriver, key: str, user: Any, operator: Any, expected: Any
) -> None:
    catalog.queue("q", arguments=QUORUM)
    put(catalog, "p", {key: user, "dead-letter-exchange": "d"})
    put_operator(catalog, "o", {key: operator})
    assert values(catalog) == {key: expected, "dead-letter-exchange": "d"}


def test_operator_policy_applies_alone(catalog: CatalogDriver) -> None:
    """R-POL-3, R-POL-8."""
    catalog.queue("q")
    put_operator(catalog, "o", {"max-length": 4})
    assert values(catalog) == {"max-length": 4}
    assert winner(catalog) is None
    effective = policy.effective_queue(catalog.view, catalog.found("q"))
    assert effective.operator_policy == "o"


# Arguments and inline settings against policy


@pytest.mark.parametrize(
    ("key", "declared", "by_policy", "classic", "quorum"),
    [
        # R-POL-6
        ("max-length", 5, 9, 5, 5),
        ("max-length", 9, 5, 5, 5),
        ("max-length-bytes", 9, 5, 5, 5),
        ("message-ttl", 9, 5, 5, 5),
        ("expires", 5, 9, 5, 5),
        ("dead-letter-exchange", "a", "b", "a", "a"),
        ("queue-leader-locator", "client-local", "balanced", "balanced", "balanced"),
        # R-LEN-6
        ("overflow", "drop-head", "reject-publish", "drop-head", "reject-publish"),
    ],
)
@pytest.mark.parametrize("is_setting", [False, True])
def test_declared_value_meets_policy(
    catalog: CatalogDriver,
    key: str,
    declared: Any,
    by_policy: Any,
    classic: Any,
    quorum: Any,
    is_setting: bool,
) -> None:
    """R-POL-6; inline settings rank as arguments."""
    put(catalog, "p", {key: by_policy})
    for type_, expected in (("classic", classic), ("quorum", quorum)):
        spec: dict[str, Any] = {"type": type_}
        if is_setting:
            spec["settings"] = {key: declared}
        else:
            spec["arguments"] = {f"x-{key}": declared}
        assert catalog.put("queue", type_, spec, uid=5, members=["n1"])["code"] == "OK"
        assert values(catalog, type_) == {key: expected}


@pytest.mark.parametrize(
    ("argument", "by_policy", "expected"),
    [(5, 3, 3), (3, 5, 3), (-1, 5, 5), (5, -1, 5), (-1, -1, None), (None, None, 20), (0, 5, 0)],
)
def test_delivery_limit(
    catalog: CatalogDriver, argument: int | None, by_policy: int | None, expected: int | None
) -> None:
    """R-DL-1: negative is no limit; the default is 20."""
    arguments = QUORUM if argument is None else QUORUM | {"x-delivery-limit": argument}
    catalog.queue("q", arguments=arguments)
    if by_policy is not None:
        put(catalog, "p", {"delivery-limit": by_policy})
    assert options(catalog).delivery_limit == expected


def test_delivery_limit_defaults_by_profile_and_type(catalog: CatalogDriver) -> None:
    """R-DL-1, R-DL-11."""
    catalog.queue("q", arguments=QUORUM)
    catalog.queue("c")
    assert options(catalog, profile_="rabbitmq-3.10").delivery_limit is None
    assert options(catalog, "c").delivery_limit is None
    assert options(catalog, profile_="rabbitmq-4.3").delivery_count_mode == "4.3"


def test_literal_argument_beats_inline_setting(catalog: CatalogDriver) -> None:
    """design/operator.md §5.2."""
    spec = {
        "type": "classic",
        "arguments": {"x-max-length": 9},
        "settings": {"max-length": 5, "max-length-bytes": 7},
    }
    catalog.put("queue", "q", spec, uid=5, members=["n1"])
    assert values(catalog) == {"max-length": 9, "max-length-bytes": 7}


def test_dead_letter_keys_are_resolved_each_on_its_own(catalog: CatalogDriver) -> None:
    """R-DLX-1."""
    catalog.queue("q", arguments={"x-dead-letter-exchange": "by-argument"})
    put(catalog, "p", {"dead-letter-exchange": "p", "dead-letter-routing-key": "by-policy"})
    found = options(catalog)
    assert (found.dead_letter_exchange, found.dead_letter_routing_key) == (
        "by-argument",
        "by-policy",
    )


@pytest.mark.parametrize(
    "missing", [None, "dead-letter-exchange", "dead-letter-strategy", "overflow"]
)
def test_at_least_once_needs_all_three(catalog: CatalogDriver, missing: str | None) -> None:
    """R-ALO-1."""
    settings = {
        "dead-letter-exchange": "d",
        "dead-letter-strategy": "at-least-once",
        "overflow": "reject-publish",
    }
    settings.pop(missing or "", None)
    spec = {"type": "quorum", "settings": settings}
    catalog.put("queue", "q", spec, uid=5, members=["n1"])
    assert options(catalog).at_least_once is (missing is None)
    warnings = policy.option_warnings(catalog.view, catalog.found("q"))
    assert bool(warnings) is (missing in ("dead-letter-exchange", "overflow"))


def test_reject_publish_dlx_on_quorum_behaves_as_drop_head(catalog: CatalogDriver) -> None:
    """R-LEN-4."""
    overflow = {"x-overflow": "reject-publish-dlx"}
    catalog.queue("q", arguments=QUORUM | overflow)
    catalog.queue("c", arguments=overflow)
    assert options(catalog).overflow == "drop-head"
    assert options(catalog, "c").overflow == "reject-publish-dlx"
    assert policy.option_warnings(catalog.view, catalog.found("q"))


def test_priorities_single_active_consumer_and_auto_delete(catalog: CatalogDriver) -> None:
    """R-PRI-1, R-PRI-2, R-CS-7."""
    for name, arguments in (("p0", {"x-max-priority": 0}), ("p9", {"x-max-priority": 9})):
        catalog.queue(name, arguments=arguments)
    catalog.queue("c", auto_delete=True, arguments={"x-single-active-consumer": True})
    catalog.queue("q", arguments=QUORUM)
    assert [options(catalog, name).max_priority for name in ("p0", "p9", "c", "q")] == [1, 9, 0, 31]
    assert options(catalog, "q", "rabbitmq-3.10").max_priority == 0
    assert options(catalog, "p0", "rabbitmq-3.10").max_priority == 0
    found = options(catalog, "c")
    assert (found.single_active_consumer, found.auto_delete) == (True, True)


def test_arguments_that_the_type_does_not_know_have_no_effect(catalog: CatalogDriver) -> None:
    """R-Q-5: stored and ignored, whatever they hold."""
    catalog.queue("q", arguments={"x-target-group-size": "many", "x-quorum-target-group-size": []})
    assert values(catalog) == {}


# Federation


def test_federation_keys_of_settings_replace_those_of_the_policy(catalog: CatalogDriver) -> None:
    """R-POL-11."""
    spec = {"type": "topic", "settings": {"federation-upstream": "u1"}}
    catalog.put("exchange", "x", spec)
    put(catalog, "p", {"federation-upstream-set": "all", "alternate-exchange": "ae"})
    found = catalog.view.exchange(VHOST, "x")
    assert found is not None
    effective = policy.effective_exchange(catalog.view, found)
    assert effective == policy.ExchangeOptions("ae", "u1", None, None, "p")


# Validation


@pytest.mark.parametrize(
    ("definition", "error"),
    [
        ({"max-length": "5"}, "'max-length' must be an integer"),
        ({"max-length": True}, "'max-length' must be an integer"),
        ({"message-ttl": -1}, "'message-ttl' must be at least 0"),
        ({"expires": 0}, "'expires' must be at least 1"),
        ({"overflow": "spill"}, "'overflow' must be one of"),
        ({"max-priority": 5}, "['max-priority'] are not recognised"),
        ({"ha-mode": "all"}, "['ha-mode'] are not recognised"),
        ({"federation-upstream": "u", "federation-upstream-set": "s"}, "exclude each other"),
        ({"federation-upstream": ""}, "non-empty string"),
    ],
)
def test_bad_definitions_are_refused_whole(definition: dict[str, Any], error: str) -> None:
    """R-POL-1, R-POL-11, R-POL-12, O-5."""
    assert error in (
        policy_keys.check_definition(definition | {"max-length-bytes": 1}, False) or ""
    )


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        (
            "max-age",
            ["1Y", "2M", "30D", "5h", "5m", "05s"],
            ["0D", "D", "7", "1W", "-1D", "1D2", 7],
        ),
        ("initial-cluster-size", [0, 3], [-1, "3", True]),
        ("stream-max-segment-size-bytes", [0, 3_000_000_000], [3_000_000_001, -1, 1.5]),
        ("stream-filter-size-bytes", [16, 255], [15, 256, "16"]),
    ],
)
def test_keys_of_streams_have_the_ranges_of_rabbitmq(
    key: str, good: list[Any], bad: list[Any]
) -> None:
    """R-POL-1; tried with 4.3.6."""
    assert not any(policy_keys.check_definition({key: value}, False) for value in good)
    assert all(policy_keys.check_definition({key: value}, False) for value in bad)
    assert "not allowed" in (policy_keys.check_definition({key: good[0]}, True) or "")


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_policy_for_streams_is_none_for_other_queues(catalog: CatalogDriver, kind: str) -> None:
    """R-POL-9, O-19; tried with 4.3.6, where stream-filter-size-bytes alone voids nothing."""
    catalog.queue("q", arguments={"x-queue-type": kind})
    for number, key in enumerate(
        ("max-age", "initial-cluster-size", "stream-max-segment-size-bytes")
    ):
        value = "1D" if key == "max-age" else 9
        put(catalog, f"p{number}", {key: value, "max-length": number}, priority=9)
    put(catalog, "streams", {"max-length": 8}, apply_to="streams", priority=9)
    put(catalog, "fits", {"stream-filter-size-bytes": 16, "max-length": 7})
    assert (winner(catalog), values(catalog)["max-length"]) == ("fits", 7)


def test_policies_may_have_keys_of_streams(catalog: CatalogDriver) -> None:
    spec = {"pattern": "", "definition": {"stream-filter-size-bytes": 16, "max-age": "1D"}}
    assert catalog.put("policy", "p", spec)["code"] == "OK"


@pytest.mark.parametrize("definition", [{"consumer-timeout": 0}, {"queue-version": 1}])
def test_policies_without_effect_are_taken(
    catalog: CatalogDriver, definition: dict[str, Any]
) -> None:
    """R-POL-1; tried with 4.3.6, where a timeout of 0 ends each consumer at once."""
    catalog.queue("q", arguments=QUORUM | {"x-consumer-timeout": 7000})
    catalog.queue("r", arguments=QUORUM)
    catalog.queue("c")
    before = {name: options(catalog, name) for name in ("q", "r", "c")}
    assert catalog.put("policy", "p", {"pattern": "", "definition": definition})["code"] == "OK"
    assert policy.effective_queue(catalog.view, catalog.found("c")).policy == "p"
    assert {name: options(catalog, name) for name in before} == before


def test_negative_delivery_limit_is_fine() -> None:
    """R-POL-12."""
    assert policy_keys.check_definition({"delivery-limit": -1}, False) is None


def test_operator_policies_allow_their_keys_only(catalog: CatalogDriver) -> None:
    """R-POL-7."""
    for key, value in (("dead-letter-exchange", "d"), ("alternate-exchange", "a")):
        assert "not allowed" in (policy_keys.check_definition({key: value}, True) or "")
    spec = {"pattern": ".*", "apply-to": "exchanges", "definition": {"max-length": 1}}
    assert catalog.put("operator_policy", "o", spec)["code"] == "REFUSED"


def test_delayed_retry_needs_a_least_delay_and_says_so(catalog: CatalogDriver) -> None:
    """R-QQ-24: the greatest is the least where it is not given, and never below it."""
    base = {"x-queue-type": "quorum", "x-delayed-retry-type": "all"}
    catalog.queue("without", arguments=base)
    catalog.queue("least", arguments=base | {"x-delayed-retry-min": 50})
    both = {"x-delayed-retry-min": 50, "x-delayed-retry-max": 9}
    catalog.queue("both", arguments=base | both)
    catalog.queue("classic")
    found = {
        name: policy.effective_queue_options(catalog.view, catalog.found(name), profile())
        for name in ("without", "least", "both", "classic")
    }
    assert [
        (each.delayed_retry, each.delayed_retry_min_ms, each.delayed_retry_max_ms)
        for each in found.values()
    ] == [("disabled", 0, 0), ("all", 50, 50), ("all", 50, 50), ("disabled", 0, 0)]
    warned = [bool(policy.option_warnings(catalog.view, catalog.found(name))) for name in found]
    assert warned == [True, False, False, False]


def test_the_timeout_of_consumers_is_the_smaller_of_argument_and_policy(
    catalog: CatalogDriver,
) -> None:
    """R-QQ-22, R-POL-6: else the member's, on quorum queues; none where channels watch."""
    argument = {"x-queue-type": "quorum", "x-consumer-timeout": 7000}
    catalog.queue("q", arguments=argument)
    catalog.queue("plain", arguments={"x-queue-type": "quorum"})
    catalog.queue("c")
    catalog.queue("qc", arguments={"x-consumer-timeout": 6000})
    defaults = policy.QueueDefaults(consumer_timeout_ms=9000)

    def timeout(name: str, chosen: str = "brokerd") -> int | None:
        queue = catalog.found(name)
        options = policy.effective_queue_options(catalog.view, queue, profile(chosen), defaults)
        return options.consumer_timeout_ms

    assert (timeout("q"), timeout("plain"), timeout("c")) == (7000, 9000, None)
    assert timeout("q", "rabbitmq-3.10") is None
    assert (timeout("qc"), timeout("qc", "rabbitmq-4.3")) == (6000, None)
    definition = {"consumer-timeout": 5000}
    catalog.put("policy", "p", {"pattern": "^q", "apply-to": "queues", "definition": definition})
    assert (timeout("q"), timeout("qc"), timeout("c")) == (5000, 5000, None)


@pytest.mark.parametrize("kind", ["policy", "operator_policy"])
@pytest.mark.parametrize(
    ("delays", "fault"),
    [
        ({"type": "all"}, "delayed-retry-min is required when delayed-retry-type is all"),
        ({"type": "failed", "max": 5}, "delayed-retry-min is required when"),
        ({"type": "returned"}, "delayed-retry-min is required when"),
        ({"type": "all", "min": 0}, "delayed-retry-min and -max must be positive"),
        ({"max": 0}, "delayed-retry-min and -max must be positive"),
        ({"min": 9, "max": 5}, "delayed-retry-max (5) must not be smaller than delayed-retry-min"),
        ({"type": "disabled"}, None),
        ({"min": 5}, None),
        ({"type": "all", "min": 5, "max": 5}, None),
        ({"type": ["all"]}, None),
        ({"min": "x", "max": 5}, None),
    ],
)
def test_delays_of_a_policy_that_do_not_fit_together_are_refused(
    catalog: CatalogDriver, kind: str, delays: dict[str, Any], fault: str | None
) -> None:
    """R-QQ-24; tried with 4.3.6.  A log may have them, so they are judged before a command is
    proposed.
    """
    definition = {f"delayed-retry-{key}": value for key, value in delays.items()}
    spec = {"pattern": "", "definition": definition, "apply-to": "queues"}
    operation = catalog_commands.put(kind, VHOST, "p", spec, cause="admin")
    catalog_checks.judge(operation, profile(), catalog.view)
    verdict = operation.get("verdict")
    assert verdict is None if fault is None else verdict.startswith(f"definition: {fault}")


def test_only_policies_are_judged_by_their_delays(catalog: CatalogDriver) -> None:
    """A queue's own arguments say so in a warning; a definition may be anything."""
    for kind, spec in (
        ("parameter", {"value": 1, "definition": {"delayed-retry-type": "all"}}),
        ("policy", {"definition": 5}),
        ("policy", 5),
    ):
        operation = catalog_commands.put(kind, VHOST, "p", {}, cause="admin") | {"spec": spec}
        catalog_checks.judge(operation, profile(), catalog.view)
        assert "verdict" not in operation
    deletion = catalog_commands.delete("policy", VHOST, "p", cause="admin")
    catalog_checks.judge(deletion, profile(), catalog.view)
    assert "verdict" not in deletion


def test_arguments_without_effect_are_as_none(catalog: CatalogDriver) -> None:
    """R-Q-4, R-Q-6: compared like any argument."""
    idle = {
        "x-delivery-limit": "x",
        "x-consumer-timeout": 0,
        "x-delayed-retry-type": "odd",
        "x-delayed-retry-min": -1,
        "x-delayed-retry-max": [1],
    }
    catalog.queue("q", arguments=QUORUM | idle)
    catalog.queue("plain", arguments=QUORUM)
    assert options(catalog, "q") == options(catalog, "plain")
    catalog.queue("mode", arguments={"x-queue-mode": "odd"})
    assert isinstance(catalog.queue("q", arguments=QUORUM | idle), declare.Exists)
    for other in (QUORUM, QUORUM | idle | {"x-delivery-limit": "y"}):
        refused = catalog.queue("q", arguments=other)
        assert "inequivalent arg 'x-delivery-limit'" in refused.text
