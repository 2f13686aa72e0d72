"""Parts of the job that need no Spark: verification, completeness, findings, settings, charts."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest
from brokerd_telemetry import charts, findings, quality, session, sources, verify
from brokerd_telemetry.findings import Hit
from brokerd_telemetry.quality import NodeHour
from brokerd_telemetry.session import SparkSettings, SparkUnavailable

from tests.telemetry import fleet

HOUR = fleet.HOUR_US


@pytest.fixture
def segment(tmp_path: Path) -> tuple[Path, str]:
    """Return a raw directory with one sound segment, and its path."""
    node = fleet.Node(tmp_path, "a/b", "n", 0xAB, [])
    node.collect(fleet.BEGIN_US, fleet.BEGIN_US + 1, [fleet.Queue(1, "q")], 1)
    node.seal(fleet.BEGIN_US)
    raw = sources.raw_root(tmp_path)
    (path,) = sources.listed(raw)
    return raw, path


def test_a_sound_segment_is_taken_once(segment: tuple[Path, str]) -> None:
    raw, path = segment
    verdicts = verify.judge(raw, [path], {}, None)
    (fresh,) = verdicts.fresh
    assert (fresh.cluster, fresh.node, fresh.rows, fresh.hour) == ("a/b", "n", 2, "2026-11-20T14")
    again = verify.judge(raw, [path], {fresh.identity: fresh.entry()}, None)
    assert not again.fresh
    assert not again.quarantined


def test_segments_of_other_clusters_are_left_alone(segment: tuple[Path, str]) -> None:
    raw, path = segment
    assert not verify.judge(raw, [path], {}, {"a/other"}).fresh
    assert verify.judge(raw, [path], {}, {"a/b"}).fresh


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: b"", "torn"),
        (lambda data: data[:-8], "gzip"),
        (lambda data: b"no gzip at all", "gzip"),
        (lambda data: gzip.compress(b""), "torn"),
        (lambda data: gzip.compress(gzip.decompress(data)[:-1]), "torn"),
        (lambda data: gzip.compress(gzip.decompress(data).replace(b'"q"', b'"r"')), "sha256"),
        (lambda data: gzip.compress(gzip.decompress(data).replace(b"_seal", b"seal")), "no seal"),
        (
            lambda data: gzip.compress(gzip.decompress(data).replace(b"_open", b"_OPEN")),
            "no header",
        ),
        (lambda data: gzip.compress(b"[1]\n[2]\n"), "torn"),
    ],
)
def test_a_damaged_segment_is_quarantined_with_its_reason(
    segment: tuple[Path, str], change: object, reason: str
) -> None:
    raw, path = segment
    assert callable(change)
    (raw / path).write_bytes(change((raw / path).read_bytes()))
    verdicts = verify.judge(raw, [path], {}, None)
    assert verdicts.quarantined == [(path, reason)]
    assert not verdicts.fresh


def test_a_bomb_is_not_unpacked_whole(
    segment: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, path = segment
    monkeypatch.setattr(verify, "TEXT_BYTES_MAX", 10_000)
    (raw / path).write_bytes(gzip.compress(b"0" * 1_000_000))
    assert verify.judge(raw, [path], {}, None).quarantined == [(path, "too large")]


def test_the_same_identity_with_other_bytes_is_a_conflict(segment: tuple[Path, str]) -> None:
    raw, path = segment
    (fresh,) = verify.judge(raw, [path], {}, None).fresh
    copy = path.replace("hh=14", "hh=15")
    (raw / copy).parent.mkdir()
    shutil.copy(raw / path, raw / copy)
    known = {fresh.identity: fresh.entry()}
    assert verify.judge(raw, [path, copy], known, None).duplicates == 1
    known[fresh.identity]["sha256"] = "0" * 64
    assert verify.judge(raw, [path, copy], known, None).quarantined == [(copy, "conflict")]


def test_rows_that_an_earlier_segment_had_are_cut_off(segment: tuple[Path, str]) -> None:
    raw, path = segment
    (fresh,) = verify.judge(raw, [path], {}, None).fresh
    earlier = fresh.entry() | {"path": "x", "seq0": 0, "seq1": 0}
    verdicts = verify.judge(raw, [path], {"other": earlier}, None)
    assert [item.first_seq for item in verdicts.fresh] == [1]
    assert verdicts.overlapping_rows == 1


def hour(node: str = "n", boot: str = "b", last_us: int = HOUR, **more: object) -> NodeHour:
    fields = {"told_us": last_us, "rows": 100, "gap_rows": 0, "has_ended": False, **more}
    return NodeHour("c", node, boot, 0, 0, last_us, **fields)  # type: ignore[arg-type]


def judged(*hours: NodeHour) -> list[NodeHour]:
    boots: dict[str, dict[str, object]] = {}
    quality.note_boots(boots, hours, [])
    quality.judge(list(hours), boots)
    return list(hours)


def test_an_hour_that_was_told_from_end_to_end_is_complete() -> None:
    assert judged(hour())[0].completeness == 1.0


def test_a_boot_without_an_end_that_another_follows_lost_an_interval() -> None:
    """Section 13, point 14: a SIGKILL takes the running interval's counts with it."""
    killed = hour(boot="one", last_us=1_000_000_000)
    after = hour(boot="two", last_us=3_000_000_000)
    after.first_us = 1_200_000_000
    after.told_us = 1_800_000_000
    judged(killed, after)
    assert killed.missing_us == 10_000_000
    assert killed.completeness < 1.0
    assert after.completeness == 1.0


