"""Segments and tables in object storage, without Spark: what is asked, and what survives errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from brokerd_telemetry import bucket_segments, objects, sources
from brokerd_telemetry.commit import Ledger
from brokerd_telemetry.manifest import LedgerError, Manifest
from brokerd_telemetry.objects import Conflict, ObjectError, Place
from brokerd_telemetry.store import Store

from tests.telemetry.object_server import BUCKET, ObjectServer, object_server

__all__ = ["object_server"]

URL = f"s3://{BUCKET}/fleet/one"
HOURS = [f"{number:02}" for number in range(16, 24)]


def segment(cluster: str, node: str, hour: str, number: int) -> str:
    name = f"sample.{node.encode().hex()}.{number:06}.0-9.10.jsonl.gz"
    return f"cluster={cluster}/node={node}/dt=2026-11-20/hh={hour}/{name}"


@pytest.fixture
def filled(object_server: ObjectServer) -> Iterator[tuple[ObjectServer, Place, list[str]]]:
    """Two clusters of two members, eight hours, two segments an hour."""
    place = Place(URL)
    paths = [
        segment(cluster, node, hour, 2 * at + part)
        for cluster in ("a+one", "a+two")
        for node in ("n0", "n1")
        for at, hour in enumerate(HOURS)
        for part in range(2)
    ]
    objects.together(lambda path: place.put(f"raw/v1/{path}", path.encode()), paths)
    object_server.asked.clear()
    return object_server, place, paths


def fetched(
    place: Place, raw: Path, known: set[str], cluster: str | None, since: str | None
) -> sources.Pulled:
    pulled = sources.Pulled()
    bucket_segments.fetch(place, raw, known, cluster, lambda _: since, pulled)
    return pulled


def test_a_prefix_is_listed_once_whatever_the_number_of_its_hours(
    filled: tuple[ObjectServer, Place, list[str]], tmp_path: Path
) -> None:
    """One request for the members of a cluster, one for each member's names; no object twice."""
    server, place, paths = filled
    own = [path for path in paths if path.startswith("cluster=a+one/")]
    assert fetched(place, tmp_path, set(), "a/one", None).segments == len(own) == 32
    assert sources.listed(tmp_path) == sorted(own)
    assert (tmp_path / own[0]).read_bytes() == own[0].encode()
    asked = [query["prefix"][0] for query in server.listings()]
    below = "fleet/one/raw/v1/cluster=a+one/"
    assert asked == [below, f"{below}node=n0/", f"{below}node=n1/"]
    assert len(server.asked) == len(asked) + len(own)


def test_what_cannot_be_late_any_more_is_not_listed_and_what_is_known_not_fetched(
    filled: tuple[ObjectServer, Place, list[str]], tmp_path: Path
) -> None:
    server, place, paths = filled
    late = segment("a+one", "n0", "22", 90)
    place.put(f"raw/v1/{late}", b"late")
    place.put("raw/v1/cluster=a+one/node=n0/dt=2026-11-20/hh=23/no.segment", b"what is this")
    server.asked.clear()
    assert fetched(place, tmp_path, set(paths), "a/one", "2026-11-20T22").segments == 1
    assert sources.listed(tmp_path) == [late]
    gets = [path for method, path, query in server.asked if "list-type" not in query]
    assert gets == [f"/{BUCKET}/fleet/one/raw/v1/{late}"]
    # Before the hour nothing is known to this run, and yet it is not asked for.
    assert fetched(place, tmp_path / "again", set(), "a/two", "2026-11-20T22").segments == 8


def test_all_clusters_of_a_place_are_found(
    filled: tuple[ObjectServer, Place, list[str]], tmp_path: Path
) -> None:
    server, place, paths = filled
    assert fetched(place, tmp_path, set(), None, None).segments == len(paths)
    assert len(server.listings()) == 1 + 2 + 4


def test_long_listings_go_on_page_by_page(
    object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "PAGE", 10)
    place = Place(URL)
    names = [f"many/{number:04}" for number in range(23)]
    objects.together(lambda name: place.put(name, b""), names)
    object_server.asked.clear()
    assert [entry.name for entry in place.entries("many/")] == names
    assert [entry.name for entry in place.entries("many/", "many/0019")] == names[20:]
    assert len(object_server.listings()) == 3 + 1


def test_a_swap_is_refused_when_somebody_else_was_there(object_server: ObjectServer) -> None:
    place = Place(URL)
    assert place.get("CURRENT") is None
    place.swap("CURRENT", b"one", None)
    with pytest.raises(Conflict):
        place.swap("CURRENT", b"other", None)
    found = place.get("CURRENT")
    assert found is not None
    place.swap("CURRENT", b"two", found[1])
    with pytest.raises(Conflict):
        place.swap("CURRENT", b"three", found[1])
    assert (place.get("CURRENT") or (b"",))[0] == b"two"


