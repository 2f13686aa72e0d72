"""Behind proxies that speak the PROXY protocol: AMQP, with TLS and without, and the HTTP API.

127.0.0.2 is the proxy, any other address of this machine a client without one.
"""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerd.amqp import methods
from tests.integration.clients import certificates
from tests.integration.management.test_brokerctl import Ctl
from tests.integration.members import Member, cluster, eventually
from tests.integration.raw_client import ANSWER_SECONDS, RawClient
from tests.ports import free_ports
from tests.unit.server.access.test_proxy_header import TCP4, version_2

pytestmark = pytest.mark.timeout(300)

PROXY = "127.0.0.2"
CLIENT = "203.0.113.7"
HEADER = version_2(TCP4, CLIENT)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> certificates.Certificates:
    return certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def amqps_port() -> int:
    return free_ports(1)[0]


@pytest.fixture(scope="module")
def member(
    tmp_path_factory: pytest.TempPathFactory, files: certificates.Certificates, amqps_port: int
) -> Iterator[Member]:
    settings = {
        "BROKERD_PROXY_PROTOCOL_TRUSTED": f"{PROXY}, 2001:db8::/32",
        "BROKERD_TLS_CERT_FILE": str(files.server),
        "BROKERD_TLS_KEY_FILE": str(files.server_key),
    }
    folder = tmp_path_factory.mktemp("proxied")
    with cluster(folder, 1, amqps_ports=[amqps_port], **settings) as [started]:
        ctl = Ctl(f"localhost:{started.grpc_port}")
        arguments = ("--ca-file", str(files.authority))
        ctl(*arguments, "add_user", "far", "far")
        ctl(*arguments, "set_user_tags", "far", "administrator")
        ctl(*arguments, "set_permissions", "far", ".*", ".*", ".*")
        yield started


def dial(port: int, source: str = PROXY) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS, (source, 0))


def proxied(port: int, header: bytes = HEADER) -> socket.socket:
    made = dial(port)
    made.sendall(header)
    return made


def listed(member: Member) -> list[tuple[str, str]]:
    """Return user and address of each connection, by the HTTP API."""
    with contextlib.closing(dial(member.management_port, "127.0.0.1")) as sock:
        rows = json.loads(ask(sock, "/api/connections", "guest"))
    return [(row["user"], row["peer_host"]) for row in rows if "peer_host" in row]


def ask(sock: socket.socket, path: str, user: str) -> bytes:
    """Send one request; return the body of the answer, which must be 200."""
    login = base64.b64encode(f"{user}:{user}".encode()).decode()
    sock.sendall(
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {login}\r\n"
        "Connection: close\r\n\r\n".encode()
    )
    answer = b""
    while part := sock.recv(65_536):
        answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b" 200 " in head.splitlines()[0], head
    return body


@pytest.mark.parametrize(
    "header", [HEADER, b"PROXY TCP4 203.0.113.7 192.0.2.1 40000 5672\r\n"], ids=["v2", "v1"]
)
def test_a_client_shows_with_its_own_address(member: Member, header: bytes) -> None:
    raw = RawClient(
        member.amqp_port, user="far", password="far", sock=proxied(member.amqp_port, header)
    )
    with contextlib.closing(raw.socket):
        eventually(lambda: ("far", CLIENT) in listed(member), "it is listed")
        assert f"{CLIENT}:40000 -> 127.0.0.1:{member.amqp_port} user=far" in member.log()
        raw.send(0, methods.ConnectionClose(200, "bye", 0, 0))
        raw.expect(methods.ConnectionCloseOk)


def test_the_header_comes_before_tls(
    member: Member, files: certificates.Certificates, amqps_port: int
) -> None:
    context = ssl.create_default_context(cafile=str(files.authority))
    sock = context.wrap_socket(proxied(amqps_port), server_hostname="localhost")
    raw = RawClient(amqps_port, user="far", password="far", sock=sock)
    with contextlib.closing(raw.socket):
        eventually(lambda: ("far", CLIENT) in listed(member), "it is listed")


@pytest.mark.parametrize("told", [CLIENT, "127.0.0.1"])
def test_who_comes_by_a_proxy_is_not_on_this_machine(member: Member, told: str) -> None:
    """R-CON-7: guest may come from the member's own machine only, whatever a proxy says."""
    raw = RawClient.at_the_door(proxied(member.amqp_port, version_2(TCP4, told)))
    with contextlib.closing(raw.socket):
        raw.expect(methods.ConnectionStart)
        start_ok = methods.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US")
        raw.send(0, start_ok)
        assert raw.next_frame() is None


def test_a_proxy_speaks_for_itself_in_its_health_checks(member: Member) -> None:
    header = version_2(TCP4, CLIENT, command=0x20)
    raw = RawClient(member.amqp_port, sock=proxied(member.amqp_port, header))
    with contextlib.closing(raw.socket):
        eventually(lambda: ("guest", PROXY) in listed(member), "with the proxy's address")


def test_a_client_of_its_own_needs_no_header(member: Member) -> None:
    with contextlib.closing(RawClient(member.amqp_port).socket):
        eventually(lambda: ("guest", "127.0.0.1") in listed(member), "it is listed")


@pytest.mark.parametrize("port_of", ["AMQP", "MANAGEMENT"])
def test_a_proxy_without_a_header_is_refused_and_told(member: Member, port_of: str) -> None:
    port = member.ports[port_of]
    said = b"AMQP\x00\x00\x09\x01" if port_of == "AMQP" else b"GET / HTTP/1.1\r\n"

    def refused() -> bool:
        with contextlib.closing(dial(port)) as sock:
            sock.sendall(said + b"\r\n\r\n\r\n")
            # With unread bytes in its hands, the kernel resets the connection.
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(100) == b""
        name = "HTTP" if port_of == "MANAGEMENT" else "AMQP"
        return (
            f"{name}: refused a connection from {PROXY}, which proxy_protocol.trusted "
            f"names: no PROXY header, but {said[:8]!r}" in member.log()
        )

    eventually(refused, "the log says so")


def test_the_management_api_has_the_clients_address(member: Member) -> None:
    with contextlib.closing(proxied(member.management_port)) as sock:
        assert json.loads(ask(sock, "/api/whoami", "far"))["name"] == "far"
    with contextlib.closing(proxied(member.management_port)) as sock:
        login = base64.b64encode(b"guest:guest")
        head = b"GET /api/whoami HTTP/1.1\r\nHost: localhost\r\n"
        sock.sendall(head + b"Authorization: Basic " + login + b"\r\n\r\n")
        assert b" 401 " in sock.recv(4096).splitlines()[0]
    assert CLIENT in member.log()


def test_a_header_that_does_not_come_costs_the_connection(member: Member) -> None:
    """SEC-32: others come through meanwhile."""
    with contextlib.closing(dial(member.amqp_port)) as slow:
        slow.sendall(HEADER[:20])
        raw = RawClient(
            member.amqp_port, user="far", password="far", sock=proxied(member.amqp_port)
        )
        raw.socket.close()
        assert slow.recv(1) == b""
    eventually(lambda: "no whole PROXY header within 5 s" in member.log(), "the log says so")


def test_a_wrong_network_ends_the_start(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match="is no network: use one like 10"),
        cluster(tmp_path, 1, BROKERD_PROXY_PROTOCOL_TRUSTED="10.0.0.0/33"),
    ):
        pass
