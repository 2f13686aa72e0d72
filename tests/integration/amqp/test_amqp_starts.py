"""How a member starts and ends: disk full, TLS, no configuration at all, SIGTERM under load."""

from __future__ import annotations

import contextlib
import datetime
import os
import resource
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pika
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from brokerd.amqp import methods
from tests.integration.members import (
    PATIENCE_SECONDS,
    REPOSITORY,
    START_SECONDS,
    cluster,
    eventually,
)
from tests.integration.raw_client import RawClient, client, publish
from tests.ports import free_ports

pytestmark = pytest.mark.timeout(300)


def certificate(folder: Path) -> tuple[Path, Path]:
    """Make a self-signed certificate for localhost."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return cert_file, key_file


def test_amqps_carries_messages_and_offers_no_external(tmp_path: Path) -> None:
    """SEC-1: TLS 1.2 at least; garbage and old versions end at the door; R-CON-3."""
    cert_file, key_file = certificate(tmp_path)
    [port] = free_ports(1)
    env = {
        "BROKERD_TLS_CERT_FILE": str(cert_file),
        "BROKERD_TLS_KEY_FILE": str(key_file),
        "BROKERD_LISTENERS_AMQPS": str(port),
    }
    with cluster(tmp_path, 1, is_warm=False, **env) as [member]:
        context = ssl.create_default_context(cafile=str(cert_file))
        options = pika.SSLOptions(context, "localhost")
        parameters = pika.ConnectionParameters("127.0.0.1", port, ssl_options=options)
        connection = pika.BlockingConnection(parameters)
        channel = connection.channel()
        channel.queue_declare("tls", durable=True)
        channel.confirm_delivery()
        body = bytes(range(256)) * 20_000
        channel.basic_publish("", "tls", body)
        assert channel.basic_get("tls", auto_ack=True)[2] == body
        connection.close()
        with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as plain:
            plain.sendall(b"AMQP\0\0\x09\x01")
            assert b"AMQP" not in plain.recv(100)
        with client(member.amqp_port) as raw:
            raw.close()
        with socket.create_connection(
            ("127.0.0.1", member.amqp_port), timeout=PATIENCE_SECONDS
        ) as probe:
            probe.sendall(b"AMQP\0\0\x09\x01")
            start = probe.recv(4096)
            assert b"PLAIN" in start
            assert b"EXTERNAL" not in start


def test_a_disk_that_takes_no_more_ends_the_member_with_74(tmp_path: Path) -> None:
    """design/replication.md §1: nothing is confirmed that is not on disk; EX_IOERR and a clear
    line.
    """
    with cluster(tmp_path, 1, BROKERD_STORAGE_SEGMENT_BYTES="1048576") as [member]:
        assert member.process is not None
        raw = RawClient(member.amqp_port)
        raw.open(1)
        raw.declare(1, "full", durable=True)
        limit = 300_000
        resource.prlimit(member.process.pid, resource.RLIMIT_FSIZE, (limit, limit))
        raw.send(1, methods.ConfirmSelect())
        raw.expect(methods.ConfirmSelectOk)
        raw.send(1, publish(1, "", "full", bytes(2_000_000)))
        assert member.process.wait(PATIENCE_SECONDS) == 74
        assert "the disk failed, this member ends" in member.log()
        # No confirm went out.
        found = raw.next_method() if not _ended(raw) else None
        assert found is None or not isinstance(found[1], methods.BasicAck)
        raw.close()


def _ended(raw: RawClient) -> bool:
    try:
        return not raw.socket.recv(1, socket.MSG_PEEK)
    except ConnectionResetError:
        return True


def test_sigterm_under_load_hands_over_and_ends_soon(tmp_path: Path) -> None:
    """320 for the clients, no election for the others (R-ERR 320)."""
    with cluster(tmp_path, 3, is_warm=False) as members:
        first = members[0]
        raw = RawClient(first.amqp_port)
        raw.open(1)
        for i in range(5):
            raw.declare(1, f"q{i}", durable=True, arguments={"x-queue-type": "quorum"})
        raw.send(1, *[publish(1, "", f"q{i % 5}", b"x") for i in range(500)])
        assert first.process is not None
        first.process.send_signal(signal.SIGTERM)
        while not isinstance((raw.next_method() or (0, None))[1], methods.ConnectionClose):
            pass
        assert first.process.wait(PATIENCE_SECONDS) == 0
        raw.close()
        with client(members[1].amqp_port) as other:
            other.open(1)
            for i in range(5):
                other.declare(
                    1, f"q{i}", durable=True, passive=False, arguments={"x-queue-type": "quorum"}
                )


def test_sigterm_in_the_first_moments_ends_the_first_process_of_a_container(
    tmp_path: Path,
) -> None:
    """The kernel hands process 1 of a namespace only the signals that it handles."""
    if os.geteuid() != 0:
        pytest.skip("a process namespace of its own needs root")
    serve = [sys.executable, "-m", "brokerd", "serve", "--data-dir", str(tmp_path / "data")]
    outer = subprocess.Popen(
        ["unshare", "--pid", "--fork", *serve], env=os.environ | {"PYTHONPATH": str(REPOSITORY)}
    )
    first: list[int] = []

    def handles_it() -> bool:
        if not first:
            children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
            first.extend(int(pid) for pid in children)
        if not first:
            return False
        status = Path(f"/proc/{first[0]}/status").read_text()
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
        return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)

    try:
        eventually(handles_it, "SIGTERM has a handler")
        # Long before the broker itself is there to take it.
        assert not (tmp_path / "data").exists()
        os.kill(first[0], signal.SIGTERM)
        assert outer.wait(PATIENCE_SECONDS) == 128 + signal.SIGTERM
    finally:
        for pid in first:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        outer.wait()


#: A signal in a weak reference's callback, as importlib has them in each import: what is raised
#: there is printed and forgotten.
SIGNALLED_IN_A_CALLBACK = """
import brokerd.__main__, os, signal, weakref

