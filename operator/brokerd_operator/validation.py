"""The embedded validator: what the API server does with a resource before anyone sees it.

The directory shell of the embedded mode (`brokerctl up -f DIR`) has no API server, so it reads the
very files in `crds/` and applies them here: unknown fields, defaults (`status.default` too), types,
enums, patterns, bounds, list maps, and the CEL rules, transition rules included (design/operator.md
§14). Not for use on Kubernetes, where the API server has done all of this already.

One difference is intended: the API server drops unknown fields with a warning, this validator
refuses them by name, since a typo in a file is an error and a warning would not be seen.
"""

from __future__ import annotations

import base64
import binascii
import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from brokerd_operator import cel, schema
from brokerd_operator.schema import FieldError

API_VERSION = "brokerd.io/v1alpha1"

#: The largest CRD file has 28 KiB.
CRD_FILE_BYTES_MAX = 1 << 20

#: Kubernetes refuses larger Secrets.
SECRET_BYTES_MAX = 1 << 20

#: The schemas have up to 12 levels, affinity and the like have a few more.
NESTING_MAX = 48

#: A full Policy has about 400 values, a Binding 600.
VALUES_MAX = 50_000

#: Errors that are reported of one resource; a last one says that there are more.
ERRORS_MAX = 32

_NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_NAMESPACE_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"

_STRING_MAP = {
    "type": "object",
    "maxProperties": 256,
    "additionalProperties": {"type": "string", "maxLength": 262144},
}
METADATA_SCHEMA: schema.Schema = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 253, "pattern": _NAME_PATTERN},
        "namespace": {
            "type": "string",
            "minLength": 1,
            "maxLength": 63,
            "pattern": _NAMESPACE_PATTERN,
        },
        "labels": _STRING_MAP,
        "annotations": _STRING_MAP,
        "finalizers": {"type": "array", "maxItems": 16, "items": {"type": "string"}},
        "uid": {"type": "string", "maxLength": 128},
        "generation": {"type": "integer", "format": "int64"},
        "resourceVersion": {"type": "string", "maxLength": 128},
        "creationTimestamp": {"type": "string", "format": "date-time"},
        "deletionTimestamp": {"type": "string", "format": "date-time"},
    },
}
SECRET_SCHEMA: schema.Schema = {
    "type": "object",
    "required": ["metadata"],
    "properties": {
        "apiVersion": {"type": "string", "enum": ["v1"]},
        "kind": {"type": "string"},
        "metadata": METADATA_SCHEMA,
        "type": {"type": "string", "maxLength": 253},
        "immutable": {"type": "boolean"},
        "data": _STRING_MAP,
        "stringData": _STRING_MAP,
    },
}


