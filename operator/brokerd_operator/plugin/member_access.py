"""The way to a member's port: `kubectl port-forward`, with login and authority of a cluster.

What is opened here is ended with the with-block, whatever happens in it. The password stays in this
process and in the environment of the brokerctl it starts; it is never on a command line.
"""

from __future__ import annotations

import base64
import contextlib
import os
import queue
import re
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from brokerd.ctl.settings import Settings
from brokerd_operator.manifests.naming import PORT_GRPC
from brokerd_operator.plugin import health
from brokerd_operator.plugin.health import Member, part, text
from brokerd_operator.plugin.kubectl import Body, Kubectl, KubectlError, refusal

#: A credential plug-in of kubectl may ask somebody something first.
OPEN_TIMEOUT_S = 60.0
END_TIMEOUT_S = 5.0
#: Members that are asked together; the CRD allows 31.
MEMBERS_MAX = 32
#: What is shown of kubectl's complaints.
COMPLAINT_BYTES = 4096
LOOPBACK = "127.0.0.1"

_FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+)")

#: Ends a command when its own standard input does: that is a pipe from this process, so it ends
#: with it however that happens, SIGKILL included. The command's output must end with the command,
#: so the shell lets go of it; a signal of the terminal is for this process to decide about.
LIFELINE = (
    '"$@" & child=$!; trap "" INT QUIT; exec >/dev/null 2>&1; read -r _; '
    'kill "$child"; wait "$child"'
)

#: Opens the way to a port of a pod: namespace, pod, port; the local port.
Forward = Callable[[str, str, int], contextlib.AbstractContextManager[int]]


@dataclass(frozen=True, slots=True)
class Access:
    """Members that can be reached, and as whom."""

    #: host:port by the member's name.
    addresses: dict[str, str]
    user: str
    password: str = field(repr=False)
    ca_file: str
    #: Whom the certificate must name: what stands in it, not where the forwarded port is.
    server_name: str

    def environment(self) -> dict[str, str]:
        """Variables for a brokerctl, which knows the members by their names."""
        pairs = (f"{name}={address}" for name, address in self.addresses.items())
        return os.environ | {
            "BROKERD_ADDRESS": ",".join(self.addresses),
            "BROKERD_NODES": ",".join(pairs),
            "BROKERD_USER": self.user,
            "BROKERD_PASSWORD": self.password,
            "BROKERD_SERVER_NAME": self.server_name,
        }

    def settings(self) -> Settings:
        """The same for brokerctl's modules in this process; of all vhosts."""
        return Settings(
            address=",".join(self.addresses.values()),
            user=self.user,
            password=self.password,
            vhost="",
            ca_file=self.ca_file,
            server_name=self.server_name,
        )


def members(kubectl: Kubectl, cluster: Body) -> tuple[Member, ...]:
    """The pods of a cluster."""
    metadata = part(cluster, "metadata")
    name, namespace = text(metadata, "name"), text(metadata, "namespace")
    return health.members_of(
        name, kubectl.items("pods", "-l", selector(cluster), namespace=namespace), 0
    )


def selector(cluster: Body) -> str:
    """The labels of a cluster's pods and volume claims."""
    name = text(part(cluster, "metadata"), "name")
    return (
        f"app.kubernetes.io/name=brokerd,app.kubernetes.io/instance={name},"
        "app.kubernetes.io/component=broker"
    )


def chosen(cluster: Body, found: Sequence[Member], wanted: Sequence[str]) -> list[str]:
    """The members to talk to: those that are named (by name or ordinal), else all that are ready.

    One that is named need not be ready: a drained member is not, and is to be revived.
    """
    name = text(part(cluster, "metadata"), "name")
    states = ", ".join(f"{member.name} ({member.state})" for member in found) or "none"
    if not found and health.is_resting(cluster):
        raise KubectlError(
            f"BrokerCluster {name} is hibernated: no member runs; spec.hibernated false, or "
            "spec.replicas above 0, wakes it"
        )
    running = {member.name for member in found if member.is_running}
    if not wanted:
        ready = [member.name for member in found if member.state == health.READY]
        if not running:
            raise KubectlError(f"no member of {name} runs; there are: {states}")
        return (ready or sorted(running))[:MEMBERS_MAX]
    names = [f"{name}-{item}" if item.isdecimal() else item for item in wanted]
    known = {member.name for member in found}
    for item in names:
        if item not in known:
            raise KubectlError(f"{name} has no member {item}; there are: {states}")
        if item not in running:
            raise KubectlError(f"member {item} does not run; there are: {states}")
    return list(dict.fromkeys(names))[:MEMBERS_MAX]


