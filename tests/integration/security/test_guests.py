"""Limits of vhosts and users, their deletion, and certificates as logins: AMQP and gRPC alike."""

from __future__ import annotations

import datetime
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from brokerd.amqp import methods
from brokerd.amqp.values import Table
from brokerd.rpc.v1 import admin_pb2_grpc
from tests.integration.grpc.test_admin_grpc import Admin, delete, put
from tests.integration.members import Member, cluster, eventually
from tests.integration.messages_client import (
    Client,
    batch,
    metadata,
    numbers,
    publication,
)
from tests.integration.raw_client import ANSWER_SECONDS, RawClient, client, publish
from tests.ports import free_ports

pytestmark = pytest.mark.timeout(300)

ALL = {"configure": ".*", "write": ".*", "read": ".*"}


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with cluster(tmp_path_factory.mktemp("guests"), 1) as [member]:
        yield member


@pytest.fixture
def admin(member: Member) -> Iterator[Admin]:
    made = Admin(member.grpc_port)
    yield made
    made.channel.close()


@pytest.fixture
def calls(member: Member) -> Iterator[Client]:
    made = Client(member.grpc_port)
    yield made
    made.channel.close()


def make_user(admin: Admin, name: str, vhost: str = "/", **spec: object) -> None:
    user = {"password": name, **spec}
    admin.apply(put("user", name, user, vhost=""), put("permission", name, ALL, vhost=vhost))


def make_vhost(admin: Admin, name: str, **limits: int) -> None:
    admin.apply(
        put("vhost", name, {"limits": limits}, vhost=""), put("permission", "guest", ALL, name)
    )


def refused(member: Member, vhost: str = "/", user: str = "guest") -> methods.ConnectionClose:
    """Open a connection that must be refused at connection.open."""
    sock = socket.create_connection(("127.0.0.1", member.amqp_port), timeout=ANSWER_SECONDS)
    raw = RawClient.at_the_door(sock)
    raw.expect(methods.ConnectionStart)
    response = f"\0{user}\0{user}".encode()
    raw.send(0, methods.ConnectionStartOk({}, "PLAIN", response, "en_US"))
    raw.expect(methods.ConnectionTune)
    raw.send(0, methods.ConnectionTuneOk(2047, 131_072, 0), methods.ConnectionOpen(vhost))
    closed = raw.expect(methods.ConnectionClose)
    sock.close()
    return closed


def test_a_vhost_takes_so_many_connections_and_calls(
    member: Member, admin: Admin, calls: Client
) -> None:
    """R-CON-12, R-VH-3, SEC-44: counted together; 0 forbids."""
    make_vhost(admin, "two", **{"max-connections": 2})
    call = calls.publish(*metadata(vhost="two"))
    call.send(batch(publication(1, "nowhere")))
    assert numbers([call.next()], "confirmed") == [1]
    with client(member.amqp_port, vhost="two"):
        closed = refused(member, vhost="two")
        assert (closed.reply_code, closed.class_id, closed.method_id) == (530, 10, 40)
        assert closed.reply_text == (
            "NOT_ALLOWED - access to vhost 'two' refused for user 'guest': "
            "connection limit (2) is reached"
        )
        status, details = calls.publish(*metadata(vhost="two")).error()
        assert status is grpc.StatusCode.PERMISSION_DENIED
        assert "connection limit (2) is reached" in details
        call.rest()
        again = calls.publish(*metadata(vhost="two"))
        again.send(batch(publication(1, "nowhere")))
        assert numbers([again.next()], "confirmed") == [1]
        again.rest()
    make_vhost(admin, "two", **{"max-connections": 0})
    assert "connection limit (0)" in refused(member, vhost="two").reply_text


def test_limits_hold_for_all_members_together(tmp_path: Path) -> None:
    """R-CON-12: what one member has let in counts at the other; it is told soon after."""
    with cluster(tmp_path, 2) as [one, two]:
        admin = Admin(one.grpc_port)
        make_vhost(admin, "shared", **{"max-connections": 1})
        with client(one.amqp_port, vhost="shared"):
            eventually(lambda: _is_full(two), "the other member knows")
            assert "connection limit (1) is reached" in refused(two, vhost="shared").reply_text
        eventually(lambda: not _is_full(two), "the place is free again")
        admin.channel.close()


def _is_full(member: Member) -> bool:
    try:
        RawClient(member.amqp_port, vhost="shared").close()
    except AssertionError:
        return True
    return False


