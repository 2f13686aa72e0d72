"""The fuzz targets themselves: seeds pass, damaged seeds pass, and a target that fails is told.

Fuzzing itself is test_fuzzing.py, and `make fuzz SECONDS=60` (tests/fuzz/__main__.py).
"""

from __future__ import annotations

import importlib
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import __main__ as fuzz
from tests.fuzz.names import GROUPS, NAMES, group_of
from tests.fuzz.target import Target

#: Damaged copies of each seed; the rest is atheris'.
COPIES = 15


def target(name: str) -> Target:
    """Return a target by name."""
    found: Target = importlib.import_module(group_of(name).module).TARGETS[name]
    return found


def test_the_names_are_the_targets() -> None:
    for group in GROUPS:
        assert tuple(importlib.import_module(group.module).TARGETS) == group.names
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_seeds_and_damaged_seeds_raise_nothing_but_what_is_said(name: str) -> None:
    """SEC-40: whatever bytes come, there is an answer."""
    found = target(name)
    rng = random.Random(name)
    for seed in found.seeds():
        assert len(seed) <= found.bytes_max
        found.run(seed)
        for _ in range(COPIES):
            found.run(_damaged(rng, seed))


def _damaged(rng: random.Random, seed: bytes) -> bytes:
    data = bytearray(seed)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(4)
        if kind == 0:
            data[at : at + 1] = bytes((rng.randrange(256),))
        elif kind == 1:
            del data[at : at + rng.randint(1, 9)]
        elif kind == 2:
            data[at:at] = rng.choice((b"\xff\xff\xff\xff", b"\0\0", data[at : at + 20]))
        else:
            del data[at:]
    return bytes(data)


def test_a_finding_is_told_with_its_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def worker(name: str, seconds: int, corpus: Path) -> tuple[str, int, str, list[bytes]]:
        return name, int(name == "tables"), "the traceback", [b"\x01\x02"]

    monkeypatch.setattr(fuzz, "_worker", worker)
    assert fuzz.fuzz_all(["methods"], 1, tmp_path)
    assert not fuzz.fuzz_all(["methods", "tables"], 1, tmp_path)
    told = capsys.readouterr().out
    assert "the traceback" in told
    assert "tables: base64 of the input: AQI=" in told


def test_atheris_finds_what_a_target_does_not_allow(tmp_path: Path) -> None:
    """A fuzzer that cannot fail is none: an assertion behind three right bytes is found."""
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "import atheris\n"
        "@atheris.instrument_func\n"
        "def run(data):\n"
        "    if data[:1] == b'a':\n"
        "        if data[1:2] == b'b':\n"
        "            assert data[2:3] != b'c'\n"
        "atheris.Setup([sys.argv[0], '-max_total_time=120', '-seed=1'], run)\n"
        "atheris.Fuzz()\n"
    )
    done = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path, capture_output=True, timeout=170
    )
    assert done.returncode != 0
    assert b"AssertionError" in done.stdout + done.stderr
