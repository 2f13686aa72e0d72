"""Structural schemas: defaults, pruning and the checks that an OpenAPI schema of a CRD can express.

For `validation.py` only, which stands in for the API server in the embedded mode
(design/operator.md §14). It knows the part of the schema language that the files in `crds/` use; a
keyword that it does not know is an error when the CRD is loaded, so that no check is silently left
out. CEL rules are in `cel.py`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import regex

#: Time one pattern of a CRD may take on one value. Patterns are ours, values are not (SEC-19).
PATTERN_TIMEOUT_S = 0.25

#: How deep a schema may nest. The deepest of `crds/` has 9 levels.
DEPTH_MAX = 32

#: JSON integers as the API server holds them. It does not enforce the format int32 (tried with
#: Kubernetes 1.34), so a field that needs narrower bounds has a minimum and a maximum.
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

KNOWN_KEYWORDS = frozenset(
    {
        "additionalProperties",
        "default",
        "description",
        "enum",
        "format",
        "items",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "pattern",
        "properties",
        "required",
        "type",
        "x-kubernetes-int-or-string",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-list-type",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-validations",
    }
)

Schema = Mapping[str, Any]


class UnsupportedSchema(Exception):
    """A CRD uses something that the embedded validator does not know."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """One thing that is wrong with a resource. `path` is empty for the resource as a whole."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


def check_keywords(schema: Schema, path: str = "", depth: int = 0) -> None:
    """Raise UnsupportedSchema for anything that the functions below would ignore."""
    if depth > DEPTH_MAX:
        raise UnsupportedSchema(f"{path}: nested deeper than {DEPTH_MAX}")
    unknown = sorted(set(schema) - KNOWN_KEYWORDS)
    if unknown:
        raise UnsupportedSchema(f"{path}: unknown keyword {unknown[0]}")
    for name, child in children(schema):
        check_keywords(child, f"{path}.{name}", depth + 1)


def children(schema: Schema) -> Iterator[tuple[str, Schema]]:
    yield from schema.get("properties", {}).items()
    if isinstance(schema.get("additionalProperties"), Mapping):
        yield "*", schema["additionalProperties"]
    if "items" in schema:
        yield "[]", schema["items"]


def apply_defaults(value: Any, schema: Schema) -> None:
    """Fill in defaults in place, as the API server does: nulls go first, then defaults come."""
    if isinstance(value, dict):
        properties: Mapping[str, Schema] = schema.get("properties", {})
        for name in [key for key, item in value.items() if item is None and key in properties]:
            del value[name]
        for name, child in properties.items():
            if name not in value and "default" in child:
                value[name] = copy.deepcopy(child["default"])
            if name in value:
                apply_defaults(value[name], child)
        extra = schema.get("additionalProperties")
        if isinstance(extra, Mapping):
            for item in value.values():
                apply_defaults(item, extra)
    elif isinstance(value, list) and "items" in schema:
        for item in value:
            apply_defaults(item, schema["items"])


def check(value: Any, schema: Schema, path: str) -> Iterator[FieldError]:
    """Every violation of the schema; unknown fields are violations too."""
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, int | str):
            yield FieldError(path, f"must be an integer or a string, is {_type_name(value)}")
        elif isinstance(value, str):
            yield from _check_string(value, schema, path)
        else:
            yield from _check_number(value, schema, path)
        return
    wanted = schema.get("type", "object")
    matches, inner = _TYPES[wanted]
    if not matches(value):
        yield FieldError(path, f"must be of type {wanted}, is {_type_name(value)}")
        return
    if "enum" in schema and value not in schema["enum"]:
        allowed = ", ".join(str(item) for item in schema["enum"])
        yield FieldError(path, f"unsupported value {_shown(value)}, supported: {allowed}")
        return
    yield from inner(value, schema, path)


def _check_string(value: str, schema: Schema, path: str) -> Iterator[FieldError]:
    if len(value) < schema.get("minLength", 0):
        yield FieldError(path, f"must have at least {schema['minLength']} characters")
    if "maxLength" in schema and len(value) > schema["maxLength"]:
        yield FieldError(path, f"must have at most {schema['maxLength']} characters")
    elif "pattern" in schema and not matches_pattern(schema["pattern"], value):
        yield FieldError(path, f"{_shown(value)} must match {schema['pattern']}")
    if schema.get("format") == "date-time" and not _is_timestamp(value):
        yield FieldError(path, f"{_shown(value)} must be a time such as 2026-11-20T15:00:00Z")


