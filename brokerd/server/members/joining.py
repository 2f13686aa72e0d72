"""How this member finds its cluster: it asks, founds, joins or goes on; and it tells others.

cluster/groups/formation.py decides; here it is asked and done.  A member with data opens the
catalog at once and asks beside that whether it is still one of the members; one without data asks
first.  The other half, `describe`, answers members that start: whom the catalog does not know and
who has no data is made a member (catalog_members.py then takes it into the catalog's group), so
that a pod more of a StatefulSet joins by itself.  Peers are authenticated before (SEC-3, SEC-4).
Used by app.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from brokerd.cluster.config import HostConfig
from brokerd.cluster.errors import AddressError
from brokerd.cluster.groups import formation
from brokerd.cluster.groups.formation import Course
from brokerd.cluster.groups.group_client import GroupClient
from brokerd.cluster.groups.host import Host
from brokerd.cluster.peer import discovery, join_request
from brokerd.config import BrokerConfig, ConfigError
from brokerd.core.catalog import catalog_commands
from brokerd.core.catalog.catalog_machine import CatalogMachine
from brokerd.raft import membership
from brokerd.raft.messages import CATALOG_GROUP, NodeId
from brokerd.rpc.v1 import peer_pb2
from brokerd.server.catalog import member_states
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.members import cluster_file, ports
from brokerd.server.members.refill import Refill

log = logging.getLogger(__name__)

#: How long an answer may wait for the catalog's majority; below enquiry.TIMEOUT_S.
ANSWER_S = 5.0
#: Between two rounds of questions; a round asks all at the same time.
ROUND_S = 0.3
ROUND_MAX_S = 3.0
#: A member that knows of no catalog leader for so long asks whether it is still a member.
LEADERLESS_S = 3.0
#: Members that vote in the catalog's group at most: each change of the catalog waits for a majority
#: of them, and with seven any three may be lost.  The others learn it (ADR 44).
VOTERS_MAX = 7
Standing = peer_pb2.Description.Standing


class Removed(ConfigError):
    """This member is none any more, or may not be one; the text says what to do."""


def configured(config: BrokerConfig) -> dict[NodeId, str]:
    """Return the peers that the configuration names; ConfigError if they make no sense."""
    peers = discovery.parse_peers(config.cluster.members)
    node = NodeId(config.node_name)
    names = _founders(config, peers)
    if node not in peers and (not peers or not names):
        peers[node] = config.cluster.address or f"127.0.0.1:{config.port('peer')}"
    if len(peers) > 1 and not config.cluster.secret and not config.peer_tls.cert_file:
        raise ConfigError(
            "several members need cluster.secret (the same on all) or peer_tls.cert_file"
        )
    return peers


def _founders(config: BrokerConfig, peers: Sequence[NodeId] | dict[NodeId, str]) -> list[NodeId]:
    listed = [NodeId(name.strip()) for name in config.cluster.initial_members.split(",")]
    listed = [name for name in listed if name]
    unknown = [name for name in listed if name not in peers]
    if unknown:
        raise ConfigError(
            f"cluster.initial_members names '{unknown[0]}', which cluster.members does not"
        )
    # The others join what these have founded.
    return sorted(listed or peers)[:VOTERS_MAX]


class Catalog(ports.Catalog, Protocol):
    """The catalog, which is there before its group is opened."""

    @property
    def machine(self) -> CatalogMachine:
        """Return what the group applies its commands to."""
        ...

    async def catch_up(self) -> None:
        """Return when all is applied here that was agreed upon before the call."""
        ...


class Lifecycle(Protocol):
    """The process, as far as it waits or ends for what is found here."""

    @property
    def has_started(self) -> bool:
        """Tell whether clients have been let in."""
        ...

    def waits_for(self, what: str) -> None:
        """Have it said what this member waits for."""
        ...

    def removed(self, error: Exception) -> None:
        """End: the cluster goes on without this member."""
        ...


class Ask(Protocol):
    """Asks another node what it knows of this one (cluster/peer/join_request.py)."""

    async def __call__(
        self,
        config: HostConfig,
        node: NodeId,
        incarnation: int,
        peer: NodeId,
        address: str,
        enquiry: peer_pb2.Enquiry,
    ) -> peer_pb2.Description:
        """Return its answer; join_request.NoAnswer if there is none."""
        ...


class Joining:
    """State: what is remembered, the course that was taken, and whom this member dials.

    In one piece: all three follow from the same answers, and from each other.
    """

    def __init__(
        self,
        config: BrokerConfig,
        host: Host,
        groups: GroupClient,
        catalog: Catalog,
        refill: Refill,
        lifecycle: Lifecycle,
        spawn: ports.Spawn,
        ask: Ask = join_request.ask,
    ) -> None:
        """ConfigError if the peers that are configured make no sense."""
        self._config = config
        self._host = host
        self._groups = groups
        self._catalog = catalog
        self._refill = refill
        self._lifecycle = lifecycle
        self._spawn = spawn
        self._ask_node = ask
        self._node = host.node
        self._peers = configured(self._config)
        self._founders = _founders(self._config, self._peers)
        self._kept = cluster_file.load(self._config.data_dir)
        self._said = ""
        #: Where members are, as one of them said at a revision of the catalog that may not be read
        #: here yet.
        self._told: dict[NodeId, str] = {}
        self._told_at = 0
        #: Whom this member dials.
        self._dialled: dict[NodeId, str] = {}
        #: The disk was not empty at the start.
        self.has_data = False
        #: Whether this member may propose the first objects of a cluster.
        self.may_found = False

    def peers(self) -> dict[NodeId, str]:
        """Return whom to ask and dial first: as last known, at the addresses configured."""
        known = {NodeId(name): address for name, address in self._kept.members.items()}
        return known | self._peers

    @property
    def address(self) -> str:
        """Where the others reach this member."""
        if self._config.cluster.address:
            host, port = discovery.parse_address(self._config.cluster.address)
            return discovery.format_address(host, port)
        if self._node in self._peers:
            return self._peers[self._node]
        host = self._config.node.bind
        if host in ("", "0.0.0.0", "::"):
            host = socket.getfqdn()
        return discovery.format_address(host, self._config.port("peer"))

    # ---- this member --------------------------------------------------------------------------

    async def open_if_data(self, has_data: bool) -> None:
        """Open the catalog of a member that has data; one without may be a founder, whom the
        other founders dial before it has decided.
        """
        self.has_data = has_data
        if has_data or self._node in self._founders:
            await self._dial()
        if has_data:
            if self._kept.is_refilling:
                self._refill.begin(self._kept.joined_at)
            # Nothing may have been founded before the crash: then the founders go on with that.
            self.may_found = not self._kept.cluster_uid and self._node in self._founders
            # They count only where the log here has lost them.
            self._open([NodeId(name) for name in self._kept.voters])

    def _open(self, voters: Sequence[NodeId]) -> None:
        self._groups.set_members(CATALOG_GROUP, list(self.peers()))
        self._host.open_group(CATALOG_GROUP, list(voters), self._catalog.machine)
        self._refill.opened(CATALOG_GROUP, len(voters))

    async def settle(self) -> None:
        """Return when the catalog's group is open here; Removed if it will never be."""
        if self.has_data:
            self._spawn(self._watch())
            return
        delay_s = ROUND_S
        while True:
            course, answers = await self._ask_all()
            if course is Course.FOUND:
                log.info("founding a cluster with %s", ", ".join(self._founders))
                self.may_found = True
                self._keep(replace(self._kept, voters=[*map(str, self._founders)]))
                self._open(self._founders)
                break
            if course is Course.REFILL:
                await self._join(answers)
                break
            self._check(course, answers)
            self._wait_for("the cluster: no member of it answers yet")
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 1.5, ROUND_MAX_S)
        # Somebody may remove it before it has started, a founder too whom the others went on
        # without.
        self.watch()

    async def _join(self, answers: dict[NodeId, peer_pb2.Description]) -> None:
        """Take part without a vote until refilled: the disk is new, the cluster is not."""
        sure = [answer for answer in answers.values() if answer.standing == Standing.MEMBER]
        best = max(sure, key=lambda answer: answer.revision)
        # Each of them was true after the question, and so after this disk was new.
        joined_at = min(answer.revision for answer in sure)
        log.info("joining the cluster of %s with an empty disk", ", ".join(sorted(best.members)))
        # A newcomer learns the configuration from the log; one that comes back may not find it
        # there, since the founders' is in no entry.
        voters = sorted(NodeId(name) for name in best.voters) if self._node in best.voters else []
        # Remembered first: a crash from here on must not make this disk a trusted one.
        members = dict(sorted(best.members.items()))
        self._keep(
            cluster_file.Remembered(best.cluster_uid, members, True, joined_at, [*map(str, voters)])
        )
        self._refill.begin(joined_at)
        self._hear(best)
        await self._dial()
        self._open(voters)

    def _keep(self, remembered: cluster_file.Remembered) -> None:
        self._kept = remembered
        cluster_file.save(self._config.data_dir, remembered)

    def _wait_for(self, what: str) -> None:
        self._lifecycle.waits_for(what)
        if self._said != what:
            self._said = what
            log.info("waiting for %s", what)

    async def _ask_all(self) -> tuple[Course, dict[NodeId, peer_pb2.Description]]:
        others = {node: where for node, where in self.peers().items() if node != self._node}
        found = await asyncio.gather(*(self._ask(node, others[node]) for node in others))
        answers = {node: answer for node, answer in zip(others, found, strict=True) if answer}
        known = {
            node: formation.Answer(formation.Standing(answer.standing), answer.has_data)
            for node, answer in answers.items()
        }
        course = formation.course(self._node, self._founders, self.has_data, known)
        is_forced = self._config.cluster.vote_with_empty_disk and self._node in self._founders
        if course is Course.WAIT and is_forced and not self._kept.cluster_uid:
            log.warning("an empty disk votes, as cluster.vote_with_empty_disk says")
            course = Course.FOUND
        return course, answers

    async def _ask(self, node: NodeId, address: str) -> peer_pb2.Description | None:
        question = peer_pb2.Enquiry(
            address=self.address, cluster_uid=self._kept.cluster_uid, has_data=self.has_data
        )
        try:
            return await self._ask_node(
                self._host.config, self._node, self._host.incarnation, node, address, question
            )
        except join_request.NoAnswer as error:
            log.debug("no answer to an enquiry node=%s address=%s: %s", node, address, error)
            return None

    def _check(self, course: Course, answers: dict[NodeId, peer_pb2.Description]) -> None:
        """Raise Removed for an end, unless this member is to wait for being added again."""
        if course not in (Course.REMOVED, Course.FOREIGN, Course.REFUSED):
            return
        where = self._config.data_dir
        if course is Course.REMOVED:
            text = (
                f"member '{self._node}' was removed from the cluster. To let it join again, start "
                f"it with an empty data directory (its old data are in {where}), or add it with "
                f"'brokerctl add_cluster_node {self._node} {self.address}' on a member"
            )
        elif course is Course.FOREIGN:
            text = (
                f"the data in {where} are of another cluster than that of "
                f"{', '.join(sorted(answers))}: use another data directory"
            )
        else:
            reasons = sorted({answer.reason for answer in answers.values() if answer.reason})
            text = f"the cluster does not take member '{self._node}': {'; '.join(reasons)}"
        may_wait = self._config.cluster.when_removed == "wait" and not self._lifecycle.has_started
        if course is Course.REMOVED and may_wait:
            self._wait_for("being added to the cluster again: it was removed")
            return
        raise Removed(text)

    async def _watch(self) -> None:
        """Ask whether this member still is one, and who else, whenever it hears no leader for a
        while.
        """
        delay_s = 0.0
        while True:
            await asyncio.sleep(delay_s)
            delay_s = LEADERLESS_S
            # That a member votes changes nothing in the catalog.
            self.remember()
            if self._hears_leader() and not member_states.is_leaving(
                self._catalog.view, self._node
            ):
                continue
            course, answers = await self._ask_all()
            try:
                self._check(course, answers)
            except Removed as error:
                self._lifecycle.removed(error)
                return
            self._learn(answers)

    def _hears_leader(self) -> bool:
        """Tell whether the catalog's leader is known and heard: a member without a vote keeps to
        one that it does not hear.
        """
        return self._host.leader_of(CATALOG_GROUP) in self._host.alive()

    def _learn(self, answers: dict[NodeId, peer_pb2.Description]) -> None:
        """Members that came while this one was down dial it in vain until it knows them."""
        for answer in answers.values():
            if answer.standing == Standing.MEMBER:
                self._hear(answer)
        # Also what the catalog here had learned without a word, as from a snapshot.
        if self._everybody() != self._dialled:
            self._spawn(self._dial())

    def _hear(self, answer: peer_pb2.Description) -> None:
        """Take over where members are, if that is news: some answers are seconds old when the last
        one has come.
        """
        if answer.revision > max(self._told_at, self._catalog.view.revision):
            self._told_at = answer.revision
            self._told = {NodeId(name): where for name, where in sorted(answer.members.items())}

    async def _dial(self) -> None:
        """Dial all members that are known now, and no others."""
        self._dialled = self._everybody()
        await self._host.set_peers(self._dialled)

    def _everybody(self) -> dict[NodeId, str]:
        """Return whom to dial.  A catalog that is still being read says what was: it may not know
        yet who leads.
        """
        view = self._catalog.view
        known = {NodeId(name): address for name, address in view.members().items()}
        if not known or not self._lifecycle.has_started:
            known = self.peers() | known
        return known | self._told if view.revision < self._told_at else known

    def first_records(self) -> list[dict[str, Any]]:
        """Return what is to be written so that the catalog knows the founders, or this member's
        address, and where this member runs; Removed if it does not know this member.
        """
        known = self._catalog.view.members()
        if not known:
            wanted = {node: self._peers[node] for node in self._founders}
        elif self._node in known:
            wanted = {self._node: self.address}
        else:
            raise Removed(f"member '{self._node}' was removed from the cluster while it started")
        records = [
            catalog_commands.put_member(node, address)
            for node, address in wanted.items()
            if known.get(node) != address
        ]
        return records + self._domain_record()

    def _domain_record(self) -> list[dict[str, Any]]:
        """Return what changes the record of where this member runs, if it is another one now."""
        said = {"host": self._config.node.host, "zone": self._config.node.zone}
        wanted = said if any(said.values()) else None
        name = catalog_commands.member_domain(self._node)
        if self._catalog.view.setting(name) == wanted:
            return []
        return [catalog_commands.set_setting(name, wanted)]

    def dial_members(self) -> None:
        """Dial whom the catalog names here, once it names anybody."""
        if not self._catalog.view.members():
            return
        self.remember()
        self._groups.set_members(CATALOG_GROUP, self._everybody())
        self._spawn(self._dial())

    def watch(self) -> None:
        """From now on notice a removal (who has data, or joins, does so before it has started)."""
        if not self.has_data:
            self.has_data = True
            self._spawn(self._watch())

    def remember(self) -> None:
        """Keep what the catalog says of the members; a full disk is no reason to fail.

        Not before the start is through: while it is being read, it says what was.
        """
        view = self._catalog.view
        if not view.cluster_id or not self._lifecycle.has_started:
            return
        kept, known = self._kept, (view.cluster_id, view.members(), self._voters())
        if (kept.cluster_uid, kept.members, kept.voters) == known:
            return
        with contextlib.suppress(OSError):
            self._keep(cluster_file.load(self._config.data_dir).with_members(*known))

    def _voters(self) -> list[str]:
        """Return the catalog's voters, once that is settled and this member is one of them; until
        then those that were.
        """
        status = self._host.status_of(CATALOG_GROUP)
        voters = [str(name) for name in status.members.voters]
        is_settled = status.members_index <= status.commit
        return voters if is_settled and self._node in voters else self._kept.voters

    # ---- other members ------------------------------------------------------------------------

    async def describe(self, node: NodeId, asked: peer_pb2.Enquiry) -> peer_pb2.Description:
        """Tell a node that starts what is known of it."""
        answer = peer_pb2.Description()
        answer.has_data = bool(self._kept.cluster_uid) or self._has_entries()
        view = self._catalog.view
        answer.revision = view.revision
        try:
            async with asyncio.timeout(ANSWER_S):
                answer.standing, answer.reason = await self._standing(node, asked, answer)
        except (TimeoutError, Unavailable):
            answer.standing = Standing.UNKNOWN
        answer.cluster_uid = view.cluster_id
        answer.members.update(view.members())
        if self._host.has_group(CATALOG_GROUP):
            configuration = self._host.status_of(CATALOG_GROUP).members
            answer.voters.extend(configuration.voters)
            answer.learners.extend(configuration.learners)
        return answer

    def _has_entries(self) -> bool:
        host = self._host
        return host.has_group(CATALOG_GROUP) and host.status_of(CATALOG_GROUP).last > 0

    async def _standing(
        self, node: NodeId, asked: peer_pb2.Enquiry, answer: peer_pb2.Description
    ) -> tuple[Standing, str]:
        catalog, view = self._catalog, self._catalog.view
        if not view.cluster_id or not view.members():
            return (Standing.UNKNOWN if answer.has_data else Standing.UNFOUNDED), ""
        # So that this view was current after the question.
        await catalog.catch_up()
        # Before the node becomes a member: what comes on it after that is later (refill.py).
        answer.revision = view.revision
        if asked.cluster_uid and asked.cluster_uid != view.cluster_id:
            return Standing.FOREIGN, ""
        if node in view.members():
            is_gone = node not in self._in_group() and member_states.is_leaving(view, node)
            return (Standing.REMOVED if is_gone and asked.has_data else Standing.MEMBER), ""
        if asked.has_data:
            return Standing.REMOVED, ""
        reason = fault_of_member(catalog, node, asked.address)
        if reason:
            return Standing.REFUSED, reason
        log.info("member %s joins the cluster address=%s", node, asked.address)
        reply = await catalog.write(catalog_commands.put_member(node, asked.address))
        if reply["code"] not in (catalog_commands.OK, catalog_commands.UNCHANGED):
            return Standing.REFUSED, str(reply.get("text", ""))
        return Standing.MEMBER, ""

    def _in_group(self) -> tuple[NodeId, ...]:
        configuration = self._host.status_of(CATALOG_GROUP).members
        return configuration.voters + configuration.learners


def fault_of_member(catalog: ports.Catalog, node: str, address: str) -> str:
    """Return why a node cannot become a member, "" if it can."""
    if not discovery.is_name(node):
        return f"not a member name: {node!r}"
    try:
        discovery.parse_address(address)
    except AddressError as error:
        return str(error)
    for other, taken in catalog.view.members().items():
        if taken == address and other != node:
            return f"{address} is the address of member '{other}'"
    if len(catalog.view.members()) >= membership.MEMBERS_MAX:
        return f"a cluster has at most {membership.MEMBERS_MAX} members"
    return ""
