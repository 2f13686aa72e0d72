"""How long a member whose log was damaged goes without a vote.

    python -m bench.revote [--queues N] [--damage late|early] [--rounds N]

Per round three members are started, with N quorum queues that all get the same messages.  The
third member gets SIGKILL, one message of each queue is damaged on its disk, and it starts again.
The results are the times from that start until the member serves clients, and until it votes in all
groups again.

late: one of the last messages, which the leader's commands bring again.  early: a message below the
queues' snapshots, which no command brings; the member's replicas are made anew.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import urllib.request
from pathlib import Path

import pika

from bench.brokerd_nodes import BrokerdCluster
from bench.processes import BenchError

EXCHANGE = "revote"
BODY = b"message %06d of every queue"
#: A snapshot is made after 4,096 entries (RaftConfig.snapshot_entries).
MESSAGES = {"late": 200, "early": 4_300}
DAMAGED = {"late": 190, "early": 5}
CHANNELS = 20
POLL_S = 0.05
TIMEOUT_S = 600.0
VICTIM = 2


def fill(port: int, queues: int, messages: int) -> None:
    """Publish to all queues by one exchange, so that each message is an entry of its own: what one
    channel sends at a time would be one.
    """
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=0))
    control = connection.channel()
    control.exchange_declare(EXCHANGE, "fanout")
    for number in range(queues):
        control.queue_declare(name_of(number), durable=True, arguments={"x-queue-type": "quorum"})
        control.queue_bind(name_of(number), EXCHANGE)
    channels = [connection.channel() for _ in range(CHANNELS)]
    for number in range(messages):
        channels[number % CHANNELS].basic_publish(EXCHANGE, "", BODY % number)
        if number % CHANNELS == CHANNELS - 1:
            # Answered behind what was published before.
            control.queue_declare(name_of(queues - 1), passive=True)
    for number in range(queues):
        while control.queue_declare(name_of(number), passive=True).method.message_count < messages:
            time.sleep(POLL_S)
    connection.close()


def name_of(number: int) -> str:
    return f"revote-{number}"


def damage(data: Path, body: bytes) -> int:
    """Flip a bit of a message wherever it stands in a member's log; return in how many places."""
    count = 0
    for path in (data / "wal").rglob("*.log"):
        image = bytearray(path.read_bytes())
        at = image.find(body)
        while at >= 0:
            image[at] ^= 1
            count += 1
            at = image.find(body, at + 1)
        path.write_bytes(image)
    return count


def gauges(cluster: BrokerdCluster) -> dict[str, float]:
    """What the damaged member says of its groups; nothing while it does not answer."""
    try:
        with urllib.request.urlopen(cluster.metrics_url(VICTIM), timeout=5) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return {}
    return {
        name: float(value)
        for name, _, value in (line.partition(" ") for line in lines)
        if name in ("brokerd_raft_groups", "brokerd_raft_damaged")
    }


def one_round(queues: int, kind: str) -> tuple[float, float]:
    """Return the seconds from the start to ready, and to a vote in all groups."""
    cluster = BrokerdCluster()
    cluster.start()
    try:
        fill(cluster.amqp_ports[0], queues, MESSAGES[kind])
        # A late follower has not seen all that was confirmed.
        time.sleep(2.0)
        cluster.kill(VICTIM)
        places = damage(cluster.data_of(VICTIM), BODY % DAMAGED[kind])
        if places < queues:
            raise BenchError(f"only {places} of {queues} queues had the message on disk")
        began = time.monotonic()
        cluster.start_again(VICTIM)
        ready_s, worst = 0.0, 0.0
        while time.monotonic() < began + TIMEOUT_S:
            if not ready_s and cluster.is_ready(VICTIM):
                ready_s = time.monotonic() - began
            found = gauges(cluster)
            worst = max(worst, found.get("brokerd_raft_damaged", 0.0))
            # One that is made anew is gone for a moment.
            is_whole = found.get("brokerd_raft_groups") == queues + 1
            if ready_s and is_whole and not found.get("brokerd_raft_damaged"):
                vote_s = time.monotonic() - began
                print(f"revote: {worst:.0f} groups were damaged at once", file=sys.stderr)
                return ready_s, vote_s
            time.sleep(POLL_S)
        raise BenchError(f"not whole after {TIMEOUT_S:.0f} s: {gauges(cluster)}")
    finally:
        cluster.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--queues", type=int, default=1)
    parser.add_argument("--damage", choices=sorted(MESSAGES), default="late")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    found: list[tuple[float, float]] = []
    try:
        for number in range(args.rounds):
            found.append(one_round(args.queues, args.damage))
            print(
                f"revote: round {number + 1} of {args.rounds}: ready after {found[-1][0]:.1f} s, "
                f"votes after {found[-1][1]:.1f} s",
                file=sys.stderr,
            )
    except BenchError as error:
        print(f"revote: {error}", file=sys.stderr)
        return 1
    print("| queues | damage | ready, s | votes everywhere, s: median (lowest-highest) |")
    print("|---|---|---|---|")
    ready, votes = ([pair[side] for pair in found] for side in (0, 1))
    print(
        f"| {args.queues} | {args.damage} | {statistics.median(ready):.1f} | "
        f"**{statistics.median(votes):.1f}** ({min(votes):.1f}-{max(votes):.1f}) |"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
