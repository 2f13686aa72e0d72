"""What replicas kept aside: it is listed, republished on request, and then the replica goes on.

A replica that knew more to be committed than its leader has stopped and put it aside
(cluster/groups/keeping.py).  It goes on by somebody's word only: `republish` publishes the messages
to the queue again, with confirms and in order, `drop` says that they are not wanted.  After either
the replica leaves its group and comes back with a new log (repair.py).  The catalog begins anew
with a restart of the member, and what its cluster lacks is declared again from what it knew
(kept_catalog.py).  Every member answers for all: it asks the others.  Built by composition.py.
"""

from __future__ import annotations

import asyncio
import json
import logging
import struct
from collections.abc import Iterator
from itertools import islice
from typing import Any, Protocol, TypeAlias

from brokerd.cluster.errors import GroupGone, GroupUnavailable
from brokerd.cluster.groups.driver import STAMP_BYTES
from brokerd.cluster.groups.group_client import GroupClient
from brokerd.cluster.groups.host import Host
from brokerd.cluster.groups.host_events import GroupStatus
from brokerd.cluster.groups.keeping import RELEASED, Names
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.core.queue import enqueue_commands
from brokerd.core.queue.enqueue_commands import EnqueueStatus
from brokerd.core.queue.queue_commands import Kind
from brokerd.raft.messages import CATALOG_GROUP, Entry, EntryKind
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.members import kept_catalog, ports
from brokerd.server.members.member_calls import MemberCalls
from brokerd.server.members.replica_changes import MembershipError, renew_member
from brokerd.storage.aside import Kept, KeptEntry
from brokerd.storage.errors import AsideFailed, CorruptLog

log = logging.getLogger(__name__)

Json: TypeAlias = dict[str, Any]

#: Batches of messages that are republished at once; their numbers are remembered after each.
AT_ONCE = 64
#: ... and bytes of them; one is always taken, however large.
BYTES_AT_ONCE = 4 * 1024 * 1024
#: How often it is looked whether a replica that may begin anew has done so.
LOOK_S = 1.0
#: Looks between two attempts at a republish that came with the catalog's.
AGAIN_LOOKS = 5
#: Entries that one answer shows.
SHOWN_MAX = 1_000
REPUBLISH, DROP, SHOW = "republish", "drop", "show"
#: Remarks on a catalog that are kept: each asks for something by hand.
REMARKS_MAX = 500
_BUSY = frozenset({"republishing", *RELEASED})


class Refused(Exception):
    """Nothing was done; the text says why and what to do."""


