"""Memory and disk alarms (R-MEM, R-DSK) and what they do to connections (R-ALM)."""

from __future__ import annotations

import sys

import pytest

from brokerd.core import alarms
from brokerd.core.alarms import DISK_STALLED, AlarmSet, DiskAlarm, StallAlarm, WatermarkMachine
from brokerd.core.profiles import profile

GIB = 1024**3


def limit_of(watermark: str, total: int | None, profile_: str = "brokerd") -> int:
    machine = WatermarkMachine(profile(profile_))
    machine.configure(watermark, total)
    return machine.limit


@pytest.mark.parametrize(
    ("watermark", "total", "profile_", "limit"),
    [
        # R-MEM-4
        ("", 1000, "brokerd", 600),
        ("", 1000, "rabbitmq-3.10", 400),
        ("0.4", 1001, "brokerd", 400),
        (".5", 1000, "brokerd", 500),
        ("2GiB", 8 * GIB, "brokerd", 2 * GIB),
        ("2GB", 8 * GIB, "brokerd", 2_000_000_000),
        ("2G", 8 * GIB, "brokerd", 2 * GIB),
        ("512Mi", 8 * GIB, "brokerd", 512 * 1024**2),
        ("123456", 8 * GIB, "brokerd", 123_456),
        ("100GB", 8 * GIB, "brokerd", 8 * GIB),
        # R-MEM-5
        ("3", 1000, "brokerd", 1000),
        ("1.5", 1000, "reference", 1500),
        ("3", None, "brokerd", 3 * GIB),
        # R-MEM-6, O-21
        ("lots", 1000, "brokerd", 600),
        ("lots", 1000, "rabbitmq-3.10", 400),
        ("-1", 1000, "brokerd", 600),
        # R-MEM-7
        ("0", 1000, "brokerd", 0),
        # R-MEM-8
        ("0.4", None, "brokerd", 429_496_729),
    ],
)
def test_watermark_forms(watermark: str, total: int | None, profile_: str, limit: int) -> None:
    assert limit_of(watermark, total, profile_) == limit


def test_32_bit_processes_are_capped() -> None:
    """R-MEM-3."""
    machine = WatermarkMachine(profile(), is_64_bit=False)
    machine.configure("1.0", 8 * GIB)
    assert machine.limit == 2 * GIB


def test_start_up_lines() -> None:
    """R-MEM-8, R-MEM-10."""
    modern, old = WatermarkMachine(profile()), WatermarkMachine(profile("reference"))
    assert modern.configure("8000000000", 25_276_510_208) == [
        "Memory high watermark set to 7629 MiB (8000000000 bytes) of "
        "24105 MiB (25276510208 bytes) total"
    ]
    assert old.configure("0.5", 4 * GIB) == ["Memory limit set to 2048MB."]
    assert modern.warnings == []
    [line] = modern.configure("0.4", None)
    assert "Memory high watermark set to 409 MiB" in line
    name = f"{{unix,{sys.platform}}}"
    assert modern.warnings == [
        f"Unknown total memory size for your OS {name}. "
        "Assuming memory size is 1024 MiB (1073741824 bytes)."
    ]
    assert old.configure("", None) == ["Memory limit set to 409MB."]
    assert old.warnings == [
        f"Unknown total memory size for your OS {name}. Assuming memory size is 1024MB."
    ]
    assert old.configure("0", 4 * GIB) == [
        "Memory monitor and throttling of publishers are off: the watermark is 0"
    ]


def test_what_is_wrong_with_a_watermark_is_said() -> None:
    """R-MEM-5, R-MEM-6."""
    machine = WatermarkMachine(profile())
    machine.configure("lots", 1000)
    assert machine.warnings == ["Unable to parse vm_memory_high_watermark value 'lots', using 0.6"]
    machine.configure("3.5", 1000)
    assert machine.warnings == ["Memory high watermark of 3.5 is above 1.0, capped to 1.0"]
    machine.configure("0.5", 1000)
    assert machine.warnings == []


def test_alarm_is_on_above_the_limit_without_hysteresis() -> None:
    """R-MEM-11, R-MEM-12: at the limit it is off."""
    machine = WatermarkMachine(profile())
    machine.configure("0.5", 1000)
    assert machine.sample(500) == []
    assert machine.sample(501) == ["vm_memory_high_watermark set. Memory used:501 allowed:500"]
    assert machine.is_on
    assert machine.sample(900) == []
    assert machine.sample(500) == ["vm_memory_high_watermark clear. Memory used:500 allowed:500"]
    assert not machine.is_on


