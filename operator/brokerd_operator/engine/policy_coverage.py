"""What `reconcile/standing.py` makes of the virtual hosts of all brokers, kept up to date.

A virtual host whose policies, queues or exchanges changed is looked at anew, in a while and not for
each change: a thousand new queues are one look.  The engine's follower calls `refresh` and wakes
what it names.  It yields between policies, so that a look at many objects delays no other task.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from brokerd_operator.reconcile import standing
from brokerd_operator.reconcile.standing import Matched, Oddity, Standing, View
from brokerd_operator.reconcile.topology import ObservedObject, Topology
from brokerd_operator.specs.model import Identity, Reference

#: Objects that are matched before others get their turn.
PART = 16
#: What one policy may cost in one look; ten thousand names usually cost a hundredth of it.
POLICY_BUDGET_S = 5.0

_Place = tuple[Reference, str]


class PolicyCoverage:
    """Owns the views, by broker and virtual host."""

    def __init__(self) -> None:
        self._views: dict[_Place, View] = {}
        self._changed: set[_Place] = set()
        #: Brokers whose listing is new: all their virtual hosts are to be looked at.
        self._listed: set[Reference] = set()

    def mark(self, broker: Reference, identity: Identity) -> None:
        """An object appeared, went or changed."""
        if identity.kind in standing.KINDS:
            self._changed.add((broker, identity.vhost))

    def mark_all(self, broker: Reference) -> None:
        """All objects of a broker were listed anew."""
        self._listed.add(broker)

    def forget(self, broker: Reference) -> None:
        self._listed.discard(broker)
        self._changed = {place for place in self._changed if place[0] != broker}
        for place in [place for place in self._views if place[0] == broker]:
            del self._views[place]

    def is_known(self, broker: Reference, vhost: str) -> bool:
        """Whether a virtual host was ever looked at."""
        return (broker, vhost) in self._views

    def is_new(self, broker: Reference) -> bool:
        """Whether all virtual hosts of a broker are still to be looked at."""
        return broker in self._listed

    def of_policy(self, broker: Reference, identity: Identity) -> Standing | None:
        view = self._views.get((broker, identity.vhost))
        return None if view is None else view.policies.get(identity)

    def oddities(self, broker: Reference, identity: Identity) -> tuple[Oddity, ...]:
        view = self._views.get((broker, identity.vhost))
        return () if view is None else view.oddities.get(identity, ())

    def winners(self, broker: Reference, vhost: str) -> Mapping[Identity, Identity]:
        """The policy in force for each exchange and queue of a virtual host."""
        view = self._views.get((broker, vhost))
        return {} if view is None else view.winners

    async def refresh(self, broker: Reference, topology: Topology) -> set[Identity]:
        """Look at what changed; whose standing or oddities are others now."""
        places = {vhost for reference, vhost in self._changed if reference == broker}
        is_all = broker in self._listed
        if not places and not is_all:
            return set()
        self._listed.discard(broker)
        self._changed -= {(broker, vhost) for vhost in places}
        by_vhost: dict[str, list[ObservedObject]] = {vhost: [] for vhost in places}
        if is_all:
            known = (vhost for reference, vhost in self._views if reference == broker)
            by_vhost |= {vhost: [] for vhost in known}
        for item in topology:
            if item.kind == "vhost" and is_all:
                by_vhost.setdefault(item.name, [])
            elif item.kind in standing.KINDS and (is_all or item.vhost in places):
                by_vhost.setdefault(item.vhost, []).append(item)
        woken: set[Identity] = set()
        for vhost, items in by_vhost.items():
            woken |= await self._look(broker, vhost, items)
            if not items and not topology.has(Identity("vhost", "", vhost)):
                del self._views[broker, vhost]
        return woken

    async def _look(
        self, broker: Reference, vhost: str, items: list[ObservedObject]
    ) -> set[Identity]:
        matched = {}
        for item in items:
            if item.kind in standing.POLICY_KINDS:
                matched[item.identity] = await _match(item, items)
        before = self._views.get((broker, vhost))
        after = standing.view(items, matched)
        self._views[broker, vhost] = after
        before = before or View()
        return _differing(before.policies, after.policies) | _differing(
            before.oddities, after.oddities
        )


async def _match(policy: ObservedObject, items: list[ObservedObject]) -> Matched:
    """What a policy matches, by and by: no task waits for a pattern that is slow for every name."""
    fits: list[Identity] = []
    voided: list[Identity] = []
    spent_s = 0.0
    for start in range(0, len(items), PART):
        began = time.monotonic()
        part = standing.match(policy, items[start : start + PART])
        spent_s += time.monotonic() - began
        if part.is_slow or spent_s > POLICY_BUDGET_S:
            return Matched(is_slow=True)
        fits += part.fits
        voided += part.voided
        await asyncio.sleep(0)
    return Matched(tuple(fits), tuple(voided))


def _differing(
    before: Mapping[Identity, object], after: Mapping[Identity, object]
) -> set[Identity]:
    return {name for name in {*before, *after} if before.get(name) != after.get(name)}
