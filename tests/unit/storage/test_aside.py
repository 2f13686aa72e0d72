"""What is kept aside: whole or not there, checked, found again, and bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.raft.messages import HardState, NodeId
from brokerd.storage import aside
from brokerd.storage.aside import AsideFiles, Description, Kept, Progress
from brokerd.storage.disk import Disk
from brokerd.storage.errors import AsideFailed, CorruptLog, UnknownFormat
from tests.unit.storage.builders import THREE, entry, open_log, put, put_range, save


def describe(made_ms: int = 5, uid: int = 0xAB) -> Description:
    members = ["a", "b", "c"]
    return Description(uid, uid, "queue", "/", "q", "a", members, 4, 9, 8, "b", 3, made_ms)


def write(files: AsideFiles, made_ms: int = 5, uid: int = 0xAB) -> Kept:
    writer = files.begin(describe(made_ms, uid))
    writer.add_state(b"state")
    writer.add([(entry(4), 2, True), (entry(5, kind=1), 0, False)])
    writer.add([(entry(6, size=5000), 1, True)])
    return writer.finish()


def test_what_is_kept_is_found_again_with_all_that_is_needed(tmp_path: Path) -> None:
    files = AsideFiles(tmp_path / "data" / "aside")
    assert files.load() == []
    kept = write(files)
    (found,) = AsideFiles(tmp_path / "data" / "aside").load()
    assert found == kept
    assert (found.entries, found.messages, found.progress) == (3, 3, Progress())
    assert found.description == describe()
    entries = list(files.entries(found))
    assert [each.entry for each in entries] == [entry(4), entry(5, kind=1), entry(6, size=5000)]
    assert [each.is_live for each in entries] == [True, False, True]
    assert [each.entry.index for each in files.entries(found, skip=2)] == [6]
    assert files.state(found) == b"state"


def test_how_far_somebody_has_come_survives_and_begins_again_when_it_is_damaged(
    tmp_path: Path,
) -> None:
    files = AsideFiles(tmp_path)
    kept = write(files)
    kept.progress = Progress("republishing", 2, True, ["a word"])
    files.save(kept)
    files.save(kept)
    (found,) = files.load()
    # The process that was at it has ended: it waits for a word again, and goes on from there.
    assert found.progress == Progress("kept", 2, True, ["a word"])
    path = kept.path.with_suffix(".state")
    path.write_bytes(path.read_bytes()[:-5])
    (found,) = files.load()
    assert (found.progress.phase, found.progress.entries) == ("kept", 0)
    assert found.progress.remarks
    files.remove(kept)
    files.remove(kept)
    assert list(tmp_path.iterdir()) == []


def test_every_flipped_byte_shows(tmp_path: Path) -> None:
    files = AsideFiles(tmp_path)
    kept = write(files)
    image = kept.path.read_bytes()
    for at in range(0, len(image), 7):
        kept.path.write_bytes(image[:at] + bytes([image[at] ^ 4]) + image[at + 1 :])
        try:
            found = files.load()
        except UnknownFormat:
            continue
        # Without its description nobody can say whose it is; it stays where it is.
        assert found[0].fault if found else files.unreadable == [kept.path]
    assert kept.path.exists()
    kept.path.write_bytes(image[:-3])
    (found_again,) = files.load()
    assert "too early" in found_again.fault
    with pytest.raises(CorruptLog):
        list(files.entries(kept))


def test_a_file_that_was_not_finished_does_not_count(tmp_path: Path) -> None:
    files = AsideFiles(tmp_path)
    writer = files.begin(describe())
    writer.add([(entry(4), 1, True)])
    assert files.load() == []
    assert list(tmp_path.iterdir()) == []
    writer.give_up()
    again = files.begin(describe())
    again.give_up()
    again.give_up()
    assert list(tmp_path.iterdir()) == []


class FullDisk(Disk):
    """Takes nothing."""

    def write_some(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        raise OSError(28, "No space left on device")


def test_a_full_disk_is_said_and_no_reason_to_end(tmp_path: Path) -> None:
    with pytest.raises(AsideFailed, match="No space left"):
        AsideFiles(tmp_path / "aside", FullDisk()).begin(describe())
    kept = write(AsideFiles(tmp_path))
    with pytest.raises(AsideFailed, match="No space left"):
        AsideFiles(tmp_path, FullDisk()).save(kept)


@pytest.mark.plain
def test_the_number_of_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "FILES_MAX", 2)
    files = AsideFiles(tmp_path)
    for number in (3, 1):
        write(files, made_ms=number)
    assert [kept.description.made_ms for kept in files.load()] == [1, 3]
    with pytest.raises(AsideFailed, match="holds 2 files"):
        files.begin(describe(9))


def test_a_group_begins_anew_with_its_vote_and_members_and_nothing_else(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.bootstrap([(7, THREE), (8, THREE)])
    put_range(log, 7, 1, 9, term=4)
    put_range(log, 8, 1, 4)
    save(log, 7, 5, [(2, 3)], term=4)
    put(log, 7, hard_state=HardState(4, NodeId("b"), 8))
    log.begin_anew(7)
    for opened in (log, None):
        if opened is None:
            log.close()
            opened = open_log(tmp_path)
        group = opened.log(7)
        assert (group.last_index(), group.first_index(), group.snapshot_state()) == (0, 1, None)
        assert group.initial_state() == (HardState(4, NodeId("b"), 0), THREE)
        assert opened.log(8).last_index() == 3
        assert not group.damaged
    put_range(opened, 7, 1, 3, term=5)
    opened.close()
    assert open_log(tmp_path).log(7).last_index() == 2