class KeptAside:
    """State: none of its own; the files are the keeper's.

    Gives the keeper names for its groups, and answers other members.
    """

    def __init__(
        self,
        member: kept_catalog.Member,
        host: Host,
        groups: GroupClient,
        calls: MemberCalls,
        spawn: ports.Spawn,
    ) -> None:
        self.member = member
        self.host = host
        self.calls = calls
        self._groups = groups
        self._spawn = spawn
        self._keeper = host.keeper
        host.keeper.serve(self._names, messages_of)
        self._serve()

    def _serve(self) -> None:

        async def rows(_: Json) -> Json:
            return {"rows": self.rows()}

        async def act(question: Json) -> Json:
            id_, action = str(question["id"]), str(question["action"])
            try:
                if action == SHOW:
                    return {"rows": await asyncio.to_thread(self.show, id_)}
                self.act(id_, action)
                return {"rows": []}
            except (Refused, AsideFailed, CorruptLog) as refusal:
                return {"refused": str(refusal)}

        async def unknown(question: Json) -> Json:
            uids = map(int, question["uids"])
            return {"uids": [uid for uid in uids if self.member.queues.queue_of(uid) is None]}

        self.calls.serve("kept_aside", rows)
        self.calls.serve("kept_aside_act", act)
        self.calls.serve("unknown_queues", unknown)

    def _names(self, uid: int) -> Names:
        if uid == CATALOG_GROUP:
            return "catalog", "", "the catalog", list(self.member.objects.view.members())
        queue = self.member.queues.queue_of(uid)
        if queue is None:
            return "queue", "", f"{uid:x}", []
        return "queue", queue.vhost, queue.name, list(queue.members)

    # ---- of this member -------------------------------------------------------------------------

    def rows(self) -> list[Json]:
        """Return what is kept here, and what could not be put aside yet."""
        keeper, host = self._keeper, self.host
        found = [_row(kept) for kept in keeper.kept.values()]
        for uid in host.refilling.contradicted():
            status = host.status_of(uid)
            contradiction = status.contradiction
            assert contradiction is not None
            if keeper.of_log(status.log_uid) or keeper.is_removed(status.log_uid):
                continue
            kind, vhost, name, members = self._names(uid)
            fault = keeper.faults.get(status.log_uid, "")
            found.append(
                {
                    "id": "",
                    "member": self.host.node,
                    "kind": kind,
                    "vhost": vhost,
                    "name": name,
                    "members": members,
                    "first": contradiction.first,
                    "last": contradiction.last,
                    "committed": contradiction.committed,
                    "leader": contradiction.leader,
                    "entries": 0,
                    "messages": 0,
                    "time": 0,
                    "state": "not kept yet" if fault else "being written",
                    "remarks": [fault] if fault else [],
                }
            )
        return found

    def _kept(self, id_: str) -> Kept:
        kept = self._keeper.kept.get(id_)
        if kept is None:
            raise Refused(f"nothing is kept as '{id_}' (see list_kept_aside)")
        return kept

    def show(self, id_: str) -> list[Json]:
        """Return the first entries in words; reads a file."""
        return list(islice(self._shown(self._kept(id_)), SHOWN_MAX))

    def act(self, id_: str, action: str) -> None:
        """Do as somebody said, or begin to; Refused says why not."""
        kept = self._kept(id_)
        if action not in (REPUBLISH, DROP):
            raise Refused(f"'{action}' is no word for what is kept; there are republish and drop")
        if kept.progress.phase in _BUSY:
            raise Refused(f"{id_} is {kept.progress.phase} already")
        if kept.fault and action == REPUBLISH:
            raise Refused(
                f"the file is damaged ({kept.fault}); what it holds is only to be dropped"
            )
        log.warning("%s of %s, which is kept aside", action, id_)
        if kept.progress.phase == "done":
            if action == REPUBLISH:
                raise Refused(
                    f"{id_} is done: what it lists is left to be done by hand, then drop it"
                )
            self._forget(kept)
        elif kept.description.kind == "catalog":
            self._spawn(self._release_catalog(kept, is_republish=action == REPUBLISH))
        elif action == DROP:
            self.released(kept)
        else:
            self.begin_republish(kept)

    def _shown(self, kept: Kept) -> Iterator[Json]:
        files = self._keeper.files
        assert files is not None
        is_catalog = kept.description.kind == "catalog"
        for each in files.entries(kept):
            entry = each.entry
            for text in kept_catalog.words(entry) if is_catalog else _words(each):
                yield {"index": entry.index, "term": entry.term, "what": text}

    # ---- republish ------------------------------------------------------------------------------

    def begin_republish(self, kept: Kept) -> None:
        """Publish again, in the background."""
        kept.progress.phase = "republishing"
        kept.progress.remarks = []
        self._spawn(self._republish(kept))

    async def _republish(self, kept: Kept) -> None:
        problem = ""
        try:
            problem = await self._publish(kept)
        except (Refused, AsideFailed, CorruptLog, GroupGone, GroupUnavailable) as error:
            problem = str(error)
        if problem:
            kept.progress.phase = "kept"
            kept.progress.remarks = [problem]
            log.error("republish of %s stopped: %s", kept.id, problem)
            await self.save(kept)
            return
        log.warning("%d messages of %s are in the queue again", kept.messages, kept.id)
        self.released(kept)

    async def _publish(self, kept: Kept) -> str:
        """Return why it stopped, "" if all is done."""
        files = self._keeper.files
        assert files is not None
        description = kept.description
        queue = self.member.objects.view.queue(description.vhost, description.name)
        if queue is None:
            raise Refused(
                f"there is no queue '{description.name}' in vhost '{description.vhost}': "
                "declare it, then republish again"
            )
        source = files.entries(kept, kept.progress.entries)
        while batch := await asyncio.to_thread(_taken, source):
            done, problem = await self._publish_some(queue.uid, batch)
            kept.progress.entries += done
            await self.save(kept)
            if problem:
                return problem
        return ""

    async def _publish_some(self, uid: int, batch: list[KeptEntry]) -> tuple[int, str]:
        """Publish in order; return how many entries are done, and what was wrong with the next."""
        timeout_s = self.member.objects.config.limits.operation_timeout_ms / 1000
        live = [number for number, each in enumerate(batch) if each.is_live]
        commands = [
            enqueue_commands.unnumbered(batch[number].entry.data[STAMP_BYTES:]) for number in live
        ]
        answers = await asyncio.gather(
            *(self._groups.request(uid, command, timeout_s) for command in commands),
            return_exceptions=True,
        )
        for number, command, answer in zip(live, commands, answers, strict=True):
            if isinstance(answer, BaseException):
                return number, str(answer) or type(answer).__name__
            status, accepted, _ = enqueue_commands.decode_enqueue_reply(answer)
            if status is not EnqueueStatus.OK:
                return number, "the queue was deleted meanwhile"
            if accepted < enqueue_commands.EnqueueHead(command).count:
                return number, "the queue is full: make room, then republish again"
        return len(batch), ""

    # ---- afterwards -----------------------------------------------------------------------------

    def released(self, kept: Kept) -> None:
        """Messages are republished, or dropped: the replica may begin anew."""
        if kept.description.kind == "orphan":
            self._forget(kept)
            return
        kept.progress.phase = "released"
        self._spawn(self.save(kept))
        if self._has_its_log(kept):
            # From here on it is a replica like any that has lost messages for good (repair.py).
            self.host.refilling.release(kept.description.uid)
            self._spawn(self._renew(kept))

    async def _renew(self, kept: Kept) -> None:
        queue = self.member.queues.queue_of(kept.description.uid)
        if queue is not None:
            try:
                await renew_member(self.member.objects, self.host, self.host.node, queue)
            except (MembershipError, Unavailable) as refusal:
                kept.progress.remarks = [f"the replica cannot be made anew yet: {refusal}"]

    def _has_its_log(self, kept: Kept) -> bool:
        """Tell whether the replica that was contradicted is there; soon it has another log."""
        status = self._status(kept.description.uid)
        return status is not None and status.log_uid == kept.description.log_uid

    def _status(self, uid: int) -> GroupStatus | None:
        return self.host.status_of(uid) if self.host.has_group(uid) else None

    async def save(self, kept: Kept) -> None:
        """Remember how far this is; a full disk costs no more than doing some of it again."""
        files = self._keeper.files
        assert files is not None
        try:
            await asyncio.to_thread(files.save, kept)
        except AsideFailed as error:
            log.error("%s", error)

    def _forget(self, kept: Kept) -> None:
        keeper = self._keeper
        assert keeper.files is not None
        keeper.files.remove(kept)
        keeper.kept.pop(kept.id, None)
        log.warning("%s is settled, its file is gone", kept.id)

    async def watch(self) -> None:
        """Settle what has gone its way, for as long as the broker runs."""
        looks = 0
        while True:
            await asyncio.sleep(LOOK_S)
            looks += 1
            for kept in list(self._keeper.kept.values()):
                phase = kept.progress.phase
                if phase == "kept" and kept.progress.is_republish and not looks % AGAIN_LOOKS:
                    # Asked for with the catalog: a queue that is declared again may have no leader
                    # for a while.
                    self.begin_republish(kept)
                elif phase == "released" and kept.description.kind == "queue":
                    self._settle(kept)
                elif phase == "begun" and not self._is_damaged(CATALOG_GROUP):
                    await self._finish_catalog(kept)

    # ---- the catalog ----------------------------------------------------------------------------

    async def _release_catalog(self, kept: Kept, *, is_republish: bool) -> None:
        """Put aside what only this member has, then end: the catalog begins anew with the next
        start.

        is_republish: what is missing in the cluster is declared again after that.
        """
        problem = await kept_catalog.keep_orphans(self.member, self.host, self.calls)
        if problem:
            kept.progress.remarks = [problem]
            log.error("%s: %s", kept.id, problem)
            return
        kept.progress.is_republish = is_republish
        kept.progress.remarks = []
        kept.progress.phase = "released"
        await self.save(kept)
        log.critical("the catalog here begins anew: this member ends, start it again")
        reason = "the catalog here begins anew with the next start"
        self.member.failed(kept_catalog.BeginsAnew(reason))

    async def _finish_catalog(self, kept: Kept) -> None:
        try:
            await self._say_what_is_missing(kept)
        except Exception as error:
            log.exception("the catalog kept as %s was not declared again", kept.id)
            kept.progress.phase = "done"
            kept.progress.remarks = [f"declare by hand what is missing: {error}"]
            await self.save(kept)

    async def _say_what_is_missing(self, kept: Kept) -> None:
        """The catalog is whole again: declare what it lacks, if that was asked for."""
        files = self._keeper.files
        assert files is not None
        remarks: list[str] = []
        try:
            if kept.progress.is_republish:
                remarks = await kept_catalog.declare_again(self.member, files, kept)
        except Unavailable as error:
            log.warning("the catalog takes nothing now, it is tried again: %s", error)
            return
        except (CorruptLog, AsideFailed) as error:
            remarks = [str(error)]
        kept.progress.phase = "done"
        kept.progress.remarks = remarks[:REMARKS_MAX]
        for remark in kept.progress.remarks:
            log.error("to be done by hand: %s", remark)
        await self.save(kept)
        if kept.progress.is_republish:
            for orphan in list(self._keeper.kept.values()):
                if orphan.description.kind == "orphan" and orphan.progress.phase == "kept":
                    orphan.progress.is_republish = True
                    self.begin_republish(orphan)
        if not remarks:
            self.act(kept.id, DROP)

    # ---- what has gone its way ------------------------------------------------------------------

    def _settle(self, kept: Kept) -> None:
        uid = kept.description.uid
        is_gone = self.member.queues.queue_of(uid) is None
        if is_gone or (not self._has_its_log(kept) and not self._is_damaged(uid)):
            try:
                self._forget(kept)
            except AsideFailed as error:
                log.error("%s", error)

    def _is_damaged(self, uid: int) -> bool:
        status = self._status(uid)
        return status is None or status.is_damaged

    @property
    def is_catalog_contradicted(self) -> bool:
        """Whether the catalog here knows more than its leader, and takes nothing from it."""
        status = self._status(CATALOG_GROUP)
        return status is not None and status.is_contradicted


