"""What the telemetry job found shows on the resources that it is about (ADR 33)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from brokerd_operator import conditions
from brokerd_operator.engine import findings
from brokerd_operator.engine.findings import Findings
from brokerd_operator.engine.keys import Key
from brokerd_operator.specs.model import Identity, Reference

from tests.operator.engine.test_engine import Bench
from tests.operator.engine.test_warnings import PROD, condition, running

pytestmark = pytest.mark.timeout(240)

BROKER = Reference("BrokerConnection", "default", "prod")


def row(rule: Any = "DL-LOST", **fields: Any) -> dict[str, Any]:
    base = {
        "rule": rule, "severity": "critical", "status": "RAISED", "since": "2026-11-20T14:00:00Z",
        "object_type": "queue", "vhost": "/", "object": "orders", "upstream": "",
        "message": "3 dead letters lost", "action": "create the exchange 'dlx'",
        "evidence": "deadletter_1h",
    }  # fmt: skip
    return base | fields


#: Of runs; each ends a second after the one before.
NOW_US = time.time_ns() // 1000


def document(*rows: Any, run: int = 1, age_us: int = 0) -> dict[str, Any]:
    end_us = NOW_US + run * 1_000_000 - age_us
    return {"run_id": f"run-{run}", "as_of_us": end_us, "findings": list(rows)}


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path) as found:
        found.connect()
        yield found


def healthy(bench: Bench, key: Key) -> str:
    found = condition(bench, key, conditions.HEALTHY)
    return "" if found is None else f"{found.status} {found.reason}: {found.message}"


def test_the_newest_run_counts_whichever_member_has_it() -> None:
    held = Findings()
    changed = held.replace(BROKER, [document(row(), run=2), document(run=1)], NOW_US)
    assert [item.rule for item in changed] == ["DL-LOST"]
    assert held.replace(BROKER, [document(run=1), document(row(), run=2)], NOW_US) == set()
    (gone,) = held.replace(BROKER, [document(row(), run=2), document(run=3)], NOW_US)
    assert gone.rule == "DL-LOST"


def test_nothing_is_said_where_no_job_has_run() -> None:
    held = Findings()
    assert not held.is_known(BROKER)
    held.replace(BROKER, [], NOW_US)
    assert held.is_known(BROKER)
    assert held.of_broker(BROKER, 1) == ()
    (awaited,) = held.of_broker(BROKER, 1, is_expected=True)
    assert (awaited.type, awaited.status, awaited.reason) == (
        "TelemetryFresh", "Unknown", "NothingYet",
    )  # fmt: skip
    held.replace(BROKER, [document()], NOW_US)
    said, fresh = held.of_broker(BROKER, 1)
    assert (fresh.type, fresh.status, fresh.reason) == ("TelemetryFresh", "True", "Fresh")
    assert (said.status, said.reason) == ("True", "NothingFound")
    assert held.of_object(BROKER, Identity("queue", "/", "orders"), 1) == ()


@pytest.mark.parametrize(
    "rows",
    [
        None, 7, {}, [7, None, "x", []], [{"status": "RAISED"}],
        [row(severity=7, rule=None, message=["x"], since={})],
        [row(severity="info")], [row(status="CLEAR")], [row(status="PENDING")],
    ],
)  # fmt: skip
def test_what_is_no_finding_or_not_raised_makes_nothing_unhealthy(rows: Any) -> None:
    held = Findings()
    held.replace(BROKER, [{"run_id": 7, "as_of_us": NOW_US, "findings": rows}], NOW_US)
    said, _ = held.of_broker(BROKER, 1)
    assert said.reason == "NothingFound"


HOUR_US = findings.HOUR_US


@pytest.mark.parametrize(
    ("as_of_us", "until_us", "is_fresh"),
    [
        # The job said nothing, or nonsense, of how long it counts: a day and an hour.
        *((NOW_US - 24 * HOUR_US, until, True) for until in (None, "x", 1.5, True, [])),
        *((NOW_US - 26 * HOUR_US, until, False) for until in (None, "x", 1.5, True, [])),
        (NOW_US - 48 * HOUR_US, NOW_US + 1, True),
        (NOW_US - 1, NOW_US, False),
        # No document can make itself count for ever, and times may be anything.
        (NOW_US - 41 * 24 * HOUR_US, 1 << 80, False),
        (-(1 << 80), 1 << 80, False),
        ("yesterday", None, False),
        (1 << 80, None, True),
    ],
)
def test_how_long_findings_count(as_of_us: Any, until_us: Any, is_fresh: bool) -> None:
    held = Findings()
    told = {"run_id": "r", "as_of_us": as_of_us, "fresh_until_us": until_us, "findings": [row()]}
    held.replace(BROKER, [told], NOW_US)
    healthy, fresh = held.of_broker(BROKER, 1)
    assert (fresh.status, fresh.reason) == (("True", "Fresh") if is_fresh else ("False", "Stale"))
    assert healthy.status == ("False" if is_fresh else "Unknown")


def test_a_text_on_freshness_changes_once_an_hour_at_most() -> None:
    held = Findings()
    texts = set()
    begin_us = NOW_US // HOUR_US * HOUR_US
    for minute in range(60):
        end_us = begin_us + minute * 60_000_000
        held.replace(BROKER, [{"run_id": "r", "as_of_us": end_us, "findings": []}], end_us)
        texts.add(held.of_broker(BROKER, 1))
    assert len(texts) == 1


def test_messages_are_bounded_and_name_the_worst() -> None:
    held = Findings()
    minor = [row("UNR-DROP", severity="warning", object=f"x{n}|y") for n in range(50)]
    told = document(*minor, row(message="m" * 5000))
    held.replace(BROKER, [told], NOW_US)
    said, _ = held.of_broker(BROKER, 1)
    assert said.reason == "CriticalFinding"
    named = set(findings._named(said))
    held.replace(BROKER, [told], NOW_US + 30 * HOUR_US)
    old, _ = held.of_broker(BROKER, 1)
    assert old.reason == "Stale"
    assert len(old.message) <= conditions.MESSAGE_MAX
    assert set(findings._named(old)) == named
    assert said.message.startswith("DL-LOST of queue 'orders' in vhost '/', since 2026-11-20T14")
    assert said.message.endswith("and 48 more")
    assert len(said.message) <= conditions.MESSAGE_MAX
    assert len(findings._named(said)) == findings.NAMED_MAX


async def test_a_finding_shows_on_its_objects_with_events_and_goes_again(bench: Bench) -> None:
    """On the queue, the policy in force for it, its upstream's links, and the broker."""
    bench.broker.findings = [document()]
    queue, other, exchange, policy, upstream = (
        Key(kind, "default", name)
        for kind, name in (("Queue", "orders"), ("Queue", "other"), ("Exchange", "shop"),
                           ("Policy", "limits"), ("FederationUpstream", "far"))
    )  # fmt: skip
    # With a binding of its own, which is another object of the same resource.
    bench.add("Queue", "orders", bindings=[{"source": "shop", "routingKeys": ["#"]}])
    bench.add("Queue", "other")
    bench.add("Exchange", "shop", type="topic")
    definition = {"maxLength": 10}
    bench.add("Policy", "limits", pattern="^orders$", applyTo="queues", definition=definition)
    bench.add("FederationUpstream", "far")
    await bench.until("found", lambda: healthy(bench, PROD).startswith("True NothingFound"))
    assert healthy(bench, queue) == ""

    bench.broker.findings = [
        document(
            row(),
            row("AE-MISSING", object_type="exchange", object="shop"),
            row("FED-STUCK", object_type="link", object="/:shop <- far:shop", upstream="far"),
            run=2,
        )
    ]
    for key, rule in ((queue, "DL-LOST"), (policy, "DL-LOST"), (exchange, "AE-MISSING"),
                      (upstream, "FED-STUCK"), (PROD, "AE-MISSING")):  # fmt: skip
        await bench.until("found", lambda k=key, r=rule: r in healthy(bench, k))
        assert healthy(bench, key).startswith("False CriticalFinding: ")
    assert "create the exchange 'dlx' (table deadletter_1h)" in healthy(bench, queue)
    assert healthy(bench, other) == ""
    assert events(bench, queue) == ["FindingRaised"]

    bench.broker.findings = [document(row(status="CLEAR"), run=3)]
    for key in (queue, policy, exchange, upstream):
        await bench.until("found", lambda k=key: healthy(bench, k) == "")
    await bench.until("found", lambda: healthy(bench, PROD).startswith("True NothingFound"))
    assert events(bench, queue) == ["FindingRaised", "FindingCleared"]


