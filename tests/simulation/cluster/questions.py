"""What a node that starts asks the others: over the same wires as all else, on a stream of its own.

For world.py, which hands it to each process in place of join_request.ask.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from brokerd.cluster.config import HostConfig
from brokerd.cluster.peer import join_request
from brokerd.raft.messages import NodeId
from brokerd.rpc.v1 import peer_pb2

if TYPE_CHECKING:
    from tests.simulation.cluster.member import ClusterMember
    from tests.simulation.cluster.process import Process
    from tests.simulation.cluster.world import ClusterWorld

TIMEOUT_MS = 3_000


class Questions:
    """State: the world that they are asked in."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world

    async def ask(
        self,
        config: HostConfig,
        node: NodeId,
        incarnation: int,
        peer: NodeId,
        address: str,
        enquiry: peer_pb2.Enquiry,
    ) -> peer_pb2.Description:
        """See joining.Ask."""
        world, kernel = self._world, self._world.kernel
        asker, asked = world.members[node], world.members[peer]
        future: asyncio.Future[peer_pb2.Description] = asyncio.get_running_loop().create_future()

        def question() -> None:
            if self._is_cut(node, peer):
                return
            if not asked.is_up:
                self._back(asker, incarnation, future, None)
                return
            asked.enter(start)

        def start() -> None:
            if asked.broker is not None:
                asked.broker.spawn(answer(asked.broker))

        async def answer(process: Process) -> None:
            description = await process.joining.describe(node, enquiry)
            world.record("described", peer, node, description.standing)
            delay_ms = 0.1 + world.rng.random() * world.scenario.delay_ms_max
            if not self._is_cut(node, peer):
                kernel.after(delay_ms, self._back, asker, incarnation, future, description)

        kernel.after(0.1 + world.rng.random() * world.scenario.delay_ms_max, question)
        try:
            async with asyncio.timeout(TIMEOUT_MS / 1000):
                return await future
        except TimeoutError as error:
            raise join_request.NoAnswer("no answer in time") from error

    def _is_cut(self, one: NodeId, other: NodeId) -> bool:
        cut = self._world.wires.blocked | self._world.wires.muted
        return bool({(one, other), (other, one)} & cut)

    def _back(
        self,
        asker: ClusterMember,
        incarnation: int,
        future: asyncio.Future[peer_pb2.Description],
        answer: peer_pb2.Description | None,
    ) -> None:
        def arrive() -> None:
            if future.done():
                return
            if answer is None:
                future.set_exception(join_request.NoAnswer("connection refused"))
            else:
                future.set_result(answer)

        if asker.incarnation == incarnation:
            asker.enter(arrive)
