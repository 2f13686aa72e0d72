"""Queues that are led here, and leaders that are elsewhere: what follows from a change of either.

Realises what queue machines ask for.  Only the leader of a command's own term sends messages; what
it had no time to send, or sent without anybody knowing, consumers ask for by RESUME (R-QQ-10).
Notified by member_events.py and queues/replicas.py, which owns the queues' groups.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Protocol

from brokerd.cluster.groups.host_events import Progress
from brokerd.cluster.peer import deliveries as delivery_codec
from brokerd.config import QueueConfig
from brokerd.core.catalog import catalog_commands, policy
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.core.profiles import Profile
from brokerd.core.queue import effects, queue_commands
from brokerd.core.queue.effects import ConsumerId
from brokerd.core.queue_options import QueueOptions
from brokerd.raft.messages import NodeId
from brokerd.server.queues import ports
from brokerd.server.queues.deliveries import DeliveryHub, Part

log = logging.getLogger(__name__)

#: Approximate bytes of the pieces in which one delivery of many messages goes out, so that a socket
#: that is full is noticed in between.
DELIVERY_BYTES_MAX = 512 * 1024

#: Seconds before a command that a queue refused is proposed again.
OWING_S = 0.5

#: Queues updated for a policy per turn of the loop: something is proposed to each, and ten thousand
#: at once would block the loop for seconds.
UPDATES_MAX = 25

#: Seconds between requests to consumers that have not resumed.
REMIND_S = 2.0


class Replicas(ports.Members, Protocol):
    """The replicas of this member, and the other members."""

    def has_group(self, uid: int) -> bool:
        """Tell whether a group has a replica here."""
        ...

    def progress_of(self, uid: int) -> Progress:
        """Return how far a replica is; KeyError if it is not here."""
        ...

    def term_of(self, uid: int) -> int | None:
        """Return the newest term that the replica here knows; None: there is none."""
        ...

    def leader_of(self, uid: int) -> NodeId | None:
        """Return who leads a group, None where that is not known here."""
        ...

    def propose(
        self,
        uid: int,
        command: bytes,
        done: Callable[[bool, bytes, NodeId | None], None],
        *,
        first: bool,
    ) -> None:
        """Propose to the replica here; done(accepted, reply, leader) follows."""
        ...


class DeadLetters(Protocol):
    """What becomes of messages that die (dead_letter_publisher.py)."""

    def publish(self, uid: int, effect: effects.DeadLetter) -> None:
        """Send them at most once."""
        ...

    def reroute(self, uid: int, effect: effects.Reroute) -> None:
        """Send them to the queue's alternate exchange."""
        ...

    def given_up(self, uid: int, effect: effects.GivenUp) -> None:
        """Tell what kind of messages they were."""
        ...

    def dropped(self, uid: int, effect: effects.Dropped) -> None:
        """Count and log what is gone."""
        ...

    def wake(self, uid: int) -> None:
        """Letters of an at-least-once queue wait."""
        ...

    def stop(self, uid: int) -> None:
        """The leader is elsewhere now, or the queue is gone."""
        ...


class Jobs(Protocol):
    """The workers of queues' jobs (messages/job_workers.py)."""

    def wake(self, uid: int, term: int) -> None:
        """A queue that is led here has a job to be done, or to be ended."""
        ...

    def stop(self, uid: int) -> None:
        """The leader is elsewhere now, or the queue is gone."""
        ...


class Options(Protocol):
    """What a queue's arguments and policies come to."""

    def of(self, queue: Queue) -> QueueOptions:
        """Return it, as the catalog is now."""
        ...

    def warn_of(self, queue: Queue) -> None:
        """Say what is odd in it."""
        ...


