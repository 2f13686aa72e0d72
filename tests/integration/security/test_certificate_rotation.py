"""Certificates and the authority of three real members rotate under load: nothing restarts."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pika
import pika.exceptions
import pytest
from cryptography import x509

from tests.authorities import Authority, Mounted, Pair
from tests.integration.members import Member, cluster, eventually
from tests.ports import free_ports

pytestmark = pytest.mark.timeout(300)

NAMES = ("n0", "n1", "n2")
QUEUE = "rotated"


class _Publisher(threading.Thread):
    """Publishes numbers with confirms over AMQPS on one connection that is never made anew."""

    def __init__(self, port: int, authority_file: str) -> None:
        super().__init__(daemon=True)
        self._parameters = _parameters(port, authority_file)
        self.confirmed = 0
        self.error: Exception | None = None
        self.stopped = threading.Event()

    def run(self) -> None:
        try:
            with pika.BlockingConnection(self._parameters) as connection:
                channel = connection.channel()
                channel.confirm_delivery()
                while not self.stopped.is_set():
                    channel.basic_publish("", QUEUE, b"%d" % self.confirmed, mandatory=True)
                    self.confirmed += 1
        except (pika.exceptions.AMQPError, OSError) as error:
            self.error = error


def _parameters(port: int, authority_file: str) -> pika.ConnectionParameters:
    context = ssl.create_default_context(cafile=authority_file)
    options = pika.SSLOptions(context, "localhost")
    # A stopped member is waited for; only a broken connection ends this one.
    return pika.ConnectionParameters(
        "127.0.0.1", port, ssl_options=options, heartbeat=0, blocked_connection_timeout=None
    )


def metrics(member: Member, name: str) -> dict[str, float]:
    """The values of a metric by listener."""
    url = f"http://127.0.0.1:{member.http_port}/metrics"
    with urllib.request.urlopen(url, timeout=60) as answer:
        text = answer.read().decode()
    found = re.findall(rf'^{name}\{{listener="(\w+)"\}} (\S+)$', text, re.MULTILINE)
    return {listener: float(value) for listener, value in found}


def shown(port: int, authority: Authority, protocols: tuple[str, ...] = ()) -> int:
    """The serial number of the certificate that a client of this authority meets."""
    context = ssl.create_default_context(cadata=authority.certificate.decode())
    context.set_alpn_protocols(list(protocols))
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        found = connection.getpeercert(binary_form=True)
    assert found is not None
    return x509.load_der_x509_certificate(found).serial_number


def serial(pair: Pair) -> int:
    return x509.load_pem_x509_certificate(pair.certificate).serial_number


def meet_again(members: list[Member], cut: Member) -> None:
    """Let all streams of a member break and come to stand again."""
    assert cut.process is not None
    others = [member for member in members if member is not cut]
    os.kill(cut.process.pid, signal.SIGSTOP)
    try:
        for member in others:
            eventually(lambda member=member: member.running_members() == 2, f"{cut.name} is cut")
    finally:
        os.kill(cut.process.pid, signal.SIGCONT)
    for member in members:
        eventually(lambda member=member: member.running_members() == 3, f"{cut.name} is back")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[tuple[list[Member], list[int], list[Mounted], Authority]]:
    """Three members whose client and peer listeners have a certificate each from one volume."""
    authority = Authority()
    volumes = [Mounted(tmp_path / f"tls-{name}") for name in NAMES]
    for name, volume in zip(NAMES, volumes, strict=True):
        volume.swap_pair(authority.issue(name, "localhost"), authority.certificate)
    ports = free_ports(3)
    folder = tmp_path / "tls-{name}"
    env = {
        "BROKERD_TLS_CERT_FILE": f"{folder}/tls.crt",
        "BROKERD_TLS_KEY_FILE": f"{folder}/tls.key",
        "BROKERD_TLS_CA_FILE": f"{folder}/ca.crt",
        "BROKERD_PEER_TLS_CERT_FILE": f"{folder}/tls.crt",
        "BROKERD_PEER_TLS_KEY_FILE": f"{folder}/tls.key",
        "BROKERD_PEER_TLS_CA_FILE": f"{folder}/ca.crt",
    }
    with cluster(tmp_path, 3, amqps_ports=ports, **env) as members:
        yield members, ports, volumes, authority


def test_certificates_and_authority_rotate_under_load(
    rig: tuple[list[Member], list[int], list[Mounted], Authority], tmp_path: Path
) -> None:
    """SEC-5: trust first, then new certificates, then the old authority goes; members meet anew in
    between, a client's connection stays, and every confirmed message is there."""
    members, ports, volumes, old = rig
    new = Authority()
    bundle = old.certificate + new.certificate
    (tmp_path / "old.pem").write_bytes(old.certificate)
    first = [old.issue(name, "localhost") for name in NAMES]
    second = [new.issue(name, "localhost", seconds=7200) for name in NAMES]
    connection = pika.BlockingConnection(_parameters(ports[0], str(tmp_path / "old.pem")))
    queue = {"x-queue-type": "quorum"}
    connection.channel().queue_declare(QUEUE, durable=True, arguments=queue)
    connection.close()
    publisher = _Publisher(ports[0], str(tmp_path / "old.pem"))
    publisher.start()
    eventually(lambda: publisher.confirmed, "first confirm")
    before = metrics(members[0], "brokerd_certificate_expiry_timestamp_seconds")
    assert set(before) == {"amqps", "grpc", "peer"}

    for volume, pair in zip(volumes, first, strict=True):
        volume.swap_pair(pair, bundle)
    # One member has the new certificate, the others follow later.
    volumes[2].swap_pair(second[2], bundle)
    meet_again(members, members[2])
    assert shown(ports[2], new) == serial(second[2])
    assert shown(ports[1], old) == serial(first[1])
    for volume, pair in zip(volumes, second, strict=True):
        volume.swap_pair(pair, bundle)
    meet_again(members, members[1])
    for volume, pair in zip(volumes, second, strict=True):
        volume.swap_pair(pair, new.certificate)
    meet_again(members, members[2])

    for member, port, pair in zip(members, ports, second, strict=True):
        assert shown(port, new) == serial(pair)
        assert shown(member.grpc_port, new, ("h2",)) == serial(pair)
        with pytest.raises(ssl.SSLCertVerificationError):
            shown(port, old)
        after = metrics(member, "brokerd_certificate_expiry_timestamp_seconds")
        assert all(3000 < after[name] - before[name] < 4500 for name in before)
        assert not any(metrics(member, "brokerd_certificate_files_unusable").values())
    confirmed = publisher.confirmed
    eventually(lambda: publisher.confirmed > confirmed or publisher.error, "still publishing")
    publisher.stopped.set()
    publisher.join(60)
    assert publisher.error is None
    (tmp_path / "new.pem").write_bytes(new.certificate)
    with pika.BlockingConnection(_parameters(ports[1], str(tmp_path / "new.pem"))) as connection:
        found = connection.channel().queue_declare(QUEUE, passive=True)
        assert found.method.message_count == publisher.confirmed
    with grpc.secure_channel(
        f"localhost:{members[0].grpc_port}", grpc.ssl_channel_credentials(new.certificate)
    ) as channel:
        grpc.channel_ready_future(channel).result(60)
    for member in members:
        assert member.process is not None
        assert member.process.poll() is None
        assert "Traceback" not in member.log()


