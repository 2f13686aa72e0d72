"""Floods of wrong logins and of half-open sockets: who knows a password is served meanwhile.

Addresses of 127.0.0.0/8 stand for different clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import resource
import socket
import threading
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from brokerd.amqp import methods
from brokerd.amqp.values import Table
from brokerd.rpc.v1 import admin_pb2, admin_pb2_grpc
from tests.integration.management.test_metrics import scrape
from tests.integration.members import Member, cluster, eventually
from tests.integration.messages_client import metadata
from tests.integration.raw_client import ANSWER_SECONDS, HEADER, RawClient

pytestmark = pytest.mark.timeout(240)

#: An idle machine needs a tenth of a second, and two where address and user are those of the flood.
PROMPTLY_S = 10.0
#: So many times what a call takes without the flood, on a machine that does much else.
PROMPTLY_TIMES = 50
HERE, OTHER, THIRD = "127.0.0.1", "127.0.0.77", "127.0.0.88"
#: All have their name as password.
USERS = ("till", "office", "stock", "yard", "press", "truck")
WRONG_CALLS = 700
WRONG_CHANNELS = 100
WRONG_CONNECTIONS = 100
HALF_OPEN = 520
NEWCOMERS = 44
MANY = 300


@contextlib.contextmanager
def started(folder: Path, **env: str) -> Iterator[Member]:
    """Run a member with USERS, and with as many sockets as the machine gives, here and there."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    try:
        with cluster(folder, 1, **env) as [member]:
            users = [_user(name) for name in USERS]
            with grpc.insecure_channel(f"{HERE}:{member.grpc_port}") as channel:
                stub: Any = admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]

                def applied() -> bool:
                    # A machine that does much else may take longer than a login has for its check.
                    request = iter([admin_pb2.ApplyRequest(operations=users)])
                    sent = stub.ApplyTopology(request, metadata=metadata(), timeout=ANSWER_SECONDS)
                    try:
                        return bool(list(sent))
                    except grpc.RpcError as error:
                        if error.code() is not grpc.StatusCode.UNAVAILABLE:
                            raise
                        return False

                eventually(applied, "the users are there")
            yield member
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with started(tmp_path_factory.mktemp("floods")) as member:
        yield member


def _user(name: str) -> Any:
    spec = {"password": name, "tags": ["monitoring"]}
    return admin_pb2.Operation(id=name, kind="user", name=name, spec=json.dumps(spec))


class Background:
    """An event loop in a thread, which ends with what runs in it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._tasks: list[Any] = []
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run something and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(ANSWER_SECONDS)

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run something beside the test."""
        self._tasks.append(asyncio.run_coroutine_threadsafe(work, self._loop))

    def close(self) -> None:
        """End it all."""

        async def end() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self.run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def background() -> Iterator[Background]:
    made = Background()
    yield made
    made.close()


