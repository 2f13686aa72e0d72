"""The AMQP client against a scripted server that speaks through the amqp room's server role."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from brokerd.amqp import events, methods
from brokerd.amqp.connection import AmqpConnection
from brokerd.federation import client, upstream
from brokerd.federation.client import PIPELINE_MAX, Channel, Connection
from brokerd.federation.errors import ChannelClosed, ConnectionLost, UpstreamError
from tests.authorities import Authority
from tests.unit.federation.scripted_server import Script, polite, serving


async def connect(port: int, query: str = "") -> Connection:
    return await Connection.open(
        upstream.parse_uri(f"amqp://u:secret@127.0.0.1:{port}{query}"), "/", "a test"
    )


@asynccontextmanager
async def channel_to(script: Script) -> AsyncIterator[tuple[Connection, Channel]]:
    async with serving(script) as port:
        connection = await connect(port)
        try:
            yield connection, await connection.open_channel()
        finally:
            await connection.close()


async def test_a_connection_opens_calls_and_closes() -> None:
    async with channel_to(polite) as (connection, channel):
        assert connection.machine.server_properties["cluster_name"] == "far"
        assert connection.local_name.startswith("127.0.0.1:")
        answer = await channel.call(methods.QueueDeclare(queue="q"))
        assert isinstance(answer, methods.QueueDeclareOk)
        assert answer.queue == "q"
        await channel.close()
        await connection.close()
        assert connection.lost is not None


@contextmanager
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A port whose system drops first packets, as one behind a cut does: nobody takes what waits
    there.
    """
    monkeypatch.setattr(client, "ANSWER_TIMEOUT_S", 0.2)
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


async def test_who_does_not_answer_is_left_in_time_and_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with silent(monkeypatch) as port:
        began = asyncio.get_running_loop().time()
        with pytest.raises(ConnectionLost, match=r"no answer within 0\.2 s") as caught:
            await connect(port)
        assert asyncio.get_running_loop().time() - began < 20
        assert "secret" not in str(caught.value)


