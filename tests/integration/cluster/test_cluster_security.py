"""Who is let into a cluster and who is not: secrets, cluster ids, names, certificates."""

from __future__ import annotations

import asyncio
import base64
import datetime
import logging
from pathlib import Path

import grpc
import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from brokerd.cluster.config import HostConfig, TlsFiles
from brokerd.cluster.peer import grpc_messages
from brokerd.raft.messages import NodeId
from brokerd.rpc.v1 import peer_pb2
from tests.integration.cluster_toy import Member, toy_config, until

pytestmark = pytest.mark.timeout(240)

A, B = NodeId("a"), NodeId("b")
UID = 77


class Authority:
    """A certificate authority for the length of a test."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name(
            [x509.NameAttribute(NameOID.COMMON_NAME, f"authority {directory.name}")]
        )
        certificate = self._build(self._name, self._key, is_authority=True)
        self._write("ca.pem", certificate.public_bytes(serialization.Encoding.PEM))

    def _build(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_authority: bool = False
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        common_name = str(name.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(common_name)]), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def _write(self, name: str, data: bytes) -> str:
        path = self.directory / name
        path.write_bytes(data)
        return str(path)

    def issue(self, name: str, san: str | None = None) -> TlsFiles:
        """Write a certificate for `name` (with another name in it, if asked for)."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, san or name)])
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        certificate = self._build(subject, key).public_bytes(serialization.Encoding.PEM)
        return TlsFiles(
            self._write(f"{name}.pem", certificate),
            self._write(f"{name}.key", private),
            str(self.directory / "ca.pem"),
        )


async def pair(directory: Path, a_config: HostConfig, b_config: HostConfig) -> list[Member]:
    """Start two members that know each other's addresses."""
    members = [Member("a", directory / "a", a_config, 1), Member("b", directory / "b", b_config, 2)]
    for member in members:
        await member.host.start({}, "127.0.0.1:0")
    addresses = {member.node: f"127.0.0.1:{member.host.port}" for member in members}
    for member in members:
        await member.host.set_peers(addresses)
    return members


async def works(members: list[Member]) -> bool:
    """Tell whether the two can commit something together."""
    for member in members:
        member.open_group(UID, ["a", "b"])
    return await members[0].client.request(UID, b"x=1", 60) == b"1"


async def stays_apart(members: list[Member]) -> bool:
    """Watch for a while that no stream comes to stand in either direction."""
    with pytest.raises(AssertionError):
        await until(lambda: any(len(member.host.alive()) > 1 for member in members), 0.7)
    return not any(member.host.transport.is_connected(A) for member in members) and not any(
        member.host.transport.is_connected(B) for member in members
    )


async def close(members: list[Member]) -> None:
    for member in members:
        await member.close()


