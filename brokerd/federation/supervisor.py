"""Which links run on this member, shovels too: started, restarted and stopped as the topology says.

Compares what policies and parameters ask for with what runs, after every change that matters and
now and then.  One member runs a link (R-FED-7).  The server starts and stops it and lists `rows`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from typing import Any

from brokerd.core.catalog import names
from brokerd.federation import shovel as shovels
from brokerd.federation import shovel_ends
from brokerd.federation import upstream as upstreams
from brokerd.federation.client import Connection
from brokerd.federation.ends import Ends, LocalExchange
from brokerd.federation.errors import UpstreamError
from brokerd.federation.exchange_source import ExchangeSource
from brokerd.federation.link import Link
from brokerd.federation.link_headers import ExchangePassage, QueuePassage
from brokerd.federation.ports import Change, Federated, FederatedQueue, Topology
from brokerd.federation.queue_ends import LocalQueue, QueueSource
from brokerd.federation.shovel import Shovel
from brokerd.federation.upstream import Address, Upstream

log = logging.getLogger(__name__)

#: How soon changes, dead members and alarms are noticed.
TICK_S = 0.25
#: Changes that come together are looked at together.
SETTLE_S = 0.05
#: Links of one member; each is two connections and a task while it starts.
LINKS_MAX = 2000
STOP_TIMEOUT_S = 10.0
#: A snapshot that was installed tells no listener: its topology is seen at the latest then.
RESYNC_S = 10.0
#: A shovel that has done its work tries so often to remove its definition.
REMOVE_INTERVAL_S = 1.0


@dataclass(slots=True, frozen=True)
class _Wanted:
    """A link that is to run here.  Any difference, except in the authorities that are trusted, ends
    it and starts one anew, which goes on with the same upstream queue if it can.
    """

    #: A shovel is both.
    federated: Federated | FederatedQueue | Shovel
    upstream: Upstream | Shovel
    #: The name of this cluster, which is part of the queue's.
    cluster: str

    def needs_new_queue(self, before: _Wanted) -> bool:
        """Tell whether the upstream queue of an earlier link cannot serve this one (R-FX-17)."""
        local, old, new = self.federated, before.upstream, self.upstream
        if not isinstance(local, Federated) or isinstance(old, Shovel) or isinstance(new, Shovel):
            # A federated queue's belongs to the upstream, a shovel has none of its own.
            return False
        return bool(upstreams.new_queue_keys(old, new, local.vhost, local.exchange))


class Supervisor:
    """Owns this member's links.  Invariant: a link in `_links` is started and not stopped."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._links: dict[str, tuple[_Wanted, Link]] = {}
        #: Links that are ending; one of the same name starts when that is done.
        self._stopping: dict[str, asyncio.Task[None]] = {}
        #: Removals of shovels that have done their work.
        self._removals: set[asyncio.Task[None]] = set()
        #: Definitions that cannot be used, as rows.
        self._problems: list[dict[str, Any]] = []
        #: (vhost, upstream) of those that are there: this member may lack the key of a URI, say.
        self._unusable: set[tuple[str, str]] = set()
        self._woken = asyncio.Event()
        self._revision = -1
        self._resync_at = 0.0
        self._members: list[str] = []
        #: Federated queues, and the uids of those that this member led when it last looked: the
        #: leader's member runs a queue's links, so that it sees what the queue wants.
        self._queues: list[FederatedQueue] = []
        self._led: set[int] = set()
        self._alarm = ""
        self._is_dirty = True
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow the topology."""
        self._topology.listen(self._changed)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="federation")

    async def stop(self) -> None:
        """End all links of this member; what they made upstream stays for the next one."""
        self._topology.unlisten(self._changed)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        links, self._links = [link for _, link in self._links.values()], {}
        for removal in self._removals:
            removal.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await asyncio.gather(
                    *(link.stop(is_removed=False) for link in links),
                    *self._stopping.values(),
                    return_exceptions=True,
                )

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per link of this member, and per definition that cannot be used."""
        return [link.row() for _, link in self._links.values()] + list(self._problems)

    def restart(self, link_id: str) -> bool:
        """Have a link of this member connect anew; return whether there is one.

        Own decision: what waits in its upstream queue stays (RabbitMQ deletes it, R-FX-17).
        """
        found = self._links.pop(link_id, None)
        if found is not None:
            self._end(link_id, found[1], is_removed=False)
        return found is not None

    def _changed(self, change: Change) -> None:
        if change.bindings_of is None:
            self._is_dirty = True
            self._woken.set()
            return
        for wanted, link in self._links.values():
            local = wanted.federated
            if not isinstance(local, Federated):
                continue
            if local.vhost == change.vhost and change.bindings_of.startswith(local.exchange + "|"):
                link.source_changed()

    async def _run(self) -> None:
        while True:
            try:
                self._look()
            except Exception:
                # One strange definition must not end federation; it is looked at again.
                log.exception("federation: links could not be brought up to date")
                self._revision = -1
            self._woken.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._woken.wait()
                # Let the rest of a batch arrive.
                await asyncio.sleep(SETTLE_S)

    def _look(self) -> None:
        topology = self._topology
        members = topology.quorate_members()
        alarm = topology.alarm()
        if alarm != self._alarm:
            self._alarm = alarm
            for wanted, link in self._links.values():
                if self._heeds_alarm(wanted):
                    link.alarm_changed(alarm)
        now = time.monotonic()
        is_behind = topology.revision != self._revision and now >= self._resync_at
        has_moved = self._led != self._led_now()
        if self._is_dirty or is_behind or has_moved or members != self._members:
            self._is_dirty = False
            self._revision = topology.revision
            self._resync_at = now + RESYNC_S
            self._members = members
            self._reconcile(members)

    def _led_now(self) -> set[int]:
        return {queue.uid for queue in self._queues if self._topology.leads(queue)}

    def _runs_here(
        self, link_id: str, federated: Federated | FederatedQueue | Shovel, members: list[str]
    ) -> bool:
        """R-FED-7: one member; none while this one is cut off."""
        if isinstance(federated, FederatedQueue):
            return bool(members) and federated.uid in self._led
        return upstreams.owner(link_id, members) == self._topology.node

    def _reconcile(self, members: list[str]) -> None:
        configured = self._configured(members)
        here = {
            link_id: wanted
            for link_id, wanted in configured.items()
            if self._runs_here(link_id, wanted.federated, members)
        }
        for link_id, (wanted, link) in list(self._links.items()):
            if here.get(link_id) != wanted:
                del self._links[link_id]
                # Its queue, with what waits there, is for its successor, here or elsewhere
                # (R-FX-17); one of another name of this cluster may be another cluster's by now.
                after = configured.get(link_id)
                key = (wanted.federated.vhost, wanted.upstream.name)
                if after is None:
                    is_removed = key not in self._unusable
                else:
                    is_removed = after.needs_new_queue(wanted)
                self._end(link_id, link, is_removed=is_removed)
        for link_id, wanted in here.items():
            if link_id in self._links:
                link = self._links[link_id][1]
                link.same_definition(wanted.upstream)
                link.source_changed()
            elif link_id not in self._stopping:
                self._begin(link_id, wanted)

    def _begin(self, link_id: str, wanted: _Wanted) -> None:
        if len(self._links) >= LINKS_MAX:
            log.error("federation: more than %d links, %s is not started", LINKS_MAX, link_id)
            return
        link = Link(link_id, wanted.upstream, self._ends(link_id, wanted), self._topology)
        self._links[link_id] = (wanted, link)
        link.start()
        if self._alarm and self._heeds_alarm(wanted):
            link.alarm_changed(self._alarm)

    def _heeds_alarm(self, wanted: _Wanted) -> bool:
        """R-ALM-9.  A shovel that publishes here is a publisher as any other; one that does not
        is blocked by its destination, and an alarm here is no reason not to empty a queue.
        """
        if isinstance(wanted.federated, Shovel):
            return wanted.federated.publishes_here
        return self._topology.honours_alarms

    def _ends(self, link_id: str, wanted: _Wanted) -> Ends:
        local, upstream, topology = wanted.federated, wanted.upstream, self._topology
        if isinstance(local, Shovel):
            shovel = local

            def finished() -> None:
                removal = asyncio.get_running_loop().create_task(self._remove(shovel))
                self._removals.add(removal)
                removal.add_done_callback(self._removals.discard)

            return shovel_ends.ends_of(shovel, topology, self._dial, finished)
        assert isinstance(upstream, Upstream)
        if isinstance(local, FederatedQueue):
            return Ends(
                local.vhost,
                QueueSource(local, upstream),
                QueuePassage(local.vhost, local.queue, upstream),
                LocalQueue(topology, local),
            )
        return Ends(
            local.vhost,
            ExchangeSource(local, upstream, topology),
            ExchangePassage(topology.cluster_name, local.vhost, local.exchange, upstream),
            LocalExchange(topology, local.vhost, local.exchange),
        )

    async def _dial(
        self, address: Address, vhost: str, name: str, authorities: str | None
    ) -> Connection:
        """ends.Dial: an address without a host is this cluster itself."""
        if address.host:
            return await Connection.open(address, vhost, name, authorities)
        sock = await self._topology.connect_here(address.user)
        return await Connection.open(address, vhost, name, None, sock)

    async def _remove(self, shovel: Shovel) -> None:
        """A shovel has done its work: its definition goes, unless it has become another."""
        while any(wanted.federated == shovel for wanted, _ in self._links.values()):
            if await self._topology.delete_shovel(shovel):
                return
            await asyncio.sleep(REMOVE_INTERVAL_S)

    def _end(self, link_id: str, link: Link, *, is_removed: bool) -> None:
        task = asyncio.get_running_loop().create_task(link.stop(is_removed))
        self._stopping[link_id] = task

        def ended(_: asyncio.Task[None]) -> None:
            del self._stopping[link_id]
            self._is_dirty = True
            self._woken.set()

        task.add_done_callback(ended)

    def _configured(self, members: list[str]) -> dict[str, _Wanted]:
        """Return what is to run anywhere; what cannot is listed by one member only."""
        topology = self._topology
        configured: dict[str, _Wanted] = {}
        problems: list[tuple[dict[str, Any], Federated | FederatedQueue]] = []
        parameters: dict[str, tuple[Any, Any]] = {}
        self._unusable = set()
        self._queues = topology.federated_queues()
        self._led = self._led_now()
        objects: list[Federated | FederatedQueue] = [*topology.federated_exchanges(), *self._queues]
        for federated in objects:
            vhost = federated.vhost
            if vhost not in parameters:
                parameters[vhost] = (
                    topology.parameters(vhost, "federation-upstream"),
                    topology.parameters(vhost, "federation-upstream-set"),
                )
            found, wrong = upstreams.select(
                federated.choice, *parameters[vhost], topology.reconnect_delay_ms
            )
            is_queue = isinstance(federated, FederatedQueue)
            for each in found:
                upstream = each.of_queue() if is_queue else each.of_exchange()
                wanted = _Wanted(federated, upstream, topology.cluster_name)
                configured[_link_id(federated, upstream)] = wanted
            for problem in wrong:
                problems.append((_problem_row(topology.node, federated, problem), federated))
                if problem.upstream in parameters[vhost][0]:
                    self._unusable.add((vhost, problem.upstream))
        found_shovels, wrong_shovels = self._shovels()
        configured |= found_shovels
        self._problems = [
            row for row, federated in problems if self._runs_here(row["id"], federated, members)
        ] + [row for row in wrong_shovels if upstreams.owner(row["id"], members) == topology.node]
        return configured

    def _shovels(self) -> tuple[dict[str, _Wanted], list[dict[str, Any]]]:
        topology = self._topology
        found: dict[str, _Wanted] = {}
        problems: list[dict[str, Any]] = []
        for vhost in topology.vhosts():
            for name, value in topology.parameters(vhost, shovels.COMPONENT).items():
                try:
                    shovel = shovels.parse(vhost, name, value)
                except UpstreamError as error:
                    problems.append(_shovel_problem(topology.node, vhost, name, str(error)))
                else:
                    found[shovel.link_id] = _Wanted(shovel, shovel, topology.cluster_name)
        return found, problems


