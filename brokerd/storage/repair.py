"""The last resort when a majority's disks are damaged: `brokerctl wal accept-loss DIR`.

Offline, by an operator's explicit decision only; nothing in the broker calls it.  A damaged member
gives up its vote until its leader has refilled it.  When no healthy majority is left (one node, or
the same damage everywhere) none can: then the operator must decide that what cannot be read is
lost, rather than delete the volume and lose everything (rabbitmq-server #4251).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from brokerd.storage.config import WalConfig
from brokerd.storage.wal import WriteAheadLog


def accept_loss(
    directory: Path, config: WalConfig, report: Callable[[str], None] | None = None
) -> list[int]:
    """Make every readable entry count and forget the rest; return the groups that lost something.

    Raises as WriteAheadLog.open does; DirectoryLocked if the node is running.
    """
    log = WriteAheadLog.open(directory, config, report)
    try:
        return log.accept_loss()
    finally:
        log.close()
