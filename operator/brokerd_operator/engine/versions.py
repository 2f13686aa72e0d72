"""Which of two bodies of a resource is the newer one. For the cache only; does no I/O.

Bodies reach the engine by several ways that know nothing of each other: a listing, a watch, the
answer to a write, a direct read. Whatever the order in which they arrive, the newest one counts,
and a resource that is known to be gone stays gone. Versions are compared as numbers: Kubernetes
promises that from 1.35 on (KEP-5504), and with etcd behind it they have been numbers that grow
since ever. A body without such a version comes from a source that is the only one, the directory
of the embedded mode, and always counts.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from brokerd_operator.engine.keys import Body, Key

#: Deletions that are remembered. A listing that began before a deletion ends long before this many
#: others have followed; forgetting one costs a look at a resource that the next listing takes away.
GONE_MAX = 16_384


class Version(NamedTuple):
    """Which resource of a name it is, and which state of it."""

    uid: str
    #: None where the source has none.
    number: int | None


def number_of(text: object) -> int | None:
    """A resourceVersion as a number."""
    digits = str(text or "")
    return int(digits) if digits.isdecimal() else None


def version_of(body: Body) -> Version:
    metadata = body.get("metadata") or {}
    return Version(str(metadata.get("uid") or ""), number_of(metadata.get("resourceVersion")))


class Versions:
    """Owns the newest version known of every resource, and of those that are gone."""

    def __init__(self, gone_max: int = GONE_MAX) -> None:
        self._present: dict[Key, Version] = {}
        self._gone: OrderedDict[Key, Version] = OrderedDict()
        self._gone_max = gone_max

    def present(self, key: Key) -> Version | None:
        return self._present.get(key)

    def takes(self, key: Key, version: Version) -> bool:
        """Whether a body of this version is news; it is the present one then."""
        gone = self._gone.get(key)
        if gone is not None and (version.uid == gone.uid or _is_older(version, gone)):
            return False
        present = self._present.get(key)
        if present is not None and _is_older(version, present):
            return False
        self._gone.pop(key, None)
        self._present[key] = version
        return True

    def takes_deletion(self, key: Key, version: Version | None) -> bool:
        """Whether a deletion is news; without a version it is about whatever is there."""
        present = self._present.get(key)
        version = version or present or Version("", None)
        if present is not None and present.uid != version.uid and _is_older(version, present):
            # It is about an earlier resource of this name.
            return False
        self._present.pop(key, None)
        gone = self._gone.get(key)
        if version.number is not None and (gone is None or not _is_older(version, gone)):
            self._gone[key] = version
            self._gone.move_to_end(key)
            if len(self._gone) > self._gone_max:
                self._gone.popitem(last=False)
        return True


def _is_older(one: Version, other: Version) -> bool:
    return one.number is not None and other.number is not None and one.number < other.number