# ---- of the cluster -----------------------------------------------------------------------------


class Cluster(Protocol):
    """All members, as far as they are asked what they keep."""

    @property
    def view(self) -> CatalogState:
        """Return the catalog, which names the members."""
        ...

    @property
    def host(self) -> ports.Replicas:
        """Return who is heard."""
        ...

    @property
    def calls(self) -> ports.Calls:
        """Return the way to the other members."""
        ...


async def rows_of_all(cluster: Cluster) -> tuple[list[Json], list[str]]:
    """Return what all members that answer have kept aside, and who did not answer."""
    members = {*cluster.view.members(), *cluster.host.alive()}
    answers = await cluster.calls.ask_all(members, "kept_aside")
    rows = [row for answer in answers.values() for row in answer["rows"]]
    rows.sort(key=lambda row: (row["time"], row["member"], row["id"]))
    return rows, sorted(members - answers.keys())


async def act(cluster: Cluster, id_: str, action: str) -> list[Json]:
    """Have the member that keeps it do as somebody says; Refused says why not."""
    rows, unanswered = await rows_of_all(cluster)
    row = next((row for row in rows if row["id"] == id_ != ""), None)
    if row is None:
        silent = f"; {', '.join(unanswered)} did not answer" if unanswered else ""
        raise Refused(f"no member that answers keeps '{id_}' aside{silent} (see list_kept_aside)")
    question = {"id": id_, "action": action}
    answer = await cluster.calls.ask(row["member"], "kept_aside_act", question)
    if answer is None:
        raise Refused(f"member '{row['member']}' does not answer")
    if "refused" in answer:
        raise Refused(answer["refused"])
    found: list[Json] = answer["rows"]
    return found


