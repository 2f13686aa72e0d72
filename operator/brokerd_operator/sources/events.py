"""Events as Kubernetes has them. For `kubernetes_store.py` and `places.py`."""

from __future__ import annotations

from brokerd_operator.engine.status import now_text
from brokerd_operator.sources.api import Json

#: The operator, as `kubectl get events` names it.
COMPONENT = "brokerd-operator"
MESSAGE_MAX = 1024
#: The API server puts some characters of its own behind the name.
NAME_MAX = 200


def event(involved: Json, type_: str, reason: str, message: str) -> Json:
    """An Event about an object; `involved` has at least its namespace and name."""
    now = now_text()
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "generateName": f"{involved['name'][:NAME_MAX]}.",
            "namespace": involved["namespace"],
        },
        "involvedObject": involved,
        "type": type_,
        "reason": reason,
        "message": message[:MESSAGE_MAX],
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
