"""What a member remembers of its cluster from one start to the next, beside its log.

Needed before the log can tell, or when it cannot any more: whom to dial, which cluster the data are
of, who votes in the catalog, and whether the disk was empty when it joined and has not been
refilled yet.  For joining.py and refill.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from brokerd.cluster.peer.discovery import PEERS_MAX
from brokerd.config import ConfigError
from brokerd.server.members import identity

FILE = "cluster.json"
FORMAT = 1


@dataclass(slots=True)
class Remembered:
    """Empty for a member that never had a cluster."""

    cluster_uid: str = ""
    #: Name to peer address, as the catalog last said.
    members: dict[str, str] = field(default_factory=dict)
    #: The disk was empty when this member joined, and some group has not been refilled since.
    is_refilling: bool = False
    #: The catalog's revision when the disk was empty; 0: not known.
    joined_at: int = 0
    #: Who votes in the catalog's group, this member among them: the founders stand in no entry of
    #: the log, and its record of them may be damaged.
    voters: list[str] = field(default_factory=list)

    def with_members(
        self, cluster_uid: str, members: Mapping[str, str], voters: Sequence[str]
    ) -> Remembered:
        """Return this with what the catalog and its group say now."""
        return replace(
            self, cluster_uid=cluster_uid, members=dict(members), voters=[*map(str, voters)]
        )


def load(data_dir: Path) -> Remembered:
    """Read what was kept; ConfigError when it is damaged or of another format."""
    file = data_dir / FILE
    try:
        stored = json.loads(file.read_text()) if file.exists() else {}
        identity.check_format(file, stored, FORMAT)
        members = stored.get("members", {})
        found = Remembered(
            str(stored.get("cluster_uid", "")),
            {str(name): str(address) for name, address in members.items()},
            bool(stored.get("is_refilling", False)),
            int(stored.get("joined_at", 0)),
            [str(name) for name in stored.get("voters", [])],
        )
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file} cannot be read ({error}): was it written by brokerd?") from error
    if len(found.members) > PEERS_MAX or len(found.voters) > PEERS_MAX:
        raise ConfigError(f"{file} is damaged (more than {PEERS_MAX} members)")
    return found


def save(data_dir: Path, remembered: Remembered) -> None:
    """Keep it, all or nothing; OSError when the disk does not take it."""
    text = json.dumps({"format": FORMAT} | asdict(remembered), sort_keys=True)
    identity.replace(data_dir / FILE, text)
