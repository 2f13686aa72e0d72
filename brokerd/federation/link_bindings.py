"""Binding propagation: which bindings a link must have on its upstream exchange.

PURE.  `desired` says it from the downstream exchange's bindings (R-FX-7 to R-FX-10), `Propagated`
remembers what is there and gives the difference in order.  For the link only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from brokerd.amqp.values import Table, Value
from brokerd.core.catalog import arguments as core_arguments
from brokerd.core.catalog import names
from brokerd.core.catalog.federation_type import already_seen

BOUND_FROM = "x-bound-from"
#: Entries of x-bound-from that are looked at; a longer list is somebody's invention.
BOUND_FROM_MAX = 256


@dataclass(slots=True, frozen=True)
class Ends:
    """Who is linked with whom; `suffix` is the letter of the internal exchange."""

    cluster: str
    vhost: str
    exchange: str
    suffix: str
    upstream_cluster: str
    upstream_vhost: str
    max_hops: int


@dataclass(slots=True)
class UpstreamBinding:
    """One exchange.bind upstream, and the identity it stands for."""

    identity: str
    routing_key: str
    arguments: Table = field(default_factory=dict)


def _hops(previous: list[Value], ends: Ends) -> int:
    """R-FX-8, R-FX-9: how far this binding may still be carried; 0: not at all."""
    if len(previous) > BOUND_FROM_MAX:
        return 0
    if not previous:
        return ends.max_hops
    if already_seen(previous, ends.upstream_cluster, ends.upstream_vhost):
        return 0
    first = previous[0]
    hops = first.get("hops") if isinstance(first, dict) else None
    if type(hops) is not int:
        return 0
    return max(0, min(hops - 1, ends.max_hops))


def propagate(routing_key: str, arguments: Table, ends: Ends) -> UpstreamBinding | None:
    """Return what a downstream binding becomes upstream; None when it is not carried further."""
    header = arguments.get(BOUND_FROM)
    previous = header if isinstance(header, list) else []
    hops = _hops(previous, ends)
    if hops <= 0:
        return None
    entry: Value = {
        "cluster-name": ends.cluster,
        "vhost": ends.vhost,
        "exchange": f"{ends.vhost}:{ends.exchange} {ends.suffix}",
        "hops": hops,
    }
    carried: Table = {**arguments, BOUND_FROM: [entry, *previous]}
    identity = names.canonical_json([routing_key, core_arguments.to_json(arguments)])
    return UpstreamBinding(identity, routing_key, carried)


def desired(bindings: Iterable[tuple[str, Table]], ends: Ends) -> dict[str, UpstreamBinding]:
    """Return one upstream binding per distinct (routing key, arguments) (R-FX-7)."""
    wanted: dict[str, UpstreamBinding] = {}
    for routing_key, arguments in bindings:
        binding = propagate(routing_key, arguments, ends)
        if binding is not None:
            wanted.setdefault(binding.identity, binding)
    return wanted


@dataclass(slots=True)
class Changes:
    """What is to be done upstream, additions first: a moved binding leaves no gap."""

    add: list[UpstreamBinding] = field(default_factory=list)
    remove: list[UpstreamBinding] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.add or self.remove)


class Propagated:
    """The bindings of one internal exchange as they are upstream.

    The link applies the result of `update` completely and in order, or starts anew.
    """

    __slots__ = ("_present",)

    def __init__(self) -> None:
        self._present: dict[str, UpstreamBinding] = {}

    def __len__(self) -> int:
        return len(self._present)

    def update(self, wanted: dict[str, UpstreamBinding]) -> Changes:
        """Return the difference to what is there, and remember it as done."""
        present = self._present
        changes = Changes(
            [binding for identity, binding in wanted.items() if identity not in present],
            [binding for identity, binding in present.items() if identity not in wanted],
        )
        self._present = dict(wanted)
        return changes