def _link_id(federated: Federated | FederatedQueue, upstream: Upstream) -> str:
    """Return a link's name: R-FED-4, one per federated object and upstream."""
    if isinstance(federated, FederatedQueue):
        queue = upstream.queue_name(federated.queue)
        return f"{federated.vhost}:queue {federated.queue} <- {upstream.name}:queue {queue}"
    exchange = upstream.exchange_name(federated.exchange)
    return f"{federated.vhost}:{federated.exchange} <- {upstream.name}:{exchange}"


def _problem_row(
    node: str, federated: Federated | FederatedQueue, problem: upstreams.Problem
) -> dict[str, Any]:
    is_queue = isinstance(federated, FederatedQueue)
    kind = "queue" if is_queue else "exchange"
    name = federated.queue if isinstance(federated, FederatedQueue) else federated.exchange
    return {
        "id": names.digest([federated.vhost, kind, name, problem.upstream]),
        "node": node,
        "type": kind,
        "vhost": federated.vhost,
        "exchange": "" if is_queue else name,
        "queue": name if is_queue else "",
        "upstream": problem.upstream,
        "upstream_exchange": "",
        "upstream_queue": "",
        "status": "error",
        "state": "error",
        "uri": "",
        "error": problem.text,
        "last_error": problem.text,
        "since_ms": time.time_ns() // 1_000_000,
        "local_connection": "",
        "backlog": None,
    }


def _shovel_problem(node: str, vhost: str, name: str, error: str) -> dict[str, Any]:
    return {
        "id": shovels.link_id(vhost, name),
        "node": node,
        "type": "shovel",
        "vhost": vhost,
        "upstream": name,
        "status": "error",
        "state": "error",
        "uri": "",
        "error": error,
        "last_error": error,
        "since_ms": time.time_ns() // 1_000_000,
        "local_connection": "",
    }
