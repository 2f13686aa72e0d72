"""`kubectl brokerd` with the real kubectl, a real API server and, behind the forwarded port, a real
member that speaks TLS. Pods are never run here, so the port-forward itself is left to tests/e2e.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import functools
import http.client
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import rich.console
import yaml
from brokerd_operator.plugin import commands, member_access, watching
from brokerd_operator.plugin.kubectl import Kubectl
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.cluster_fixtures import BIN, CLUSTER, Kubernetes
from tests.integration.members import Member, cluster
from tests.operator.operator_process import Namespace, wait_for
from tests.operator.resources import resource

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(400)]

ROOT = CLUSTER.parents[1]
SHOP = "plugin-shop"
PASSWORD = "correct horse"
#: Has no rights in any of the tests, whatever their order.
NOBODY = "ann"
SEES_CLUSTERS = "bob"
LABELS = {
    "app.kubernetes.io/name": "brokerd",
    "app.kubernetes.io/instance": "orders",
    "app.kubernetes.io/component": "broker",
}


@pytest.fixture(scope="module")
def shop(kube_api: Kubernetes) -> Iterator[Namespace]:
    """A BrokerCluster `orders` of two members that are ready, as far as the API server knows."""
    kube_api.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
    kube_api.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=100s")
    kube_api.kubectl("create", "namespace", SHOP)
    found = Namespace(kube_api, SHOP)
    found.apply(resource("BrokerCluster", "orders", replicas=2), *(pod(i) for i in range(2)))
    ready(found)
    yield found
    kube_api.kubectl("delete", "namespace", SHOP, "--wait=false")


def pod(ordinal: int) -> dict[str, Any]:
    container = {"name": "broker", "image": "registry.example/brokerd:1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"orders-{ordinal}", "labels": LABELS},
        # Of no node: the garbage collector of pods takes those of nodes that are not there.
        "spec": {"containers": [container]},
    }


def ready(shop: Namespace) -> None:
    shop.cluster.kubectl("-n", SHOP, "wait", "--for=create", "pod/orders-1", "--timeout=60s")
    for ordinal in range(2):
        patch(shop, "pod", f"orders-{ordinal}", phase="Running", conditions=[told("Ready")])
    conditions = [told("Ready"), told("AllReplicasReady")]
    patch_conditions(shop, *conditions)


def told(type_: str, status: str = "True", reason: str = "Told", message: str = "") -> Any:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": now,
    }


def patch_conditions(shop: Namespace, *conditions: Any) -> None:
    body = shop.get("brokercluster", "orders")
    assert body is not None
    generation = body["metadata"]["generation"]
    patch(
        *(shop, "brokercluster", "orders"),
        observedGeneration=generation,
        conditions=list(conditions),
        adminSecret="orders-admin",
    )


def patch(shop: Namespace, kind: str, name: str, **status: Any) -> None:
    plural = "brokerclusters.brokerd.io" if kind == "brokercluster" else kind
    body = json.dumps({"status": status})
    where = ("-n", SHOP, "patch", plural, name, "--subresource=status", "--type=merge")
    shop.cluster.kubectl(*where, "-p", body)


def run(
    shop: Namespace, *args: str, as_: str = "", tmp_path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """The plugin as kubectl runs it."""
    kubeconfig = shop.cluster.kubeconfig
    if as_:
        assert tmp_path is not None
        kubeconfig = impersonating(kubeconfig, as_, tmp_path)
    return subprocess.run(
        [sys.executable, "-m", "brokerd_operator.plugin", *args],
        env=environment() | {"KUBECONFIG": str(kubeconfig)},
        text=True,
        capture_output=True,
        timeout=120,
    )


def environment() -> dict[str, str]:
    paths = (ROOT, ROOT / "operator", ROOT / "telemetry")
    return os.environ | {"KUBECTL": str(BIN / "kubectl"), "PYTHONPATH": ":".join(map(str, paths))}


def impersonating(kubeconfig: Path, user: str, folder: Path) -> Path:
    """A kubeconfig of somebody who may do what RBAC says."""
    body = yaml.safe_load(kubeconfig.read_text())
    for item in body["users"]:
        item["user"]["as"] = user
    made = folder / "kubeconfig"
    made.write_text(yaml.safe_dump(body))
    return made


# ---- status -------------------------------------------------------------------------------------


def test_status_tells_health_by_words_json_and_exit_status(shop: Namespace) -> None:
    well = run(shop, "-n", SHOP, "status", "orders")
    assert (well.returncode, well.stderr) == (0, "")
    assert "orders-1" in well.stdout
    shop.apply(resource("Queue", "q", brokerRef={"name": "orders"}))
    broken = run(shop, "status", "-n", SHOP, "-o", "json")
    assert broken.returncode == 1
    [body] = json.loads(broken.stdout)["clusters"]
    assert [item["resource"] for item in body["topology"]] == ["Queue q"]
    assert run(shop, "status", "-A").returncode == 1
    shop.delete("queue", "q")
    shop.wait_gone("queue", "q")
    patch_conditions(shop, told("Ready"), told("MemoryAlarm", "True", "Alarm", "orders-1 is full"))
    full = run(shop, "status", "orders", "--namespace", SHOP)
    assert full.returncode == 1
    assert "orders-1 is full" in full.stdout
    ready(shop)


def test_what_is_not_there_or_not_allowed_is_said(shop: Namespace, tmp_path: Path) -> None:
    other = run(shop, "status", "ordres", "-n", SHOP)
    assert (other.returncode, other.stdout) == (69, "")
    assert f"no BrokerCluster ordres in namespace {SHOP}; there are: orders" in other.stderr
    nobody = run(shop, "status", "orders", "-n", SHOP, as_=NOBODY, tmp_path=tmp_path)
    assert nobody.returncode == 77
    assert f"{NOBODY} may not get brokerclusters in namespace {SHOP}" in nobody.stderr
    elsewhere = run(shop, "status", "-n", "default")
    assert elsewhere.returncode == 69
    assert "there is no BrokerCluster here" in elsewhere.stderr


def test_what_somebody_may_not_list_is_left_out_and_said(shop: Namespace, tmp_path: Path) -> None:
    role = ("create", "role", "sees-clusters", "--verb=get,list")
    shop.cluster.kubectl(
        "-n", SHOP, *role, "--resource=brokerclusters.brokerd.io,queues.brokerd.io"
    )
    bound = ("create", "rolebinding", "sees", "--role=sees-clusters", f"--user={SEES_CLUSTERS}")
    shop.cluster.kubectl("-n", SHOP, *bound)
    shop.apply(resource("Queue", "seen", brokerRef={"name": "orders"}))

    def seen() -> str:
        # RBAC follows its own watch: the first answer may still be the old one.
        said = run(shop, "status", "orders", "-n", SHOP, as_=SEES_CLUSTERS, tmp_path=tmp_path)
        return said.stdout if said.returncode != 77 else ""

    shown = wait_for("the role counts", seen)
    assert f"not looked at: {SEES_CLUSTERS} may not list pods in namespace {SHOP}" in shown
    assert "may not list exchanges" in shown
    assert "Missing" not in shown
    assert "Queue seen" in shown, "what may be listed is"
    shop.delete("queue", "seen")


# ---- brokerctl ----------------------------------------------------------------------------------


def self_signed(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate that names the Service and nothing else, as one of somebody's own may."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a broker")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    certificate, key_file = folder / "tls.crt", folder / "tls.key"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(private)
    return certificate, key_file


@pytest.fixture(scope="module")
def member(shop: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    """What stands behind both pods, with its login and authority in the Secrets."""
    folder = tmp_path_factory.mktemp("member")
    certificate, key = self_signed(folder, f"orders.{SHOP}.svc")
    env = {
        "BROKERD_TLS_CERT_FILE": str(certificate),
        "BROKERD_TLS_KEY_FILE": str(key),
        "BROKERD_AUTH_ADMIN_USER": "admin",
        "BROKERD_AUTH_ADMIN_PASSWORD": PASSWORD,
    }
    login = {"username": b"admin", "password": PASSWORD.encode()}
    shop.apply(
        secret("orders-admin", **login),
        secret("orders-tls", **{"ca.crt": certificate.read_bytes()}),
    )
    with cluster(folder, 1, **env) as [found]:
        yield found


def secret(name: str, **data: bytes) -> dict[str, Any]:
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": encoded}


@pytest.fixture
def kubectl(shop: Namespace, monkeypatch: pytest.MonkeyPatch) -> Kubectl:
    monkeypatch.setenv("KUBECTL", str(BIN / "kubectl"))
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    return Kubectl.find(str(shop.cluster.kubeconfig), namespace=SHOP)


def to(member: Member, asked: list[str] | None = None) -> member_access.Forward:
    """In the place of a port-forward."""

    @contextlib.contextmanager
    def forward(namespace: str, name: str, port: int) -> Iterator[int]:
        assert (namespace, port) == (SHOP, 5680)
        if asked is not None:
            asked.append(name)
        yield member.grpc_port

    return forward


def test_brokerctl_gets_in_and_leaves_no_trace_of_the_login(
    kubectl: Kubectl,
    member: Member,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    lines: list[list[str]] = []
    real = subprocess.call

    def noted(line: list[str], **options: Any) -> int:
        lines.append(line)
        return real(line, **options)

    monkeypatch.setattr(subprocess, "call", noted)
    asked: list[str] = []
    args = ("list_queues", "--formatter", "json", "name")
    assert commands.run_ctl(kubectl, "orders", (), args, to(member, asked)) == 0
    assert isinstance(json.loads(capfd.readouterr().out), list)
    assert asked == ["orders-0", "orders-1"]
    assert PASSWORD not in str(lines)
    assert list(tmp_path.iterdir()) == []


def test_what_acts_on_one_member_needs_its_name(
    kubectl: Kubectl, member: Member, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(click.UsageError, match="drain acts on one member"):
        commands.run_ctl(kubectl, "orders", (), ("-q", "drain"), to(member))
    asked: list[str] = []
    for verb in ("drain", "revive"):
        assert commands.run_ctl(kubectl, "orders", ("1",), (verb,), to(member, asked)) == 0
    assert asked == ["orders-1", "orders-1"]
    assert "node orders-1 into maintenance" in capfd.readouterr().out
    # The exit status is brokerctl's.
    assert commands.run_ctl(kubectl, "orders", (), ("nonsense",), to(member)) == 64


def test_a_certificate_that_does_not_name_the_cluster_is_refused(
    kubectl: Kubectl, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = kubectl.cluster("orders")
    with member_access.opened(kubectl, body, ["orders-0"], to(member)) as access:
        line = [sys.executable, "-c", commands.BROKERCTL, "--ca-file", access.ca_file, "ping"]
        env = access.environment()
        assert subprocess.run(line, env=env, capture_output=True).returncode == 0
        for name in ("", "other.svc"):
            wrong = env | {"BROKERD_SERVER_NAME": name}
            assert subprocess.run(line, env=wrong, capture_output=True).returncode == 69


def test_top_shows_queues_rates_and_members(
    kubectl: Kubectl, member: Member, tmp_path: Path
) -> None:
    connection = member.connect()
    channel = connection.channel()
    channel.queue_declare("jobs")
    for _ in range(3):
        channel.basic_publish("", "jobs", b"x")
    channel.queue_declare("jobs", passive=True)
    with (tmp_path / "out").open("w+") as file:
        out = rich.console.Console(file=file, width=200)
        body = kubectl.cluster("orders")
        names = ["orders-0", "orders-1"]
        reached = functools.partial(member_access.opened, kubectl, body, names, to(member))
        watching.once("orders", reached, out, 0.3, 20)
        file.seek(0)
        shown = file.read()
    connection.close()
    assert re.search(r"/ +jobs +classic +running +n0 +3 +0 +0 +0\.0 +0\.0 +0\.0", shown), shown
    assert re.search(r"n0 +running", shown)
    assert " queues, 3 messages" in shown


def test_the_shorthands_say_to_brokerctl_what_is_meant(
    kubectl: Kubectl,
    member: Member,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[str] = []

    @contextlib.contextmanager
    def forwarded(command: list[str]) -> Iterator[int]:
        opened.append(command[-2])
        yield member.grpc_port

    monkeypatch.setattr(member_access, "forwarded", forwarded)
    config = str(kubectl.flags[0]).partition("=")[2]

    def status(*args: str) -> int:
        line = ["--kubeconfig", config, "-n", SHOP, *args]
        with pytest.raises(SystemExit) as ended:
            commands.brokerd.main(line, standalone_mode=False)
        assert isinstance(ended.value.code, int)
        return ended.value.code

    connection = member.connect()
    connection.channel().queue_declare("work")
    assert status("queues", "orders") == 0
    shown = capfd.readouterr().out
    assert re.search(r"^work\t0\t0\t0\trunning\tn0$", shown.replace("\tclassic", ""), re.M), shown
    assert status("queues", "orders", "name", "type", "-p", "/", "--formatter", "json") == 0
    rows = json.loads(capfd.readouterr().out)
    assert {"name": "work", "type": "classic"} in rows
    # A value that looks like an option must not become one of brokerctl's.
    assert status("queues", "orders", "--", "--password=x") == 64
    connection.close()
    opened.clear()
    assert status("drain", "orders", "1") == 0
    assert status("revive", "orders", "orders-1") == 0
    assert opened == ["pod/orders-1", "pod/orders-1"]
    assert status("ctl", "orders", "--", "-n", "orders-1", "-q", "ping") == 0
    assert status("ctl", "orders", "-m", "0", "--", "ping") == 0


def test_connect_shows_the_password_only_when_asked(shop: Namespace, member: Member) -> None:
    silent = run(shop, "connect", "orders", "-n", SHOP)
    assert silent.returncode == 0
    assert PASSWORD not in silent.stdout
    assert "orders-admin" in silent.stdout
    assert PASSWORD in run(shop, "connect", "orders", "-n", SHOP, "--show-password").stdout


def test_a_pod_that_cannot_be_reached_is_told_by_kubectl(shop: Namespace, member: Member) -> None:
    """The pods here have no kubelet: the port-forward is refused, and the reason is shown."""
    done = run(shop, "queues", "orders", "-n", SHOP)
    assert done.returncode == 69
    assert "Error: kubectl: " in done.stderr
    assert "Traceback" not in done.stderr


#: Makes its standard input the controlling terminal of its session, then runs the plugin.
ON_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "brokerd_operator.plugin", *sys.argv[1:]])
"""


