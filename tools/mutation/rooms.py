"""What is mutated, and which tests have to notice.

For the mutation run only.  A room's quick tests run against every mutant; its thorough ones, which
take seconds, only against what the quick ones let live.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Room:
    """Sources and the tests that stand guard over them; paths may be patterns."""

    name: str
    folder: str
    sources: tuple[str, ...]
    quick_tests: tuple[str, ...]
    thorough_tests: tuple[str, ...]
    #: Too long for one run per mutant.
    left_out: tuple[str, ...] = ()


ROOMS = (
    Room(
        "raft",
        "brokerd/raft",
        ("brokerd/raft/*.py",),
        ("tests/unit/raft", "tests/transcripts/raft"),
        ("tests/simulation/test_simulation.py::test_ten_seeds_pass",),
    ),
    Room(
        "storage",
        "brokerd/storage",
        # Not faults.py, which breaks disks on purpose, nor inspect.py, which prints.
        tuple(
            f"brokerd/storage/{name}.py"
            for name in (
                "collection",
                "disk",
                "entry_table",
                "group_log",
                "memory",
                "records",
                "recovery",
                "repair",
                "scan",
                "segments",
                "snapshots",
                "wal",
                "writer",
            )
        ),
        ("tests/unit/storage",),
        ("tests/properties/test_wal_model.py", "tests/properties/test_wal_images.py"),
    ),
    Room(
        "queue",
        "brokerd/core",
        (
            "brokerd/core/queue/queue_*.py",
            "brokerd/core/queue/ready_spans.py",
            "brokerd/core/queue/enqueue_commands.py",
            "brokerd/core/queue/consumers.py",
            "brokerd/core/queue/dead_letters.py",
            "brokerd/core/queue/deaths.py",
            "brokerd/core/queue/delayed.py",
            "brokerd/core/queue/enqueuers.py",
            "brokerd/core/queue/client_sessions.py",
            "brokerd/core/ranges.py",
        ),
        (
            "tests/unit/core/queue",
            "tests/unit/core/test_ranges.py",
            "tests/transcripts/queue",
        ),
        ("tests/properties/test_dead_letter_model.py", "tests/properties/test_queue_machine.py"),
        (
            "tests/unit/core/queue/test_ready_spans.py::"
            "test_a_ready_message_in_an_entry_of_its_own_costs_less_than_150_bytes",
        ),
    ),
    Room(
        "cluster",
        "brokerd/cluster",
        ("brokerd/cluster/groups/replica_health.py", "brokerd/cluster/peer/frame_entries.py"),
        (
            "tests/unit/cluster/groups/test_trust.py",
            "tests/unit/cluster/peer/test_frame_entries.py",
            "tests/transcripts/replica_health",
        ),
        (),
    ),
    Room(
        "server",
        "brokerd/server",
        ("brokerd/server/queues/stream.py", "brokerd/server/members/repair.py"),
        (
            "tests/unit/server/queues/test_stream.py",
            "tests/unit/server/members/test_repair.py",
            "tests/unit/server/members/test_replica_changes.py",
        ),
        (),
    ),
)
