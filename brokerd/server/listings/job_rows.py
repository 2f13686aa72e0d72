"""Jobs of queues as clients see them, in JSON.  For the front doors."""

from __future__ import annotations

from typing import Any, TypeAlias

from brokerd.core.triage.jobs import JobStatus
from brokerd.server.listings.message_rows import text as text

Json: TypeAlias = dict[str, Any]


def job(status: JobStatus) -> Json:
    """Return a job: its order's fields beside its state, texts as JSON can hold them."""
    fields = status.as_json()
    del fields["targets"], fields["copies"]
    order = {
        key: text(value) if isinstance(value, str) else value
        for key, value in fields.pop("order").items()
    }
    return {**order, **fields, "user": text(status.user), "why": text(status.why)}