class InvalidCrd(Exception):
    """A file in the CRD directory cannot be used."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A resource that is right, with all defaults filled in."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refused:
    """A resource that is wrong, and all that is wrong with it."""

    errors: tuple[FieldError, ...]

    @property
    def message(self) -> str:
        return "; ".join(str(error) for error in self.errors)


@dataclass(frozen=True, slots=True)
class Column:
    """One printer column."""

    name: str
    type: str
    json_path: str
    priority: int


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """What a CRD file says about one kind."""

    kind: str
    plural: str
    short_names: tuple[str, ...]
    columns: tuple[Column, ...]
    schema: schema.Schema


def crd_directory() -> Path:
    """Where the CRD files are: beside this module in an installed package, else in the checkout."""
    packaged = Path(__file__).parent / "crds"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "crds"


def load_kinds(directory: Path | None = None) -> dict[str, ResourceKind]:
    """The kinds of all CRD files in a directory, by kind."""
    kinds: dict[str, ResourceKind] = {}
    root = directory or crd_directory()
    for path in sorted(root.glob("*.yaml")):
        if path.stat().st_size > CRD_FILE_BYTES_MAX:
            raise InvalidCrd(f"{path.name}: larger than {CRD_FILE_BYTES_MAX} bytes")
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            kind = _read_crd(document, path.name)
            kinds[kind.kind] = kind
    if not kinds:
        raise InvalidCrd(f"no custom resource definition in {root}")
    return kinds


def _read_crd(document: Any, source: str) -> ResourceKind:
    try:
        names = document["spec"]["names"]
        version = next(item for item in document["spec"]["versions"] if item["storage"])
        root = dict(version["schema"]["openAPIV3Schema"])
        root["properties"] = {**root["properties"], "metadata": METADATA_SCHEMA}
        schema.check_keywords(root)
        columns = tuple(
            Column(item["name"], item["type"], item["jsonPath"], item.get("priority", 0))
            for item in version.get("additionalPrinterColumns", ())
        )
        return ResourceKind(
            names["kind"], names["plural"], tuple(names.get("shortNames", ())), columns, root
        )
    except (KeyError, TypeError, StopIteration, schema.UnsupportedSchema) as error:
        raise InvalidCrd(f"{source}: {error!r}") from error


class Validator:
    """Admits or refuses resources. Holds the kinds and nothing else."""

    __slots__ = ("kinds",)

    def __init__(self, kinds: Mapping[str, ResourceKind]) -> None:
        self.kinds = dict(kinds)

    @classmethod
    def from_directory(cls, directory: Path | None = None) -> Validator:
        return cls(load_kinds(directory))

    def admit(
        self, body: Any, *, old: Mapping[str, Any] | None = None, namespace: str = "default"
    ) -> Admitted | Refused:
        """Check one document.

        `old` is the body that was admitted before for the same resource; its status is kept, as the
        API server does where status is a subresource, and transition rules compare with it.
        """
        if not isinstance(body, dict):
            return Refused((FieldError("", "a resource must be a mapping"),))
        errors = tuple(_size_errors(body)) or tuple(_identity_errors(body, self.kinds))
        if errors:
            return Refused(errors)
        value = copy.deepcopy(body)
        metadata = value.setdefault("metadata", {})
        if isinstance(metadata, dict) and metadata.get("namespace") is None:
            metadata["namespace"] = namespace
        if body["kind"] == "Secret":
            return _admit_secret(value)
        root = self.kinds[body["kind"]].schema
        value.pop("status", None)
        if old is not None and "status" in old:
            value["status"] = copy.deepcopy(dict(old)["status"])
        schema.apply_defaults(value, root)
        errors = _first(schema.check(value, root, ""))
        if not errors:
            errors = _first(cel.check_rules(value, old, root, ""))
        return Refused(errors) if errors else Admitted(value)


def _size_errors(body: Mapping[str, Any]) -> Iterator[FieldError]:
    """Bounds before anything walks through the body by recursion.

    Values are counted as often as they are reached: YAML aliases can make a small file huge, and
    even endless.
    """
    level: list[Any] = [body]
    count = 0
    for _ in range(NESTING_MAX):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
            if count + len(inner) > VALUES_MAX:
                yield FieldError("", f"holds more than {VALUES_MAX} values")
                return
        count += len(inner)
        level = inner
        if not level:
            return
    yield FieldError("", f"is nested deeper than {NESTING_MAX} levels")


def _identity_errors(
    body: Mapping[str, Any], kinds: Mapping[str, ResourceKind]
) -> Iterator[FieldError]:
    kind = body.get("kind")
    if kind == "Secret":
        wanted = "v1"
    elif isinstance(kind, str) and kind in kinds:
        wanted = API_VERSION
    else:
        known = ", ".join([*sorted(kinds), "Secret"])
        yield FieldError("kind", f'unknown kind "{kind}", known: {known}')
        return
    given = body.get("apiVersion")
    if given != wanted:
        said = "is missing" if given is None else f'is "{given}"'
        yield FieldError("apiVersion", f"must be {wanted}, {said}")


def _first(errors: Iterable[FieldError]) -> tuple[FieldError, ...]:
    found: list[FieldError] = []
    for count, error in enumerate(errors):
        if count >= ERRORS_MAX:
            found.append(FieldError("", f"more than {ERRORS_MAX} errors"))
            break
        found.append(error)
    return tuple(found)


def _admit_secret(value: dict[str, Any]) -> Admitted | Refused:
    """A Secret with `stringData` moved into `data`, as the API server does.

    Errors name keys and never show values (SEC-20).
    """
    errors = _first(schema.check(value, SECRET_SCHEMA, ""))
    if errors:
        return Refused(errors)
    data: dict[str, str] = value.setdefault("data", {})
    for name, encoded in data.items():
        try:
            base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            return Refused(
                (FieldError(f"data.{name}", "must be base64; plain text is stringData"),)
            )
    for name, text in value.pop("stringData", {}).items():
        data[name] = base64.b64encode(text.encode()).decode()
    if sum(len(item) for item in data.values()) > SECRET_BYTES_MAX:
        return Refused((FieldError("data", f"must have at most {SECRET_BYTES_MAX} bytes"),))
    return Admitted(value)