async def test_when_the_job_stops_findings_are_unknown_and_when_it_is_back_they_go_on(
    bench: Bench,
) -> None:
    """No Event says that anything is over, nor that it is new when it is still there."""
    queue, other = Key("Queue", "default", "orders"), Key("Queue", "default", "other")
    bench.add("Queue", "orders")
    bench.add("Queue", "other")
    bench.broker.findings = [document(row(), row(object="other"))]
    for key in (PROD, queue, other):
        await bench.until("found", lambda k=key: healthy(bench, k).startswith("False"))
    assert fresh(bench) == "True Fresh"

    bench.broker.findings = [document(row(), row(object="other"), age_us=30 * HOUR_US)]
    for key in (PROD, queue, other):
        await bench.until("old", lambda k=key: healthy(bench, k).startswith("Unknown Stale: not"))
        assert "DL-LOST of queue" in healthy(bench, key)
    await bench.until("old", lambda: fresh(bench) == "False Stale")

    # One of them is over since.
    bench.broker.findings = [document(row(), run=2)]
    await bench.until("back", lambda: fresh(bench) == "True Fresh")
    await bench.until("still", lambda: healthy(bench, queue).startswith("False CriticalFinding"))
    await bench.until("over", lambda: healthy(bench, other) == "")
    assert events(bench, queue) == ["FindingRaised"]
    assert events(bench, other) == ["FindingRaised", "FindingCleared"]
    told = [reason for _, of, reason, _ in bench.store.events if of == PROD]
    assert [reason for reason in told if "Telemetry" in reason] == [
        "TelemetryStale", "TelemetryBack",
    ]  # fmt: skip


def fresh(bench: Bench) -> str:
    found = condition(bench, PROD, conditions.TELEMETRY_FRESH)
    return "" if found is None else f"{found.status} {found.reason}"


def events(bench: Bench, key: Key) -> list[str]:
    return [reason for _, of, reason, _ in bench.store.events if of == key and "Finding" in reason]