class Module:
    pass

def gone(_):
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(1000):
        pass

module = Module()
reference = weakref.ref(module, gone)
del module
"""


def test_sigterm_in_the_middle_of_an_import_is_not_lost() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED_IN_A_CALLBACK],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 128 + signal.SIGTERM


def test_without_any_configuration_it_listens_on_5672(tmp_path: Path) -> None:
    """IPv4 and IPv6, guest from loopback only, its data directory said, ready soon."""
    if os.geteuid() != 0:
        pytest.skip("a network namespace of its own needs root")
    name = f"brokerd-test-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True).returncode:
        pytest.skip("network namespaces cannot be made here")
    inside = ["ip", "netns", "exec", name]
    log = tmp_path / "log"
    process: subprocess.Popen[bytes] | None = None
    try:
        subprocess.run([*inside, "ip", "link", "set", "lo", "up"], check=True)
        # An address of this machine that is no loopback address (R-CON-7).
        subprocess.run([*inside, "ip", "addr", "add", "10.9.9.9/32", "dev", "lo"], check=True)
        env = {key: value for key, value in os.environ.items() if not key.startswith("BROKERD_")}
        env |= {"PYTHONPATH": str(REPOSITORY), "HOME": str(tmp_path), "XDG_STATE_HOME": ""}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*inside, sys.executable, "-m", "brokerd", "serve"],
                env=env,
                stdout=output,
                stderr=output,
                cwd=tmp_path,
            )
        eventually(lambda: "brokerd is ready after" in log.read_text(), "ready", START_SECONDS)
        said = log.read_text()
        assert f"data in {tmp_path}/.local/state/brokerd/" in said
        print(said[said.index("brokerd is ready") :].splitlines()[0])
        for host, expected in (("127.0.0.1", "in"), ("::1", "in"), ("10.9.9.9", "refused")):
            probe = (
                "import pika, sys\n"
                "try:\n"
                f"    pika.BlockingConnection(pika.ConnectionParameters({host!r})).close()\n"
                "    print('in')\n"
                "except pika.exceptions.ProbableAuthenticationError:\n"
                "    print('refused')\n"
            )
            answer = subprocess.run(
                [*inside, sys.executable, "-c", probe], capture_output=True, text=True, check=True
            )
            assert answer.stdout.strip() == expected, (host, answer)
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()
        subprocess.run(["ip", "netns", "delete", name], check=False)
