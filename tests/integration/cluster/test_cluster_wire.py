"""Peer streams on the wire: gRPC's own client and server at the other end, and hostile sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from brokerd.cluster.config import HostConfig, TlsFiles
from brokerd.cluster.peer import frames, grpc_messages
from brokerd.http2 import framing, one_stream
from brokerd.raft.messages import NodeId
from brokerd.rpc.v1 import peer_pb2, peer_pb2_grpc
from tests.integration.cluster.test_cluster_security import Authority
from tests.integration.cluster_toy import Member, toy_config, until

pytestmark = pytest.mark.timeout(240)

A, B = NodeId("a"), NodeId("b")
SECRET = "shown"
MIB = 1024 * 1024


def files_config(files: TlsFiles | None, **limits: Any) -> HostConfig:
    config = toy_config(secret=SECRET, tls=files)
    for name, value in limits.items():
        assert hasattr(config.transport, name)
        setattr(config.transport, name, value)
    return config


def hello(node: str) -> peer_pb2.PeerFrame:
    return peer_pb2.PeerFrame.FromString(frames.encode_hello(NodeId(node), 9, "toy"))


def delivery(number: int, size: int) -> peer_pb2.PeerFrame:
    payload = number.to_bytes(4, "big") + bytes(size)
    return peer_pb2.PeerFrame(deliveries=[peer_pb2.Delivery(group=7, payload=payload)])


def pem(files: TlsFiles) -> tuple[bytes, bytes, bytes]:
    return (
        Path(files.ca).read_bytes(),
        Path(files.key).read_bytes(),
        Path(files.certificate).read_bytes(),
    )


def tls_files(directory: Path, with_tls: bool) -> tuple[TlsFiles | None, TlsFiles | None]:
    if not with_tls:
        return None, None
    authority = Authority(directory / "tls")
    return authority.issue("a"), authority.issue("b")


# ---- the other end is gRPC's --------------------------------------------------------------------


@pytest.mark.parametrize("with_tls", [False, True])
async def test_grpc_client_talks_to_a_member(tmp_path: Path, with_tls: bool) -> None:
    """Hello, small frames and frames over every window come through in order."""
    ours, theirs = tls_files(tmp_path, with_tls)
    member = Member("a", tmp_path / "a", files_config(ours), 1)
    await member.host.start({B: "127.0.0.1:1"}, "127.0.0.1:0")
    address = f"127.0.0.1:{member.host.port}"
    if theirs is None:
        channel = grpc.aio.insecure_channel(address)
    else:
        credentials = grpc.ssl_channel_credentials(*pem(theirs))
        options = [("grpc.ssl_target_name_override", "a")]
        channel = grpc.aio.secure_channel(address, credentials, options=options)
    metadata = (("brokerd-cluster-secret-bin", SECRET.encode()),)
    async with asyncio.timeout(120), channel:
        stub = peer_pb2_grpc.PeerStub(channel)  # type: ignore[no-untyped-call]
        call = stub.Exchange(metadata=metadata)
        await call.write(hello("b"))
        answer = await call.read()
        assert (answer.hello.node, answer.hello.cluster_id) == ("a", "toy")
        sizes = [10] * 300 + [5 * MIB] * 4 + [300_000] * 20
        for number, size in enumerate(sizes):
            await call.write(delivery(number, size))
        await until(lambda: len(member.events.deliveries) == len(sizes))
        payloads = [found[4] for found in member.events.deliveries]
        assert [int.from_bytes(p[:4], "big") for p in payloads] == list(range(len(sizes)))
        assert [len(p) - 4 for p in payloads] == sizes
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
    await member.close()


class Listener(peer_pb2_grpc.PeerServicer):
    """Peer/Exchange as gRPC serves it."""

    def __init__(self) -> None:
        self.metadata: dict[str, Any] = {}
        self.hello = peer_pb2.Hello()
        self.deliveries: list[bytes] = []
        self.may_read = asyncio.Event()
        self.may_read.set()

    async def Exchange(
        self,
        request_iterator: AsyncIterator[peer_pb2.PeerFrame],
        context: grpc.aio.ServicerContext[peer_pb2.PeerFrame, peer_pb2.PeerFrame],
    ) -> None:
        self.metadata = dict(context.invocation_metadata() or ())
        first: Any = await context.read()
        self.hello = first.hello
        await context.write(hello("b"))
        while True:
            await self.may_read.wait()
            frame: Any = await context.read()
            if frame is grpc.aio.EOF:
                return
            self.deliveries += [each.payload for each in frame.deliveries]


async def listen(files: TlsFiles | None) -> tuple[grpc.aio.Server, Listener, str]:
    listener = Listener()
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 132 * MIB)])
    peer_pb2_grpc.add_PeerServicer_to_server(listener, server)  # type: ignore[no-untyped-call]
    if files is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        ca, key, certificate = pem(files)
        credentials = grpc.ssl_server_credentials([(key, certificate)], ca, True)
        port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    return server, listener, f"127.0.0.1:{port}"


@pytest.mark.parametrize("with_tls", [False, True])
async def test_member_talks_to_a_grpc_server(tmp_path: Path, with_tls: bool) -> None:
    """As to a member of the last release."""
    ours, theirs = tls_files(tmp_path, with_tls)
    server, listener, address = await listen(theirs)
    config = files_config(ours)
    # It says nothing, as a member would.
    config.suspicion_ms = 600_000
    member = Member("a", tmp_path / "a", config, 1)
    await member.host.start({B: address}, "127.0.0.1:0")
    await until(lambda: member.host.transport.is_connected(B))
    assert listener.hello.node == "a"
    assert listener.metadata["brokerd-cluster-secret-bin"] == SECRET.encode()
    sizes = [10] * 300 + [5 * MIB] * 4 + [300_000] * 20
    for number, size in enumerate(sizes):
        payload = number.to_bytes(4, "big") + bytes(size)
        member.host.send_delivery(B, 7, 1, 0, payload)
    await until(lambda: len(listener.deliveries) == len(sizes))
    assert [int.from_bytes(p[:4], "big") for p in listener.deliveries] == list(range(len(sizes)))
    assert [len(p) - 4 for p in listener.deliveries] == sizes
    await server.stop(None)
    await server.wait_for_termination()
    await until(lambda: not member.host.transport.is_connected(B))
    await member.close()


# ---- a peer that does not read ------------------------------------------------------------------


async def test_peer_that_does_not_read_holds_no_more_than_its_budget(tmp_path: Path) -> None:
    """design/hot-path.md rule 7: requests are refused over the outbox's bytes, the rest breaks the
    stream.
    """
    server, listener, address = await listen(None)
    config = files_config(None, outbox_bytes=4 * MIB, outbox_bytes_max=8 * MIB)
    config.suspicion_ms = 600_000
    member = Member("a", tmp_path / "a", config, 1)
    await member.host.start({B: address}, "127.0.0.1:0")
    transport = member.host.transport
    await until(lambda: transport.is_connected(B))
    listener.may_read.clear()
    command, taken = bytes(256 * 1024), 0
    while member.host.send_request(B, taken + 1, 7, command):
        taken += 1
        assert taken < 1000, "nothing held it back"
        await asyncio.sleep(0)
    # What may be on the way (window, sockets) and what waits; gRPC's window grows to some MiB.
    assert taken * len(command) < 100 * MIB
    # It reads again: there is room again.
    listener.may_read.set()
    await until(lambda: member.host.send_request(B, taken + 1, 7, command))
    await until(lambda: transport.is_connected(B))
    # What may not be dropped singly breaks the stream instead.
    listener.may_read.clear()
    for _ in range(500):
        member.host.send_delivery(B, 7, 1, 0, command)
    await until(lambda: not transport.is_connected(B))
    listener.may_read.set()
    await until(lambda: transport.is_connected(B))
    await member.close()
    await server.stop(None)
    await server.wait_for_termination()


# ---- hostile sockets ----------------------------------------------------------------------------


async def serve(directory: Path, **limits: Any) -> list[Member]:
    """Two members that talk to each other; the first is attacked."""
    members = [Member(name, directory / name, files_config(None, **limits), 1) for name in "ab"]
    for member in members:
        await member.host.start({}, "127.0.0.1:0")
    addresses = {member.node: f"127.0.0.1:{member.host.port}" for member in members}
    for member in members:
        await member.host.set_peers(addresses)
        member.open_group(7, ["a", "b"])
    await until(lambda: are_connected(members))
    assert await members[1].client.request(7, b"x=1", 60) == b"1"
    return members


def are_connected(members: list[Member]) -> bool:
    first, second = (member.host for member in members)
    return first.transport.is_connected(second.node) and second.transport.is_connected(first.node)


async def still_work(members: list[Member], count: int) -> None:
    """The others are served as if nothing had been."""
    assert await members[1].client.request(7, b"y=1", 60) == b"%d" % count
    await until(lambda: are_connected(members))
    for member in members:
        await member.close()


async def attack(port: int, data: bytes) -> bytes:
    """Send bytes and return all that comes back before the member closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = b""
    async with asyncio.timeout(60):
        try:
            writer.write(data)
            while piece := await reader.read(65_536):
                found += piece
        except ConnectionError:
            # It closed before it had read everything.
            pass
    writer.close()
    return found


