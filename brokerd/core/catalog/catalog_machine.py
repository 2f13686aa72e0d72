"""The catalog: the cluster's metadata as a replicated machine.

Every member applies the same commands (`catalog_commands.py`) and realises the effects
(`TopologyChanged`), so each has a local view (`state`) for routing, policies and permissions.
Total: whatever a command says, the answer is a reply.  Pure; driven by the raft room's Replica,
read by server and federation.

Not here: AMQP's order of checks before a declare (`declare.py`), who may do what
(`permissions.py`), which settings hold for a queue (`policy.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from brokerd.core import profiles
from brokerd.core.catalog import (
    catalog_checks,
    catalog_commands,
    catalog_snapshot,
    catalog_specs,
    equivalence,
    features,
    names,
    queue_membership,
    refusals,
)
from brokerd.core.catalog.catalog_changes import Changes, new_record
from brokerd.core.catalog.catalog_commands import (
    IMMUTABLE,
    NOT_FOUND,
    OK,
    PRECONDITION,
    REFUSED,
    UNCHANGED,
)
from brokerd.core.catalog.catalog_effects import FeaturesEnabled, TopologyChanged
from brokerd.core.catalog.catalog_objects import (
    ConnectionId,
    Entry,
    Exchange,
    Queue,
    Record,
    kept_json,
    kept_names,
    owner_of,
)
from brokerd.core.catalog.catalog_state import CHANGES_MAX, CatalogState
from brokerd.core.catalog.refusals import Refused
from brokerd.core.machine import Meta, Outcome

Json = dict[str, Any]

_UNREADABLE = "no catalog command of a known version, or text that is no Unicode"


class CatalogMachine:
    """Replicated metadata.  `state` is read by everyone on the node, changed only by `apply`."""

    realise_everywhere = True
    may_lose_last = False

    def __init__(
        self,
        profile: profiles.Profile | None = None,
        changes_max: int = CHANGES_MAX,
        on_restored: Callable[[], None] | None = None,
        on_restoring: Callable[[], None] | None = None,
    ) -> None:
        """on_restored is called when a snapshot has replaced the state: there are no effects of
        what changed.  on_restoring: before that.
        """
        profile = profile or profiles.profile()
        # The only switch that the state itself depends on; commands have the same outcome under
        # every profile.
        self.state = CatalogState(profile.headers_numeric_equality == "loose", changes_max)
        self._on_restored = on_restored
        self._on_restoring = on_restoring

    # The shape of a replicated machine.

    def apply(self, meta: Meta, command: bytes) -> Outcome:
        """Apply one committed command."""
        changes = Changes(self.state, meta.index)
        operation = catalog_commands.decode(command)
        if operation is None:
            reply = catalog_checks.reply(REFUSED, _UNREADABLE)
        elif operation.get("do") == "batch" and isinstance(operation.get("operations"), list):
            reply = {"results": [self._run(each, changes) for each in operation["operations"]]}
        else:
            reply = self._run(operation, changes)
        reply["revision"] = self.state.revision
        return Outcome(json.dumps(reply, separators=(",", ":")).encode(), changes.effects)

    def became_leader(self, meta: Meta) -> list[Any]:
        """Return nothing: effects are realised by every member as they come."""
        return []

    def live_indexes(self) -> list[tuple[int, int]]:
        """Return nothing: the snapshot holds all, no entry is referred to."""
        return []

    def look(self, command: bytes, now_ms: int) -> None:
        """See brokerd.raft.machine.Machine: every command is applied."""
        return

    def factory(self) -> None:
        """Return None: everybody looks at the catalog."""
        return

    def next_deadline_ms(self) -> int | None:
        """Return None: the catalog knows no time."""
        return None

    def tick_command(self) -> bytes:
        """Return a command that changes nothing."""
        return catalog_commands.encode_batch([])

    def snapshot(self) -> bytes:
        """Return all objects, in an order in which they can be put."""
        return catalog_snapshot.encode(self.state)

    def restore(self, data: bytes) -> None:
        """Replace the state; watchers of changes must list again.

        `state` stays the same object, because the whole node reads through it.
        """
        if self._on_restoring is not None:
            self._on_restoring()
        catalog_snapshot.restore(self.state, data)
        if self._on_restored is not None:
            self._on_restored()

    def overview(self) -> Json:
        """Return counts."""
        state = self.state
        counts = {kind: len(state.records(kind)) for kind in names.KINDS}
        return {
            "cluster_id": state.cluster_id,
            "cluster_name": state.cluster_name,
            "revision": state.revision,
            "objects": counts,
        }

    def check_invariants(self) -> None:
        """Assert what must hold."""
        self.state.check_invariants()

    # Reading for the Admin service.

    def objects(self, kind: str | None = None, vhost: str | None = None) -> list[Json]:
        """Return listings of objects, in an order in which they can be put, then by name."""
        kinds = names.KINDS if kind is None else (kind,)
        return [
            record.listing()
            for each in kinds
            for record in sorted(
                self.state.records(each, vhost), key=lambda record: (record.vhost, record.name)
            )
        ]

    def object(self, kind: str, vhost: str, name: str) -> Json | None:
        """Return one object's listing."""
        record = self.state.get(kind, vhost, name)
        return None if record is None else record.listing()

    def changes_since(self, revision: int) -> list[TopologyChanged] | None:
        """Return the changes after a revision, None if they are compacted (WatchTopology)."""
        return self.state.changes_since(revision)

    def removed_by(self, causes: frozenset[str]) -> list[TopologyChanged]:
        """Return what was removed for these causes and not made again (ListTopology)."""
        return self.state.removed_by(causes)

    # Commands.

    def _run(self, operation: Any, changes: Changes) -> Json:
        fault = catalog_commands.malformed(operation)
        if fault is not None:
            return catalog_checks.reply(REFUSED, fault)
        return _HANDLERS[operation["do"]](self, operation, changes)

    def _put(self, operation: Json, changes: Changes) -> Json:
        kind, vhost, name = operation["kind"], operation["vhost"], operation["name"]
        refused = catalog_checks.check_identity(kind, vhost, name)
        if refused is not None:
            return refused
        if "verdict" in operation:
            return catalog_checks.reply(REFUSED, operation["verdict"], refusals.PRECONDITION_FAILED)
        try:
            spec = catalog_specs.normalise(kind, vhost, name, operation["spec"])
        except catalog_specs.SpecError as error:
            return catalog_checks.reply(REFUSED, str(error), refusals.PRECONDITION_FAILED)
        if kind == "binding":
            name = names.binding_name(
                spec["source"],
                spec["destination_kind"],
                spec["destination"],
                spec["routing_key"],
                spec["arguments"],
            )
        present = self.state.get(kind, vhost, name)
        failed = catalog_checks.check_precondition(operation, present)
        if failed is not None:
            return failed
        if present is None:
            return self._create(operation, name, spec, changes)
        if operation.get("declare") and isinstance(present, Exchange | Queue):
            return _redeclare(operation, present, spec)
        return self._update(operation, present, spec, changes)

    def _create(self, operation: Json, name: str, spec: Json, changes: Changes) -> Json:
        kind, vhost, cause = operation["kind"], operation["vhost"], operation["cause"]
        refused = self._check_dependencies(kind, vhost, name, spec)
        if refused is not None:
            return catalog_checks.refused_reply(
                refused, NOT_FOUND if refused.code == 404 else REFUSED
            )
        record = new_record(kind, vhost, name, spec)
        if isinstance(record, Queue):
            record.uid = operation["uid"]
            record.members = kept_names(operation["members"])
            record.membership.created = changes.revision
            owner = operation.get("exclusive_owner")
            record.exclusive_owner = None if owner is None else ConnectionId(*owner)
        record.owner = owner_of(operation)
        if kind == "user":
            spec.setdefault("password_hash", "")
        if not operation.get("dry_run"):
            changes.add(record, cause)
        if kind == "binding" and not operation.get("precondition") and cause.startswith("amqp:"):
            # A session does not read the record, and it would be most of the cost of a bind.
            return catalog_checks.reply(OK)
        return catalog_checks.reply(OK, record=record)

    def _check_dependencies(self, kind: str, vhost: str, name: str, spec: Json) -> Refused | None:
        state = self.state
        if kind in names.GLOBAL_KINDS:
            return None
        topology = state.vhosts.get(vhost)
        if topology is None:
            return refusals.not_found(f"vhost '{vhost}' not found")
        check = catalog_checks.DEPENDENCIES.get(kind)
        return None if check is None else check(state, vhost, name, spec)

    def _update(self, operation: Json, present: Record, spec: Json, changes: Changes) -> Json:
        kind = present.kind
        current = present.spec()
        if kind == "user" and "password_hash" not in operation["spec"]:
            spec["password_hash"] = current["password_hash"]
        differing = [
            field
            for field in catalog_specs.IDENTITY.get(kind, ())
            if names.canonical_json(spec[field]) != names.canonical_json(current[field])
        ]
        if differing:
            text = f"cannot change {', '.join(differing)} of an existing {kind}"
            return catalog_checks.reply(IMMUTABLE, text, refusals.PRECONDITION_FAILED, present)
        owner = owner_of(operation)
        current.pop("exclusive", None)
        is_same = names.canonical_json(spec) == names.canonical_json(current)
        if is_same and (owner is None or owner == present.owner):
            return catalog_checks.reply(UNCHANGED, record=present)
        if kind == "binding" and not is_same:
            return catalog_checks.reply(REFUSED, "another binding has this name", None, present)
        if present.is_protected() and operation["cause"].startswith("amqp:"):
            return catalog_checks.refused_reply(catalog_checks.protected(present))
        if operation.get("dry_run"):
            return catalog_checks.reply(OK, record=present)
        if owner is not None:
            present.owner = owner
        if isinstance(present, Entry):
            present.value = spec
        elif isinstance(present, Exchange):
            present.settings = spec["settings"]
        elif isinstance(present, Queue):
            present.settings = kept_json(spec["settings"])
            present.replicas = spec.get("replicas")
        changes.touch(present, operation["cause"])
        return catalog_checks.reply(OK, record=present)

    def _delete(self, operation: Json, changes: Changes) -> Json:
        kind, vhost, name = operation["kind"], operation["vhost"], operation["name"]
        present = self.state.get(kind, vhost, name)
        if present is None:
            return catalog_checks.reply(NOT_FOUND, f"{kind} '{name}' not found", refusals.NOT_FOUND)
        failed = catalog_checks.check_precondition(operation, present)
        if failed is not None:
            return failed
        uid = operation.get("uid", 0)
        if isinstance(present, Queue) and uid not in (0, present.uid):
            return catalog_checks.reply(
                PRECONDITION, "the queue is another one of the same name", None, present
            )
        if present.is_protected() and operation["cause"].startswith("amqp:"):
            return catalog_checks.refused_reply(catalog_checks.protected(present), record=present)
        if "verdict" in operation:
            return catalog_checks.reply(
                REFUSED, operation["verdict"], refusals.NOT_ALLOWED, present
            )
        if isinstance(present, Exchange):
            refused = self._check_exchange_delete(present, operation)
            if refused is not None:
                return catalog_checks.refused_reply(refused, record=present)
        reply = catalog_checks.reply(OK, record=present)
        if not operation.get("dry_run"):
            changes.remove(present, operation["cause"])
            if kind == "member":
                self._forget_node(name)
        return reply

    def _forget_node(self, node: str) -> None:
        """A member of the same name that comes later is another one."""
        for queue in self.state.queues():
            queue_membership.without_node(queue.membership, node)
            queue_membership.not_wanted(queue.membership, queue.members, node)
        self.state.understood_features.pop(node, None)

    def _check_exchange_delete(self, exchange: Exchange, operation: Json) -> Refused | None:
        vhost, name = exchange.vhost, exchange.name
        if any(name == default for default, _, _ in names.DEFAULT_EXCHANGES):
            return catalog_checks.system_exchange(vhost, name)
        if operation.get("if_unused") and self.state.vhosts[vhost].bindings.has_source(name):
            return refusals.precondition_failed(f"{names.resource('exchange', vhost, name)} in use")
        return None

    def _set_owner(self, operation: Json, changes: Changes) -> Json:
        kind, vhost, name = operation["kind"], operation["vhost"], operation["name"]
        present = self.state.get(kind, vhost, name)
        if present is None:
            return catalog_checks.reply(NOT_FOUND, f"{kind} '{name}' not found", refusals.NOT_FOUND)
        failed = catalog_checks.check_precondition(operation, present)
        if failed is not None:
            return failed
        owner = owner_of(operation)
        if owner == present.owner:
            return catalog_checks.reply(UNCHANGED, record=present)
        if not operation.get("dry_run"):
            present.owner = owner
            changes.touch(present, operation["cause"])
        return catalog_checks.reply(OK, record=present)

    def _set_queue_members(self, operation: Json, changes: Changes) -> Json:
        queue = self.state.queue(operation["vhost"], operation["name"])
        if queue is None or queue.uid != operation["uid"]:
            return catalog_checks.reply(
                NOT_FOUND, f"queue '{operation['name']}' not found", refusals.NOT_FOUND
            )
        if operation.get("revision", queue.revision) != queue.revision:
            return catalog_checks.reply(PRECONDITION, "was changed meanwhile", None, queue)
        members = kept_names(operation["members"])
        if members == queue.members:
            return catalog_checks.reply(UNCHANGED, record=queue)
        queue.membership = queue_membership.after_change(
            queue.membership, queue.members, members, changes.revision
        )
        queue.members = members
        changes.touch(queue, operation["cause"])
        return catalog_checks.reply(OK, record=queue)

    def _want_queue_members(self, operation: Json, changes: Changes) -> Json:
        queue = self.state.queue(operation["vhost"], operation["name"])
        if queue is None or queue.uid != operation["uid"]:
            return catalog_checks.reply(
                NOT_FOUND, f"queue '{operation['name']}' not found", refusals.NOT_FOUND
            )
        if queue.type != "quorum":
            text = f"a {queue.type} queue has one member, for good"
            return catalog_checks.reply(REFUSED, text, refusals.PRECONDITION_FAILED, queue)
        add, remove = operation["add"], operation["remove"]
        comes_back = operation.get("comes_back") is True
        if comes_back:
            # The wish may come twice: who is out is on its way back.  Who leaves for good does so.
            remove = [node for node in remove if node in queue.members]
            remove = [node for node in remove if node in queue.wanted_members]
        wanted = [node for node in queue.wanted_members if node not in remove]
        # By dict, so that a name that came twice counts once.
        wanted = list(dict.fromkeys([*wanted, *add]))
        fault = queue_membership.fault_of_wish(
            wanted, add, self.state.members(), queue.membership.returning
        )
        if fault is not None:
            return catalog_checks.reply(REFUSED, fault, refusals.PRECONDITION_FAILED, queue)
        is_automatic = operation.get("automatic") is True
        after = queue_membership.after_wish(
            queue.membership, queue.members, wanted, add, remove, is_automatic, comes_back
        )
        if after == queue.membership:
            return catalog_checks.reply(UNCHANGED, record=queue)
        queue.membership = after
        changes.touch(queue, operation["cause"])
        return catalog_checks.reply(OK, record=queue)

    def _bootstrap(self, operation: Json, changes: Changes) -> Json:
        state = self.state
        if state.cluster_id:
            return catalog_checks.reply(UNCHANGED) | {"cluster_id": state.cluster_id}
        state.cluster_id = operation["cluster_id"]
        state.cluster_name = operation["cluster_name"]
        state.enabled_features = frozenset(operation.get("features") or ())
        vhost = operation["default_vhost"]
        puts = [catalog_commands.put("vhost", "", vhost, {}, cause="admin")]
        for user in operation["users"]:
            spec = {"tags": user.get("tags", []), "password_hash": user.get("password_hash", "")}
            puts.append(catalog_commands.put("user", "", user["name"], spec, cause="admin"))
            rights = {"configure": ".*", "write": ".*", "read": ".*"}
            puts.append(
                catalog_commands.put("permission", vhost, user["name"], rights, cause="admin")
            )
        for put in puts:
            self._put(put, changes)
        return catalog_checks.reply(OK) | {"cluster_id": state.cluster_id}

    def _node_started(self, operation: Json, changes: Changes) -> Json:
        state, node, incarnation = self.state, operation["node"], operation["incarnation"]
        if state.incarnations.get(node) == incarnation:
            return catalog_checks.reply(UNCHANGED)
        understood = list(operation.get("features") or ())
        fault = features.fault_of_member(node, understood, state.enabled_features)
        if fault is not None:
            return catalog_checks.reply(REFUSED, fault)
        state.understood_features[node] = understood
        state.incarnations[node] = incarnation
        for queue in list(state.queues()):
            owner = queue.exclusive_owner
            if owner is not None and owner.node == node and owner.incarnation != incarnation:
                changes.remove(queue, "exclusive")
            elif owner is None and not queue.durable and queue.members == [node]:
                changes.remove(queue, "node-restarted")
        if len(state.members()) <= 1:
            # The whole cluster was down: transient exchanges have not survived it (R-EX-9).
            for topology in list(state.vhosts.values()):
                for exchange in list(topology.exchanges.values()):
                    if not exchange.durable and exchange.name in topology.exchanges:
                        changes.remove(exchange, "node-restarted")
        return catalog_checks.reply(OK)

    def _enable_features(self, operation: Json, changes: Changes) -> Json:
        """All or none; what is enabled stays so."""
        state = self.state
        wanted = [name for name in operation["names"] if name not in state.enabled_features]
        if not wanted:
            return catalog_checks.reply(UNCHANGED)
        fault = features.fault_of_enabling(wanted, state.members(), state.understood_features)
        if fault is not None:
            return catalog_checks.reply(REFUSED, fault)
        state.enabled_features |= frozenset(wanted)
        changes.effects.append(FeaturesEnabled(wanted))
        return catalog_checks.reply(OK)

    def _connection_closed(self, operation: Json, changes: Changes) -> Json:
        queues = self.state.exclusive_queues(ConnectionId(*operation["connection"]))
        for queue in queues:
            changes.remove(queue, "exclusive")
        return catalog_checks.reply(OK if queues else UNCHANGED)


_HANDLERS: dict[str, Callable[[CatalogMachine, Json, Changes], Json]] = {
    "put": CatalogMachine._put,
    "delete": CatalogMachine._delete,
    "set_owner": CatalogMachine._set_owner,
    "set_queue_members": CatalogMachine._set_queue_members,
    "want_queue_members": CatalogMachine._want_queue_members,
    "bootstrap": CatalogMachine._bootstrap,
    "node_started": CatalogMachine._node_started,
    "enable_features": CatalogMachine._enable_features,
    "connection_closed": CatalogMachine._connection_closed,
}


def _redeclare(operation: Json, present: Exchange | Queue, spec: Json) -> Json:
    if isinstance(present, Exchange):
        refused = equivalence.check_exchange(present, spec)
    else:
        owner = operation.get("exclusive_owner")
        refused = equivalence.check_queue(
            present, spec, None if owner is None else ConnectionId(*owner)
        )
    if refused is not None:
        return catalog_checks.refused_reply(refused, PRECONDITION, present)
    return catalog_checks.reply(UNCHANGED, record=present)
