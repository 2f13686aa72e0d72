"""Whether a running pod takes other CPU and memory without a restart. PURE.

Kubernetes changes the resources of running pods through the subresource `resize` (on by default
since 1.33). A pod that was resized keeps the label of the template it was made from, so what tells
whether it is up to date is the pod itself. For the Kubernetes driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

Json = Mapping[str, Any]


class State(Enum):
    """How far a pod is."""

    ASK = "ask"
    #: The node has been asked, and has no room yet or is at it.
    PENDING = "pending"
    #: The node can never do it: the pod has to be made anew, maybe elsewhere.
    IMPOSSIBLE = "impossible"
    DONE = "done"


def is_possible(old: Json, new: Json) -> bool:
    """Whether two pod templates differ in nothing but amounts of resources."""
    if _without_resources(old) != _without_resources(new):
        return False
    pairs = zip(_containers(old), _containers(new), strict=True)
    # A request or limit that is taken away cannot be taken from a running pod.
    return all(
        set(_part(before, part)) <= set(_part(after, part))
        for before, after in pairs
        for part in ("requests", "limits")
    )


def patch(template: Json) -> dict[str, Any]:
    """What a pod is to be patched with to have the resources of a template."""
    containers = [
        {"name": item["name"], "resources": _wanted(item)} for item in _containers(template)
    ]
    return {"spec": {"containers": containers}}


def state(pod: Json, template: Json) -> tuple[State, str]:
    """How far a pod is on its way to a template's resources, and what the node says."""
    present = {item["name"]: item for item in pod["spec"]["containers"]}
    for item in _containers(template):
        wanted, has = _wanted(item), present.get(item["name"], {})
        if any(_part(has, part) != {**_part(has, part), **wanted[part]} for part in wanted):
            return State.ASK, ""
    for told in (pod.get("status") or {}).get("conditions") or ():
        if told.get("status") != "True":
            continue
        said = ": ".join(str(told[key]) for key in ("reason", "message") if told.get(key))
        if told.get("type") == "PodResizePending":
            is_never = told.get("reason") == "Infeasible"
            return (State.IMPOSSIBLE if is_never else State.PENDING), said
        if told.get("type") == "PodResizeInProgress":
            return State.PENDING, said
    return State.DONE, ""


def _containers(template: Json) -> list[Json]:
    return list((template.get("spec") or {}).get("containers") or ())


def _part(container: Json, part: str) -> dict[str, Any]:
    return dict((container.get("resources") or {}).get(part) or {})


def _wanted(container: Json) -> dict[str, dict[str, Any]]:
    """Requests and limits; what has only a limit requests as much, as in a new pod."""
    limits = _part(container, "limits")
    found = {"requests": {**limits, **_part(container, "requests")}, "limits": limits}
    return {part: amounts for part, amounts in found.items() if amounts}


def _without_resources(template: Json) -> dict[str, Any]:
    spec = dict(template.get("spec") or {})
    spec["containers"] = [
        {key: value for key, value in item.items() if key != "resources"}
        for item in _containers(template)
    ]
    return {**template, "spec": spec}