def test_zero_blocks_or_disables_by_profile() -> None:
    """R-MEM-7."""
    for name, is_on in (("brokerd", True), ("reference", False)):
        machine = WatermarkMachine(profile(name))
        machine.configure("0", 1000)
        machine.sample(1)
        assert machine.is_on is is_on


def test_lowered_watermark_acts_at_the_next_sample() -> None:
    """R-MEM-13."""
    machine = WatermarkMachine(profile())
    machine.configure("0.9", 1000)
    machine.sample(800)
    machine.configure("0.1", 1000)
    machine.sample(800)
    assert machine.is_on
    machine.configure("0.9", 1000)
    machine.sample(800)
    assert not machine.is_on


@pytest.mark.parametrize("text", ["", "x", "1.5GB", "-1", "10 parsecs", "1e9", "9" * 40])
def test_bad_quantities_are_refused(text: str) -> None:
    with pytest.raises(alarms.BadQuantity):
        alarms.parse_bytes(text)


def test_disk_alarm() -> None:
    """R-DSK-1, R-DSK-3: below the limit, not at it; unknown is no alarm."""
    disk = DiskAlarm()
    disk.configure("50MB", None)
    assert disk.sample(50_000_000) == []
    assert disk.sample(49_999_999) == [
        "Free disk space limit exceeded. Free bytes:49999999 Limit:50000000"
    ]
    assert disk.is_on
    disk.sample(None)
    assert not disk.is_on


def test_disk_limit_forms() -> None:
    """R-DSK-1."""
    disk = DiskAlarm()
    for text, limit in (
        ("", 50_000_000),
        ("2GiB", 2 * GIB),
        ("1.5", 1500),
        ("7", 7),
        ("?", 50_000_000),
    ):
        disk.configure(text, 1000)
        assert disk.limit == limit


def test_disk_is_looked_at_more_often_near_the_limit() -> None:
    """R-DSK-2."""
    disk = DiskAlarm()
    disk.configure("50MB", None)
    intervals = []
    for free in (50_000_001, 300_000_000, 10**12):
        disk.sample(free)
        intervals.append(disk.interval_ms())
    assert intervals == [100, 1000, 10_000]


def test_an_alarm_anywhere_holds_everywhere() -> None:
    """R-ALM-1, R-ALM-5: the order of the words."""
    cluster = AlarmSet()
    assert cluster.reason() == ""
    assert cluster.set_node("a", {"memory"})
    assert not cluster.set_node("a", {"memory"})
    assert cluster.reason() == "low on memory"
    assert cluster.set_node("b", {"disk", "memory"})
    assert cluster.reason() == "low on disk & memory"
    assert cluster.set_node("a", set())
    assert cluster.set_node("b", {"disk"})
    assert cluster.reason() == "low on disk"
    assert cluster.nodes() == {"b": {"disk"}}
    assert cluster.set_node("b", frozenset())
    assert cluster.on() == set()


def test_transition_lines() -> None:
    """R-MEM-12."""
    assert alarms.transition_lines("a", set(), {"memory"}, {"memory"}) == [
        "memory resource limit alarm set on node a.",
        "*** Publishers will be blocked until this alarm clears ***",
    ]
    assert alarms.transition_lines("a", {"memory"}, set(), {"memory"}) == [
        "memory resource limit alarm cleared on node a"
    ]
    assert alarms.transition_lines("b", {"memory"}, set(), set())[-1] == (
        "memory resource limit alarm cleared across the cluster"
    )


@pytest.mark.parametrize("value", ["0.6", "3", "2GiB", "50000000"])
def test_a_limit_is_set_to_a_fraction_or_to_bytes(value: str) -> None:
    """R-MEM-13, R-DSK-2."""
    assert alarms.check_setting(alarms.MEMORY_SETTING, value) is None


def test_a_limit_that_is_neither_is_refused_with_its_name() -> None:
    """R-MEM-13, R-DSK-2."""
    assert alarms.check_setting(alarms.DISK_SETTING, "much") == (
        "disk_free_limit: 'much' is neither a fraction (0.6) nor a number of bytes (2GiB)"
    )


def test_the_reason_names_what_is_short() -> None:
    """R-ALM-5."""
    known = AlarmSet()
    for on in (set(), {"disk"}, {"disk", "memory"}):
        known.set_node("n0", on)
        assert set(alarms.resources_in(known.reason())) == on


