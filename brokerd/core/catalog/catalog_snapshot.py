"""The catalog's snapshot: one JSON object with all records, in an order in which they can be put.

Pure; for `catalog_machine.py`.  A member writes it on its event loop, so records of which there may
be a hundred thousand have a short way.
"""

from __future__ import annotations

import json
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from brokerd.core.catalog import names, queue_membership
from brokerd.core.catalog.catalog_changes import new_record
from brokerd.core.catalog.catalog_objects import (
    Binding,
    ConnectionId,
    Queue,
    Record,
    kept_names,
    owner_json,
    owner_of,
)
from brokerd.core.catalog.catalog_state import CatalogState

Json = dict[str, Any]
VERSION = 1


def encode(state: CatalogState) -> bytes:
    """Return everything."""
    head = _text(
        {
            "version": VERSION,
            "revision": state.revision,
            "cluster_id": state.cluster_id,
            "cluster_name": state.cluster_name,
            "incarnations": state.incarnations,
            "understood_features": state.understood_features,
            "enabled_features": sorted(state.enabled_features),
        }
    )
    objects = [
        _binding(record) if isinstance(record, Binding) else _text(_stored(record))
        for kind in names.KINDS
        for record in state.records(kind)
    ]
    return f'{head[:-1]},"objects":[{",".join(objects)}]}}'.encode()


def restore(state: CatalogState, data: bytes) -> None:
    """Replace everything; there is no log of changes before it."""
    snapshot: Json = json.loads(data)
    assert snapshot["version"] == VERSION
    state.reset()
    state.cluster_id = snapshot["cluster_id"]
    state.cluster_name = snapshot["cluster_name"]
    state.incarnations = snapshot["incarnations"]
    # Not in what the first version wrote.
    state.understood_features = snapshot.get("understood_features", {})
    state.enabled_features = frozenset(snapshot.get("enabled_features", ()))
    for stored in snapshot["objects"]:
        state.add(_restored(stored))
    state.forget_changes(snapshot["revision"])


def _text(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"))


def _stored(record: Record) -> Json:
    stored: Json = {
        "kind": record.kind,
        "vhost": record.vhost,
        "name": record.name,
        "spec": record.spec(),
        "revision": record.revision,
    }
    if record.owner is not None:
        stored["owner"] = owner_json(record.owner)
    if isinstance(record, Queue):
        stored["uid"] = record.uid
        stored["members"] = record.members
        stored |= _membership(record)
        stored["exclusive_owner"] = record.exclusive_owner
    return stored


def _membership(queue: Queue) -> Json:
    """Return the field that says where a queue comes from and is going, if there is any."""
    fields = queue.membership.stored()
    return {"membership": fields} if fields else {}


def _binding(binding: Binding) -> str:
    """Return the text of `_stored`, in a quarter of the time."""
    if binding.owner is not None:
        return _text(_stored(binding))
    arguments = _text(binding.arguments) if binding.arguments else "{}"
    return (
        f'{{"kind":"binding","vhost":{quoted(binding.vhost)},"name":{quoted(binding.name)},'
        f'"spec":{{"source":{quoted(binding.source)},'
        f'"destination_kind":{quoted(binding.destination_kind)},'
        f'"destination":{quoted(binding.destination)},'
        f'"routing_key":{quoted(binding.routing_key)},"arguments":{arguments}}},'
        f'"revision":{binding.revision}}}'
    )


def _restored(stored: Json) -> Record:
    record = new_record(stored["kind"], stored["vhost"], stored["name"], stored["spec"])
    record.revision = stored["revision"]
    record.owner = owner_of(stored)
    if isinstance(record, Queue):
        record.uid = stored["uid"]
        record.members = kept_names(stored["members"])
        record.membership = queue_membership.restored(stored.get("membership", {}))
        owner = stored["exclusive_owner"]
        record.exclusive_owner = None if owner is None else ConnectionId(*owner)
    return record