def test_a_vhost_takes_so_many_queues(member: Member, admin: Admin) -> None:
    """R-VH-3, R-Q-2."""
    make_vhost(admin, "one-queue", **{"max-queues": 1})
    with client(member.amqp_port, vhost="one-queue") as raw:
        raw.open(1)
        raw.declare(1, "first", durable=True)
        raw.declare(1, "first", durable=True)
        raw.send(1, methods.QueueDeclare(0, "second", durable=True))
        closed = raw.expect(methods.ChannelClose)
        assert closed.reply_code == 406
        assert closed.reply_text == (
            "PRECONDITION_FAILED - cannot declare queue 'second': "
            "queue limit in vhost 'one-queue' (1) is reached"
        )


def test_a_user_has_so_many_connections_and_channels(
    member: Member, admin: Admin, calls: Client
) -> None:
    """R-CON-12, R-CH-3, SEC-44: a call counts as a connection with one channel."""
    make_user(admin, "few", limits={"max-connections": 2, "max-channels": 3})
    parameters = {"user": "few", "password": "few"}
    with client(member.amqp_port, **parameters) as raw:
        call = calls.publish(*metadata("few", "few"))
        call.send(batch(publication(1, "nowhere")))
        call.next()
        assert refused(member, user="few").reply_text == (
            "NOT_ALLOWED - connection refused for user 'few': user connection limit (2) is reached"
        )
        raw.open(1)
        raw.open(2)
        raw.send(2, methods.ChannelClose(200, "", 0, 0))
        raw.expect(methods.ChannelCloseOk)
        raw.open(3)
        raw.send(4, methods.ChannelOpen())
        closed = raw.expect(methods.ConnectionClose)
        assert (closed.reply_code, closed.reply_text) == (
            530,
            "NOT_ALLOWED - number of channels opened for user 'few' has reached "
            "the maximum allowed user limit of (3)",
        )
        call.rest()
    # All of it was given back.
    with client(member.amqp_port, **parameters) as raw:
        for channel in (1, 2, 3):
            raw.open(channel)


def test_who_is_deleted_is_sent_away(member: Member, admin: Admin, calls: Client) -> None:
    """R-VH-2, SEC-44: connections, publishing and consuming calls; their messages return."""
    make_vhost(admin, "short")
    make_user(admin, "leaver", vhost="short")
    login = metadata("leaver", "leaver", "short")
    parameters = {"user": "leaver", "password": "leaver", "vhost": "short"}
    with client(member.amqp_port, vhost="short") as stays:
        stays.open(1)
        stays.declare(1, "q", durable=True)
        stays.send(1, publish(1, "", "q", b"m"))
        with client(member.amqp_port, **parameters) as raw:
            publisher = calls.publish(*login)
            publisher.send(batch(publication(1, "nowhere")))
            publisher.next()
            consumer = calls.consume(*login, queue="q", credit=5)
            assert consumer.next().deliveries[0].body == b"m"
            admin.apply(delete("user", "leaver", vhost=""))
            closed = raw.expect(methods.ConnectionClose)
            assert closed.reply_text == "CONNECTION_FORCED - user 'leaver' is deleted"
            for call in (publisher, consumer):
                status, details = call.error()
                assert status is grpc.StatusCode.ABORTED
                assert details == "320: user 'leaver' is deleted"
        eventually(lambda: stays.count(1, "q") == 1, "the consumer's message is back")
        publisher = calls.publish(*metadata(vhost="short"))
        publisher.send(batch(publication(1, "nowhere")))
        publisher.next()
        admin.apply(delete("vhost", "short", vhost=""))
        closed = stays.expect(methods.ConnectionClose)
        assert closed.reply_text == "CONNECTION_FORCED - vhost 'short' is deleted"
        assert publisher.error() == (grpc.StatusCode.ABORTED, "320: vhost 'short' is deleted")


def test_a_new_secret_finds_that_running_consumers_have_proved_their_right(
    member: Member, admin: Admin
) -> None:
    """R-CON-13: whoever may read no more has lost the channel before; its messages return."""
    make_user(admin, "reader")
    with client(member.amqp_port, user="reader", password="reader") as raw:
        raw.open(1)
        raw.open(2)
        raw.declare(1, "rotated", durable=True)
        raw.declare(1, "also-rotated", durable=True)
        raw.send(1, methods.BasicConsume(0, "rotated", "c"))
        raw.expect(methods.BasicConsumeOk)
        raw.send(2, methods.BasicConsume(0, "also-rotated", "c"))
        raw.expect(methods.BasicConsumeOk)
        admin.apply(put("permission", "reader", {**ALL, "read": "^also"}))
        closed = raw.expect(methods.ChannelClose)
        assert (closed.reply_code, closed.reply_text) == (
            403,
            "ACCESS_REFUSED - read access to queue 'rotated' in vhost '/' refused "
            "for user 'reader'",
        )
        raw.send(1, methods.ChannelCloseOk())
        raw.send(0, methods.ConnectionUpdateSecret(b"reader", "rotation"))
        raw.expect(methods.ConnectionUpdateSecretOk)
        raw.send(2, publish(2, "", "also-rotated", b"goes on"))
        assert raw.content(methods.BasicDeliver)[2] == b"goes on"


