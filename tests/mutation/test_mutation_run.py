"""The mutation run itself, on a room of one function: it must tell who noticed and who did not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.mutation.__main__ import EXPLAINED, ROOT, main
from tools.mutation.changes import Change, read_explanations
from tools.mutation.rooms import ROOMS, Room

SOURCE = """
def larger(a, b):
    if a >= b:
        return a
    return b


def unguarded(a):
    return a + 1
"""
TEST = """
from brokerd.toy.numbers import larger, unguarded

def test_larger():
    assert larger(2, 1) == 2
    assert larger(1, 2) == 2
    unguarded(1)
"""
THOROUGH = """
from brokerd.toy.numbers import unguarded

def test_unguarded():
    assert unguarded(2) > 2
"""
TOY = Room(
    "toy",
    "brokerd/toy",
    ("brokerd/toy/*.py",),
    ("tests/test_quick.py",),
    ("tests/test_thorough.py",),
)


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A tree with one room."""
    for path, text in (
        ("brokerd/__init__.py", ""),
        ("brokerd/toy/__init__.py", ""),
        ("brokerd/toy/numbers.py", SOURCE),
        ("tests/test_quick.py", TEST),
        ("tests/test_thorough.py", THOROUGH),
        ("pyproject.toml", "[project]\nname = 'toy'\n"),
        (
            "explained.txt",
            "# Equal numbers are the same number.\n"
            "brokerd/toy/numbers.py larger\n- if a …\n+ if a > …\n",
        ),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


@pytest.mark.timeout(900)
def test_a_run_names_what_nobody_noticed(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`a >= b` to `a > b` is equivalent; `a + 1` to `a + 2` nobody sees; `a - 1` one test does."""
    arguments = ["--root", str(toy), "--explained", str(toy / "explained.txt"), "--mutants", "0"]
    assert main(arguments, [TOY]) == 1
    found = capsys.readouterr().out
    assert "survived: brokerd/toy/numbers.py unguarded\n- return a + 1\n+ return a + 2" in found
    assert "- return a + 1\n+ return a - 1" not in found
    assert "larger\n" not in found
    (row,) = [line for line in found.splitlines() if line.startswith("all ")]
    mutants, killed, timed_out, explained, survived, _ = row.split()[1:]
    assert (mutants, killed, timed_out, explained, survived) == ("3", "1", "0", "1", "1")


def test_wording_is_no_behaviour() -> None:
    def change(before: str, after: str) -> bool:
        return Change("f.py", "f", before, after).is_wording

    assert change('raise Error("no such thing")', 'raise Error("XXno such thingXX")')
    assert change('raise Error("no such thing", 1)', "raise Error(None, 1)")
    assert not change('raise Error("no such thing", 1)', 'raise Error("no such thing", None)')
    assert not change('mode = "simple"', 'mode = "SIMPLE"')
    assert not change("a = None", 'a = ""')


def test_weaker_invariants_still_hold() -> None:
    assert Change("f.py", "Queue.check_invariants", "assert a < b", "assert a <= b").is_oracle
    assert not Change("f.py", "Queue.checkout", "a < b", "a <= b").is_oracle


def test_every_explanation_has_a_reason_and_names_a_mutated_file() -> None:
    sources = {
        path.relative_to(ROOT).as_posix()
        for room in ROOMS
        for pattern in room.sources
        for path in ROOT.glob(pattern)
    }
    for explanation in read_explanations(EXPLAINED):
        assert len(explanation.reason) > 20
        assert explanation.pattern.file in {*sources, "…"}
        assert explanation.pattern.before != explanation.pattern.after


def test_an_explanation_without_file_or_reason_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "explained.txt"
    path.write_text("- a\n+ b\n")
    with pytest.raises(ValueError, match="needs file, function and reason"):
        read_explanations(path)