def is_alarming(row: Json) -> bool:
    """Whether somebody must look: all but what only a remark is left of."""
    return bool(row["state"] != "done")


# ---- in words -----------------------------------------------------------------------------------


def messages_of(uid: int, entry: Entry) -> int:
    """Return how many messages an entry of a queue brings."""
    data = entry.data
    if uid == CATALOG_GROUP or entry.kind != EntryKind.COMMAND or len(data) < STAMP_BYTES + 2:
        return 0
    if data[STAMP_BYTES + 1] != Kind.ENQUEUE:
        return 0
    try:
        return enqueue_commands.EnqueueHead(data[STAMP_BYTES:]).count
    except (ValueError, IndexError, struct.error):
        return 0


def _words(each: KeptEntry) -> list[str]:
    entry = each.entry
    count = messages_of(0, entry)
    if count:
        size = len(entry.data)
        gone = "" if each.is_live else " (all of them settled since)"
        return [f"{count} messages, {size} bytes{gone}"]
    if entry.kind != EntryKind.COMMAND or len(entry.data) < STAMP_BYTES + 2:
        return [EntryKind(entry.kind).name.lower()]
    kind = entry.data[STAMP_BYTES + 1]
    known = kind in Kind.__members__.values()
    return [Kind(kind).name.lower().replace("_", " ") if known else f"command {kind}"]


def _row(kept: Kept) -> Json:
    found = kept.description
    return {
        "id": kept.id,
        "member": found.member,
        "kind": found.kind,
        "vhost": found.vhost,
        "name": found.name,
        "members": found.members,
        "first": found.first,
        "last": found.last,
        "committed": found.committed,
        "leader": found.leader,
        "entries": kept.entries,
        "messages": kept.messages,
        "time": found.made_ms,
        "state": "damaged" if kept.fault else kept.progress.phase,
        "remarks": [*([kept.fault] if kept.fault else []), *kept.progress.remarks],
    }


def _taken(source: Iterator[KeptEntry]) -> list[KeptEntry]:
    """Read the next batches, bounded in number and bytes."""
    found: list[KeptEntry] = []
    size = 0
    for each in source:
        found.append(each)
        size += len(each.entry.data)
        if len(found) >= AT_ONCE or size >= BYTES_AT_ONCE:
            break
    return found


def dump(rows: list[Json]) -> list[str]:
    """Return rows as they go over the wire."""
    return [json.dumps(row, separators=(",", ":")) for row in rows]