@contextlib.contextmanager
def opened(
    kubectl: Kubectl, cluster: Body, names: Sequence[str], forward: Forward | None = None
) -> Iterator[Access]:
    """Members by name, reached for the length of a with-block."""
    metadata = part(cluster, "metadata")
    namespace, name = text(metadata, "namespace"), text(metadata, "name")
    login = secret(kubectl, namespace, admin_secret(cluster))
    if not {"username", "password"} <= login.keys():
        raise KubectlError(f"Secret {admin_secret(cluster)} lacks username or password")
    authority = _authority(kubectl, namespace, cluster)
    forward = forward or (lambda *where: forwarded(forward_command(kubectl, *where)))
    with contextlib.ExitStack() as held:
        folder = held.enter_context(tempfile.TemporaryDirectory(prefix="kubectl-brokerd-"))
        ca_file = Path(folder) / "ca.crt"
        ca_file.write_bytes(authority)
        ports = {item: held.enter_context(forward(namespace, item, PORT_GRPC)) for item in names}
        yield Access(
            {item: f"{LOOPBACK}:{port}" for item, port in ports.items()},
            login["username"].decode(),
            login["password"].decode(),
            str(ca_file),
            f"{name}.{namespace}.svc",
        )


def admin_secret(cluster: Body) -> str:
    """Name of the Secret with the administrator's login."""
    found = text(part(cluster, "status"), "adminSecret")
    return found or f"{text(part(cluster, 'metadata'), 'name')}-admin"


def authority_secret(cluster: Body) -> str:
    """Name of the Secret whose ca.crt signed the serving certificate."""
    tls = part(part(cluster, "spec"), "tls")
    own = text(tls, "caSecretName") or text(tls, "secretName")
    # As manifests/naming.py has it: cert-manager's is another Secret than the operator's.
    made = "issued-tls" if part(tls, "issuerRef") else "tls"
    return own or f"{text(part(cluster, 'metadata'), 'name')}-{made}"


def _authority(kubectl: Kubectl, namespace: str, cluster: Body) -> bytes:
    name = authority_secret(cluster)
    found = secret(kubectl, namespace, name).get("ca.crt")
    if found:
        return found
    # A certificate of one's own may come without its authority: then it is one that all know.
    public = ssl.get_default_verify_paths().cafile
    if public is None:
        raise KubectlError(f"Secret {name} has no ca.crt; spec.tls.caSecretName can name one")
    return Path(public).read_bytes()


def secret(kubectl: Kubectl, namespace: str, name: str) -> dict[str, bytes]:
    """What is in a Secret."""
    found = kubectl.get("secrets", name, namespace=namespace)
    if found is None:
        raise KubectlError(f"there is no Secret {name} in namespace {namespace}")
    return {key: base64.b64decode(str(value)) for key, value in part(found, "data").items()}


# ---- port-forward -------------------------------------------------------------------------------


def forward_command(
    kubectl: Kubectl, namespace: str, pod: str, port: int, local_port: int | None = None
) -> list[str]:
    """kubectl for a local port, which it prints; a free one if none is named."""
    line = ("port-forward", "--address", LOOPBACK, f"pod/{pod}", f"{local_port or ''}:{port}")
    return kubectl.command(*line, namespace=namespace)


@contextlib.contextmanager
def forwarded(
    command: Sequence[str],
    timeout_s: float = OPEN_TIMEOUT_S,
    ended: threading.Event | None = None,
) -> Iterator[int]:
    """Run a port-forward; the local port, until the with-block ends.

    ended: is set when the port-forward ends by itself. The with-block's end then says why.
    """
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(
            ["sh", "-c", LIFELINE, "sh", *command],
            text=True,
            stdout=subprocess.PIPE,
            stderr=complaints,
            stdin=subprocess.PIPE,
        )
        assert process.stdout is not None
        said: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        # It prints a line for each connection: unread, they would stop it one day.
        reader = threading.Thread(target=_read, args=(process.stdout, said, ended), daemon=True)
        reader.start()
        try:
            try:
                port = said.get(timeout=timeout_s)
            except queue.Empty:
                raise KubectlError(f"no port-forward within {timeout_s:.0f} s") from None
            if port is not None:
                yield port
            if port is None or (ended is not None and ended.is_set()):
                _end(process)
                complaints.seek(0)
                raise refusal(complaints.read(COMPLAINT_BYTES).decode(errors="replace"))
        finally:
            _end(process)
            reader.join(END_TIMEOUT_S)
            process.stdout.close()


def _read(
    lines: IO[str], said: queue.SimpleQueue[int | None], ended: threading.Event | None
) -> None:
    is_told = False
    for line in lines:
        if not is_told and (found := _FORWARDING.search(line)):
            said.put(int(found[1]))
            is_told = True
    if not is_told:
        said.put(None)
    if ended is not None:
        ended.set()


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