def matches_pattern(pattern: str, value: str) -> bool:
    """Go's meaning of a pattern: searched, `$` is the very end of the text and not a line's."""
    if pattern.endswith("$") and not pattern.endswith(r"\$"):
        pattern = pattern[:-1] + r"\Z"
    try:
        return regex.search(pattern, value, timeout=PATTERN_TIMEOUT_S) is not None
    except TimeoutError:
        return False


def _check_number(value: float, schema: Schema, path: str) -> Iterator[FieldError]:
    is_integer = schema.get("type") != "number"
    low = schema.get("minimum", INT64_MIN if is_integer else -math.inf)
    high = schema.get("maximum", INT64_MAX if is_integer else math.inf)
    if value < low:
        yield FieldError(path, f"{value} must be at least {low}")
    if value > high:
        yield FieldError(path, f"{value} must be at most {high}")


def _check_object(value: dict[Any, Any], schema: Schema, path: str) -> Iterator[FieldError]:
    properties: Mapping[str, Schema] = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield FieldError(f"{path}.{name}".lstrip("."), "required value")
    if len(value) < schema.get("minProperties", 0):
        yield FieldError(path, f"must have at least {schema['minProperties']} field")
    if "maxProperties" in schema and len(value) > schema["maxProperties"]:
        yield FieldError(path, f"must have at most {schema['maxProperties']} entries")
        return
    extra = schema.get("additionalProperties")
    for name, item in value.items():
        where = f"{path}.{name}".lstrip(".")
        if not isinstance(name, str):
            yield FieldError(where, "the key must be a string; quote it")
        elif name in properties:
            yield from check(item, properties[name], where)
        elif isinstance(extra, Mapping):
            yield from check(item, extra, where)
        elif not schema.get("x-kubernetes-preserve-unknown-fields"):
            yield FieldError(where, "unknown field")


def _check_array(value: list[Any], schema: Schema, path: str) -> Iterator[FieldError]:
    if len(value) < schema.get("minItems", 0):
        yield FieldError(path, f"must have at least {schema['minItems']} item")
    if "maxItems" in schema and len(value) > schema["maxItems"]:
        yield FieldError(path, f"must have at most {schema['maxItems']} items")
        return
    failed = False
    for index, item in enumerate(value):
        for error in check(item, schema["items"], f"{path}[{index}]"):
            failed = True
            yield error
    if not failed:
        yield from _check_unique(value, schema, path)


def _check_unique(value: list[Any], schema: Schema, path: str) -> Iterator[FieldError]:
    if schema.get("x-kubernetes-list-type") not in ("map", "set"):
        return
    seen: set[str] = set()
    for index, item in enumerate(value):
        key = item_key(item, schema)
        if key in seen:
            yield FieldError(f"{path}[{index}]", f"duplicate value {_shown(key)}")
        seen.add(key)


def item_key(item: Any, schema: Schema) -> str:
    """Identity of an item of a list map or a set; text, so that items can be sorted by it."""
    if schema.get("x-kubernetes-list-type") == "map":
        keys = schema["x-kubernetes-list-map-keys"]
        return ", ".join(str(item.get(key)) for key in keys)
    return str(item)


def _is_timestamp(value: str) -> bool:
    try:
        return datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_nothing(_value: Any, _schema: Schema, _path: str) -> Iterator[FieldError]:
    return iter(())


_TYPES: dict[
    str, tuple[Callable[[Any], bool], Callable[[Any, Schema, str], Iterator[FieldError]]]
] = {
    "object": (lambda value: isinstance(value, dict), _check_object),
    "array": (lambda value: isinstance(value, list), _check_array),
    "string": (lambda value: isinstance(value, str), _check_string),
    "integer": (_is_integer, _check_number),
    "number": (_is_number, _check_number),
    "boolean": (lambda value: isinstance(value, bool), _check_nothing),
}

_TYPE_NAMES: dict[type, str] = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}


def _type_name(value: Any) -> str:
    return _TYPE_NAMES.get(type(value), type(value).__name__)


def _shown(value: Any) -> str:
    text = str(value)
    return f'"{text[:61]}..."' if len(text) > 64 else f'"{text}"'
