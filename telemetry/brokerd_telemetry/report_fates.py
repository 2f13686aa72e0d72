"""The report's section of fates: what became of the messages of exchanges, virtual hosts and
queues.
"""

from __future__ import annotations

import pyarrow
import pyarrow.compute

from brokerd_telemetry import page

#: What each kind of object has, by its name in fates_1h, with the head of its column.
_KINDS = {
    "exchange": (
        "exchange",
        {
            "came": "came in",
            "routed": "routed",
            "alternate_exchange": "to the alternate exchange",
            "returned": "returned",
            "dropped": "dropped",
        },
    ),
    "vhost": (
        "virtual host",
        {"came": "copies made", "routed": "taken by queues", "refused": "refused"},
    ),
    "queue": (
        "queue",
        {
            "waited": "waited before",
            "came": "came in",
            "delivered": "acknowledged",
            "dead_lettered": "dead-lettered",
            "dropped": "dropped",
            "refused": "refused",
            "purged": "purged",
            "taken_by_jobs": "sent on or deleted by jobs",
            "gone_with_queue": "went with it",
            "waiting": "waiting",
        },
    ),
}
_NOTE = (
    "<p>What came, and what had waited before, is the sum of the figures to its right. To which "
    "queue an exchange's copies went, and with which routing keys, is not recorded.</p>"
)
_BELOW = (
    "<p>An unknown figure below 0: more went on than is known to have come, as where the member "
    "that published was not seen.</p>"
)


def section(fates: pyarrow.Table) -> str:
    """Return the section.  fates: of columns.report_sums."""
    if not len(fates):
        return page.empty("No message came, and none waited.")
    below = "" if min(fates["unknown"].to_pylist()) >= 0 else _BELOW
    return _NOTE + below + "".join(_kind(fates, kind) for kind in _KINDS)


def _kind(fates: pyarrow.Table, kind: str) -> str:
    what, heads = _KINDS[kind]
    own = fates.filter(pyarrow.compute.equal(fates["kind"], kind))
    if not len(own):
        return ""
    lines = [
        (
            *_name(kind, row["object"], row["vhost"]),
            *(f"{row[name]:,}" for name in heads),
            page.badge(f"{row['unknown']:,}", "bad" if kind != "vhost" else "dim")
            if row["unknown"] else "0",
        )
        for row in own[: page.ROWS_SHOWN].to_pylist()
    ]  # fmt: skip
    names = (what,) if kind == "vhost" else (what, "vhost")
    first = len(names)
    last = first + len(heads)
    return page.table(
        (*names, *heads.values(), "unknown"), lines, raw=(last,), right=range(first, last + 1),
        of=len(own),
    )  # fmt: skip


def _name(kind: str, name: str, vhost: str) -> tuple[str, ...]:
    if kind == "vhost":
        return (vhost,)
    return name or "(default exchange)", vhost