def test_the_nearer_the_watermark_the_sooner_memory_is_looked_at() -> None:
    """R-MEM-11: at the speed at which it may grow it has come up to the limit by then."""
    mib = 1024**2
    assert alarms.look_in_ms(100 * mib, 600 * mib) == 500
    assert alarms.look_in_ms(599 * mib, 600 * mib) == alarms.LOOK_MS_MIN
    assert alarms.look_in_ms(700 * mib, 600 * mib) == alarms.LOOK_MS_MIN


# ---- stalled disks (ADR 68) ----------------------------------------------------------------------

#: A call to the disk: when it began, when it returned.
Call = tuple[int, int]


def stalls_of(calls: list[Call], until_ms: int) -> tuple[StallAlarm, list[tuple[int, str]]]:
    """Look at a disk each second; return the alarm, and what was said when."""
    alarm = StallAlarm(threshold_ms=5_000, interval_ms=1_000)
    said = []
    for now_ms in range(0, until_ms + 1, 1_000):
        in_flight_ms = next((now_ms - began for began, end in calls if began <= now_ms < end), 0)
        said += [(now_ms, line) for line in alarm.sample(now_ms, in_flight_ms)]
    return alarm, said


def test_a_call_that_does_not_return_is_a_stall_until_the_disk_answers_again() -> None:
    """ADR 68: for as long as the threshold."""
    alarm, said = stalls_of([(500, 20_500)], 40_000)
    assert said == [
        (6_000, "disk stalled: the log waits for a write or a sync since 5.5 s"),
        (26_000, "disk stall over: the disk answers again, after 20.5 s"),
    ]
    assert (alarm.is_on, alarm.count, alarm.total_ms(40_000)) == (False, 1, 20_500)


def test_calls_that_return_within_the_threshold_are_none() -> None:
    alarm, said = stalls_of([(0, 4_900), (4_900, 9_800), (9_800, 14_700)], 20_000)
    assert said == []
    assert (alarm.count, alarm.total_ms(20_000), alarm.stalled_for_ms(20_000)) == (0, 0, 0)


def test_a_disk_on_which_each_call_takes_long_has_one_stall() -> None:
    """Its alarm would go on and off with each of them."""
    alarm, said = stalls_of([(n, n + 6_000) for n in range(0, 60_000, 6_000)], 59_000)
    assert [at_ms for at_ms, _ in said] == [5_000]
    assert alarm.is_on
    assert alarm.total_ms(59_000) > 50_000


def test_a_stall_says_how_long_it_lasts_until_the_disk_answers() -> None:
    alarm, _ = stalls_of([(0, 20_000)], 12_000)
    assert (alarm.stalled_for_ms(12_000), alarm.total_ms(12_000)) == (12_000, 12_000)
    alarm, _ = stalls_of([(0, 20_000)], 22_000)
    assert alarm.is_on
    assert (alarm.stalled_for_ms(22_000), alarm.total_ms(22_000)) == (0, 20_000)


def test_time_in_which_this_process_did_not_run_is_not_held_against_the_disk() -> None:
    """A process that was stopped for a minute finds its call as old as that."""
    alarm = StallAlarm(threshold_ms=5_000, interval_ms=1_000)
    assert alarm.sample(0, 0) == []
    assert alarm.sample(1_000, 300) == []
    assert alarm.sample(61_000, 60_300) == []
    assert alarm.sample(62_000, 61_300) == []
    # It does not return all the same.
    for now_ms in range(63_000, 66_000, 1_000):
        assert alarm.sample(now_ms, now_ms - 700) == []
    assert alarm.sample(66_000, 65_300) != []
    # What the process lost is not part of the stall.
    assert alarm.stalled_for_ms(66_000) == 5_000


def test_a_stalled_disk_is_an_alarm_that_blocks_nobody() -> None:
    """ADR 68: the other members go on."""
    cluster = AlarmSet()
    assert cluster.set_node("a", {DISK_STALLED, "unknown"})
    assert cluster.on("a") == {DISK_STALLED}
    assert cluster.reason() == ""
    assert cluster.blocking() == []
    assert cluster.set_node("b", {DISK_STALLED, "disk"})
    assert cluster.reason() == "low on disk"
    assert cluster.blocking() == ["b"]
    assert alarms.transition_lines("a", set(), {DISK_STALLED}, {DISK_STALLED}) == [
        "disk_stalled alarm set on node a: its disk does not answer"
    ]
    assert alarms.transition_lines("a", {DISK_STALLED}, set(), set()) == [
        "disk_stalled alarm cleared on node a"
    ]
