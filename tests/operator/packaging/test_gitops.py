"""Argo CD and Flux see what kstatus sees, for every kind and every reason there is."""

from __future__ import annotations

from typing import Any

import pytest
from brokerd_operator import conditions
from brokerd_operator.conditions import Verdict
from brokerd_operator.specs import registry

from tests.operator.gitops import (
    argo_health,
    argo_word,
    flux_checks,
    flux_verdict,
)
from tests.operator.resources import resource

GENERATION = 3
NOW = "2026-01-01T00:00:00Z"


def recorded(kind: str, reason: str, **metadata: Any) -> dict[str, Any]:
    """A resource as the operator leaves it with a reason."""
    body = resource(kind) if kind in registry.PLURALS else resource("Queue") | {"kind": kind}
    current = conditions.standard(reason, f"because of {reason}", GENERATION)
    current.append(conditions.in_sync([], GENERATION))
    return body | {
        "metadata": {**body["metadata"], "generation": GENERATION, **metadata},
        "status": {
            "observedGeneration": GENERATION,
            "conditions": conditions.merge((), current, NOW),
        },
    }


def cases() -> list[Any]:
    """Every reason on one kind, every kind with one reason each way, and what comes before."""
    found = [(reason, recorded("Queue", reason)) for reason in conditions.REASONS]
    for kind in registry.PLURALS:
        found += [(f"{kind} {r}", recorded(kind, r)) for r in ("Applied", "NotGranted", "Pending")]
    fresh = recorded("Queue", "Applied")
    fresh["status"] = {"observedGeneration": -1}
    behind = recorded("Queue", "InvalidSpec", generation=GENERATION + 1)
    paused = recorded("Queue", "Paused", generation=GENERATION + 1)
    found += [("just created", fresh), ("edited", behind), ("edited while paused", paused)]
    return [pytest.param(body, id=name) for name, body in found]


@pytest.mark.parametrize("body", cases())
def test_argo_cd_says_what_kstatus_says(body: dict[str, Any]) -> None:
    lua51 = pytest.importorskip("lupa.lua51", reason="Lua is missing: pip install lupa")
    verdict, message = conditions.verdict(body)
    status, said = argo_health(lua51, body)
    assert status == argo_word(body, verdict)
    if body["status"]["observedGeneration"] == body["metadata"]["generation"]:
        assert said == message


def test_argo_cd_waits_for_what_is_being_deleted() -> None:
    lua51 = pytest.importorskip("lupa.lua51", reason="Lua is missing: pip install lupa")
    body = recorded("Queue", "Applied", deletionTimestamp=NOW)
    assert conditions.verdict(body)[0] is Verdict.TERMINATING
    assert argo_health(lua51, body) == ("Progressing", "is being deleted")


def test_argo_cd_takes_nothing_to_be_missing() -> None:
    """A status without conditions, and a condition without a message, end in no error."""
    lua51 = pytest.importorskip("lupa.lua51", reason="Lua is missing: pip install lupa")
    bare = {"metadata": {"generation": 1}}
    assert argo_health(lua51, bare)[0] == "Healthy"
    silent = recorded("Queue", "NotGranted")
    for condition in silent["status"]["conditions"]:
        del condition["message"]
    assert argo_health(lua51, silent) == ("Degraded", "")


@pytest.mark.parametrize("body", cases())
def test_flux_says_what_kstatus_says(body: dict[str, Any]) -> None:
    assert flux_verdict(body) is conditions.verdict(body)[0]


def test_flux_knows_every_kind() -> None:
    assert set(flux_checks()) >= set(registry.PLURALS)
