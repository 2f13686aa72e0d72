"""Alarms of memory, free disk space and stalled disks: limits, and when an alarm is on.

Pure: used, total and free bytes come in as numbers, log lines and decisions go out.  Measuring is
`server/memory/monitor.py`'s, telling the other members the liveness frames'.  (R-MEM, R-DSK,
R-ALM; the 2009 texts and arithmetic of S1 by the profile's switches.)
"""

from __future__ import annotations

import re
import sys
from collections.abc import Set

from brokerd.core.profiles import Profile

#: Names of the cluster-wide settings that change limits at run time (R-MEM-13, R-DSK-2).
MEMORY_SETTING = "vm_memory_high_watermark"
DISK_SETTING = "disk_free_limit"
#: R-MEM-8
UNKNOWN_TOTAL_BYTES = 1_073_741_824
#: R-MEM-3: 64-bit address space.
USABLE_64_BIT_BYTES = 256 * 1024**4
#: R-DSK-1
DISK_FREE_LIMIT_BYTES = 50_000_000
#: R-DSK-2
DISK_INTERVAL_MS_MIN = 100
DISK_INTERVAL_MS_MAX = 10_000
#: How fast a disk is assumed to fill at most; RabbitMQ's 250 MB/s.
_DISK_FILL_BYTES_PER_MS = 250_000

#: How fast memory is assumed to grow at most: some times what publishers bring.
GROWTH_BYTES_PER_MS_MAX = 1024**2
#: Shortest time between two looks, in milliseconds, however near the watermark is.
LOOK_MS_MIN = 10.0

_UNITS = {
    "": 1,
    "b": 1,
    "k": 1024,
    "kib": 1024,
    "m": 1024**2,
    "mib": 1024**2,
    "g": 1024**3,
    "gib": 1024**3,
    "t": 1024**4,
    "tib": 1024**4,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    # As Kubernetes writes quantities.
    "ki": 1024,
    "mi": 1024**2,
    "gi": 1024**3,
    "ti": 1024**4,
}
_BYTES = re.compile(r"\s*([0-9]{1,18})\s*([A-Za-z]{0,3})\s*")
_FRACTION = re.compile(r"\s*([0-9]{1,6}(?:\.[0-9]{1,9})?|\.[0-9]{1,9})\s*")
_MIB = 1024**2
#: As the log names it (R-MEM-8).
_OS = f"{{unix,{sys.platform}}}"


class BadQuantity(ValueError):
    """Not a number of bytes, with or without a unit."""