def goaway_code(answer: bytes) -> int | None:
    """The code of the last frame, if it is GOAWAY."""
    code = None
    while len(answer) >= 9:
        size = int.from_bytes(answer[:3], "big")
        if answer[3] == framing.GOAWAY:
            code = int.from_bytes(answer[13:17], "big")
        answer = answer[9 + size :]
    return code


OPENING = framing.PREFACE + framing.settings_frame([])


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", framing.PROTOCOL_ERROR),
        (os.urandom(1) + bytes(100_000), framing.PROTOCOL_ERROR),
        (OPENING + framing.frame(framing.PING, 0, 0, bytes(8)) * 10_000, framing.ENHANCE_YOUR_CALM),
        (
            OPENING
            + framing.frame(framing.HEADERS, 0, 1)
            + framing.frame(9, 0, 1, bytes(8_000)) * 100,
            framing.ENHANCE_YOUR_CALM,
        ),
    ],
)
async def test_hostile_bytes_end_their_connection_only(
    tmp_path: Path, data: bytes, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    members = await serve(tmp_path)
    for _ in range(3):
        assert goaway_code(await attack(members[0].host.port, data)) in (code, None)
    complaints = [r for r in caplog.records if "refused a peer stream" in r.getMessage()]
    assert len(complaints) <= 1, "each reason is logged once"
    await still_work(members, 2)


async def test_who_does_not_introduce_himself_is_cut_off(tmp_path: Path) -> None:
    """SEC-32: nothing at all, a crawl, a call without a hello."""
    members = await serve(tmp_path, hello_timeout_s=2.0)
    client = one_stream.Http2Connection(is_client=True)
    client.send_headers(
        grpc_messages.request_headers("http", "x", [("brokerd-cluster-secret-bin", b"shown")])
    )
    call = b"".join(client.data_to_send())
    await asyncio.gather(*(attack(members[0].host.port, data) for data in (b"", OPENING, call)))
    await still_work(members, 2)


async def test_unauthenticated_are_few_and_members_come_in_all_the_same(tmp_path: Path) -> None:
    """SEC-34: the oldest of a crowd make room, and a member comes in while the crowd is there."""
    # Nobody is cut off for his silence.
    members = await serve(tmp_path, unauthenticated_per_address_max=5, hello_timeout_s=600.0)
    port = members[0].host.port
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    try:
        for each in sockets:
            each.setblocking(False)
        loop, cut = asyncio.get_running_loop(), 0
        for each in sockets[:15]:
            async with asyncio.timeout(60):
                # The member says nothing before it has heard something: its settings aside.
                while True:
                    try:
                        if not await loop.sock_recv(each, 1024):
                            break
                    except ConnectionError:
                        break
            cut += 1
        assert cut == 15
        members[1].host.transport.break_off(A)
        await until(lambda: not members[1].host.transport.is_connected(A))
        await until(lambda: members[1].host.transport.is_connected(A))
        await still_work(members, 2)
    finally:
        for each in sockets:
            each.close()


# ---- certificates -------------------------------------------------------------------------------


async def tls_pair(a: TlsFiles, b: TlsFiles, directory: Path, **limits: Any) -> list[Member]:
    members = [
        Member(name, directory / name, files_config(files, **limits), 1)
        for name, files in (("a", a), ("b", b))
    ]
    for member in members:
        await member.host.start({}, "127.0.0.1:0")
    addresses = {member.node: f"127.0.0.1:{member.host.port}" for member in members}
    for member in members:
        await member.host.set_peers(addresses)
    await until(lambda: all(len(member.host.alive()) == 2 for member in members))
    return members


def put_together(target: str, *sources: str) -> None:
    """Replace a file by the contents of others, itself among them perhaps."""
    Path(target).write_bytes(b"".join([Path(source).read_bytes() for source in sources]))


async def test_authority_is_replaced_while_members_run(tmp_path: Path) -> None:
    """SEC-5: both authorities for a while, then new certificates, then only the new authority."""
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    a, b = old.issue("a"), old.issue("b")
    new_ca = new.issue("x").ca
    members = await tls_pair(a, b, tmp_path)
    transport = members[0].host.transport

    async def again() -> None:
        transport.break_off(B)
        await until(lambda: not transport.is_connected(B))
        await until(lambda: transport.is_connected(B))

    put_together(a.ca, a.ca, new_ca)
    await again()
    for name, files in (("a", a), ("b", b)):
        renewed = new.issue(name)
        put_together(files.key, renewed.key)
        # Half done: the key is new, the certificate is not; the last good pair goes on.
        await again()
        put_together(files.certificate, renewed.certificate)
        await again()
    put_together(a.ca, new_ca)
    await again()
    # The old authority counts for nothing now.
    port = members[0].host.port
    assert not await handshake(port, old.issue("b"))
    assert await handshake(port, new.issue("b"))
    for member in members:
        await member.close()


async def handshake(port: int, files: TlsFiles | None, *, alpn: str = "h2") -> bool:
    """Tell whether a member lets somebody with these files in, as far as TLS is concerned."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([alpn])
    if files is not None:
        context.load_cert_chain(files.certificate, files.key)
    async with asyncio.timeout(60):
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.write(OPENING)
            # TLS 1.3 tells a client of a bad certificate with the first read.
            found = await reader.read(9)
        except OSError:
            return False
        writer.transport.abort()
    return bool(found)


async def test_who_never_ends_its_tls_handshake_makes_room(tmp_path: Path) -> None:
    """SEC-33, SEC-34: a crowd of them keeps no member out, and leaves no descriptors behind."""
    authority = Authority(tmp_path / "tls")
    a, b = authority.issue("a"), authority.issue("b")
    members = await tls_pair(a, b, tmp_path, unauthenticated_per_address_max=5, tls_timeout_s=600.0)
    before = len(os.listdir("/proc/self/fd"))
    loop = asyncio.get_running_loop()
    sockets = [socket.socket() for _ in range(40)]
    for each in sockets:
        each.setblocking(False)
        await loop.sock_connect(each, ("127.0.0.1", members[0].host.port))
    members[1].host.transport.break_off(A)
    await until(lambda: not members[1].host.transport.is_connected(A))
    await until(lambda: members[1].host.transport.is_connected(A))
    # Ours, and the few that are kept.
    await until(lambda: len(os.listdir("/proc/self/fd")) <= before + 40 + 5)
    for each in sockets:
        each.close()
    await until(lambda: len(os.listdir("/proc/self/fd")) <= before)
    for member in members:
        await member.close()


async def test_tls_without_certificate_or_without_h2_is_refused(tmp_path: Path) -> None:
    """SEC-3; and who is silent in the handshake is cut off (SEC-33)."""
    authority = Authority(tmp_path / "tls")
    a, b = authority.issue("a"), authority.issue("b")
    members = await tls_pair(a, b, tmp_path, tls_timeout_s=3.0, dial_timeout_s=10.0)
    port = members[0].host.port
    assert await handshake(port, b)
    assert not await handshake(port, None)
    assert not await handshake(port, b, alpn="http/1.1")
    # `attack` waits for the end, and not for ever.
    assert await attack(port, b"") == b""
    for member in members:
        await member.close()
