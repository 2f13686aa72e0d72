"""`make demo`: the main job on real input, in the embedded mode, ending with a table of what was
counted.

Starts the clusters of this folder as local processes, applies the resources, sends orders through
them with ordinary AMQP clients, kills and restarts a member, raises and lowers a memory alarm, and
lets Spark count it all again.  Every figure is counted from what was observed; a difference fails.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pika
from brokerd_operator.local.environment import Environment
from brokerd_operator.local.errors import EmbeddedError
from rich.console import Console

from examples.orders import figures
from examples.orders.admin import Admin
from examples.orders.shop import BlockedPublisher, Consumer, Notes, Plan, Publisher, connect, drain

HERE = Path(__file__).resolve().parent
#: Members are back well before this; longer means that something is wrong.
PATIENCE_S = 60.0
STOCK_MESSAGES = 200
BLOCKED_MESSAGES = 50
#: For the consumer that goes on during the alarm.
FILL_MESSAGES = 500
ALARM_S = 3.0


class DemoFailed(Exception):
    """Something was not as it must be; the text says what."""


@dataclass
class Findings:
    """What the steps found out, for the table."""

    plan: Plan
    notes: Notes
    unavailable_s: float = 0.0
    killed: str = ""
    dead: list[dict[str, Any]] = field(default_factory=list)
    dead_ids: list[str] = field(default_factory=list)
    unrouted_ids: list[str] = field(default_factory=list)
    stock: int = 0
    stock_headers: list[dict[str, Any]] = field(default_factory=list)
    blocked_s: float = 0.0
    held_back: int = 0
    consumed_while_blocked: int = 0
    blocked_confirmed: int = 0
    handled_blocked: set[int] = field(default_factory=set)


class Demo:
    """The steps, in order; each says in plain words what it does."""

    def __init__(self, environment: Environment, count: int, console: Console) -> None:
        self._environment = environment
        self._console = console
        self._members = list(environment.clusters["orders"].members)
        self.findings = Findings(Plan(count), Notes())

    def say(self, text: str) -> None:
        """One line of progress."""
        _say(self._console, text)

    async def _wait(self, what: str, check: Any, seconds: float = PATIENCE_S) -> Any:
        deadline = time.monotonic() + seconds
        while True:
            result = await asyncio.to_thread(check)
            if result:
                return result
            if time.monotonic() > deadline:
                raise DemoFailed(f"not within {seconds:.0f} s: {what}")
            await asyncio.sleep(0.1)

    # ---- 1 and 2: orders, and a member that dies ------------------------------------------------

    async def orders(self) -> None:
        """Publish and consume at the same time; kill the queue's leader in the middle."""
        plan, notes = self.findings.plan, self.findings.notes
        ports = [member.amqp_port for member in self._members]
        self.say(
            f"publishing {plan.count:,} orders of 1 KiB with confirms over three members; 1 % have "
            "no route, 0.5 % are poison; two consumers handle them"
        )
        publishers = [
            Publisher(ports[i:] + ports[:i], list(plan.orders())[i::3], plan, notes)
            for i in range(3)
        ]
        consumers = [Consumer(ports[i:] + ports[:i], notes) for i in (1, 2)]
        for thread in (*publishers, *consumers):
            thread.start()
        await self._wait("half of the orders", lambda: len(notes.confirmed) >= plan.count // 2)
        victim = await self._kill_leader()
        await self._wait(
            "three quarters of the orders", lambda: len(notes.confirmed) >= plan.count * 3 // 4
        )
        self.say(f"starting {victim.name} again; it catches up from the others")
        await victim.restart()
        await victim.wait_ready()
        await self._wait(
            "all orders confirmed", lambda: not any(thread.is_alive() for thread in publishers)
        )
        self.say(f"all {len(notes.confirmed):,} orders are confirmed; draining")
        good = {n for n in notes.confirmed if not plan.is_poison(n) and not plan.is_unroutable(n)}
        await self._wait("all good orders handled", lambda: good <= notes.handled_orders())
        admin = Admin(self._members[0].grpc_port)
        await self._wait("the queue is empty", lambda: _is_empty(admin, "orders"))
        for consumer in consumers:
            consumer.stop()
        for consumer in consumers:
            await asyncio.to_thread(consumer.join, 10)

    async def _kill_leader(self) -> Any:
        admins = [Admin(member.grpc_port) for member in self._members]
        leader = (await asyncio.to_thread(admins[0].queue, "orders"))["leader"]
        victim = next(member for member in self._members if member.name == leader)
        self.say(f"killing {leader}, the leader of the queue 'orders', with SIGKILL")
        self.findings.killed = leader
        killed_at = time.monotonic()
        victim.kill(signal.SIGKILL, hold=True)
        confirms = self.findings.notes.confirms

        def after_the_kill() -> float:
            # The first order whose publish began after the kill and was confirmed.
            done = [end for began, end in list(confirms[-3000:]) if began > killed_at]
            return min(done, default=0.0)

        first = await self._wait("publishing goes on without it", after_the_kill)
        self.findings.unavailable_s = first - killed_at
        self.say(f"publishing goes on, {self.findings.unavailable_s:.2f} s after the kill")
        return victim

    async def side_queues(self) -> None:
        """What was dead-lettered and what had no route."""
        port = self._members[0].amqp_port
        plan = self.findings.plan
        poison = sum(1 for order in plan.orders() if plan.is_poison(order))
        admin = Admin(self._members[0].grpc_port)
        await self._wait(
            "all poison orders are dead-lettered",
            lambda: admin.queue("orders.dead")["messages_ready"] >= poison,
        )
        dead = await asyncio.to_thread(drain, port, "orders.dead")
        self.findings.dead, self.findings.dead_ids = dead.headers, dead.ids
        self.findings.unrouted_ids = (await asyncio.to_thread(drain, port, "unrouted")).ids
        self.say(
            f"{len(dead.ids)} poison orders were dead-lettered after four deliveries, "
            f"{len(self.findings.unrouted_ids)} orders without a route came through the alternate "
            "exchange"
        )

    # ---- 3: federation --------------------------------------------------------------------------

    async def federation(self) -> None:
        """Publish at the warehouse, receive at the orders cluster."""
        admin = Admin(self._members[0].grpc_port)
        warehouse = self._environment.clusters["warehouse"].members[0]
        self.say(f"publishing {STOCK_MESSAGES} stock messages at the warehouse's own broker")
        await asyncio.to_thread(_publish_stock, warehouse.amqp_port)
        await self._wait(
            "stock arrives through the federation link",
            lambda: admin.queue("stock")["messages_ready"] >= STOCK_MESSAGES,
        )
        stock = await asyncio.to_thread(drain, self._members[0].amqp_port, "stock")
        self.findings.stock, self.findings.stock_headers = len(stock.ids), stock.headers
        self.say(f"{len(stock.ids)} arrived at the orders cluster, with x-received-from")

    # ---- 4: the memory alarm --------------------------------------------------------------------

    async def alarm(self) -> None:
        """Lower the watermark under what the member uses; publishers stop, consumers go on."""
        member = self._members[0]
        admin = Admin(member.grpc_port)
        await asyncio.to_thread(_fill, member.amqp_port, FILL_MESSAGES)
        # A member that follows counts a confirmed order with its next tick.
        await self._wait(
            "the queue holds what the consumer is to take",
            lambda: admin.queue("orders")["messages_ready"] >= FILL_MESSAGES,
        )
        before = await asyncio.to_thread(admin.queue, "orders")
        self.say(
            "lowering the memory watermark to 1 MiB: every publisher of the cluster is blocked"
        )
        await asyncio.to_thread(admin.set_watermark, "1MiB")
        elsewhere = Admin(self._members[1].grpc_port)
        await self._wait("the other members know of the alarm", elsewhere.alarms, 10)
        publisher = BlockedPublisher(self._members[1].amqp_port, BLOCKED_MESSAGES)
        publisher.start()
        await self._wait("connection.blocked", lambda: publisher.blocked_at, 15)
        consumer = Consumer([self._members[2].amqp_port], Notes())
        consumer.start()
        await asyncio.sleep(ALARM_S)
        during = await asyncio.to_thread(admin.queue, "orders")
        self.findings.held_back = during["counters"]["enq"] - before["counters"]["enq"]
        notes = consumer._notes
        self.findings.consumed_while_blocked = len(notes.handled)
        self.say(
            f"while blocked: {self.findings.held_back} orders entered, "
            f"{self.findings.consumed_while_blocked} were consumed; raising the watermark again"
        )
        await asyncio.to_thread(admin.set_watermark, "")
        await self._wait("connection.unblocked", lambda: publisher.unblocked_at, 15)
        await asyncio.to_thread(publisher.join, 20)
        if publisher.failed is not None:
            raise DemoFailed(f"the blocked publisher failed: {publisher.failed!r}")
        assert publisher.blocked_at is not None
        assert publisher.unblocked_at is not None
        self.findings.blocked_s = publisher.unblocked_at - publisher.blocked_at
        self.findings.blocked_confirmed = publisher.confirmed
        await self._wait("the queue is empty again", lambda: _is_empty(admin, "orders"))
        consumer.stop()
        await asyncio.to_thread(consumer.join, 10)
        self.findings.handled_blocked = notes.handled_orders()
        self.findings.notes.handled.update(notes.handled)
        self.findings.notes.deliveries += notes.deliveries

    # ---- 5 and 6: counting ----------------------------------------------------------------------

    async def count_again(self, out: Path) -> figures.Books:
        """Let Spark count what the members' telemetry says."""
        self.say("the Spark job reads the members' telemetry and makes tables (about 20 s)")
        ports = ",".join(f"127.0.0.1:{member.grpc_port}" for member in self._members)
        command = [
            sys.executable,
            "-m",
            "brokerd_telemetry",
            "run",
            "--cluster",
            "default/orders",
            "--pull",
            ports,
            "--out",
            str(out),
        ]
        process = await asyncio.create_subprocess_exec(*command, env=dict(os.environ))
        if await process.wait() != 0:
            raise DemoFailed(f"the Spark job ended with status {process.returncode}")
        self.say(f"tables in {out / 'gold'}, report in {out / 'publish' / 'report.html'}")
        return await asyncio.to_thread(figures.read_books, out)


def _say(console: Console, text: str) -> None:
    console.print(f"[dim]{time.strftime('%H:%M:%S')}[/dim] {text}")


def _is_empty(admin: Admin, name: str) -> bool:
    row = admin.queue(name)
    return not row["messages"]


def _publish_stock(port: int) -> None:
    connection = connect(port)
    channel = connection.channel()
    channel.confirm_delivery()
    for number in range(STOCK_MESSAGES):
        channel.basic_publish(
            "stock",
            f"item.{number % 10}",
            b"in stock",
            pika.BasicProperties(message_id=f"stock-{number}", delivery_mode=2),
        )
    connection.close()


def _fill(port: int, count: int) -> None:
    """Put orders into the queue, each confirmed."""
    connection = connect(port)
    channel = connection.channel()
    channel.confirm_delivery()
    for number in range(count):
        channel.basic_publish(
            "orders.in",
            "order.fill",
            b"order ".ljust(1024, b"."),
            pika.BasicProperties(message_id=f"{2_000_000 + number}-0", delivery_mode=2),
            mandatory=True,
        )
    connection.close()


async def _run(folder: Path, count: int, console: Console) -> int:
    began = time.monotonic()
    environment = Environment(say=lambda text: _say(console, text))
    async with environment:
        await environment.start(HERE, folder / "data")
        await environment.wait_ready(PATIENCE_S)
        demo = Demo(environment, count, console)
        demo.say(
            "clusters 'orders' (3 members) and 'warehouse' (1 member) are up, all resources Ready"
        )
        await demo.orders()
        await demo.side_queues()
        await demo.federation()
        await demo.alarm()
        books = await demo.count_again(folder / "telemetry")
    rows = figures.rows(demo.findings, books)
    console.print(figures.table(rows))
    failed = [row for row in rows if not row.is_right]
    console.print(f"{time.monotonic() - began:.0f} s in all; everything is below {folder}")
    if failed:
        console.print(f"[bold red]{len(failed)} figures are not what they must be[/bold red]")
        return 1
    console.print("[bold green]every figure is what it must be[/bold green]")
    return 0


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, prog="make demo")
    parser.add_argument("--orders", type=int, default=10_000, help="how many (default 10,000)")
    parser.add_argument("--folder", type=Path, help="where data and tables go (default: a new one)")
    options = parser.parse_args()
    console = Console(soft_wrap=True)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="brokerd-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        status = asyncio.run(_run(folder, options.orders, console))
    except (DemoFailed, EmbeddedError) as error:
        console.print(f"[bold red]the demo failed:[/bold red] {error}")
        console.print(f"the members' logs are below {folder}")
        status = 1
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)


if __name__ == "__main__":
    main()
