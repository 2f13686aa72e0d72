"""The catalog that a member kept aside: what it had to say, in words, and how it is said again.

The catalog cannot be made anew under a running broker, so the member ends and begins its catalog
anew at its next start, from its leader.  Before that it puts aside the messages of the queues that
the cluster does not know any more.  After it, what the old catalog had and the new one has not is
declared again, and those queues get their messages; what exists differently, or had been deleted,
is for people to decide, and said.  For kept_aside.py only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from brokerd.cluster.groups.driver import STAMP_BYTES
from brokerd.cluster.groups.host import Host
from brokerd.cluster.groups.keeping import Keeper
from brokerd.core.catalog import catalog_commands, names
from brokerd.core.catalog.catalog_machine import CatalogMachine
from brokerd.core.catalog.catalog_objects import PREVIOUS_PASSWORD, Queue, Record
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.core.profiles import Profile
from brokerd.raft.machine import Meta
from brokerd.raft.messages import CATALOG_GROUP, Entry, EntryKind
from brokerd.server.catalog import ports as catalog_ports
from brokerd.server.catalog import topology
from brokerd.server.members import ports
from brokerd.storage.aside import AsideFiles, Kept
from brokerd.storage.errors import StorageError
from brokerd.storage.wal import WriteAheadLog

log = logging.getLogger(__name__)

Json: TypeAlias = dict[str, Any]

POLL_S = 0.1
#: Queues that one question names.
BATCH = 500

#: What is declared again; members and settings are the cluster's own business.
_KINDS = tuple(kind for kind in names.KINDS if kind not in ("member", "setting"))


class Queues(ports.Queues, Protocol):
    """The queues of the catalog."""

    def queue_uids(self) -> list[int]:
        """Return the uids of all queues known here."""
        ...


@dataclass(slots=True, frozen=True)
class Member:
    """The member, as far as queues are declared again and it may have to end."""

    profile: Profile
    #: Makes objects anew.
    objects: catalog_ports.Topology
    queues: Queues
    #: The process must end, and this is why.
    failed: Callable[[BaseException], None]


class BeginsAnew(StorageError):
    """The member ends, and its catalog begins anew with the next start."""


# ---- before the restart -------------------------------------------------------------------------


async def keep_orphans(member: Member, host: Host, calls: ports.Calls) -> str:
    """Put aside the messages of queues that the catalog's leader does not know; return what kept
    it from being done.
    """
    leader = host.leader_of(CATALOG_GROUP)
    here = {uid: host.status_of(uid) for uid in member.queues.queue_uids() if host.has_group(uid)}
    logs = {uid: status.log_uid for uid, status in here.items() if not status.is_volatile}
    unknown: list[int] = []
    uids = list(logs)
    for start in range(0, len(uids) or 1, BATCH):
        part = {"uids": uids[start : start + BATCH]}
        answer = await calls.ask(leader or "", "unknown_queues", part)
        if answer is None:
            return "the catalog's leader does not answer: without it nobody knows what is missing"
        unknown += answer["uids"]
    for uid in unknown:
        log_uid = logs[uid]
        if host.keeper.of_log(log_uid) or _has_orphan(host.keeper, log_uid):
            continue
        host.keep_orphan(uid)
        host.schedule_flush()
        while host.keeper.is_writing(log_uid):  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        if fault := host.keeper.faults.get(log_uid):
            return fault
    return ""


def _has_orphan(keeper: Keeper, log_uid: int) -> bool:
    return any(each.description.log_uid == log_uid for each in keeper.kept.values())


# ---- at the start -------------------------------------------------------------------------------


def begin_anew(wal: WriteAheadLog, files: AsideFiles) -> None:
    """Void a catalog that somebody has released; once, and before anybody reads it."""
    for kept in files.load():
        if kept.description.kind == "catalog" and kept.progress.phase == "released":
            log.warning("the catalog here begins anew; what it held is kept aside as %s", kept.id)
            wal.begin_anew(CATALOG_GROUP)
            kept.progress.phase = "begun"
            files.save(kept)


async def declare_again(member: Member, files: AsideFiles, kept: Kept) -> list[str]:
    """Make anew what the catalog lacks; return what is to be done by hand."""
    state = await asyncio.to_thread(files.state, kept)
    old = CatalogMachine(member.profile)
    old.restore(state)
    deleted = await asyncio.to_thread(_replay, files, kept, old)
    remarks: list[str] = []
    for kind in _KINDS:
        for record in old.state.records(kind):
            remark = await _declare(member.objects, record)
            if remark:
                remarks.append(remark)
    return remarks + _to_delete(deleted, old.state, member.objects.view)


async def _declare(objects: catalog_ports.Topology, record: Record) -> str:
    """Put an object that is missing; return what is to be done by hand."""
    if isinstance(record, Queue) and record.exclusive_owner is not None:
        # Its connection has ended with the member.
        return ""
    what = _called(record.kind, record.vhost, record.name)
    spec = record.spec()
    present = objects.view.get(record.kind, record.vhost, record.name)
    if present is not None:
        same = names.canonical_json(present.spec()) == names.canonical_json(spec)
        return "" if same else f"{what} differs: it had {names.canonical_json(_shown(spec))}"
    if isinstance(record, Queue):
        reply = await topology.create_queue(
            objects, record.vhost, record.name, spec, cause="admin", owner=record.owner
        )
    else:
        reply = await objects.write(
            catalog_commands.put(
                record.kind, record.vhost, record.name, spec, cause="admin", owner=record.owner
            )
        )
    if reply["code"] in (catalog_commands.OK, catalog_commands.UNCHANGED):
        log.warning("declared again: %s", what)
        return ""
    return f"declare {what}, which was refused: {reply['text']}"


def _replay(files: AsideFiles, kept: Kept, old: CatalogMachine) -> list[tuple[str, str, str]]:
    """Apply what came behind the state; whether the last of it was confirmed is not known.

    Returns what the entries deleted.
    """
    deleted = []
    for each in files.entries(kept):
        entry = each.entry
        for operation in _operations(entry):
            if operation.get("do") == "delete":
                fields = (operation.get(field) for field in ("kind", "vhost", "name"))
                deleted.append(tuple(map(str, fields)))
        if entry.index > kept.description.committed and entry.kind == EntryKind.COMMAND:
            old.apply(Meta(entry.index, entry.term, 0), entry.data[STAMP_BYTES:])
    return [(kind, vhost, name) for kind, vhost, name in deleted]


def _to_delete(
    deleted: list[tuple[str, str, str]], old: CatalogState, view: CatalogState
) -> list[str]:
    return [
        f"delete {_called(*each)}, which had been deleted"
        for each in dict.fromkeys(deleted)
        if old.get(*each) is None and view.get(*each) is not None
    ]


# ---- in words -----------------------------------------------------------------------------------


def _operations(entry: Entry) -> list[Json]:
    if entry.kind != EntryKind.COMMAND:
        return []
    command = catalog_commands.decode(entry.data[STAMP_BYTES:])
    if command is None:
        return []
    found = command.get("operations") if command.get("do") == "batch" else [command]
    return [each for each in found or [] if isinstance(each, dict)]


def words(entry: Entry) -> list[str]:
    """Return what an entry of the catalog's log asks for, an operation a line; no secrets."""
    if entry.kind != EntryKind.COMMAND:
        return [EntryKind(entry.kind).name.lower()]
    return [_in_words(operation) for operation in _operations(entry)]


def _in_words(operation: Json) -> str:
    do = str(operation.get("do"))
    if "kind" in operation:
        verb = {"put": "declare"}.get(do, do.replace("_", " "))
        vhost, name = str(operation.get("vhost", "")), str(operation.get("name", ""))
        return f"{verb} {_called(str(operation['kind']), vhost, name)}"
    subject = operation.get("name") or operation.get("node") or ""
    return f"{do.replace('_', ' ')} {subject}".strip()


def _called(kind: str, vhost: str, name: str) -> str:
    where = f" in vhost '{vhost}'" if vhost and kind not in names.GLOBAL_KINDS else ""
    return f"{kind.replace('_', ' ')} '{name}'{where}"


def _shown(spec: Json) -> Json:
    """Leave out what no reader needs to see (SEC-20)."""
    hidden = ("password_hash", "value", *PREVIOUS_PASSWORD)
    return {key: value for key, value in spec.items() if key not in hidden}
