"""The table of queues' figures against a walk over all machines, after any moves."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.server.moving_queues import MovingQueues

UIDS = st.integers(1, 6)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("declare", "publish", "lead", "follow", "lose"),
                *("delete", "leave", "damage", "settle", "ask"),
            ]
        ),
        UIDS,
    ),
    max_size=60,
)


class History:
    """State: the member, and which of its queues may be read at the next question."""

    def __init__(self) -> None:
        self.member = MovingQueues()
        self.moved: set[int] = set()

    async def step(self, kind: str, uid: int) -> None:
        member, is_here = self.member, uid in self.member.replicas
        if kind == "settle":
            member.settle()
        elif kind == "ask":
            await self.check()
        elif kind == "declare" and not is_here:
            # Where only the replica had gone it comes back, as another one.
            member.declare(uid, "/" if uid % 2 else "v", is_led=uid % 3 > 0)
            self.moved.add(uid)
        elif kind == "damage" and is_here:
            # Of damage that came or went nobody tells: it is looked up.
            member.replicas[uid].is_damaged ^= True
            self.moved.add(uid)
        elif kind not in ("declare", "damage") and is_here:
            getattr(member, kind)(uid)
            self.moved.add(uid)

    async def check(self) -> None:
        member = self.member
        member.asked.clear()
        assert await member.table.add_groups() == member.walked_groups()
        assert await member.added_led() == member.walked_led()
        assert await member.table.leaderless() == member.walked_leaderless()
        for uid in range(1, 7):
            assert member.kept(uid) == (member.of_queue(uid) if uid in member.replicas else None)
        assert self.moved.issuperset(member.asked)
        self.moved = {*member.active, *member.without_vote()}


@given(STEPS)
def test_the_table_is_what_a_walk_finds_and_nothing_still_is_read(
    steps: list[tuple[str, int]],
) -> None:
    async def run() -> None:
        history = History()
        for kind, uid in steps:
            await history.step(kind, uid)
        await history.check()

    asyncio.run(run())