async def test_all_addresses_of_a_name_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is dead takes its part of the time and not all of it; nor is one that refuses the
    last word.
    """
    with silent(monkeypatch) as dead, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        async with serving(polite) as port:
            places = [dead, closed.getsockname()[1], port]

            async def found(*_: object, **__: object) -> list[tuple[object, ...]]:
                inet = socket.AF_INET, socket.SOCK_STREAM, 0, ""
                return [(*inet, ("127.0.0.1", place)) for place in places]

            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
            connection = await connect(1)
            assert connection.lost is None
            await connection.close()


async def test_many_calls_go_out_without_waiting_and_answers_keep_their_order() -> None:
    async with channel_to(polite) as (_, channel):
        names = [f"q{i}" for i in range(PIPELINE_MAX * 2 + 1)]
        answers = await channel.call_all([methods.QueueDeclare(queue=name) for name in names])
        found = [answer.queue for answer in answers if isinstance(answer, methods.QueueDeclareOk)]
        assert found == names


async def test_a_closed_channel_says_why_and_the_connection_lives_on() -> None:
    async with channel_to(polite) as (connection, channel):
        with pytest.raises(ChannelClosed) as caught:
            await channel.call(methods.ExchangeDeclare(exchange="x", passive=True))
        assert caught.value.code == 404
        with pytest.raises(ChannelClosed):
            await channel.call(methods.QueueDeclare(queue="q"))
        again = await connection.open_channel()
        assert await again.call(methods.QueueDeclare(queue="q"))


async def test_deliveries_come_by_callback_and_a_cancel_is_told() -> None:
    async with channel_to(polite) as (_, channel):
        got: asyncio.Queue[bytes] = asyncio.Queue()
        ended: asyncio.Queue[str] = asyncio.Queue()
        channel.on_deliveries = lambda run: got.put_nowait(run.bodies[0])
        channel.on_ended = lambda error: ended.put_nowait(str(error))
        await channel.call(methods.BasicConsume(queue="q"))
        assert await asyncio.wait_for(got.get(), 60) == b"body"
        channel.cast(methods.BasicCancel("t", nowait=True))
        assert await asyncio.wait_for(ended.get(), 60) == "consumer cancelled by the upstream"


async def test_a_refused_login_is_said_without_the_password() -> None:
    """SEC-22."""

    def strict(machine: AmqpConnection, event: events.Event) -> None:
        if isinstance(event, events.AuthenticationRequested):
            machine.authentication_failed()

    async with serving(strict, silent_close_delay_ms=0) as port:
        with pytest.raises(ConnectionLost) as caught:
            await connect(port, "?connection_timeout=30000")
        assert caught.value.code == 403
        assert "ACCESS_REFUSED" in str(caught.value)
        assert "secret" not in str(caught.value)


async def test_a_silent_server_costs_the_connection_timeout_only() -> None:
    """R-FED-9 connection_timeout."""

    def silent(machine: AmqpConnection, event: events.Event) -> None:
        """Never decides."""

    async with serving(silent) as port:
        with pytest.raises(ConnectionLost, match=r"no connection in 100 ms|handshake timeout"):
            await connect(port, "?connection_timeout=100")


async def test_a_peer_that_is_no_amqp_server_is_an_error_not_a_crash() -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"\xff" * 5000)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionLost):
            await connect(port, "?connection_timeout=30000")


async def test_nobody_listens() -> None:
    with pytest.raises(ConnectionLost, match=r"amqp://127\.0\.0\.1:1: "):
        await connect(1)


async def test_a_lost_socket_ends_every_waiting_call() -> None:
    def rude(machine: AmqpConnection, event: events.Event) -> None:
        polite(machine, event)
        if isinstance(event, events.MethodReceived):
            machine.wants_close = True

    async with channel_to(rude) as (connection, channel):
        with pytest.raises(ConnectionLost):
            await channel.call(methods.BasicQos(prefetch_count=1))
        assert (await connection.wait_ended()) is connection.lost
        with pytest.raises(ConnectionLost):
            await connection.open_channel()


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("?auth_mechanism=external", "auth_mechanism external is not supported"),
        ("?heartbeat=-1", "heartbeat must be"),
        ("?channel_max=9999999999", "channel_max must be"),
    ],
)
async def test_query_parameters_that_cannot_be_used_are_named(query: str, text: str) -> None:
    """R-FED-9."""
    with pytest.raises(UpstreamError, match=text):
        await connect(1, query)


@pytest.mark.parametrize("query", ["?cacertfile=/does/not/exist", "?verify=perhaps"])
async def test_tls_settings_that_cannot_be_used_are_refused(query: str) -> None:
    """R-FED-9."""
    with pytest.raises(UpstreamError):
        await Connection.open(upstream.parse_uri(f"amqps://127.0.0.1:1{query}"), "/", "a test")


def certificate(folder: Path) -> Path:
    """Write a self-signed certificate for 127.0.0.1 and its key into one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file = folder / "server.pem"
    file.write_bytes(secret + signed.public_bytes(serialization.Encoding.PEM))
    return file


async def test_tls_verifies_the_upstream_unless_told_otherwise(tmp_path: Path) -> None:
    """R-FED-9: cacertfile and verify of the URI; an unknown authority is refused."""
    pem = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    async with serving(polite, tls=context) as port:
        base = f"amqps://u:secret@127.0.0.1:{port}"
        for query in (f"?cacertfile={pem}", "?verify=verify_none"):
            connection = await Connection.open(upstream.parse_uri(base + query), "/", "a test")
            assert await connection.open_channel()
            await connection.close()
        with pytest.raises(ConnectionLost, match=r"verify failed.*named in ca-certificates or"):
            await Connection.open(upstream.parse_uri(base), "/", "a test")


async def test_a_port_without_tls_is_known_as_one() -> None:
    async with serving(polite) as port:
        with pytest.raises(ConnectionLost, match=r"no TLS is spoken there.*amqp://"):
            await Connection.open(upstream.parse_uri(f"amqps://127.0.0.1:{port}"), "/", "a test")


async def test_authorities_of_the_definition_are_trusted_and_no_others(tmp_path: Path) -> None:
    pem = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    own = pem.read_text().partition("-----END PRIVATE KEY-----")[2]
    other = Authority().certificate.decode()
    async with serving(polite, tls=context) as port:
        address = upstream.parse_uri(f"amqps://u:secret@127.0.0.1:{port}")
        for bundle in (own, other + own):
            connection = await Connection.open(address, "/", "a test", bundle)
            await connection.close()
        with pytest.raises(ConnectionLost, match="certificate verify failed"):
            await Connection.open(address, "/", "a test", other)
        both = upstream.parse_uri(f"amqps://u:secret@127.0.0.1:{port}?cacertfile={pem}")
        connection = await Connection.open(both, "/", "a test", other)
        await connection.close()
    broken = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
    with pytest.raises(UpstreamError, match="certificates cannot be used"):
        await Connection.open(address, "/", "a test", broken)
