"""Which segments are taken: sound ones once, damaged and conflicting ones never."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest
from brokerd_telemetry import sources, verify

from tests.telemetry import fleet


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
        (lambda data: data + b"\0", "gzip"),
        # A broker writes one member; a million empty ones must not take an hour.
        (lambda data: data + gzip.compress(b"") * 1_000_000, "gzip"),
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
    assert verify.judge(raw, [path, copy], known, None).duplicates == [path]
    known[fresh.identity]["sha256"] = "0" * 64
    assert verify.judge(raw, [path, copy], known, None).quarantined == [(copy, "conflict")]


def test_rows_that_an_earlier_segment_had_are_cut_off(segment: tuple[Path, str]) -> None:
    raw, path = segment
    (fresh,) = verify.judge(raw, [path], {}, None).fresh
    earlier = fresh.entry() | {"path": "x", "seq0": 0, "seq1": 0}
    verdicts = verify.judge(raw, [path], {"other": earlier}, None)
    assert [item.first_seq for item in verdicts.fresh] == [1]
    assert verdicts.overlapping_rows == 1