def signed(
    folder: Path,
    name: str,
    subject: x509.Name,
    issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None = None,
) -> tuple[Path, tuple[x509.Certificate, ec.EllipticCurvePrivateKey]]:
    """Write a certificate with its key to one file, signed by `issuer` or itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .sign(issuer[1] if issuer else key, hashes.SHA256())
    )
    file = folder / f"{name}.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    return file, (made, key)


class SecureAdmin(Admin):
    """The service behind TLS."""

    def __init__(self, port: int, authority: Path) -> None:
        credentials = grpc.ssl_channel_credentials(authority.read_bytes())
        options = [("grpc.ssl_target_name_override", "localhost")]
        self.channel = grpc.secure_channel(f"127.0.0.1:{port}", credentials, options)
        self._stub = admin_pb2_grpc.AdminStub(self.channel)  # type: ignore[no-untyped-call]
        self._metadata = metadata()


def subject(**names: str) -> x509.Name:
    oids = {"cn": NameOID.COMMON_NAME, "o": NameOID.ORGANIZATION_NAME, "c": NameOID.COUNTRY_NAME}
    return x509.Name([x509.NameAttribute(oids[key], value) for key, value in names.items()])


@pytest.mark.parametrize(
    ("login_from", "user"),
    [("distinguished_name", "CN=shop,O=Some Shop\\, Inc.,C=DE"), ("common_name", "shop")],
)
def test_a_client_certificate_is_a_login(tmp_path: Path, login_from: str, user: str) -> None:
    """SEC-6, R-CON-3, R-CON-5, R-CON-6: offered only to who shows one; the user must exist."""
    authority, issuer = signed(tmp_path, "authority", subject(cn="authority"))
    server, _ = signed(tmp_path, "server", subject(cn="localhost"), issuer)
    shop, _ = signed(tmp_path, "shop", subject(c="DE", o="Some Shop, Inc.", cn="shop"), issuer)
    [port] = free_ports(1)
    env = {
        "BROKERD_TLS_CERT_FILE": str(server),
        "BROKERD_TLS_CA_FILE": str(authority),
        "BROKERD_LISTENERS_AMQPS": str(port),
        "BROKERD_AUTH_CERTIFICATE_LOGIN_FROM": login_from,
    }

    def dial(certificate: Path | None) -> RawClient:
        context = ssl.create_default_context(cafile=str(authority))
        if certificate is not None:
            context.load_cert_chain(certificate)
        plain = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS)
        return RawClient.at_the_door(context.wrap_socket(plain, server_hostname="localhost"))

    capabilities: Table = {"capabilities": {"authentication_failure_close": True}}
    external = methods.ConnectionStartOk(capabilities, "EXTERNAL", b"", "en_US")
    with cluster(tmp_path, 1, **env) as [member]:
        anonymous = dial(None)
        mechanisms = anonymous.expect(methods.ConnectionStart).mechanisms.split()
        assert sorted(mechanisms) == [b"AMQPLAIN", b"PLAIN"]
        anonymous.send(0, external)
        assert anonymous.at_end()
        anonymous.close()

        unknown = dial(shop)
        mechanisms = unknown.expect(methods.ConnectionStart).mechanisms.split()
        assert sorted(mechanisms) == [b"AMQPLAIN", b"EXTERNAL", b"PLAIN"]
        unknown.send(0, external)
        closed = unknown.expect(methods.ConnectionClose)
        assert (closed.reply_code, closed.reply_text) == (
            403,
            "ACCESS_REFUSED - Login was refused using authentication mechanism EXTERNAL. "
            "For details see the broker logfile.",
        )
        unknown.close()

        admin = SecureAdmin(member.grpc_port, authority)
        make_user(admin, user)
        admin.channel.close()
        known = dial(shop)
        known.expect(methods.ConnectionStart)
        known.send(0, external)
        known.expect(methods.ConnectionTune)
        known.send(0, methods.ConnectionTuneOk(10, 131_072, 0), methods.ConnectionOpen("/"))
        known.expect(methods.ConnectionOpenOk)
        known.open(1)
        known.declare(1, "by-certificate", durable=True)
        known.close()