def forwarding(folder: Path, port: int) -> tuple[Path, Path]:
    """A kubectl whose port-forwards lead to a port of this machine, and where their pids are."""
    program, pids = folder / "kubectl", folder / "pids"
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *port-forward*) echo $$ >> {pids}\n'
        f'echo "Forwarding from 127.0.0.1:{port} -> 5680"; exec tail -f /dev/null;; esac\n'
        f'exec {BIN / "kubectl"} "$@"\n'
    )
    program.chmod(0o700)
    return program, pids


class Terminal:
    """A program on a terminal of its own; `shown` is all that it has written so far."""

    def __init__(self, env: dict[str, str], *args: str) -> None:
        self._master, theirs = pty.openpty()
        termios.tcsetwinsize(self._master, (40, 160))
        self.process = subprocess.Popen(
            [sys.executable, "-c", ON_TERMINAL, *args],
            env=env | {"TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.shown = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        # The end of the last program on a terminal is an error to Linux.
        with contextlib.suppress(OSError):
            while data := os.read(self._master, 65_536):
                self.shown += data.decode(errors="replace")

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)
        self._reader.join(60)
        os.close(self._master)


def are_gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize("end", ["interrupted", "killed"])
def test_top_redraws_its_screen_until_it_ends_and_its_forwards_with_it(
    shop: Namespace, member: Member, tmp_path: Path, end: str
) -> None:
    program, pids = forwarding(tmp_path, member.grpc_port)
    env = environment() | {"KUBECONFIG": str(shop.cluster.kubeconfig), "KUBECTL": str(program)}
    connection = member.connect()
    channel = connection.channel()
    view = Terminal(env, "-n", SHOP, "top", "orders", "--interval", "0.2")
    try:
        wait_for("a picture", lambda: "\x1b[?1049h" in view.shown and "messages" in view.shown)
        channel.queue_declare(f"late-{end}")
        wait_for("a newer one", lambda: f"late-{end}" in view.shown)
        pictures = view.shown.count("\x1b[H")
        wait_for("drawn over the last", lambda: view.shown.count("\x1b[H") > pictures)
        started = [int(pid) for pid in pids.read_text().split()]
        assert len(started) == 2, "one forward for each member"
        if end == "interrupted":
            view.type(b"\x03")
            assert view.process.wait(60) == 128 + signal.SIGINT
            wait_for("the screen of before", lambda: "\x1b[?1049l" in view.shown)
            assert "Traceback" not in view.shown
        else:
            view.process.kill()
        wait_for("the forwards have ended", lambda: are_gone(started))
    finally:
        view.close()
        connection.close()


def test_sigterm_ends_a_view_and_what_it_started(shop: Namespace, tmp_path: Path) -> None:
    """A kubectl that never forwards stands for one that takes its time."""
    slow = tmp_path / "kubectl"
    marker = tmp_path / "pid"
    slow.write_text(
        f'#!/bin/sh\ncase "$*" in *port-forward*) echo $$ > {marker}\n'
        "exec tail -f /dev/null;; esac\n"
        f'exec {BIN / "kubectl"} "$@"\n'
    )
    slow.chmod(0o700)
    env = environment() | {"KUBECONFIG": str(shop.cluster.kubeconfig), "KUBECTL": str(slow)}
    line = [sys.executable, "-m", "brokerd_operator.plugin", "-n", SHOP, "top", "orders"]
    with subprocess.Popen(line, env=env, stdout=subprocess.DEVNULL) as process:
        pid = int(wait_for("kubectl was started", lambda: marker.exists() and marker.read_text()))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("end", ["interrupted", "lost"])
def test_the_page_is_reached_until_its_end(
    shop: Namespace, member: Member, tmp_path: Path, end: str
) -> None:
    program, pids = forwarding(tmp_path, member.management_port)
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o700)
    env = environment() | {"KUBECONFIG": str(shop.cluster.kubeconfig), "KUBECTL": str(program)}
    url = f"http://127.0.0.1:{member.management_port}/"
    args = ("-n", SHOP, "manage", "orders", "-m", "1", "--open", "--show-password")
    view = Terminal(env | {"BROWSER": str(browser)}, *args)
    try:
        wait_for("the browser", lambda: opened.exists() and opened.read_text().strip() == url)
        wait_for("the login", lambda: PASSWORD in view.shown)
        assert f"{url} leads to orders-1" in view.shown
        assert _get_page(member.management_port, "") == 401
        assert _get_page(member.management_port, f"admin:{PASSWORD}") == 200
        [forward] = [int(pid) for pid in pids.read_text().split()]
        if end == "interrupted":
            view.type(b"\x03")
            assert view.process.wait(60) == 128 + signal.SIGINT
        else:
            os.kill(forward, signal.SIGTERM)
            assert view.process.wait(60) == 69
            wait_for("why", lambda: "Error: kubectl" in view.shown)
        assert "Traceback" not in view.shown
        wait_for("the forward has ended", lambda: are_gone([forward]))
    finally:
        view.close()


def _get_page(port: int, login: str) -> int:
    headers = {"Authorization": "Basic " + base64.b64encode(login.encode()).decode()}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", "/", headers=headers if login else {})
        return connection.getresponse().status
