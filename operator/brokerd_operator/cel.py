"""The x-kubernetes-validations rules of a schema, evaluated by cel-python.

For `validation.py`. The very rules that the API server evaluates are evaluated here
(design/operator.md §4.3), so they use plain CEL only. Two differences of the engines are levelled
out: field names are escaped as Kubernetes does (`namespace` becomes `__namespace__`), and list maps
and sets are sorted by their keys, because Kubernetes compares them regardless of order and
cel-python does not.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import celpy
import regex
from celpy import celtypes

from brokerd_operator.schema import FieldError, Schema, children, item_key

#: Rules of all CRDs together are about 100.
PROGRAMS_MAX = 512

# Kubernetes: "Validation rules", escaping of property names that are CEL keywords.
_RESERVED = frozenset(
    {"true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function"}
    | {"if", "import", "let", "loop", "package", "namespace", "return", "var", "void", "while"}
)
_ESCAPES = (("__", "__underscores__"), (".", "__dot__"), ("-", "__dash__"), ("/", "__slash__"))
_TRANSITION = regex.compile(r"\boldSelf\b")


class InvalidRule(Exception):
    """A rule of a CRD does not compile."""


@functools.lru_cache(maxsize=PROGRAMS_MAX)
def _program(rule: str) -> Any:
    environment = celpy.Environment()
    try:
        return environment.program(environment.compile(rule))
    except celpy.CELParseError as error:
        raise InvalidRule(f"{rule}: {error}") from error


def rules_of(schema: Schema) -> Iterator[str]:
    """Every rule below a schema."""
    for rule in schema.get("x-kubernetes-validations", ()):
        yield rule["rule"]
    for _, child in children(schema):
        yield from rules_of(child)


def compile_rules(schema: Schema) -> int:
    """Compile every rule below a schema and say how many there are; raises InvalidRule."""
    count = 0
    for rule in rules_of(schema):
        _program(rule)
        count += 1
    return count


def check_rules(value: Any, old: Any, schema: Schema, path: str) -> Iterator[FieldError]:
    """Violations of rules in a value that the schema itself has no objection to.

    `old` is the value before the change, None when there was none: then transition rules do not
    run.
    """
    for rule in schema.get("x-kubernetes-validations", ()):
        is_transition = _TRANSITION.search(rule["rule"]) is not None
        if is_transition and old is None:
            continue
        activation = {"self": to_cel(value, schema)}
        if is_transition:
            activation["oldSelf"] = to_cel(old, schema)
        message = _evaluate(rule, activation)
        if message is not None:
            yield FieldError(path, message)
    if isinstance(value, dict):
        yield from _check_fields(value, old, schema, path)
    elif isinstance(value, list) and "items" in schema:
        yield from _check_items(value, old, schema, path)


def _evaluate(rule: Mapping[str, str], activation: dict[str, Any]) -> str | None:
    try:
        result = _program(rule["rule"]).evaluate(activation)
    except celpy.CELEvalError as error:
        return f"rule {rule['rule']!r} failed: {error}"
    if bool(result):
        return None
    return rule.get("message", f"failed rule: {rule['rule']}")


def _check_fields(
    value: dict[str, Any], old: Any, schema: Schema, path: str
) -> Iterator[FieldError]:
    properties: Mapping[str, Schema] = schema.get("properties", {})
    extra = schema.get("additionalProperties")
    before = old if isinstance(old, dict) else {}
    for name, item in value.items():
        child = properties.get(name, extra)
        if isinstance(child, Mapping):
            where = f"{path}.{name}".lstrip(".")
            yield from check_rules(item, before.get(name), child, where)


def _check_items(value: list[Any], old: Any, schema: Schema, path: str) -> Iterator[FieldError]:
    before: dict[str, Any] = {}
    # Only items of a list map have an identity, so only they can be compared with what they were.
    if schema.get("x-kubernetes-list-type") == "map" and isinstance(old, list):
        before = {item_key(item, schema): item for item in old}
    for index, item in enumerate(value):
        was = before.get(item_key(item, schema)) if before else None
        yield from check_rules(item, was, schema["items"], f"{path}[{index}]")


def to_cel(value: Any, schema: Schema) -> Any:
    """A JSON value as CEL sees it through its schema."""
    if isinstance(value, dict):
        properties: Mapping[str, Schema] = schema.get("properties", {})
        extra = schema.get("additionalProperties")
        fields = {}
        for name, item in value.items():
            child = properties.get(name, extra)
            # What x-kubernetes-preserve-unknown-fields lets through is invisible to CEL.
            if isinstance(child, Mapping):
                key = escape(name) if name in properties else name
                fields[celtypes.StringType(key)] = to_cel(item, child)
        return celtypes.MapType(fields)
    if isinstance(value, list):
        items = value
        if schema.get("x-kubernetes-list-type") in ("map", "set"):
            items = sorted(value, key=lambda item: item_key(item, schema))
        return celtypes.ListType([to_cel(item, schema.get("items", {})) for item in items])
    if schema.get("type") == "number":
        return celtypes.DoubleType(value)
    return celpy.json_to_cel(value)


def escape(name: str) -> str:
    """A field name as it is written in a rule."""
    if name in _RESERVED:
        return f"__{name}__"
    for text, escaped in _ESCAPES:
        name = name.replace(text, escaped)
    return name
