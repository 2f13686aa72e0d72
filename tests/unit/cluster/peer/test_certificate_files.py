"""Certificates that change under a running listener (SEC-5)."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from brokerd.cluster.config import TlsFiles
from brokerd.cluster.peer.certificate_files import CertificateFiles
from brokerd.config import TlsConfig
from brokerd.server.access.tls_listener import listener_context
from tests.authorities import Authority, Mounted

RUNNERS: list[Callable[[Any], None]] = [asyncio.run, uvloop.run]


@pytest.fixture
def mounted(tmp_path: Path) -> Mounted:
    return Mounted(tmp_path / "tls")


def files_of(mounted: Mounted) -> TlsFiles:
    return TlsFiles(mounted.path("tls.crt"), mounted.path("tls.key"), mounted.path("ca.crt"))


def loads(files: TlsFiles) -> bytes:
    """What a test can compare; load_cert_chain refuses what cannot be used."""
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files.certificate, files.key)
    return Path(files.certificate).read_bytes()


def test_new_files_are_loaded_and_unchanged_ones_are_not(mounted: Mounted) -> None:
    """SEC-5."""
    authority = Authority()
    first, second = authority.issue("localhost"), authority.issue("localhost", seconds=7200)
    mounted.swap_pair(first, authority.certificate)
    count = 0

    def counted(files: TlsFiles) -> bytes:
        nonlocal count
        count += 1
        return loads(files)

    found = CertificateFiles("peer", files_of(mounted), counted)
    assert [found.current(), found.current(), count] == [first.certificate, first.certificate, 1]
    before = found.expires_s()
    mounted.swap_pair(second, authority.certificate)
    assert [found.current(), found.current(), count] == [second.certificate, second.certificate, 2]
    after = found.expires_s()
    assert before is not None
    assert after is not None
    assert 3500 < after - before < 3700


def test_files_that_are_no_good_leave_the_old_in_force_and_are_told_once(
    mounted: Mounted, caplog: pytest.LogCaptureFixture
) -> None:
    """SEC-5: a rotation that is half done."""
    authority = Authority()
    good, other = authority.issue("localhost"), authority.issue("localhost")
    mounted.swap_pair(good, authority.certificate)
    found = CertificateFiles("amqps", files_of(mounted), loads)
    assert found.current() == good.certificate
    caplog.set_level(logging.WARNING)
    for bad in (
        {"tls_crt": other.certificate, "tls_key": good.key},
        {"tls_crt": other.certificate[:100], "tls_key": other.key},
        {"tls_crt": b"", "tls_key": b""},
        {"tls_crt": b"\xff\x00 nonsense", "tls_key": other.key},
    ):
        caplog.clear()
        mounted.swap(**bad, ca_crt=authority.certificate)
        assert [found.current() for _ in range(3)] == [good.certificate] * 3
        assert found.problem
        assert len(caplog.records) == 1
        assert found.expires_s() is not None
    (mounted.folder / "..data").unlink()
    assert found.current() == good.certificate
    assert found.problem
    # Put right.
    mounted.swap_pair(other, authority.certificate)
    assert found.current() == other.certificate
    assert not found.problem


def test_a_first_pair_that_is_no_good_is_an_error(mounted: Mounted) -> None:
    found = CertificateFiles("peer", files_of(mounted), loads)
    with pytest.raises(OSError, match="No such file"):
        found.current()
    assert found.expires_s() is None
    authority = Authority()
    pair = authority.issue("localhost")
    mounted.swap_pair(pair, authority.certificate)
    assert found.current() == pair.certificate


def test_a_listener_needs_files_that_can_be_used(mounted: Mounted) -> None:
    mounted.swap(tls_crt=b"nonsense")
    with pytest.raises(OSError, match=r"cannot use the certificate .*tls\.crt"):
        listener_context("amqps", TlsConfig(cert_file=mounted.path("tls.crt")))


@pytest.mark.parametrize("run", RUNNERS, ids=["asyncio", "uvloop"])
def test_a_listening_socket_shows_new_certificates_and_asks_new_authorities(
    run: Callable[[Any], None], mounted: Mounted
) -> None:
    """SEC-5: an authority that left the bundle is trusted no more; standing connections stay."""
    old, new = Authority(), Authority()
    mounted.swap_pair(old.issue("localhost"), old.certificate)
    mine = Mounted(mounted.folder.parent / "client")
    config = TlsConfig(cert_file=mounted.path("tls.crt"), key_file=mounted.path("tls.key"))

    async def serve() -> None:
        context = listener_context("amqps", config, mounted.path("ca.crt"), ["h2"])
        loop = asyncio.get_running_loop()
        server = await loop.create_server(_Namer, "127.0.0.1", 0, ssl=context)
        try:
            await asyncio.to_thread(_rotate, server.sockets[0].getsockname()[1])
        finally:
            server.close()
            await server.wait_closed()

    def _rotate(port: int) -> None:
        mine.swap_pair(old.issue("me"), old.certificate)
        with _connect(port, mine) as standing:
            assert _name(standing) == b"me"
            mounted.swap_pair(new.issue("localhost"), new.certificate)
            with pytest.raises(ssl.SSLCertVerificationError):
                _connect(port, mine)
            # The server's certificate is trusted now, the client's is of the authority that left.
            mine.swap_pair(old.issue("me"), new.certificate)
            with _connect(port, mine) as refused, pytest.raises((ssl.SSLError, ConnectionError)):
                _name(refused)
            mine.swap_pair(new.issue("me"), new.certificate)
            with _connect(port, mine) as fresh:
                assert _name(fresh) == b"me"
                assert fresh.selected_alpn_protocol() == "h2"
            assert _name(standing) == b"me"

    run(serve())


class _Namer(asyncio.Protocol):
    """Says the name in the client's certificate for whatever it reads."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        certificate = self._transport.get_extra_info("ssl_object").getpeercert()
        name = "".join(value for _, value in certificate.get("subjectAltName", ()))
        self._transport.write(f"{name}\n".encode())


def _connect(port: int, mine: Mounted) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=mine.path("ca.crt"))
    context.load_cert_chain(mine.path("tls.crt"), mine.path("tls.key"))
    context.set_alpn_protocols(["h2"])
    plain = socket.create_connection(("127.0.0.1", port), timeout=60)
    try:
        return context.wrap_socket(plain, server_hostname="localhost")
    except ssl.SSLError:
        plain.close()
        raise


def _name(connection: ssl.SSLSocket) -> bytes:
    connection.sendall(b"who am I?")
    answer = connection.recv(100)
    if not answer:
        raise ConnectionError("closed")
    return answer.strip()
