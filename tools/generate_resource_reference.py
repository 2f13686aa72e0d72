"""Writes `docs/reference/resources.md` from the CRDs in `crds/`: fields, types, defaults, rules.

`crds/` is the source of truth; a test runs `--check`, so the page cannot say something else.

    python tools/generate_resource_reference.py [--check]
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "crds"
TARGET = ROOT / "docs" / "reference" / "resources.md"

#: Kinds in the order in which a person meets them.
ORDER = (
    *("BrokerCluster", "BrokerConnection", "Vhost", "Exchange", "Queue", "Binding"),
    *("Policy", "OperatorPolicy", "User", "Permission", "TopicPermission"),
    *("FederationUpstream", "FederationUpstreamSet", "Shovel"),
)

HEAD = """<!-- Made by tools/generate_resource_reference.py from crds/; do not edit. -->

# Resources

The custom resources of `brokerd.io/v1alpha1`, field by field. `kubectl explain queue.spec
--api-version=brokerd.io/v1alpha1` shows the same. The embedded mode (`brokerctl up -f DIR`) reads
the same files with the same rules.

Marks: **required**; *immutable* (a change is refused; *unless replaced*: `onImmutableChange` may
allow it). Durations are written `500ms`, `30s`, `5m`, `1h30m`, sizes as a number or with a unit
such as `2Gi`. "Refused when" lists what the API server refuses, in its own words.

All kinds are in the category `broker`: `kubectl get broker` shows them.
"""

#: Name, kinds, meaning.
ANNOTATIONS = (
    (
        'brokerd.io/pause: "true"',
        "all",
        "Nothing is written for it, neither to the broker nor to Kubernetes; Ready is Unknown,"
        " `Paused`. A paused resource that is deleted leaves its object behind.",
    ),
    (
        "brokerd.io/reconcile-at: VALUE",
        "all",
        "Another value than before has the operator look at it at once."
        " `reconcile.fluxcd.io/requestedAt` does the same.",
    ),
    (
        'brokerd.io/takeover: "true"',
        "objects of brokers",
        "The object may be taken from the resource or the operator instance that owns it"
        " (`OwnedByOther`).",
    ),
    (
        'brokerd.io/confirm: "GENERATION"',
        "Queue, FederationUpstream, FederationUpstreamSet",
        "Consent to a change that loses something (`ConfirmationRequired`), for this generation"
        " only.",
    ),
    (
        "brokerd.io/restart-at: VALUE",
        "BrokerCluster",
        "Another value restarts all members, one safe member at a time."
        " `kubectl rollout restart statefulset NAME` does the same.",
    ),
    (
        "brokerd.io/approved-image: IMAGE",
        "BrokerCluster",
        "With `upgradePolicy: OnApproval`: the operator's own newer image that members may get.",
    ),
)

ANNOTATIONS_HEAD = """
## Annotations

What is asked of the operator for one resource, and is no part of what the resource shall be.

| annotation | of | |
|---|---|---|"""

FIELDS_HEAD = "| field | type | default | |\n|---|---|---|---|"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def kind_of(schema: dict[str, Any]) -> str:
    """Return type and bounds of a field in a few words."""
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity"
    name = str(schema.get("type", "any"))
    if name == "array":
        return f"list of {kind_of(schema['items'])}" + bounds(schema, "Items")
    if name == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"map to {kind_of(schema['additionalProperties'])}"
    if name == "string" and "ms|s|m|h" in str(schema.get("pattern", "")):
        return "duration"
    return name + (bounds(schema, "imum") if name in ("integer", "number") else "")


def bounds(schema: dict[str, Any], suffix: str) -> str:
    low, high = schema.get(f"min{suffix}"), schema.get(f"max{suffix}")
    if high in (2**31 - 1, 2**63 - 1):
        high = None
    if low in (-(2**31), -(2**63)):
        low = None
    if low is not None and high is not None:
        return f", {low} to {high}"
    if high is not None:
        return f", at most {high}"
    return f", at least {low}" if low is not None else ""


def default_of(schema: dict[str, Any]) -> str:
    if "default" not in schema:
        return ""
    value = schema["default"]
    if isinstance(value, bool):
        value = str(value).lower()
    return f"`{value}`" if value != "" else "empty"


def rules(schema: Any) -> Iterator[tuple[str, str]]:
    """Yield (rule, message) of a schema and of all that is in it."""
    if isinstance(schema, dict):
        for entry in schema.get("x-kubernetes-validations", []):
            yield entry["rule"], entry.get("message") or entry.get("messageExpression", "")
        for key, value in schema.items():
            if key != "x-kubernetes-validations":
                yield from rules(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from rules(value)


def mutability(name: str, spec: dict[str, Any]) -> str:
    """Return what the transition rules of the spec say about one of its fields."""
    for rule, message in rules(spec):
        subjects = re.findall(r"[\w.]+", message.partition("immutable")[0])
        if "oldSelf" in rule and "immutable" in message and name in subjects:
            return " *immutable unless replaced*" if "unless" in message else " *immutable*"
    return ""


def fields(schema: dict[str, Any], path: str, spec: dict[str, Any]) -> Iterator[str]:
    """Yield the table rows of an object's fields, nested ones by their path."""
    required = schema.get("required", [])
    for name, field in schema.get("properties", {}).items():
        where = f"{path}{name}"
        marks = " **required**" if name in required else ""
        if not path:
            marks += mutability(name, spec)
        text = cell(field.get("description", "").replace(" Immutable.", ""))
        yield f"| `{where}` | {kind_of(field)} | {default_of(field)} | {text}{marks} |"
        if field.get("type") == "object":
            yield from fields(field, where + ".", spec)
        elif field.get("type") == "array" and field["items"].get("type") == "object":
            yield from fields(field["items"], where + "[].", spec)


def section(crd: dict[str, Any]) -> str:
    """The part of one kind."""
    names = crd["spec"]["names"]
    version = crd["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    spec = schema["properties"].get("spec", {})
    short = ", ".join(f"`{name}`" for name in names.get("shortNames", []))
    columns = [column["name"] for column in version.get("additionalPrinterColumns", [])]
    lines = [f"\n## {names['kind']}\n", cell(schema.get("description", "")), ""]
    lines.append(f"Short name {short}. " if short else "")
    lines[-1] += f"Columns of `kubectl get -o wide`: {', '.join(columns)}."
    lines += ["", cell(spec.get("description", "")), "", FIELDS_HEAD, *fields(spec, "", spec)]
    messages = dict.fromkeys(cell(message) for _, message in rules(schema) if message)
    if messages:
        lines += ["", "Refused when it is against one of these:", ""]
        lines += [f"- {message}" for message in messages]
    return "\n".join(lines) + "\n"


def rendered() -> str:
    """The page."""
    crds = [yaml.safe_load(path.read_text()) for path in sorted(SOURCE.glob("*.yaml"))]
    by_kind = {crd["spec"]["names"]["kind"]: crd for crd in crds}
    order = [kind for kind in ORDER if kind in by_kind]
    order += [kind for kind in by_kind if kind not in order]
    asked = [f"| `{name}` | {kinds} | {text} |" for name, kinds, text in ANNOTATIONS]
    head = "\n".join([HEAD + ANNOTATIONS_HEAD, *asked, ""])
    return head + "".join(section(by_kind[kind]) for kind in order)


def main() -> int:
    page = rendered()
    if "--check" in sys.argv[1:]:
        fresh = TARGET.exists() and TARGET.read_text() == page
        if not fresh:
            print(f"stale: {TARGET.relative_to(ROOT)}")
        return 0 if fresh else 1
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
