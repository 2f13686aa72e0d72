"""The order between kinds of broker objects (design/operator.md §9). PURE."""

from __future__ import annotations

_ORDER = (
    "vhost",
    "user",
    "permission",
    "topic_permission",
    "parameter",
    "operator_policy",
    "policy",
    "exchange",
    "queue",
    "binding",
)
_RANKS = {kind: rank for rank, kind in enumerate(_ORDER)}


def rank(kind: str) -> int:
    """Lower comes first when things are made; deletions go the other way round."""
    return _RANKS.get(kind, len(_ORDER))