def test_a_half_done_rotation_is_told_and_changes_nothing(tmp_path: Path) -> None:
    """SEC-5: the key of another certificate, then garbage; put right, it is loaded."""
    authority = Authority()
    volume = Mounted(tmp_path / "tls")
    good, other = authority.issue("localhost"), authority.issue("localhost")
    volume.swap_pair(good, authority.certificate)
    ports = free_ports(1)
    env = {
        "BROKERD_TLS_CERT_FILE": volume.path("tls.crt"),
        "BROKERD_TLS_KEY_FILE": volume.path("tls.key"),
    }
    unusable = "brokerd_certificate_files_unusable"
    with cluster(tmp_path, 1, amqps_ports=ports, **env) as [member]:
        assert metrics(member, unusable) == {"amqps": 0, "grpc": 0}
        for bad in (Pair(other.certificate, good.key), Pair(b"nonsense", b"")):
            volume.swap_pair(bad, authority.certificate)
            assert metrics(member, unusable) == {"amqps": 1, "grpc": 1}
            for _ in range(3):
                assert shown(ports[0], authority) == serial(good)
        told = [line for line in member.log().splitlines() if "cannot use the certificate" in line]
        assert len(told) == 4
        volume.swap_pair(other, authority.certificate)
        assert shown(ports[0], authority) == serial(other)
        assert metrics(member, unusable) == {"amqps": 0, "grpc": 0}