class CatalogOptions:
    """Options, from the catalog and this member's configuration."""

    def __init__(
        self,
        view: CatalogState,
        profile: Profile,
        configured: QueueConfig,
        warn: Callable[[str], None],
    ) -> None:
        self._view = view
        self._profile = profile
        self._defaults = policy.QueueDefaults(
            configured.disconnected_timeout_ms, configured.consumer_timeout_ms or None
        )
        self._warn = warn

    def of(self, queue: Queue) -> QueueOptions:
        """See Options."""
        return policy.effective_queue_options(self._view, queue, self._profile, self._defaults)

    def warn_of(self, queue: Queue) -> None:
        """R-ALO-1, R-LEN-4."""
        for warning in policy.option_warnings(self._view, queue):
            self._warn(warning)


class QueueLeaders:
    """State: the queues led here with their options as last told; terms of leaders elsewhere.

    In one piece: what a new leader does depends on all that is known of the one before it.
    """

    def __init__(
        self,
        identity: ports.Identity,
        queues: ports.Queues,
        replicas: Replicas,
        deliveries: DeliveryHub,
        dead_letters: DeadLetters,
        jobs: Jobs,
        options: Options,
        wake_members: Callable[[int], None],
        write_later: Callable[[dict[str, Any]], None],
        led: dict[int, int],
    ) -> None:
        """wake_members(uid) has a led queue's members looked at; write_later(operation) has the
        catalog changed, without waiting for it.  led: the terms of the queues that are led here,
        empty; changed here only.
        """
        self._node = identity.node
        self._incarnation = identity.incarnation
        self._queues = queues
        self._replicas = replicas
        self._deliveries = deliveries
        self._dead_letters = dead_letters
        self._jobs = jobs
        self._options_of = options
        self._wake_members = wake_members
        self._write_later = write_later
        #: uid -> the term that this member leads.
        self.led = led
        self._options: dict[int, QueueOptions] = {}
        #: Queues that have yet to be looked at after a change of policies.
        self._to_update: dict[int, None] = {}
        #: Queues that must be told something again, since it was refused.
        self._owing: set[int] = set()
        #: Consumers that may lack something they were sent: they get nothing until they resume.
        self._unsure: dict[int, set[ConsumerId]] = {}
        self._is_reminding = False
        #: Terms of the leaders of groups that have consumers here and no replica.
        self._heard_terms: dict[int, int] = {}
        #: Terms of the last leaders that replicas here knew.
        self._known_terms: dict[int, int] = {}
        #: Incarnations of the members that are up.
        self._nodes: dict[str, int] = {}

    def forget(self, uid: int) -> None:
        """The queue is gone."""
        self.led.pop(uid, None)
        self._options.pop(uid, None)
        self._unsure.pop(uid, None)
        self._heard_terms.pop(uid, None)
        self._known_terms.pop(uid, None)

    def replica_closed(self, uid: int) -> None:
        """This member holds no replica any more; who leads in a later term is heard of, then.

        The replica's own term may be one in which it stood for election in vain, and which the
        group never reaches: its leader would count as succeeded for ever.
        """
        known = self._known_terms.get(uid, 0)
        self.forget(uid)
        self._heard_terms[uid] = known

    # ---- options ----------------------------------------------------------------------------

    def update_options(self, uid: int) -> None:
        """Tell a queue that is led here what its arguments and policies come to now."""
        queue = self._queues.queue_of(uid)
        if queue is None:
            return
        options = self._options_of.of(queue)
        if self._options.get(uid) != options:
            self._options[uid] = options
            self._options_of.warn_of(queue)
            self.propose(uid, queue_commands.encode_update_options(options), first=True)

    def update_vhost(self, vhost: str | None) -> None:
        """A policy of the vhost changed: its queues are looked at, some in each turn.

        None: something changed that all queues may ask about.
        """
        is_idle = not self._to_update
        for uid in self.led:
            queue = self._queues.queue_of(uid)
            if queue is not None and vhost in (None, queue.vhost):
                self._to_update[uid] = None
        if is_idle:
            self._update_some()

    def _update_some(self) -> None:
        turn = list(islice(self._to_update, UPDATES_MAX))
        for uid in turn:
            del self._to_update[uid]
        if self._to_update:
            asyncio.get_running_loop().call_soon(self._update_some)
        for uid in turn:
            if uid in self.led:
                self.update_options(uid)
                # A policy may say how many members a queue is to have.
                self._wake_members(uid)

    def propose(self, uid: int, command: bytes, *, first: bool = False) -> None:
        """Propose what this leader owes its queue; `first`: before what waits, so that a new
        leader's options come before all else and no message is taken over without limits and dead
        letter exchange.

        Refused, it is made good as long as this member leads (the group is overloaded, or is
        handing leadership over in vain); another leader does the same by itself.
        """

        def done(accepted: bool, _reply: bytes, _leader: NodeId | None) -> None:
            if not accepted and uid in self.led and uid not in self._owing:
                self._owing.add(uid)
                asyncio.get_running_loop().call_later(OWING_S, self._tell_again, uid)

        self._replicas.propose(uid, command, done, first=first)

    def _tell_again(self, uid: int) -> None:
        # As things are now: what was refused may be out of date.
        self._owing.discard(uid)
        if uid in self.led:
            self._options.pop(uid, None)
            self.update_options(uid)
            self._tell_nodes(uid, self._nodes)

    # ---- who leads --------------------------------------------------------------------------

    def leader_changed(self, uid: int, leader: NodeId | None, term: int, is_local: bool) -> None:
        """A group has a (new) leader, or none for now."""
        if not is_local:
            self.led.pop(uid, None)
            self._unsure.pop(uid, None)
            self._options.pop(uid, None)
            self._dead_letters.stop(uid)
            self._jobs.stop(uid)
        elif self._queues.queue_of(uid) is not None:
            self.led[uid] = term
            self._options.pop(uid, None)
            self.update_options(uid)
        if leader is not None:
            self._known_terms[uid] = term
            self._deliveries.leader_changed(uid)

    def _tell_nodes(self, uid: int, others: Iterable[str] = ()) -> None:
        """A new leader's queue learns which nodes are up, in which incarnation.

        Not before all of the log is applied: after a restart the machine knows no node until then,
        and what the last incarnation held would stay with it for ever (R-ACK-8).
        """
        alive = self._replicas.alive()
        for node in sorted(self._queues.machine(uid).query_client_nodes().union(others)):
            if node == self._node:
                command = queue_commands.encode_node_up(node, self._incarnation, leads=True)
            elif NodeId(node) in alive and node in self._nodes:
                command = queue_commands.encode_node_up(node, self._nodes[node])
            else:
                command = queue_commands.encode_node_down(node)
            self.propose(uid, command)

    def _is_behind(self, uid: int) -> bool:
        if not self._replicas.has_group(uid):
            return False
        progress = self._replicas.progress_of(uid)
        return progress.applied < progress.last

    def heard(self, uid: int, term: int, is_announced: bool) -> None:
        """A leader of a group without replica here has sent something."""
        known = self._heard_terms.get(uid, 0)
        if term <= known or not self._deliveries.has_group(uid):
            return
        self._heard_terms[uid] = term
        if known or is_announced:
            self._deliveries.leader_changed(uid)

    def received(self, uid: int, term: int, payload: bytes) -> None:
        """A leader elsewhere sent messages for a consumer here, or the news that it leads."""
        if self.is_stale(uid, term):
            return
        consumer, parts = delivery_codec.decode(payload)
        if not self._replicas.has_group(uid):
            self.heard(uid, term, is_announced=not parts)
        self._deliveries.deliver(consumer, parts)

    def is_stale(self, uid: int, term: int) -> bool:
        """Tell whether a leader sent something that has been succeeded since.

        A cut network may hold back what it sent until the cut has healed.  By then its successor
        has sent the same again (RESUME), and the client may have settled it.
        """
        known = self._replicas.term_of(uid)
        return term < (self._heard_terms.get(uid, 0) if known is None else known)

    def node_changed(self, node: NodeId, incarnation: int, up: bool) -> None:
        """A member is heard again, or suspected."""
        if up:
            self._nodes[node] = incarnation
        for uid in list(self.led):
            # A command on its way may be the node's first, and be applied after its death.
            if self._is_behind(uid) or node in self._queues.machine(uid).query_client_nodes():
                command = (
                    queue_commands.encode_node_up(node, incarnation)
                    if up
                    else queue_commands.encode_node_down(node)
                )
                self.propose(uid, command)
        if not up:
            return
        # Its stream was made anew: deliveries of the queues it leads may have been lost.
        for uid in self._deliveries.groups():
            queue = self._queues.queue_of(uid)
            leader = self._replicas.leader_of(uid)
            # Without a replica here the leader is not known: any member may lead.
            if leader == node or (leader is None and queue is not None and node in queue.members):
                self._deliveries.leader_changed(uid)

    def deliveries_lost(self, node: NodeId) -> None:
        """What was sent to a node may be lost: its consumers resume when the stream stands again.

        Until then they get nothing, or it would come before what was lost (G3).
        """
        for uid in self.led:
            consumers = self._queues.machine(uid).query_resuming_consumers()
            unsure = [consumer for consumer in consumers if consumer.node == node]
            if unsure:
                self._unsure.setdefault(uid, set()).update(unsure)
                self._remind_later()

    def _remind_later(self) -> None:
        if not self._is_reminding:
            self._is_reminding = True
            asyncio.get_running_loop().call_later(REMIND_S, self._remind)

    def _remind(self) -> None:
        """Ask consumers that have not resumed to do so, by a delivery of nothing.

        What should have made them (an announcement, a new stream, their own replica's word) may
        have been lost or have come too early; no consumer is left in silence for that.
        """
        self._is_reminding = False
        alive = self._replicas.alive()
        for uid, unsure in list(self._unsure.items()):
            term = self.led.get(uid)
            if term is None or not unsure:
                del self._unsure[uid]
                continue
            log.info("%d consumers have not resumed group=%x", len(unsure), uid)
            machine = self._queues.machine(uid)
            for consumer_id in sorted(unsure):
                if not machine.query_is_registered(consumer_id):
                    unsure.discard(consumer_id)
                elif NodeId(consumer_id.node) in alive:
                    self._send_parts(uid, term, consumer_id, [])
        if self._unsure:
            self._remind_later()

    # ---- effects ----------------------------------------------------------------------------

    def realise(self, uid: int, term: int, todo: list[Any]) -> None:
        """Do what a queue machine asked for in a command of this term."""
        for effect in todo:
            handler = _EFFECTS.get(type(effect))
            if handler is not None:
                handler(self, uid, term, effect)

    def _deliver(self, uid: int, term: int, effect: effects.Deliver) -> None:
        if term < self.led.get(uid, 0):
            return
        consumer = effect.consumer
        if consumer in self._unsure.get(uid, ()):
            # RESUME brings it, behind what is missing before it.
            return
        parts: list[Part] = []
        size = 0
        is_here = consumer.node == self._node
        for at, run in enumerate(effect.runs):
            if is_here and not parts and self._deliveries.defer(consumer, effect.runs[at:]):
                # Two hundred large messages would be read at once, all others waiting, for a
                # socket that takes one.
                return
            contents = self._queues.contents(uid, run)
            parts.append((run, contents))
            # An estimate will do: an entry is a mebibyte at most, or one large message.
            size += len(contents[0][2]) * run.length
            if size >= DELIVERY_BYTES_MAX:
                self._send_parts(uid, term, consumer, parts)
                parts, size = [], 0
        if parts:
            self._send_parts(uid, term, consumer, parts)

    def _send_parts(self, uid: int, term: int, consumer: ConsumerId, parts: list[Part]) -> None:
        if consumer.node == self._node:
            self._deliveries.deliver(consumer, parts)
            return
        payload = delivery_codec.encode(consumer, parts)
        kind = delivery_codec.DeliveryKind.MESSAGES
        self._replicas.send_delivery(NodeId(consumer.node), uid, term, kind, payload)

    def _cancelled(self, uid: int, term: int, effect: effects.ConsumerCancelled) -> None:
        if effect.consumer.node == self._node:
            self._deliveries.cancelled(effect.consumer, effect.cause)
            return
        payload = delivery_codec.encode_cancelled(effect.consumer, effect.cause)
        kind = delivery_codec.DeliveryKind.CANCELLED
        self._replicas.send_delivery(NodeId(effect.consumer.node), uid, term, kind, payload)

    def _resumed(self, uid: int, _: int, effect: effects.Resumed) -> None:
        unsure = self._unsure.get(uid)
        if unsure is not None:
            unsure.discard(effect.consumer)

    def _leadership_begun(self, uid: int, term: int, effect: effects.LeadershipBegun) -> None:
        """All of the log is applied.

        Nodes without a replica hear of it by a delivery of nothing: their consumers must resume.
        """
        queue = self._queues.queue_of(uid)
        if queue is None:
            return
        self._unsure.pop(uid, None)
        if effect.consumers:
            self._unsure[uid] = set(effect.consumers)
            self._remind_later()
        self._tell_nodes(uid)
        self._wake_members(uid)
        payload = delivery_codec.encode(ConsumerId("", 0, 0, ""), [])
        kind = delivery_codec.DeliveryKind.MESSAGES
        for node in self._queues.machine(uid).query_consumer_nodes():
            if node not in queue.members:
                self._replicas.send_delivery(NodeId(node), uid, term, kind, payload)

    def _dead_letter(self, uid: int, _: int, effect: effects.DeadLetter) -> None:
        self._dead_letters.publish(uid, effect)

    def _reroute(self, uid: int, _: int, effect: effects.Reroute) -> None:
        self._dead_letters.reroute(uid, effect)

    def _given_up(self, uid: int, _: int, effect: effects.GivenUp) -> None:
        self._dead_letters.given_up(uid, effect)

    def _dropped(self, uid: int, _: int, effect: effects.Dropped) -> None:
        self._dead_letters.dropped(uid, effect)

    def _dead_letters_waiting(self, uid: int, _: int, __: effects.DeadLettersWaiting) -> None:
        self._dead_letters.wake(uid)

    def _job_under_way(self, uid: int, term: int, _: effects.JobUnderWay) -> None:
        if term == self.led.get(uid):
            self._jobs.wake(uid, term)

    def _queue_deleted(self, uid: int, _: int, effect: effects.QueueDeleted) -> None:
        queue = self._queues.queue_of(uid)
        if queue is not None:
            self._write_later(
                catalog_commands.delete(
                    "queue", queue.vhost, queue.name, uid=uid, cause=effect.cause
                )
            )


_EFFECTS: dict[type, Callable[[QueueLeaders, int, int, Any], None]] = {
    effects.Deliver: QueueLeaders._deliver,
    effects.ConsumerCancelled: QueueLeaders._cancelled,
    effects.LeadershipBegun: QueueLeaders._leadership_begun,
    effects.Resumed: QueueLeaders._resumed,
    effects.DeadLetter: QueueLeaders._dead_letter,
    effects.Reroute: QueueLeaders._reroute,
    effects.GivenUp: QueueLeaders._given_up,
    effects.Dropped: QueueLeaders._dropped,
    effects.DeadLettersWaiting: QueueLeaders._dead_letters_waiting,
    effects.JobUnderWay: QueueLeaders._job_under_way,
    effects.QueueDeleted: QueueLeaders._queue_deleted,
}
