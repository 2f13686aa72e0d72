"""What the telemetry job found shows on the resources that it is about (ADR 33)."""

from __future__ import annotations

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

from tests.operator.test_engine import Bench
from tests.operator.test_remarks import PROD, condition, running

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


def document(*rows: Any, run: int = 1) -> dict[str, Any]:
    return {"run_id": f"run-{run}", "as_of_us": run, "findings": list(rows)}


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
    changed = held.replace(BROKER, [document(row(), run=2), document(run=1)])
    assert [item.rule for item in changed] == ["DL-LOST"]
    assert held.replace(BROKER, [document(run=1), document(row(), run=2)]) == set()
    (gone,) = held.replace(BROKER, [document(row(), run=2), document(run=3)])
    assert gone.rule == "DL-LOST"


def test_nothing_is_said_where_no_job_has_run() -> None:
    held = Findings()
    assert not held.is_known(BROKER)
    held.replace(BROKER, [])
    assert held.is_known(BROKER)
    assert held.of_broker(BROKER, 1) == ()
    held.replace(BROKER, [document()])
    (said,) = held.of_broker(BROKER, 1)
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
    held.replace(BROKER, [{"run_id": 7, "as_of_us": "x", "findings": rows}])
    (said,) = held.of_broker(BROKER, 1)
    assert said.reason == "NothingFound"


def test_messages_are_bounded_and_name_the_worst() -> None:
    held = Findings()
    minor = [row("UNR-DROP", severity="warning", object=f"x{n}|y") for n in range(50)]
    held.replace(BROKER, [document(*minor, row(message="m" * 5000))])
    (said,) = held.of_broker(BROKER, 1)
    assert said.reason == "CriticalFinding"
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


def events(bench: Bench, key: Key) -> list[str]:
    return [reason for _, of, reason, _ in bench.store.events if of == key and "Finding" in reason]
