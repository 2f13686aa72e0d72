"""What the engine needs from what runs it: Kubernetes, or a directory of files.

Protocols only; `sources/` and `local/` implement them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from brokerd_operator import conditions
from brokerd_operator.broker.client import Target
from brokerd_operator.engine.keys import Body, Key
from brokerd_operator.specs.broker_cluster import BrokerClusterSpec
from brokerd_operator.specs.model import ClusterAddress, Meta, Reference
from brokerd_operator.specs.user import UserSpec


class Gone(Exception):
    """The resource is not there any more; nothing is to be written."""


class StoreError(OSError):
    """Where resources live did not take what was written, or did not let it be read."""

    #: What it was about, in words: `Secret orders-keys`.
    what: str
    #: Whether there was an answer at all.
    is_answer: bool
    #: Whether another try may succeed without a change by the user: the store is overloaded,
    #: another writer was faster, a webhook did not answer.
    is_passing: bool


class Store(Protocol):
    """Where resources live."""

    async def write_status(self, body: Body, status: Mapping[str, Any]) -> None:
        """Replace the status; raises Gone, or OSError to be tried again."""

    async def add_finalizer(self, body: Body) -> None: ...

    async def remove_finalizer(self, body: Body) -> None: ...

    async def emit(self, body: Body, type_: str, reason: str, message: str) -> None:
        """Tell of a transition. `type_` is Normal or Warning."""

    async def secret(self, namespace: str, name: str) -> Mapping[str, bytes] | None: ...

    async def make_user_secret(self, body: Body, meta: Meta, spec: UserSpec, host: str) -> None:
        """Make the generated credentials of a User, if they are not there."""

    def namespace_labels(self, namespace: str) -> Mapping[str, str]: ...

    async def is_namespace_terminating(self, namespace: str) -> bool: ...

    def is_watched(self, namespace: str) -> bool:
        """Whether resources of a namespace would be seen now (design/operator.md §10)."""

    async def names(self, kind: str, namespace: str) -> frozenset[str]:
        """A complete listing, made now; raises OSError."""

    async def read(self, key: Key) -> Body | None:
        """A resource as it is now, None when it does not exist; raises OSError."""


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """What a driver says about a BrokerCluster after a pass."""

    reason: str
    message: str
    #: Conditions besides Ready, Reconciling and Stalled.
    conditions: tuple[conditions.Condition, ...] = ()
    #: Further fields of the status.
    status: Mapping[str, Any] = field(default_factory=dict)
    again_s: float | None = None
    #: When certificates expire, in seconds since 1970, by Secret.
    expiries: Mapping[str, float] = field(default_factory=dict)
    #: When members that were started again had ended, in seconds since 1970, by member and reason.
    ends: Mapping[tuple[str, ...], float] = field(default_factory=dict)
    #: What the API server refuses until somebody does something, each in words.
    refused: tuple[str, ...] = ()


class ClusterDriver(Protocol):
    """Runs BrokerClusters."""

    async def reconcile(self, body: Body, meta: Meta, spec: BrokerClusterSpec) -> ClusterReport: ...

    async def teardown(self, body: Body, meta: Meta) -> bool:
        """Stop what runs; False: look again soon."""

    async def target(self, reference: Reference) -> Target | None:
        """How the administration of a broker is reached; None while it has no address."""

    async def address(self, reference: Reference) -> ClusterAddress | None:
        """How AMQP clients reach a BrokerCluster."""
