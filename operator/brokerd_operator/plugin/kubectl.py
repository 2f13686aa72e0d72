"""kubectl, the plugin's only way to Kubernetes: it has the person's own rights and no more.

Finds the program, passes the person's flags on, and turns what kubectl complains about into
sentences. For the other modules of this room.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

Body = Mapping[str, Any]

#: The program, where it is not the kubectl of the PATH.
PROGRAM_VARIABLE = "KUBECTL"
REQUEST_TIMEOUT = "--request-timeout=30s"
#: sysexits.h, as brokerctl has them.
EXIT_UNAVAILABLE = 69
EXIT_NO_PERMISSION = 77
#: Names that an error lists.
NAMES_MAX = 20

CLUSTERS = "brokerclusters.brokerd.io"

_FORBIDDEN = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)"'
    r' in API group "(?P<group>[^"]*)"(?: in the namespace "(?P<namespace>[^"]*)")?'
)
#: Lines of its log, which it writes beside what it has to say.
_LOG = re.compile(r"[EWIF]\d{4} \d\d:\d\d:\d\d")
_NO_KIND = re.compile(r"the server doesn't have a resource type \"([^\"]+)\"")


class KubectlError(click.ClickException):
    """What keeps a command from doing its work; shown as a sentence."""

    def __init__(self, message: str, exit_code: int = EXIT_UNAVAILABLE) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]


class NoSuchKind(KubectlError):
    """The API server does not know a kind."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"this Kubernetes has no {kind}: brokerd's custom resource definitions are not"
            " installed here, or are older than this plugin"
        )
        self.kind = kind


def refusal(said: str) -> KubectlError:
    """What kubectl's complaint means."""
    lines = [line for line in said.strip().splitlines() if not _LOG.match(line)]
    text = "\n".join(lines) or said.strip() or "kubectl failed and said nothing"
    if found := _NO_KIND.search(text):
        return NoSuchKind(found[1])
    if found := _FORBIDDEN.search(text):
        where = f"in namespace {found['namespace']}" if found["namespace"] else "in all namespaces"
        kind = "Role" if found["namespace"] else "ClusterRole"
        return KubectlError(
            f"{found['user']} may not {found['verb']} {found['resource']} {where}; it takes a "
            f'{kind} with apiGroups ["{found["group"]}"], resources ["{found["resource"]}"], '
            f'verbs ["{found["verb"]}"]',
            EXIT_NO_PERMISSION,
        )
    return KubectlError(f"kubectl: {text.removeprefix('error: ').removeprefix('Error: ')}")


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl with the flags that say which cluster and namespace are meant."""

    program: str
    flags: tuple[str, ...] = ()
    #: As the person gave it; "" for the one of the kubeconfig's context.
    namespace: str = ""

    @classmethod
    def find(cls, kubeconfig: str = "", context: str = "", namespace: str = "") -> Kubectl:
        """Find the program; the other flags are the person's."""
        wanted = os.environ.get(PROGRAM_VARIABLE) or "kubectl"
        program = shutil.which(wanted)
        if program is None:
            raise KubectlError(
                f"{wanted} is not there or cannot be run: put kubectl on the PATH, or its path "
                f"into the variable {PROGRAM_VARIABLE}"
            )
        given = (("--kubeconfig", kubeconfig), ("--context", context))
        return cls(program, tuple(f"{name}={value}" for name, value in given if value), namespace)

    def command(self, *args: str, namespace: str = "") -> list[str]:
        """The command line of a call."""
        where = namespace or self.namespace
        return [self.program, *self.flags, *([f"--namespace={where}"] if where else []), *args]

    def get(self, *args: str, namespace: str = "") -> Body | None:
        """`kubectl get … -o json`; None if the object is not there."""
        done = self._get(args, namespace)
        if done.returncode:
            raise refusal(done.stderr)
        found: Body | None = json.loads(done.stdout) if done.stdout.strip() else None
        return found

    def items(self, *args: str, namespace: str = "") -> list[Body]:
        """The objects of a list."""
        return list((self.get(*args, namespace=namespace) or {}).get("items") or ())

    def items_seen(self, kinds: Sequence[str], *args: str, namespace: str = "") -> Seen:
        """The objects of several kinds, as far as the person may list them and they exist."""
        left = list(kinds)
        while left:
            done = self._get((",".join(left), *args), namespace)
            if (missing := _NO_KIND.search(done.stderr)) is None:
                break
            # kubectl shows nothing at all if one of the kinds is unknown.
            known = [kind for kind in left if not kind.startswith(missing[1])]
            if len(known) == len(left):
                raise refusal(done.stderr)
            left = known
        else:
            return Seen([], ())
        found = json.loads(done.stdout)["items"] if done.stdout.strip() else []
        complaints = done.stderr.strip().splitlines() if done.returncode else []
        complaints = [line for line in complaints if not _LOG.match(line)]
        if not found and not complaints and done.returncode:
            raise refusal(done.stderr)
        return Seen(found, tuple(dict.fromkeys(refusal(line).message for line in complaints)))

    def _get(self, args: Sequence[str], namespace: str) -> subprocess.CompletedProcess[str]:
        line = self.command("get", *args, "-o", "json", REQUEST_TIMEOUT, namespace=namespace)
        if "-l" not in args and "," not in args[0]:
            line.append("--ignore-not-found")
        return subprocess.run(line, text=True, capture_output=True, stdin=subprocess.DEVNULL)

    # ---- brokerd's ------------------------------------------------------------------------------

    def cluster(self, name: str) -> Body:
        """A BrokerCluster; the error names those that are there."""
        found = self.get(CLUSTERS, name)
        if found is not None:
            return found
        where = f" in namespace {self.namespace}" if self.namespace else " in this namespace"
        names = sorted(str(item["metadata"]["name"]) for item in self.items(CLUSTERS))
        shown = ", ".join(names[:NAMES_MAX]) + (", …" if len(names) > NAMES_MAX else "")
        there = f"there are: {shown}" if names else "there is none (-n names another namespace)"
        raise KubectlError(f"there is no BrokerCluster {name}{where}; {there}")


@dataclass(frozen=True, slots=True)
class Seen:
    """What could be listed, and why the rest could not."""

    items: list[Body]
    unseen: tuple[str, ...]
