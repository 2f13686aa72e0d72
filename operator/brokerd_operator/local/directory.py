"""Resources from YAML files in a directory: the embedded mode's API server.

design/operator.md §14.

Reads and validates the files, gives every resource a uid and a generation as an API server would,
keeps both (and what was admitted last) in the data directory, and holds statuses in memory.
Implements `engine.ports.Store`. A file that vanishes is a deleted resource: it gets a deletion
timestamp, and goes when the engine takes its finalizer off.
"""

from __future__ import annotations

import base64
import copy
import json
import logging
import secrets
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from brokerd_operator import validation
from brokerd_operator.engine import keys
from brokerd_operator.engine.keys import FINALIZER, Body, Key
from brokerd_operator.engine.ports import Gone
from brokerd_operator.engine.status import now_text
from brokerd_operator.local.cluster import write_private
from brokerd_operator.local.documents import Document, Problem, read
from brokerd_operator.local.errors import EmbeddedError
from brokerd_operator.manifests import secrets as secret_manifests
from brokerd_operator.schema import FieldError
from brokerd_operator.specs.model import Meta
from brokerd_operator.specs.user import UserSpec

log = logging.getLogger(__name__)

RESOURCES_MAX = 100_000
STATE_FILE = "resources.json"


class Directory:
    """Owns all resources of one environment. `listener` is the engine.

    In one piece: it stands in for the API server, and has a method for each thing that the engine
    asks of that one.
    """

    def __init__(self, data_dir: Path, say: Callable[[str], None]) -> None:
        self._data_dir = data_dir
        self._say = say
        self._validator = validation.Validator.from_directory()
        self._resources: dict[Key, dict[str, Any]] = {}
        self._secrets: dict[tuple[str, str], dict[str, Any]] = {}
        #: Set by a program (not by a file), which a change of the files does not take away.
        self._by_program: set[Key] = set()
        self._put: Callable[[Body], None] = lambda body: None
        self._remove: Callable[[Key], None] = lambda key: None
        self._secret_changed: Callable[[str, str], None] = lambda namespace, name: None
        #: Counts whatever a table of resources would show.
        self.version = 0
        self.events: list[tuple[str, Key, str, str]] = []

    def attach(
        self,
        put: Callable[[Body], None],
        remove: Callable[[Key], None],
        secret_changed: Callable[[str, str], None],
    ) -> None:
        """Say where news goes; what an earlier run kept is put there at once."""
        self._put, self._remove, self._secret_changed = put, remove, secret_changed
        self._load()
        for body in self._resources.values():
            self._put(body)

    def resources(self) -> list[dict[str, Any]]:
        return list(self._resources.values())

    def get(self, key: Key) -> dict[str, Any] | None:
        return self._resources.get(key)

    # ---- files --------------------------------------------------------------------------------

    def load_files(self, path: Path, *, keep_on_problem: bool = True) -> list[Problem]:
        """Read all files and apply what changed; what is not in them any more is deleted."""
        documents, problems = read(path)
        seen: set[Key] = set()
        places: dict[Key, str] = {}
        secrets_seen: set[tuple[str, str]] = set()
        for document in documents[:RESOURCES_MAX]:
            problems += self._apply_document(document, seen, places, secrets_seen)
        if problems and keep_on_problem:
            # A file that cannot be read now says nothing about what it held: nothing is deleted.
            return problems
        for key in list(self._resources):
            if key not in seen and key not in self._by_program:
                self.delete(key)
        for name in set(self._secrets) - secrets_seen:
            if not self._secrets[name].get("generated"):
                del self._secrets[name]
                self._secret_changed(*name)
        return problems

    def _apply_document(
        self,
        document: Document,
        seen: set[Key],
        places: dict[Key, str],
        secrets_seen: set[tuple[str, str]],
    ) -> list[Problem]:
        body = document.body
        if is_ignored(document):
            return []
        key = _key(body)
        if key is not None:
            if problem := namesake(document, places):
                return [problem]
            # Also when it is refused: a resource with a mistake is not a deleted one.
            seen.add(key)
            if key.kind == "Secret":
                secrets_seen.add((key.namespace, key.name))
        return problems_of(document, self._admit(body, by_program=False))

    # ---- what an API server does --------------------------------------------------------------

    def apply(self, body: Any, *, by_program: bool = True) -> str:
        """Create or change a resource; what is wrong with it, or nothing."""
        errors = self._admit(body, by_program=by_program)
        return f"{_named(body)}{'; '.join(map(str, errors))}" if errors else ""

    def _admit(self, body: Any, *, by_program: bool) -> tuple[FieldError, ...]:
        key = _key(body)
        old = self._resources.get(key) if key is not None else None
        if old is not None and keys.is_deleting(old):
            return (FieldError("", "is still being deleted"),)
        verdict = self._validator.admit(body, old=old)
        if isinstance(verdict, validation.Refused):
            return verdict.errors
        admitted = verdict.body
        if admitted["kind"] == "Secret":
            self._apply_secret(admitted)
            return ()
        assert key is not None
        key = keys.key_of(admitted)
        if by_program:
            self._by_program.add(key)
        if old is None:
            self._create(key, admitted)
        else:
            self._change(key, admitted, old)
        return ()

    def _create(self, key: Key, body: dict[str, Any]) -> None:
        metadata = body["metadata"]
        metadata["uid"] = str(uuid.uuid4())
        metadata["generation"] = 1
        metadata["creationTimestamp"] = now_text()
        metadata.pop("deletionTimestamp", None)
        self._resources[key] = body
        self._changed(body)

    def _change(self, key: Key, body: dict[str, Any], old: dict[str, Any]) -> None:
        metadata, before = body["metadata"], old["metadata"]
        for name in ("uid", "generation", "creationTimestamp", "finalizers"):
            if name in before:
                metadata[name] = before[name]
        body["status"] = old.get("status") or {"observedGeneration": -1}
        if body == old:
            return
        if body["spec"] != old["spec"]:
            metadata["generation"] = before["generation"] + 1
        self._resources[key] = body
        self._changed(body)

    def _apply_secret(self, body: dict[str, Any]) -> None:
        metadata = body["metadata"]
        name = (metadata["namespace"], metadata["name"])
        present = self._secrets.get(name)
        if present is None or present["data"] != body["data"]:
            self._secrets[name] = {"data": body["data"]}
            self._secret_changed(*name)

    def delete(self, key: Key) -> None:
        """Ask for a deletion; the resource goes when no finalizer holds it any more."""
        self._by_program.discard(key)
        body = self._resources.get(key)
        if body is None or keys.is_deleting(body):
            return
        if not keys.has_finalizer(body):
            self._drop(key)
            return
        changed = copy.deepcopy(body)
        changed["metadata"]["deletionTimestamp"] = now_text()
        self._resources[key] = changed
        self._changed(changed)

    def _drop(self, key: Key) -> None:
        self._resources.pop(key, None)
        self.version += 1
        self._save()
        self._remove(key)

    def _changed(self, body: dict[str, Any]) -> None:
        self.version += 1
        self._save()
        self._put(body)

    # ---- Store --------------------------------------------------------------------------------

    def _current(self, body: Body) -> dict[str, Any]:
        current = self._resources.get(keys.key_of(body))
        if current is None:
            raise Gone
        return copy.deepcopy(current)

    async def write_status(self, body: Body, status: Mapping[str, Any]) -> None:
        changed = self._current(body)
        changed["status"] = dict(status)
        self._resources[keys.key_of(changed)] = changed
        self.version += 1
        self._put(changed)

    async def add_finalizer(self, body: Body) -> None:
        changed = self._current(body)
        finalizers = changed["metadata"].setdefault("finalizers", [])
        if FINALIZER not in finalizers:
            finalizers.append(FINALIZER)
        self._resources[keys.key_of(changed)] = changed
        self._changed(changed)

    async def remove_finalizer(self, body: Body) -> None:
        changed = self._current(body)
        finalizers = changed["metadata"].get("finalizers") or []
        changed["metadata"]["finalizers"] = [name for name in finalizers if name != FINALIZER]
        key = keys.key_of(changed)
        self._resources[key] = changed
        if keys.is_deleting(changed):
            self._drop(key)
        else:
            self._changed(changed)

    async def emit(self, body: Body, type_: str, reason: str, message: str) -> None:
        key = keys.key_of(body)
        self.events.append((type_, key, reason, message))
        del self.events[:-1000]
        if type_ == "Warning" or reason in ("DriftRepaired", "Adopted", "LeftBehind"):
            self._say(f"{key.kind} {key.name}: {reason}: {message}")

    async def secret(self, namespace: str, name: str) -> Mapping[str, bytes] | None:
        found = self._secrets.get((namespace, name))
        if found is None:
            return None
        return {key: base64.b64decode(value) for key, value in found["data"].items()}

    async def make_user_secret(self, body: Body, meta: Meta, spec: UserSpec, host: str) -> None:
        name = (meta.namespace, spec.secret_name(meta))
        if name in self._secrets:
            return
        manifest = secret_manifests.user_secret(
            meta, spec.resolved_name(meta), secrets.token_urlsafe(24), host
        )
        self._secrets[name] = {"data": manifest["data"], "generated": True}
        self._save()
        where = self._data_dir / STATE_FILE
        self._say(f"User {meta.name}: made a password; it is in {where} (Secret {name[1]})")

    def namespace_labels(self, namespace: str) -> Mapping[str, str]:
        return {"kubernetes.io/metadata.name": namespace}

    async def is_namespace_terminating(self, namespace: str) -> bool:
        return False

    def is_watched(self, namespace: str) -> bool:
        return True

    async def names(self, kind: str, namespace: str) -> frozenset[str]:
        return frozenset(
            key.name for key in self._resources if key.kind == kind and key.namespace == namespace
        )

    async def read(self, key: Key) -> Body | None:
        return self._resources.get(key)

    # ---- kept between runs --------------------------------------------------------------------

    def _save(self) -> None:
        """Keep all but statuses; called on changes of specs only."""
        kept = [
            {name: value for name, value in body.items() if name != "status"}
            for body in self._resources.values()
        ]
        generated = [
            {"namespace": namespace, "name": name, "data": value["data"]}
            for (namespace, name), value in self._secrets.items()
            if value.get("generated")
        ]
        text = json.dumps({"resources": kept, "secrets": generated}, indent=1)
        write_private(self._data_dir / STATE_FILE, text)

    def _load(self) -> None:
        file = self._data_dir / STATE_FILE
        if not file.exists():
            return
        try:
            kept = json.loads(file.read_text())
            for body in kept["resources"]:
                body["status"] = {"observedGeneration": -1}
                self._resources[keys.key_of(body)] = body
            for item in kept["secrets"]:
                name = (item["namespace"], item["name"])
                self._secrets[name] = {"data": item["data"], "generated": True}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EmbeddedError(f"{file} cannot be read: {error!r}") from error


