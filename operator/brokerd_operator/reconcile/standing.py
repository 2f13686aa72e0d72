"""Which policies are in force for what, and what is odd between the objects of a virtual host.

PURE; over the mirror of a broker, so that objects which no resource made count as well.  The rules
are the broker's: the highest priority wins, then the smallest name (R-POL-3); a key that a queue's
type does not know voids the whole policy for it (R-POL-9); the default exchange has no policy
(R-POL-4); argument, inline setting and policy name an alternate exchange in that order (R-AE-1).
For the engine, which shows it in statuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import regex

from brokerd_operator.reconcile.topology import ObservedObject
from brokerd_operator.specs.model import Identity

POLICY_KINDS = ("policy", "operator_policy")
#: What this module looks at; other kinds change nothing in it.
KINDS = frozenset(("exchange", "queue", *POLICY_KINDS))

#: One match of one name, as in the broker (SEC-19). A pattern that once takes longer is given up.
MATCH_TIMEOUT_S = 0.05
#: Objects that one message names.
NAMED_MAX = 5

#: Of the broker's table (R-POL-9); a test compares them.
UNSUPPORTED = {
    "classic": frozenset(
        (
            "consumer-disconnected-timeout",
            "dead-letter-strategy",
            "delayed-retry-max",
            "delayed-retry-min",
            "delayed-retry-type",
            "delivery-limit",
            "initial-cluster-size",
            "max-age",
            "max-in-memory-bytes",
            "max-in-memory-length",
            "stream-max-segment-size-bytes",
            "target-group-size",
        )
    ),
    "quorum": frozenset(
        (
            "initial-cluster-size",
            "max-age",
            "queue-mode",
            "queue-version",
            "stream-max-segment-size-bytes",
        )
    ),
}

ALTERNATE = "alternate-exchange"


@dataclass(frozen=True, slots=True)
class Oddity:
    """Something that works, but hardly as meant; becomes the condition Warning."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Matched:
    """What one policy fits by name and type."""

    fits: tuple[Identity, ...] = ()
    #: It would, but for a key that the queue's type does not know.
    voided: tuple[Identity, ...] = ()
    #: The pattern took too long for a name: in the broker too it then matches nothing.
    is_slow: bool = False


@dataclass(frozen=True, slots=True)
class Standing:
    """What one policy comes to."""

    exchanges: int = 0
    queues: int = 0
    skipped: int = 0
    #: Reason and message of the condition Effective.
    reason: str = "NothingMatches"
    message: str = "no exchange or queue matches it"

    @property
    def is_effective(self) -> bool:
        return self.reason == "InForce"


@dataclass(frozen=True, slots=True)
class View:
    """All of one virtual host."""

    policies: Mapping[Identity, Standing] = field(default_factory=dict)
    oddities: Mapping[Identity, tuple[Oddity, ...]] = field(default_factory=dict)
    #: The policy that is in force for each exchange and queue.
    winners: Mapping[Identity, Identity] = field(default_factory=dict)


def match(policy: ObservedObject, objects: Iterable[ObservedObject]) -> Matched:
    """What a policy fits among the exchanges and queues of its virtual host."""
    apply_to = policy.spec.get("apply-to", "all")
    try:
        pattern = regex.compile(policy.spec.get("pattern", ""))
    except (regex.error, RecursionError, OverflowError):
        return Matched()
    definition = frozenset(policy.spec.get("definition") or ())
    fits: list[Identity] = []
    voided: list[Identity] = []
    for item in objects:
        if not _is_for(policy.kind, apply_to, item):
            continue
        try:
            found = pattern.search(item.name, timeout=MATCH_TIMEOUT_S)
        except TimeoutError:
            return Matched(is_slow=True)
        if found is None:
            continue
        unknown = UNSUPPORTED.get(item.spec.get("type", ""), frozenset())
        is_voided = item.kind == "queue" and not definition.isdisjoint(unknown)
        (voided if is_voided else fits).append(item.identity)
    return Matched(tuple(fits), tuple(voided))


def _is_for(kind: str, apply_to: str, item: ObservedObject) -> bool:
    if item.kind == "exchange":
        is_policy = kind == "policy" and apply_to in ("all", "exchanges")
        return is_policy and item.name != ""
    if item.kind != "queue" or item.spec.get("exclusive"):
        # Exclusive queues come and go with their connections, and are not counted.
        return False
    return apply_to in ("all", "queues", f"{item.spec.get('type')}_queues")


def view(objects: Iterable[ObservedObject], matched: Mapping[Identity, Matched]) -> View:
    """What follows from the matches of all policies of one virtual host."""
    items = list(objects)
    policies = {item.identity: item for item in items if item.identity in matched}
    standings: dict[Identity, Standing] = {}
    oddities: dict[Identity, list[Oddity]] = {}
    winners: dict[Identity, Identity] = {}
    for kind in POLICY_KINDS:
        of_kind = {name: item for name, item in policies.items() if name.kind == kind}
        ranked = _contenders(of_kind, matched)
        for name in of_kind:
            standings[name] = _standing(name, matched[name], ranked)
        for identity, contenders in ranked.items():
            if kind == "policy":
                winners[identity] = contenders[0][1]
        for name, oddity in _ties(ranked):
            oddities.setdefault(name, []).append(oddity)
    for name, oddity in _cycle_oddities(items, policies, winners):
        oddities.setdefault(name, []).append(oddity)
    return View(standings, {name: tuple(found) for name, found in oddities.items()}, winners)


