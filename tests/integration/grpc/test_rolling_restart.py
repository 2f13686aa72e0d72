"""Members stopped one after the other under load: confirmed is stored, and nothing is doubled.

`Publish` streams and `PublishBatch` calls side by side; what a stopping member has no answer to was
not taken, so a program may publish it again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration import grpc_restart_rig as rig
from tests.integration.members import cluster

pytestmark = pytest.mark.timeout(300)


def test_a_rolling_restart_under_load_loses_and_doubles_nothing(tmp_path: Path) -> None:
    with cluster(tmp_path, 3) as members:
        rig.make_queue(members[0])
        consumer = rig.Consumer(members, "consumer")
        unary = [rig.Unary(members[n % 3 :] + members[: n % 3], f"u{n}") for n in range(6)]
        streams = [rig.Stream(members[n:] + members[:n], f"s{n}") for n in range(3)]
        publishers: list[rig.Unary | rig.Stream] = [*unary, *streams]
        for worker in (consumer, *publishers):
            worker.start()
        before = 0

        def is_under_load() -> bool:
            nonlocal before
            if min(worker.count for worker in unary) < before + 20:
                return False
            before = max(worker.count for worker in unary)
            return True

        rig.roll(members, is_under_load)
        for worker in publishers:
            worker.finish()
        bodies = {body for each in publishers for body in rig.expected(each.name, each.count)}
        rig.end(consumer, members[0], bodies)
        # Else the stops met no call.
        statuses = {text for worker in publishers for _, text in worker.statuses}
        assert "this member stops: try again, elsewhere" in statuses
