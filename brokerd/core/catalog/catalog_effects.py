"""What applying a catalog command asks the outside to do: data, realised on every member, in
catalog order (core/queue/effects.py has those of queues).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class FeaturesEnabled:
    """Feature flags were enabled (realised on every member): what waited for them may begin."""

    names: list[str]


@dataclass(slots=True)
class TopologyChanged:
    """A catalog object was put or deleted (realised on every member, in catalog order)."""

    #: vhost exchange queue binding policy operator_policy user permission topic_permission
    #: parameter member setting
    kind: str
    vhost: str
    name: str
    deleted: bool
    revision: int
    cause: str
    #: queue only: the group's uid, so that its members start or stop it.
    uid: int = 0