def parse_bytes(text: str) -> int:
    """Read "2GiB", "500MB", "1000000" (R-MEM-4); raises BadQuantity."""
    match = _BYTES.fullmatch(text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise BadQuantity(f"not a number of bytes: '{text}'")
    return int(match[1]) * unit


def parse_fraction(text: str) -> float | None:
    """Read a relative watermark, "0.6"; a whole number from 10 on is a number of bytes.

    S1 lets users set 3, and no one sets a watermark of less than ten bytes.
    """
    match = _FRACTION.fullmatch(text)
    if match is None:
        return None
    value = float(match[1])
    return value if "." in match[1] or value < 10 else None


def check_setting(name: str, value: str) -> str | None:
    """Return what is wrong with a new value of a setting, None if it will do."""
    try:
        if parse_fraction(value) is None:
            parse_bytes(value)
    except BadQuantity:
        return f"{name}: '{value}' is neither a fraction (0.6) nor a number of bytes (2GiB)"
    return None


class WatermarkMachine:
    """The memory alarm of one member.  `limit` is 0 until `configure`."""

    __slots__ = (
        "_address_space",
        "_is_off",
        "_profile",
        "is_on",
        "limit",
        "total",
        "used",
        "warnings",
    )

    def __init__(self, profile: Profile, is_64_bit: bool = True) -> None:
        self._profile = profile
        self._address_space = USABLE_64_BIT_BYTES if is_64_bit else profile.memory_limit32
        #: True: a watermark of 0 switched the monitor off (R-MEM-7).
        self._is_off = False
        self.is_on = False
        self.limit = 0
        #: Usable bytes that the limit was computed from.
        self.total = 0
        self.used = 0
        #: Log lines about the last `configure`.
        self.warnings: list[str] = []

    def configure(self, watermark: str, total: int | None) -> list[str]:
        """Set the watermark; return log lines, what is wrong with it stands in `warnings`.  The
        next `sample` acts on it (R-MEM-13).

        watermark: a fraction or an absolute quantity, "" for the profile's default.
        total: bytes, None if unknown (R-MEM-8).
        """
        profile = self._profile
        warnings: list[str] = []
        is_known = total is not None
        usable = min(total if total is not None else UNKNOWN_TOTAL_BYTES, self._address_space)
        if not is_known:
            assumed = f"1024 MiB ({UNKNOWN_TOTAL_BYTES} bytes)"
            if profile.memory_log_style == "2009":
                assumed = "1024MB"
            warnings.append(
                f"Unknown total memory size for your OS {_OS}. Assuming memory size is {assumed}."
            )
        fraction: float | None = profile.memory_watermark_default
        absolute = 0
        if watermark.strip():
            fraction = parse_fraction(watermark)
            if fraction is None:
                try:
                    absolute = parse_bytes(watermark)
                except BadQuantity:
                    # R-MEM-6, O-21
                    fraction = profile.memory_watermark_default
                    warnings.append(
                        f"Unable to parse vm_memory_high_watermark value '{watermark}', "
                        f"using {fraction}"
                    )
        # R-MEM-5: an unknown total may be scaled up, as S1 tells its users to.
        is_capped = is_known and profile.memory_fraction_above_one == "cap"
        if fraction is not None and fraction > 1.0 and is_capped:
            warnings.append(f"Memory high watermark of {fraction} is above 1.0, capped to 1.0")
            fraction = 1.0
        self.limit = min(absolute, usable) if fraction is None else int(fraction * usable)
        self.total = usable
        self._is_off = self.limit == 0 and profile.memory_zero_means == "disable"
        self.warnings = warnings
        if self._is_off:
            return ["Memory monitor and throttling of publishers are off: the watermark is 0"]
        if profile.memory_log_style == "2009":
            return [f"Memory limit set to {self.limit // _MIB}MB."]
        return [
            f"Memory high watermark set to {self.limit // _MIB} MiB ({self.limit} bytes) of "
            f"{usable // _MIB} MiB ({usable} bytes) total"
        ]

    def sample(self, used: int) -> list[str]:
        """Compare; return log lines where the alarm changed (R-MEM-11, -12).  No hysteresis."""
        self.used = used
        is_on = used > self.limit and not self._is_off
        if is_on == self.is_on:
            return []
        self.is_on = is_on
        what = "set" if is_on else "clear"
        return [f"vm_memory_high_watermark {what}. Memory used:{used} allowed:{self.limit}"]


def look_in_ms(used: int, limit: int) -> float:
    """Return after how many milliseconds memory may have come up to the limit (R-MEM-11)."""
    return max((limit - used) / GROWTH_BYTES_PER_MS_MAX, LOOK_MS_MIN)


class DiskAlarm:
    """The disk alarm of one member (R-DSK-1)."""

    __slots__ = ("free", "is_on", "limit")

    def __init__(self) -> None:
        self.is_on = False
        self.limit = DISK_FREE_LIMIT_BYTES
        self.free: int | None = None

    def configure(self, free_limit: str, total: int | None) -> list[str]:
        """Set the limit; return log lines.

        free_limit: an absolute quantity, or a fraction of total memory such as "1.5"; "" for the
        default.
        """
        lines: list[str] = []
        self.limit = DISK_FREE_LIMIT_BYTES
        if free_limit.strip():
            # Only with a point: a plain number is a number of bytes, however small.
            relative = parse_fraction(free_limit) if "." in free_limit else None
            if relative is not None:
                self.limit = int(relative * (total or UNKNOWN_TOTAL_BYTES))
            else:
                try:
                    self.limit = parse_bytes(free_limit)
                except BadQuantity:
                    lines.append(
                        f"Unable to parse disk_free_limit value '{free_limit}', using {self.limit}"
                    )
        lines.append(f"Disk free limit set to {self.limit // 1_000_000}MB")
        return lines

    def sample(self, free: int | None) -> list[str]:
        """Compare; return log lines where the alarm changed.  None: unknown, no alarm (R-DSK-3)."""
        self.free = free
        is_on = free is not None and free < self.limit
        if is_on == self.is_on:
            return []
        self.is_on = is_on
        verb = "exceeded" if is_on else "clear"
        return [f"Free disk space limit {verb}. Free bytes:{free or 0} Limit:{self.limit}"]

    def interval_ms(self) -> int:
        """Return when to look again: the nearer to the limit, the sooner (R-DSK-2)."""
        if self.free is None:
            return DISK_INTERVAL_MS_MAX
        distance = abs(self.free - self.limit)
        return max(
            DISK_INTERVAL_MS_MIN,
            min(DISK_INTERVAL_MS_MAX, distance // _DISK_FILL_BYTES_PER_MS),
        )


class StallAlarm:
    """The alarm of a disk that does not answer (ADR 68): one call of the log to it, a write or a
    sync, has been under way for the threshold.

    It ends when for as long no call took half of that, so that a disk on which each sync takes
    seconds has one stall.  A sample that comes late says that this process did not run, not that
    the disk was silent: the lost time is not held against the disk.
    """

    __slots__ = (
        "_awake_ms",
        "_calm_ms",
        "_interval_ms",
        "_sampled_ms",
        "_since_ms",
        "_stalled_ms",
        "_threshold_ms",
        "count",
        "is_on",
    )

    def __init__(self, threshold_ms: int, interval_ms: int) -> None:
        """interval_ms: how often `sample` is called."""
        self._threshold_ms = threshold_ms
        self._interval_ms = interval_ms
        self.is_on = False
        #: Stalls that have begun.
        self.count = 0
        #: How long those took that are over.
        self._stalled_ms = 0
        #: When the stall began.
        self._since_ms = 0
        #: Since when the disk answers quickly, during a stall; None: it does not.
        self._calm_ms: int | None = None
        self._sampled_ms: int | None = None
        #: Since when samples come in time.
        self._awake_ms = 0

    def sample(self, now_ms: int, in_flight_ms: int) -> list[str]:
        """Take for how long the disk has not answered its call, 0 for none; return log lines where
        the alarm changed.  now_ms: of a monotonic clock.
        """
        before_ms, self._sampled_ms = self._sampled_ms, now_ms
        late_ms = self._interval_ms + self._threshold_ms // 4
        if before_ms is None or now_ms - before_ms > late_ms:
            self._awake_ms = now_ms
        waited_ms = min(in_flight_ms, now_ms - self._awake_ms)
        if not self.is_on:
            if waited_ms < self._threshold_ms:
                return []
            self.is_on = True
            self.count += 1
            self._since_ms, self._calm_ms = now_ms - waited_ms, None
            return [
                f"disk stalled: the log waits for a write or a sync since {waited_ms / 1000:.1f} s"
            ]
        if 2 * waited_ms >= self._threshold_ms:
            self._calm_ms = None
        elif self._calm_ms is None:
            self._calm_ms = now_ms - waited_ms
        if self._calm_ms is None or now_ms - self._calm_ms < self._threshold_ms:
            return []
        took_ms = self._calm_ms - self._since_ms
        self.is_on = False
        self._stalled_ms += took_ms
        return [f"disk stall over: the disk answers again, after {took_ms / 1000:.1f} s"]

    def stalled_for_ms(self, now_ms: int) -> int:
        """Return how long the stall has lasted; 0: there is none, or it is as good as over."""
        return now_ms - self._since_ms if self.is_on and self._calm_ms is None else 0

    def total_ms(self, now_ms: int) -> int:
        """Return how long all stalls have lasted, the one under way included."""
        if not self.is_on:
            return self._stalled_ms
        until_ms = now_ms if self._calm_ms is None else self._calm_ms
        return self._stalled_ms + until_ms - self._since_ms


#: Those that block publishers, in the order of R-ALM-5.
_RESOURCES = ("disk", "memory")
#: A member whose disk does not answer blocks no publisher: the other members go on (ADR 68).
DISK_STALLED = "disk_stalled"
_KNOWN = frozenset((*_RESOURCES, DISK_STALLED))


class AlarmSet:
    """The alarms of all members, as one member knows them (R-ALM-1)."""

    __slots__ = ("_nodes",)

    def __init__(self) -> None:
        #: Only nodes that have an alarm.
        self._nodes: dict[str, frozenset[str]] = {}

    def set_node(self, node: str, alarms: Set[str]) -> bool:
        """Replace a node's alarms; return whether anything changed.

        A node that left or died has none any more.
        """
        known = frozenset(alarms) & _KNOWN
        if known == self._nodes.get(node, frozenset()):
            return False
        if known:
            self._nodes[node] = known
        else:
            self._nodes.pop(node, None)
        return True

    def on(self, node: str | None = None) -> frozenset[str]:
        """Return the resources in alarm, on a node or anywhere."""
        if node is not None:
            return self._nodes.get(node, frozenset())
        return frozenset().union(*self._nodes.values())

    def nodes(self) -> dict[str, frozenset[str]]:
        """Return the nodes that have alarms, with them, in order of name."""
        return dict(sorted(self._nodes.items()))

    def blocking(self) -> list[str]:
        """Return the nodes with an alarm that blocks publishers, in order of name."""
        return [node for node, alarms in self.nodes().items() if alarms & frozenset(_RESOURCES)]

    def reason(self) -> str:
        """Return connection.blocked's reason, "" for no alarm (R-ALM-5)."""
        on = self.on()
        resources = [resource for resource in _RESOURCES if resource in on]
        return f"low on {' & '.join(resources)}" if resources else ""


def resources_in(reason: str) -> list[str]:
    """Return what is short: "low on disk & memory" is of both."""
    return [word for word in reason.split() if word in _RESOURCES]


def transition_lines(node: str, before: Set[str], after: Set[str], anywhere: Set[str]) -> list[str]:
    """Return the log lines for one node's change (R-MEM-12).

    anywhere: the resources that are in alarm on any node after the change.
    """
    lines: list[str] = []
    if DISK_STALLED in after - before:
        lines.append(f"{DISK_STALLED} alarm set on node {node}: its disk does not answer")
    if DISK_STALLED in before - after:
        lines.append(f"{DISK_STALLED} alarm cleared on node {node}")
    for resource in sorted(after - before - {DISK_STALLED}):
        lines.append(f"{resource} resource limit alarm set on node {node}.")
        lines.append("*** Publishers will be blocked until this alarm clears ***")
    for resource in sorted(before - after - {DISK_STALLED}):
        lines.append(f"{resource} resource limit alarm cleared on node {node}")
        if resource not in anywhere:
            lines.append(f"{resource} resource limit alarm cleared across the cluster")
    return lines