#: Kinds that a directory for kubectl may hold as well and that mean nothing here.
_IGNORED = frozenset(("Namespace", "ConfigMap", "Kustomization"))


def _key(body: Any) -> Key | None:
    """The name of a document that looks like a resource."""
    if not isinstance(body, dict) or not isinstance(body.get("metadata"), dict):
        return None
    metadata = body["metadata"]
    name, namespace = metadata.get("name"), metadata.get("namespace")
    if not isinstance(body.get("kind"), str) or not isinstance(name, str):
        return None
    if namespace is not None and not isinstance(namespace, str):
        return None
    return Key(body["kind"], namespace or "default", name)


def is_ignored(document: Document) -> bool:
    """Whether a document is for kubectl alone."""
    body = document.body
    return isinstance(body, dict) and body.get("kind") in _IGNORED


def namesake(document: Document, places: dict[Key, str]) -> Problem | None:
    """What is wrong where a resource stands at another place too; else notes this one's place."""
    key = _key(document.body)
    if key is None:
        return None
    if key in places:
        return Problem(document.place, f"{key.kind} {key.name} is also at {places[key]}")
    places[key] = document.place
    return None


def _named(body: Any) -> str:
    """How a message begins that is about a document."""
    key = _key(body)
    return f"{key.kind} {key.name}: " if key is not None else ""


def problems_of(document: Document, errors: Sequence[FieldError]) -> list[Problem]:
    """What is wrong with a document, each with the line of its field."""
    name = _named(document.body)
    places = document.places([error.path for error in errors])
    return [Problem(place, f"{name}{error}") for place, error in zip(places, errors, strict=True)]


def all_ready(bodies: Iterable[Body]) -> bool:
    """Whether every resource is ready at its present generation."""
    return all(is_ready(body) for body in bodies)


def is_ready(body: Body) -> bool:
    """Ready at the present generation, as `kubectl wait --for=condition=Ready` judges."""
    status = body.get("status") or {}
    if status.get("observedGeneration") != (body.get("metadata") or {}).get("generation"):
        return False
    found = [item for item in status.get("conditions") or () if item.get("type") == "Ready"]
    return bool(found) and found[0].get("status") == "True"
