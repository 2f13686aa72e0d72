"""What is known of a BrokerCluster's StatefulSet, kept where it outlives the StatefulSet. PURE.

Growing volumes takes the StatefulSet away for a moment while its pods go on. What the next one has
to be made with stands on the headless Service as well, so that an operator that is restarted in
that moment restarts no member.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from brokerd_operator.manifests import naming

#: Of the Service; on the StatefulSet both are parts of the template.
IMAGE = "brokerd.io/image"
RESTARTED_AT = "brokerd.io/restarted-at"
#: What `kubectl rollout restart` writes into a template.
KUBECTL_RESTARTED_AT = "kubectl.kubernetes.io/restartedAt"


@dataclass(frozen=True, slots=True)
class Remembered:
    """Empty values: it is not known, since there was no StatefulSet yet."""

    #: Members that formed the cluster when it started for the first time.
    initial: int = 0
    #: Members that ran last.
    members: int = 0
    image: str = ""
    #: When `kubectl rollout restart` was run last.
    restarted_at: str = ""
    #: Size of the volumes; only a StatefulSet has one.
    size: str | None = None

    @classmethod
    def of(
        cls, stateful_set: Mapping[str, Any] | None, service: Mapping[str, Any] | None
    ) -> Remembered:
        """Read it from the StatefulSet, from the Service while there is none."""
        if stateful_set is None:
            notes = _annotations(service or {})
            return cls(
                _number(notes, naming.INITIAL_REPLICAS),
                _number(notes, naming.MEMBERS),
                notes.get(IMAGE, ""),
                notes.get(RESTARTED_AT, ""),
            )
        notes, spec = _annotations(stateful_set), stateful_set["spec"]
        initial = _number(notes, naming.INITIAL_REPLICAS)
        return cls(
            initial,
            _number(notes, naming.MEMBERS) or initial,
            str(spec["template"]["spec"]["containers"][0].get("image") or ""),
            _annotations(spec["template"]).get(KUBECTL_RESTARTED_AT, ""),
            next((_size(claim) for claim in spec.get("volumeClaimTemplates") or ()), None),
        )


def _annotations(body: Mapping[str, Any]) -> Mapping[str, str]:
    return (body.get("metadata") or {}).get("annotations") or {}


def _number(notes: Mapping[str, str], name: str) -> int:
    text = notes.get(name, "")
    return int(text) if text.isdecimal() else 0


def _size(claim: Mapping[str, Any]) -> str:
    return str(claim["spec"]["resources"]["requests"]["storage"])