def test_errors_of_the_storage_are_tried_again(
    object_server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each third request fails, half of those after the storage did what was asked."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.0)
    place = Place(URL)
    object_server.fails = 1 / 3
    paths = [segment("a+one", "n0", hour, 0) for hour in HOURS]
    for path in paths:
        bucket_segments.ship(place, path, path.encode(), lambda _: None)
    assert fetched(place, tmp_path, set(), "a/one", None).segments == len(paths)
    assert sources.listed(tmp_path) == paths


@pytest.mark.parametrize("url", ["s3://", "s3://B/x", "http://x", "s3://ab?c", "nothing"])
def test_what_is_no_address_is_told_with_the_form(url: str) -> None:
    with pytest.raises(ObjectError, match="s3://BUCKET/PREFIX"):
        Place(url)


def test_a_bucket_that_does_not_exist_is_told(object_server: ObjectServer) -> None:
    with pytest.raises(ObjectError, match="NoSuchBucket"):
        Place("s3://no-such-bucket/x").put("a", b"")


class Disk:
    """A run's disk that commits made-up tables to a store."""

    def __init__(self, out_dir: Path) -> None:
        self.ledger = Ledger(out_dir)
        self.out_dir = out_dir
        self.store = Store(Place(URL), out_dir, lambda _: None)

    def begin(self) -> Manifest:
        self.store.begin()
        return self.ledger.load()

    def commit(self, manifest: Manifest, run_id: str, **files: str) -> None:
        """Replace hour 14 of table t by these files."""
        entries = []
        for name, text in files.items():
            path = self.out_dir / "gold" / "t" / run_id / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            where = path.relative_to(self.out_dir).as_posix()
            entries.append({"path": where, "rows": 1, "bytes": len(text), "cluster": "c"})
        manifest.run_id = run_id
        manifest.replace_hours("t", ["2026-11-20T14"], {"2026-11-20T14": entries})
        self.store.commit(manifest, self.ledger.added(manifest))
        self.ledger.commit(manifest)


def test_a_disk_that_is_lost_gets_what_it_needs_from_the_store(
    object_server: ObjectServer, tmp_path: Path
) -> None:
    first = Disk(tmp_path / "first")
    first.commit(first.begin(), "run-1", a="A", b="B")
    second = Disk(tmp_path / "second")
    manifest = second.begin()
    paths = manifest.paths("t")
    assert not any((second.out_dir / path).exists() for path in paths)
    second.store.fetch(paths[:1])
    assert (second.out_dir / paths[0]).read_text() == "A"
    assert not (second.out_dir / paths[1]).exists()
    # What it has is not asked for again.
    before = len(object_server.asked)
    second.store.fetch(paths[:1])
    assert len(object_server.asked) == before


def test_of_two_runs_at_once_one_wins_and_the_other_is_told(
    object_server: ObjectServer, tmp_path: Path
) -> None:
    """5.6: a lease on a disk cannot keep away a run on another one."""
    one, other = Disk(tmp_path / "one"), Disk(tmp_path / "other")
    mine, theirs = one.begin(), other.begin()
    one.commit(mine, "run-1", a="A")
    with pytest.raises(LedgerError, match="another run has changed"):
        other.commit(theirs, "run-2", b="B")
    third = Disk(tmp_path / "third")
    assert third.begin().paths("t") == ["gold/t/run-1/a"]
    # The loser goes on from what the winner has made.
    assert other.begin().paths("t") == ["gold/t/run-1/a"]


def test_a_crash_before_the_swap_leaves_the_old_tables(
    object_server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path / "disk")
    disk.commit(disk.begin(), "run-1", a="A")
    manifest = disk.begin()

    def crash(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(Place, "swap", crash)
        with pytest.raises(SystemExit):
            disk.commit(manifest, "run-2", a="A2")
    assert Disk(tmp_path / "other").begin().paths("t") == ["gold/t/run-1/a"]
    again = Disk(tmp_path / "disk")
    again.commit(again.begin(), "run-3", a="A3")
    assert Disk(tmp_path / "other").begin().paths("t") == ["gold/t/run-3/a"]


def test_a_crash_after_the_swap_is_made_good_by_the_next_begin(
    object_server: ObjectServer, tmp_path: Path
) -> None:
    """The store is ahead of the disk: what it has counts."""
    disk = Disk(tmp_path / "disk")
    disk.commit(disk.begin(), "run-1", a="A")
    current = (tmp_path / "disk/ledger/CURRENT").read_bytes()
    disk.commit(disk.begin(), "run-2", a="A2")
    (tmp_path / "disk/ledger/CURRENT").write_bytes(current)
    assert Disk(tmp_path / "disk").begin().run_id == "run-2"


def test_a_store_keeps_the_files_of_recent_manifests_only(
    object_server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brokerd_telemetry.store.MANIFESTS_KEPT", 2)
    disk = Disk(tmp_path / "disk")
    for number in range(4):
        disk.commit(disk.begin(), f"run-{number}", a=f"{number}")
        disk.store.vacuum()
    left = [entry.name for entry in Place(URL).entries("gold/")]
    assert left == ["gold/t/run-2/a", "gold/t/run-3/a"]
    assert [entry.name for entry in Place(URL).entries("ledger/manifests/")] == [
        "ledger/manifests/run-2.json",
        "ledger/manifests/run-3.json",
    ]
