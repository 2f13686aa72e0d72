"""Where the archive of Spark's classes lies that `brokerctl telemetry prepare` makes, and if it is
fit for use.

An archive of the JVM (JEP 350, Java 13) maps some twenty thousand classes as they are after they
were loaded, which each run spends four seconds on otherwise (ADR 58).  It is code: only a
regular file of this user counts that nobody else can write, and only whole, for the JVM maps what
is missing at its end, too, and dies of it.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path

_PREFIX = "spark-classes-"
#: Nobody makes an archive for so long.
LEFT_S = 3600
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(slots=True, frozen=True)
class Archive:
    """That of one Java and one Spark."""

    folder: Path
    key: str

    def find(self) -> Path | None:
        """Return it, if it is there and fit for use."""
        for path in self.folder.glob(f"{_PREFIX}{self.key}-*.jsa"):
            try:
                found = path.lstat()
            except OSError:
                continue
            is_own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
            is_safe = is_own and not found.st_mode & _OTHERS_MAY_WRITE
            if is_safe and path.name == self._name(found.st_size):
                return path
        return None

    def new(self) -> Path:
        """Return where to make it, which is not where it will be; the folder is there then.

        What somebody left there who was killed is removed.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        oldest_s = time.time() - LEFT_S
        for left in self.folder.glob(f"{_PREFIX}*.new"):
            if left.stat().st_mtime < oldest_s:
                left.unlink(missing_ok=True)
        return self.folder / f"{_PREFIX}{os.getpid()}.new"

    def adopt(self, made: Path) -> Path:
        """Put what was made in its place and remove those of other Javas and Sparks; return it."""
        target = made.with_name(self._name(made.stat().st_size))
        made.rename(target)
        for other in self.folder.glob(f"{_PREFIX}*.jsa"):
            if other != target:
                other.unlink(missing_ok=True)
        return target

    def _name(self, size: int) -> str:
        return f"{_PREFIX}{self.key}-{size}.jsa"


def of(java: str, spark: str, environ: dict[str, str]) -> Archive | None:
    """Return the archive for what a Java says of itself and a Spark's folder; None without a home.

    The JVM itself sees whether the jars are those that it was made of.
    """
    cache = environ.get("XDG_CACHE_HOME", "")
    home = environ.get("HOME", "")
    if not os.path.isabs(cache) and not os.path.isabs(home):
        return None
    folder = Path(cache) if os.path.isabs(cache) else Path(home, ".cache")
    key = hashlib.sha256(f"{java}\n{spark}".encode()).hexdigest()[:16]
    return Archive(folder / "brokerd", key)
