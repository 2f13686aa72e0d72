"""How long a publisher waits when the leader of its queue is killed, brokerd beside RabbitMQ.

    python -m bench.failover [--rounds N] [--only brokerd|rabbitmq] [--queues N]

Per round a cluster of three is started. The queue (quorum, three members) is declared at the first
member, which leads it therefore; the publisher is connected to the second one and sends RATE
messages per second with confirms. In the middle the first member gets SIGKILL. The result is the
longest time between a publish and its confirm: what an application sees of the failure while its
own connection stays. With --queues N the first member leads N idle quorum queues besides, which all
need another leader at the same moment.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

from bench import curves, definitions, load_programs
from bench.processes import BenchError, Cluster

RATE = 500
SECONDS = 12
#: Idle queues per extra second of publishing: all of them elect a leader.
QUEUES_PER_S = 500
#: After many queues were made.
SETTLE_S = 5.0
KILL_AFTER_S = 3.0
QUEUE = "failover"


def one_round(cluster: Cluster, queues: int) -> float:
    """Return the longest wait for a confirm, in seconds."""
    if queues:
        with definitions.queue_definitions("quorum", range(queues)) as file:
            definitions.import_definitions(cluster, file)
        time.sleep(SETTLE_S)
    seconds = SECONDS + queues // QUEUES_PER_S
    load_programs.run_amqpload("publish", cluster.amqp_ports[0], queue=QUEUE, count=1000)
    with load_programs.amqpload_running(
        "publish",
        cluster.amqp_ports[1],
        queue=QUEUE,
        no_declare=True,
        rate=RATE,
        count=RATE * seconds,
        in_flight=1_000_000,
    ) as result_of:
        time.sleep(KILL_AFTER_S)
        cluster.kill(0)
        result = result_of()
    if result["nacked"]:
        print(f"failover: {result['nacked']} publishes were refused", file=sys.stderr)
    return float(result["max_us"]) / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=sorted(curves.CLUSTERS))
    parser.add_argument("--queues", type=int, default=0, help="idle queues that need a leader too")
    args = parser.parse_args()
    waits: dict[str, list[float]] = {}
    try:
        for number in range(args.rounds):
            for side in [args.only] if args.only else sorted(curves.CLUSTERS):
                cluster = curves.CLUSTERS[side](3)
                cluster.start()
                try:
                    waits.setdefault(cluster.title, []).append(one_round(cluster, args.queues))
                finally:
                    cluster.stop()
                print(
                    f"failover: round {number + 1} of {args.rounds}: {cluster.title}: "
                    f"{waits[cluster.title][-1]:.2f} s",
                    file=sys.stderr,
                )
    except BenchError as error:
        print(f"failover: {error}", file=sys.stderr)
        return 1
    print("| broker | longest wait for a confirm, s: median (lowest-highest) |\n|---|---|")
    for title, values in waits.items():
        low, high = min(values), max(values)
        print(f"| {title} | **{statistics.median(values):.2f}** ({low:.2f}-{high:.2f}) |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
