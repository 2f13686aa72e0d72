"""The white-box check of the chaos runs sees what a log holds, and planted losses."""

from __future__ import annotations

from pathlib import Path

from brokerd.raft.messages import Entry
from tests.chaos.history import MessageKey
from tests.chaos.load import PADDING
from tests.chaos.logs import readable, scarce
from tests.unit.storage.builders import THREE, open_log, put, save, segment_paths

GROUP = 5
KEYS = [MessageKey(1, number) for number in range(1, 7)]


def write(
    folder: Path, keys: list[MessageKey], live: list[int] | None = None, uid: int = GROUP
) -> Path:
    """Write a log with one entry per message; `live`: a snapshot of it all refers to these."""
    log = open_log(folder)
    log.bootstrap([(uid, THREE)])
    for index, (publisher, number) in enumerate(keys, 1):
        body = b"%d:%d:3:" % (publisher, number) + PADDING
        put(log, uid, Entry(index, 1, 0, b"a command with " + body + b" in it"))
    if live is not None:
        save(log, uid, len(keys), [(index, index + 1) for index in live])
    log.close()
    return folder


def test_what_entries_hold_is_readable(tmp_path: Path) -> None:
    assert readable(write(tmp_path, KEYS)) == {*KEYS}


def test_what_a_snapshot_does_not_refer_to_any_more_is_gone(tmp_path: Path) -> None:
    assert readable(write(tmp_path, KEYS, live=[2, 5])) == {KEYS[1], KEYS[4]}


def test_a_flipped_bit_makes_a_message_unreadable(tmp_path: Path) -> None:
    """G8: damage is no message, whatever it looks like; what is behind it may go with it."""
    (path,) = segment_paths(write(tmp_path, KEYS))
    image = bytearray(path.read_bytes())
    image[image.index(b"1:3:3:") + len(b"1:3:3:") + 20] ^= 1
    path.write_bytes(image)
    assert {*KEYS[:2]} <= readable(tmp_path) <= {*KEYS} - {MessageKey(1, 3)}


def test_an_unusable_log_holds_nothing(tmp_path: Path) -> None:
    (path,) = segment_paths(write(tmp_path, KEYS))
    path.write_bytes(b"\xff" * path.stat().st_size)
    assert readable(tmp_path) == set()
    assert readable(tmp_path / "missing") == set()


def test_a_message_in_a_minority_of_logs_is_scarce(tmp_path: Path) -> None:
    """G1: two of three are enough, one is not."""
    logs = [
        write(tmp_path / "a", KEYS),
        write(tmp_path / "b", KEYS[:4]),
        write(tmp_path / "c", KEYS[1:3]),
    ]
    assert scarce(KEYS, logs) == KEYS[4:]
    assert scarce(KEYS[:4], logs) == []


def test_replicas_have_names_of_their_own_in_the_logs(tmp_path: Path) -> None:
    """One that left and came back does not use its old log again."""
    logs = [write(tmp_path / str(uid), KEYS, uid=uid) for uid in (GROUP, GROUP + 1)]
    assert scarce(KEYS, [*logs, write(tmp_path / "empty", [])]) == []
