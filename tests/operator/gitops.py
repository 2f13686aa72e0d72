"""The health scripts of examples/gitops, run as Argo CD and Flux run them; for the GitOps tests."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import celpy
import yaml
from brokerd_operator.conditions import Verdict, find

EXAMPLES = Path(__file__).parents[2] / "examples" / "gitops"
#: Argo CD's words for the verdicts of kstatus.
ARGO = {
    Verdict.CURRENT: "Healthy",
    Verdict.IN_PROGRESS: "Progressing",
    Verdict.FAILED: "Degraded",
    Verdict.TERMINATING: "Progressing",
}


@functools.cache
def health_script() -> str:
    """The script as Argo CD finds it in its ConfigMap, for every kind of the group."""
    config = yaml.safe_load((EXAMPLES / "argocd" / "argocd-cm.yaml").read_text())
    customizations = yaml.safe_load(config["data"]["resource.customizations"])
    assert list(customizations) == ["brokerd.io/*"]
    return str(customizations["brokerd.io/*"]["health.lua"])


def argo_health(lua51: Any, body: Mapping[str, Any]) -> tuple[str, str]:
    """What Argo CD, which speaks Lua 5.1, shows of a resource: status and message."""
    runtime = lua51.LuaRuntime(unpack_returned_tuples=True, register_eval=False)
    # Argo CD opens these libraries only.
    runtime.execute("os, io, debug, package, require, dofile, loadfile = nil")
    runtime.globals().obj = _as_lua(runtime, body)
    found = runtime.execute(health_script())
    return str(found["status"]), str(found["message"])


def _as_lua(runtime: Any, value: Any) -> Any:
    if isinstance(value, Mapping):
        return runtime.table_from({key: _as_lua(runtime, item) for key, item in value.items()})
    if isinstance(value, list):
        return runtime.table_from([_as_lua(runtime, item) for item in value])
    # Argo CD's numbers come from JSON: all are floats.
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def argo_word(body: Mapping[str, Any], verdict: Verdict) -> str:
    """What Argo CD should say to that verdict: it has a word of its own for a pause."""
    ready = find(body, "Ready")
    is_paused = ready is not None and ready.reason == "Paused"
    is_waiting = verdict is Verdict.IN_PROGRESS
    is_current = (body.get("status") or {}).get("observedGeneration") == body["metadata"][
        "generation"
    ]
    return "Suspended" if is_paused and is_waiting and is_current else ARGO[verdict]


@functools.cache
def flux_checks() -> dict[str, Mapping[str, str]]:
    """The expressions of the Flux sample by kind."""
    kustomization = yaml.safe_load((EXAMPLES / "flux" / "orders.yaml").read_text())
    return {item["kind"]: item for item in kustomization["spec"]["healthCheckExprs"]}


def flux_verdict(body: Mapping[str, Any]) -> Verdict:
    """As fluxcd/pkg does it: the generation first, then inProgress, failed, current."""
    status = body.get("status") or {}
    if status.get("observedGeneration", -1) != body["metadata"]["generation"]:
        return Verdict.IN_PROGRESS
    checks = flux_checks()[body["kind"]]
    outcomes = {
        "inProgress": Verdict.IN_PROGRESS,
        "failed": Verdict.FAILED,
        "current": Verdict.CURRENT,
    }
    values = {name: celpy.json_to_cel(body[name]) for name in ("metadata", "spec", "status")}
    for name, outcome in outcomes.items():
        if _program(checks[name]).evaluate(values):
            return outcome
    return Verdict.IN_PROGRESS


@functools.cache
def _program(expression: str) -> Any:
    environment = celpy.Environment()
    return environment.program(environment.compile(expression))