async def test_members_with_the_same_secret_talk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And it is never logged, neither as it is nor as it travels (SEC-20)."""
    caplog.set_level(logging.DEBUG)
    members = await pair(tmp_path, toy_config(secret="verysecret"), toy_config(secret="verysecret"))
    assert await works(members)
    await close(members)
    assert "stream to peer stands" in caplog.text
    assert "verysecret" not in caplog.text
    assert base64.b64encode(b"verysecret").decode().rstrip("=") not in caplog.text


async def test_wrong_secret_is_refused(tmp_path: Path) -> None:
    members = await pair(tmp_path, toy_config(secret="one"), toy_config(secret="two"))
    assert await stays_apart(members)
    await close(members)


async def test_other_cluster_is_refused(tmp_path: Path) -> None:
    """SEC-4."""
    members = await pair(tmp_path, toy_config(), toy_config(cluster_id="other"))
    assert await stays_apart(members)
    await close(members)


async def test_members_with_certificates_of_their_names_talk(tmp_path: Path) -> None:
    """SEC-3, SEC-4; and new files count without a restart (SEC-5)."""
    authority = Authority(tmp_path / "tls")
    members = await pair(
        tmp_path,
        toy_config(tls=authority.issue("a")),
        toy_config(tls=authority.issue("b")),
    )
    assert await works(members)
    authority.issue("a")
    authority.issue("b")
    members[0].host.transport.break_off(B)
    await until(lambda: not members[0].host.transport.is_connected(B))
    await until(lambda: members[0].host.transport.is_connected(B))
    await close(members)


async def test_certificate_of_another_name_is_refused_by_both_ends(tmp_path: Path) -> None:
    """SEC-4: not by CA alone."""
    authority = Authority(tmp_path / "tls")
    members = await pair(
        tmp_path,
        toy_config(tls=authority.issue("a", "somebody-else")),
        toy_config(tls=authority.issue("b", "anybody")),
    )
    assert await stays_apart(members)
    await close(members)


async def test_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    """SEC-3."""
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    members = await pair(
        tmp_path, toy_config(tls=ours.issue("a")), toy_config(tls=theirs.issue("b"))
    )
    assert await stays_apart(members)
    await close(members)


async def exchange(port: int, *frames: bytes) -> grpc.StatusCode:
    """Send frames as a stranger would; return how the stream ended."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.stream_stream(grpc_messages.METHOD)()
        try:
            for frame in frames:
                await call.write(frame)
            await call.done_writing()
            while await call.read() is not grpc.aio.EOF:
                continue
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass
        return await call.code()


async def test_bad_frames_end_their_stream_and_nothing_else(tmp_path: Path) -> None:
    """Every input can be wrong: no hello, strangers, wrong versions, garbage, huge frames."""
    members = await pair(tmp_path, toy_config(), toy_config())
    assert await works(members)
    port = members[0].host.port
    codes = grpc.StatusCode

    def hello(**changes: object) -> bytes:
        fields = {"cluster_id": "toy", "node": "b", "incarnation": 9, "protocol_version": 1}
        return peer_pb2.PeerFrame(hello=peer_pb2.Hello(**{**fields, **changes})).SerializeToString()

    nonsense = peer_pb2.PeerFrame(raft=[peer_pb2.RaftMessage(kind=99)]).SerializeToString()
    assert await exchange(port, b"") == codes.INVALID_ARGUMENT
    assert await exchange(port, nonsense) == codes.INVALID_ARGUMENT
    assert await exchange(port, hello(node="stranger")) == codes.FAILED_PRECONDITION
    assert await exchange(port, hello(node="a")) == codes.FAILED_PRECONDITION
    assert await exchange(port, hello(protocol_version=2)) == codes.FAILED_PRECONDITION
    assert await exchange(port, hello(cluster_id="x")) == codes.PERMISSION_DENIED
    assert await exchange(port, b"\xff" * 10) is not codes.OK
    assert await exchange(port, hello(), nonsense) == codes.INVALID_ARGUMENT
    members[1].host.transport.break_off(A)
    assert await members[1].client.request(UID, b"y=1", 60) == b"2"
    await close(members)


async def test_frame_over_the_receive_limit_is_refused(tmp_path: Path) -> None:
    """SEC-47; before the hello the limit is narrower."""
    config = toy_config()
    config.transport.receive_bytes_max = 10_000
    config.transport.hello_bytes_max = 1_000
    members = await pair(tmp_path, config, toy_config())
    port = members[0].host.port
    exhausted = grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await exchange(port, bytes(1_001)) is exhausted
    fields = {"cluster_id": "toy", "node": "b", "incarnation": 9, "protocol_version": 1}
    hello = peer_pb2.PeerFrame(hello=peer_pb2.Hello(**fields)).SerializeToString()
    assert await exchange(port, hello, bytes(10_001)) is exhausted
    await close(members)


def test_cluster_works_under_uvloop(tmp_path: Path) -> None:
    async def run() -> bool:
        members = await pair(tmp_path, toy_config(), toy_config())
        try:
            return await works(members)
        finally:
            await close(members)

    assert uvloop.run(run())
