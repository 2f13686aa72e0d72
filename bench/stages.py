"""Where the time of one publish goes, stage by stage over three members, at one in flight.

    python -m bench.stages [--count N]

Three members note the time at the borders of the stages (monotonic clock, the same for all of
them); the notes are put together per publish.  Median and tenth percentile of each stage.  With
--child it is such a member: only this program starts it.  The product knows nothing of this.
Plain Python: methods that are compiled cannot be replaced.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench import load_programs
from bench.brokerd_nodes import BrokerdCluster
from bench.processes import notes_of

QUEUE = "stages"
WARM_UP_MESSAGES = 1_000
#: Notes that a member keeps; one publish leaves about fifteen.
NOTES_MAX = 2_000_000

#: {label: times in ns}
Notes = dict[str, list[int]]
#: Stages of one publish: (title, of which member, label); each ends at its label.
LEADER = "leader"
FIRST = "first follower"


def note_calls(owner: Any, name: str, before: str, after: str, notes: Notes) -> None:
    """Have a method note when it begins and when it has ended; "" for neither."""
    wrapped: Callable[..., Any] = getattr(owner, name)
    clock = time.perf_counter_ns
    begins = notes.setdefault(before, []).append
    ends = notes.setdefault(after, []).append

    def noting(*args: Any, **options: Any) -> Any:
        begins(clock())
        result = wrapped(*args, **options)
        ends(clock())
        return result

    setattr(owner, name, noting)


def be_member(folder: Path) -> None:
    """Run `brokerd` with notes; SIGUSR2 writes them down and begins anew."""
    from brokerd.cluster.groups import host, write_queue
    from brokerd.cluster.peer import peer_connection
    from brokerd.server.amqp import connection
    from brokerd.storage import disk, writer

    notes: Notes = {}
    note_calls(connection.ClientConnection, "data_received", "client read", "client done", notes)
    note_calls(connection.ClientConnection, "flush_now", "client write", "client written", notes)
    note_calls(host.Host, "propose", "propose", "proposed", notes)
    note_calls(host.Host, "flush", "flush", "flushed", notes)
    note_calls(peer_connection.PeerConnection, "data_received", "peer read", "peer done", notes)
    note_calls(peer_connection.PeerConnection, "flush", "peer write", "peer written", notes)
    note_calls(write_queue.WriteQueue, "hand_over", "hand over", "handed over", notes)
    note_calls(write_queue.WriteQueue, "_finish", "finish", "finished", notes)
    note_calls(writer.LogWriter, "write", "log write", "log written", notes)
    note_calls(disk.Disk, "write", "disk write", "disk written", notes)
    note_calls(disk.Disk, "data_sync", "sync", "synced", notes)

    def write_down(*_: object) -> None:
        path = folder / f"{os.getpid()}.json"
        new = path.with_suffix(".new")
        new.write_text(json.dumps(notes))
        new.rename(path)
        for times in notes.values():
            times.clear()

    signal.signal(signal.SIGUSR2, write_down)
    from brokerd.cli import main as brokerd

    brokerd()


def following(times: list[int], at: int) -> int:
    """The first time at or after `at`; 0: there is none."""
    place = bisect_left(times, at)
    return times[place] if place < len(times) else 0


#: From border to border: (whose, label).  The follower's are those of each follower by itself.
LEADER_BORDERS = ("client read", "flush", "proposed", "peer write", "peer written", "hand over")
DISK_BORDERS = ("log write", "disk write", "sync", "synced", "finish")
FOLLOWER_BORDERS = ("peer read", "hand over", *DISK_BORDERS, "peer write", "peer written")


def chain(notes: Notes, labels: tuple[str, ...], at: int) -> list[int]:
    """The times of these borders, each the first after the one before; [] if one is missing."""
    times = []
    for label in labels:
        at = following(notes[label], at)
        if not at:
            return []
        times.append(at)
    return times


def stages_of(start: int, end: int, leader: Notes, followers: list[Notes]) -> dict[str, int]:
    """Stages of the publish that came between `start` and `end`; {} if it cannot be told."""
    found: dict[str, int] = {}
    own = chain(leader, LEADER_BORDERS, start)
    if not own:
        return {}
    for label, since, until in zip(LEADER_BORDERS[1:], own, own[1:], strict=False):
        found[f"leader: until {label}"] = until - since
    disk = chain(leader, DISK_BORDERS, own[-1])
    answers = []
    for notes in followers:
        times = chain(notes, FOLLOWER_BORDERS, own[3])
        if times:
            answers.append(times)
    if not disk or len(answers) != len(followers):
        return {}
    first, second = sorted(answers, key=lambda times: times[-1])
    for label, since, until in zip(DISK_BORDERS, [own[-1], *disk], disk, strict=False):
        found[f"leader's disk: until {label}"] = until - since
    for label, since, until in zip(FOLLOWER_BORDERS, [own[4], *first], first, strict=False):
        found[f"first follower: until {label}"] = until - since
    found["second follower's answer after the first"] = second[-1] - first[-1]
    heard = following(leader["peer read"], first[-2])
    written = following(leader["client write"], heard)
    done = following(leader["client written"], written)
    found["leader: until the answer is read"] = heard - first[-1]
    found["leader: until confirm"] = written - heard
    found["leader: until confirm is written"] = done - written
    found["sum: frame read to log synced, leader"] = disk[3] - start
    found["sum: frame read to confirm"] = done - start
    if not heard or done > end:
        return {}
    return found


def table(notes: list[Notes]) -> str:
    leader, *followers = notes
    reads = leader["client read"]
    found: dict[str, list[int]] = {}
    for start, end in pairwise(reads):
        for title, duration in stages_of(start, end, leader, followers).items():
            found.setdefault(title, []).append(duration)
        found.setdefault("from one publish to the next", []).append(end - start)
    rows = ["| stage | median µs | fastest tenth | n |", "|---|---|---|---|"]
    for title, durations in found.items():
        durations.sort()
        middle, low = statistics.median(durations), durations[len(durations) // 10]
        rows.append(f"| {title} | {middle / 1000:.0f} | {low / 1000:.0f} | {len(durations)} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=2_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-stages-") as name:
        folder = Path(name)
        cluster = BrokerdCluster(program=("bench.stages", "--child", name))
        cluster.start()
        try:
            pids, port = cluster.pids(), cluster.amqp_ports[0]
            options: dict[str, object] = {"queue": QUEUE, "in_flight": 1}
            load_programs.run_amqpload("publish", port, count=WARM_UP_MESSAGES, **options)
            for pid in pids:
                notes_of(pid, folder)
            options["no_declare"] = True
            result = load_programs.run_amqpload("publish", port, count=args.count, **options)
            notes = [notes_of(pid, folder) for pid in pids]
        finally:
            cluster.stop()
    print(f"{args.count} publishes, one in flight: p50 {result['p50_us']:.0f} µs at the client\n")
    print(table(notes))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child_folder = Path(sys.argv[2])
        sys.argv[1:] = sys.argv[3:]
        be_member(child_folder)
    else:
        main()