async def forwarder(port: int, source: str) -> int:
    """Listen on a port whose connections go on to the member's from another address."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer_of[reader].write(data)

    writer_of: dict[asyncio.StreamReader, asyncio.StreamWriter] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(HERE, port, local_addr=(source, 0))
        writer_of[reader], writer_of[far_reader] = far_writer, writer
        # The end of the test; asyncio would say that it was not handled.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(pass_on(reader, far_writer), pass_on(far_reader, writer))

    server = await asyncio.start_server(serve, HERE, 0)
    found: int = server.sockets[0].getsockname()[1]
    return found


def call(port: int, user: str, password: str) -> tuple[grpc.StatusCode, float]:
    """Make a call over a connection of its own; return its status and how long it took."""
    began = time.monotonic()
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"{HERE}:{port}", options) as channel:
        stub: Any = admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
        try:
            stub.GetInfo(
                admin_pb2.GetInfoRequest(),
                metadata=metadata(user, password),
                timeout=ANSWER_SECONDS,
            )
            status = grpc.StatusCode.OK
        except grpc.RpcError as error:
            status = error.code()
    return status, time.monotonic() - began


async def wrong_calls(port: int, users: tuple[str, ...], refused: list[grpc.StatusCode]) -> None:
    """Keep WRONG_CALLS calls under way, each with another wrong password.

    Over many connections: of one the member checks one password at a time (ADR 18).
    """
    numbers = itertools.count()
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with contextlib.AsyncExitStack() as stack:
        stubs: list[Any] = []
        for _ in range(WRONG_CHANNELS):
            channel = grpc.aio.insecure_channel(f"{HERE}:{port}", options)
            await stack.enter_async_context(channel)
            stubs.append(admin_pb2_grpc.AdminStub(channel))  # type: ignore[no-untyped-call]

        async def one(stub: Any) -> None:
            while True:
                number = next(numbers)
                sent = metadata(users[number % len(users)].format(number), f"wrong-{number}")
                try:
                    await stub.GetInfo(admin_pb2.GetInfoRequest(), metadata=sent)
                except grpc.aio.AioRpcError as error:
                    refused.append(error.code())

        await asyncio.gather(*[one(stubs[i % WRONG_CHANNELS]) for i in range(WRONG_CALLS)])


def test_right_calls_are_answered_during_a_flood_of_wrong_ones(
    member: Member, background: Background
) -> None:
    """SEC-9, SEC-12, SEC-13: the same and other users, the same and other addresses."""
    port = member.grpc_port
    elsewhere = background.run(forwarder(port, OTHER))
    status, quiet_seconds = call(port, "truck", "truck")
    assert status is grpc.StatusCode.OK
    limit_seconds = max(PROMPTLY_S, PROMPTLY_TIMES * quiet_seconds)
    assert call(port, "till", "till")[0] is grpc.StatusCode.OK
    refused: list[grpc.StatusCode] = []
    background.start(wrong_calls(port, ("till", "office", "stock", "nobody-{}"), refused))
    eventually(
        lambda: refused and scrape(member)["brokerd_logins_waiting", ()] > WRONG_CHANNELS / 2,
        "the flood is on",
    )
    who = [
        (port, "till"),  # Known.
        (elsewhere, "office"),  # The flood names it, from another address.
        (port, "yard"),  # Another user of the same address.
        (elsewhere, "press"),  # Nothing in common.
        (port, "stock"),  # The same user from the same address, for the first time.
        (port, "till"),
        (elsewhere, "till"),
    ]
    for where, user in who:
        status, seconds = call(where, user, user)
        assert status is grpc.StatusCode.OK, (user, status, seconds)
        assert seconds < limit_seconds, (user, seconds)
    # The answer is the same for names that exist and for others, and nobody comes in.
    assert set(refused) <= {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE}
    figures = scrape(member)
    assert figures["brokerd_logins_waiting", ()] <= WRONG_CALLS
    assert figures["brokerd_logins_refused_total", ("grpc", "credentials")] > 0


def wrong_login(member: Member, number: int, user: str) -> socket.socket:
    """Send a wrong password, wait for nothing."""
    sock = socket.create_connection((HERE, member.amqp_port), timeout=ANSWER_SECONDS)
    capable: Table = {"capabilities": {"authentication_failure_close": True}}
    response = f"\0{user}\0wrong-{number}".encode()
    sock.sendall(HEADER + methods.ConnectionStartOk(capable, "PLAIN", response, "en_US").encode(0))
    return sock


def dial(member: Member, source: str) -> socket.socket:
    return socket.create_connection(
        (HERE, member.amqp_port), timeout=ANSWER_SECONDS, source_address=(source, 0)
    )


def login(member: Member, source: str, user: str) -> None:
    """Log in and send start-ok; there is no permission, so that is as far as it goes."""
    capable: Table = {"capabilities": {"authentication_failure_close": True}}
    with contextlib.closing(RawClient.at_the_door(dial(member, source))) as raw:
        raw.expect(methods.ConnectionStart)
        response = f"\0{user}\0{user}".encode()
        raw.send(0, methods.ConnectionStartOk(capable, "PLAIN", response, "en_US"))
        raw.expect(methods.ConnectionTune)


def test_a_right_login_over_amqp_is_in_time_among_a_hundred_wrong_ones(tmp_path: Path) -> None:
    """SEC-12, SEC-32: within the ten seconds of the handshake, wherever the others come from."""
    with contextlib.ExitStack() as stack:
        # A check costs as much as the default does on a machine with much else to do.
        member = stack.enter_context(started(tmp_path, BROKERD_AUTH_SCRYPT_LOG2_N="17"))
        for number in range(WRONG_CONNECTIONS):
            sock = wrong_login(member, number, ("truck", "nobody")[number % 2])
            stack.enter_context(sock)
        for source, user in ((HERE, "truck"), (OTHER, "truck"), (HERE, "guest"), (THIRD, "till")):
            began = time.monotonic()
            login(member, source, user)
            assert time.monotonic() - began < PROMPTLY_S, (source, user)


def test_half_open_sockets_of_two_addresses_keep_nobody_out(member: Member) -> None:
    """SEC-34: those that stand there longest make room, for their own address too."""
    with contextlib.ExitStack() as stack:
        for source in (OTHER, THIRD):
            for _ in range(HALF_OPEN):
                stack.enter_context(dial(member, source)).sendall(HEADER)
        for number in range(NEWCOMERS):
            login(member, (HERE, "127.0.0.99", OTHER, THIRD)[number % 4], "till")
        assert scrape(member)["brokerd_connections_displaced_total", ()] >= 2 * HALF_OPEN - 1000


def test_each_refused_login_counts_and_floods_are_not_logged_line_by_line(member: Member) -> None:
    """A line and a figure for each port; after floods the lines are as many as seconds."""
    before = scrape(member)
    capable: Table = {"capabilities": {"authentication_failure_close": True}}
    with contextlib.closing(RawClient.at_the_door(dial(member, HERE))) as raw:
        raw.expect(methods.ConnectionStart)
        response = b"\0till\r\n12:00:00 [INFO] all is well\0wrong"
        raw.send(0, methods.ConnectionStartOk(capable, "PLAIN", response, "en_US"))
        assert raw.expect(methods.ConnectionClose).reply_code == 403
    # Somebody who does not wait for the answer counts as well.
    wrong_login(member, 0, "truck").close()
    assert call(member.grpc_port, "nobody", "wrong")[0] is not grpc.StatusCode.OK
    with grpc.insecure_channel(f"{HERE}:{member.grpc_port}") as channel:
        stub: Any = admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
        strangers = [stub.GetInfo.future(admin_pb2.GetInfoRequest()) for _ in range(MANY)]
        codes = {one.exception(ANSWER_SECONDS).code() for one in strangers}
    assert codes == {grpc.StatusCode.UNAUTHENTICATED}
    name = "brokerd_logins_refused_total"
    for listener, reason in (
        ("amqp", "credentials"),
        ("amqp", "abandoned"),
        ("grpc", "credentials"),
        ("grpc", "unreadable"),
    ):
        key = name, (listener, reason)
        eventually(lambda key=key: scrape(member)[key] > before[key], f"{listener}: {reason}")
    after = scrape(member)
    log = member.log()
    refused = sum(value for (family, _), value in after.items() if family == name)
    lines = log.count("refused login of user")
    assert lines >= 1
    assert refused > MANY
    assert lines < refused / 2
    assert not [line for line in log.splitlines() if line.startswith("12:00:00 [INFO] all")]
    eventually(lambda: "refused logins more than the log shows" in member.log(), "they are counted")