def test_a_boot_that_ended_cleanly_lost_nothing() -> None:
    ended = hour(boot="one", last_us=1_000_000_000, has_ended=True)
    after = hour(boot="two", last_us=3_000_000_000)
    after.first_us, after.told_us = 1_200_000_000, 1_800_000_000
    judged(ended, after)
    assert ended.completeness == 1.0


def test_a_member_that_fell_silent_while_others_go_on_is_not_complete() -> None:
    silent = hour("dead", "one", last_us=1_000_000_000)
    judged(silent, hour("alive", "two"))
    assert silent.completeness < 1.0


def test_holes_and_lost_rows_lower_completeness() -> None:
    assert judged(hour(told_us=HOUR - 360_000_000))[0].completeness == pytest.approx(0.9)
    assert judged(hour(gap_rows=100))[0].completeness == pytest.approx(0.5)


def test_copies_are_judged_only_where_nothing_crosses_the_hour() -> None:
    def island(has_ended: bool, known: set[int]) -> bool:
        (line,) = quality.coverage([hour(has_ended=has_ended)], {"c": known})
        return bool(line["is_island"])

    assert island(True, {0, HOUR})
    assert not island(False, {0})
    assert not island(True, {0, -HOUR})


HIT = Hit("queue", "/", "q", 1, 0, "text")
HOURS = [f"2026-11-20T{number:02}" for number in range(10)]


def states(hits: list[int], at_once: bool = False) -> list[str]:
    found = {HOURS[number]: HIT for number in hits}
    return [f"{at[-2:]} {status}" for at, status, _, _ in findings._states(HOURS, found, at_once)]


def test_a_finding_is_raised_in_its_second_hour_and_clear_after_three() -> None:
    """8.19: no flapping."""
    assert states([1, 2]) == [
        "01 PENDING", "02 RAISED", "03 RAISED", "04 RAISED", "05 CLEAR",
    ]  # fmt: skip


def test_a_finding_that_comes_back_in_time_was_never_clear() -> None:
    assert states([1, 2, 4])[-1] == "07 CLEAR"
    assert [line for line in states([1, 2, 4]) if "CLEAR" in line] == ["07 CLEAR"]


def test_a_single_hour_does_not_raise_unless_the_rule_is_certain() -> None:
    assert states([3]) == ["03 PENDING"]
    assert states([3], at_once=True) == ["03 RAISED", "04 RAISED", "05 RAISED", "06 CLEAR"]


def test_executors_as_pods_need_an_image_and_an_address() -> None:
    settings = SparkSettings("k8s://https://k:443", 3, "image:1")
    with pytest.raises(SparkUnavailable, match="POD_IP"):
        session.configuration(settings, {})
    with pytest.raises(SparkUnavailable, match="--image"):
        session.configuration(SparkSettings("k8s://x"), {"POD_IP": "10.0.0.1"})
    values = session.configuration(
        settings, {"POD_IP": "10.0.0.1", "POD_NAME": "job-1", "NAMESPACE": "mq"}
    )
    assert values["spark.driver.host"] == "10.0.0.1"
    assert values["spark.kubernetes.driver.pod.name"] == "job-1"
    assert values["spark.kubernetes.namespace"] == "mq"
    assert values["spark.executor.instances"] == "3"


def test_local_runs_bind_nothing_but_loopback() -> None:
    values = session.configuration(SparkSettings(), {})
    assert values["spark.driver.bindAddress"] == "127.0.0.1"
    assert values["spark.ui.enabled"] == "false"


def test_many_rows_get_the_full_compiler() -> None:
    few = session.configuration(SparkSettings(rows=1000), {})
    many = session.configuration(SparkSettings(rows=10_000_000), {})
    assert "TieredStopAtLevel" in few["spark.driver.extraJavaOptions"]
    assert "TieredStopAtLevel" not in many["spark.driver.extraJavaOptions"]


def test_a_machine_without_java_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkUnavailable, match="apt-get install openjdk-17-jre-headless"):
        session.find_java()


def test_a_java_that_is_too_old_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkUnavailable, match="11"):
        session.find_java()


@pytest.mark.parametrize(("value", "top"), [(0, 1), (0.4, 0.5), (1, 1), (3, 5), (51, 100)])
def test_axes_end_at_round_numbers(value: float, top: float) -> None:
    assert charts.nice_top(value) == pytest.approx(top)


def test_charts_bear_no_values_one_value_and_many() -> None:
    assert charts.sparkline([], "x") == ""
    for values in ([0.0], [5.0], [float(number) for number in range(10_000)]):
        assert "polyline" in charts.sparkline(values, "x")
        assert "nan" not in charts.lines([("a", values)], ("b", "c"), "u")
    assert max(charts.thinned([0.0] * 5000 + [9.0])) == 9.0


def test_names_in_charts_are_escaped() -> None:
    assert "<script>" not in charts.lines([("<script>", [1.0])], ("<b>", "c"), "<i>")