#: Policies that fit an object, the winner first, each with its rank.
_Ranked = dict[Identity, list[tuple[tuple[int, str], Identity]]]


def _contenders(
    policies: Mapping[Identity, ObservedObject], matched: Mapping[Identity, Matched]
) -> _Ranked:
    found: _Ranked = {}
    for name, item in policies.items():
        rank = (-int(item.spec.get("priority", 0)), name.name)
        for identity in matched[name].fits:
            found.setdefault(identity, []).append((rank, name))
    for contenders in found.values():
        contenders.sort()
    return found


def _standing(name: Identity, matched: Matched, ranked: _Ranked) -> Standing:
    if matched.is_slow:
        return Standing(
            reason="PatternTooSlow", message="the pattern takes too long to match a name"
        )
    counts = {"exchange": 0, "queue": 0}
    equal: list[str] = []
    shadowed: list[str] = []
    for identity in matched.fits:
        contenders = ranked[identity]
        (priority, _), winner = contenders[0]
        if winner == name:
            counts[identity.kind] += 1
            continue
        is_equal = any(rank[0] == priority and other == name for rank, other in contenders)
        (equal if is_equal else shadowed).append(f"{_shown(identity)} (by {winner.name})")
    skipped = len(equal) + len(shadowed) + len(matched.voided)
    if equal:
        reason = "EqualPriority"
        message = f"a policy of the same priority wins for {_listed(equal)}"
    elif shadowed:
        reason = "Shadowed"
        message = f"a policy of higher priority wins for {_listed(shadowed)}"
    elif matched.voided:
        reason = "NotApplicable"
        names = _listed([_shown(identity) for identity in matched.voided])
        message = f"one of its keys is unknown to the type, which voids it, for {names}"
    elif not matched.fits:
        return Standing()
    else:
        reason, message = "InForce", "in force for all that it matches"
    return Standing(counts["exchange"], counts["queue"], skipped, reason, message)


def _ties(ranked: _Ranked) -> Iterator[tuple[Identity, Oddity]]:
    """Policies that share an object's highest priority; each gets the names of the others."""
    tied: dict[Identity, dict[str, list[str]]] = {}
    for identity, contenders in ranked.items():
        best = [name for rank, name in contenders if rank[0] == contenders[0][0][0]]
        if len(best) < 2:
            continue
        for name in best:
            rivals = ", ".join(other.name for other in best[:NAMED_MAX] if other != name)
            tied.setdefault(name, {}).setdefault(rivals, []).append(_shown(identity))
    for name, by_rivals in tied.items():
        texts = [
            f"it has the same priority as {rivals} for {_listed(shown)}"
            for rivals, shown in sorted(by_rivals.items())
        ]
        text = "; ".join(texts[:NAMED_MAX])
        yield name, Oddity("EqualPriority", f"{text}; the smallest name wins")


def _cycle_oddities(
    items: Iterable[ObservedObject],
    policies: Mapping[Identity, ObservedObject],
    winners: Mapping[Identity, Identity],
) -> Iterator[tuple[Identity, Oddity]]:
    edges: dict[str, str] = {}
    by_policy: dict[str, Identity] = {}
    exchanges: dict[str, Identity] = {}
    for item in items:
        if item.kind != "exchange" or not item.name:
            continue
        exchanges[item.name] = item.identity
        own = _own_alternate(item)
        winner = winners.get(item.identity)
        if own is None and winner is not None:
            own = (policies[winner].spec.get("definition") or {}).get(ALTERNATE)
            by_policy[item.name] = winner
        if isinstance(own, str) and own:
            edges[item.name] = own
    for cycle in cycles(edges):
        last = "…" if len(cycle) > NAMED_MAX else cycle[0]
        shown = " -> ".join([*cycle[:NAMED_MAX], last])
        oddity = Oddity(
            "AlternateExchangeCycle",
            f"the alternate exchanges form a cycle, {shown}: "
            "a message that none of them routes goes nowhere",
        )
        told = [exchanges[name] for name in cycle]
        told += [by_policy[name] for name in cycle if name in by_policy]
        for identity in dict.fromkeys(told):
            yield identity, oddity


def _own_alternate(item: ObservedObject) -> object:
    table = item.spec.get("arguments") or {}
    if ALTERNATE in table:
        return table[ALTERNATE]
    return (item.spec.get("settings") or {}).get(ALTERNATE)


def cycles(edges: Mapping[str, str]) -> list[tuple[str, ...]]:
    """The cycles of a graph in which each node has one successor at most, each from its smallest
    node on, in order.
    """
    found: list[tuple[str, ...]] = []
    done: set[str] = set()
    for start in edges:
        path: dict[str, int] = {}
        node = start
        while node in edges and node not in done and node not in path:
            path[node] = len(path)
            node = edges[node]
        if node in path:
            ring = list(path)[path[node] :]
            first = ring.index(min(ring))
            found.append((*ring[first:], *ring[:first]))
        done.update(path)
    return sorted(found)


def _shown(identity: Identity) -> str:
    return f"{identity.kind} {identity.name}"


def _listed(names: list[str]) -> str:
    rest = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + rest
