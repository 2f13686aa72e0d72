"""Each scenario in this folder does what it says, and INDEX.md names them all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.transcripts.raft.runner import Transcript
from tests.transcripts.scenarios import assert_holds, found_in

FOLDER = Path(__file__).parent
SCENARIOS = found_in(__file__, at_least=20)

#: Sections of the Raft thesis that a Raft core must be held to (issue 5).
SECTIONS = {
    *("§3.3", "§3.4", "§3.5", "§3.6.1", "§3.6.2", "§3.8", "§3.9", "§3.10"),
    *("§4.1", "§4.2.1", "§4.2.2", "§4.2.3", "§5.1", "§6.2", "§6.3", "§9.6", "§10.2.1"),
}


@pytest.mark.parametrize("path", SCENARIOS, ids=[path.stem for path in SCENARIOS])
def test_scenario(path: Path) -> None:
    assert_holds(path, Transcript())


def test_the_index_names_every_transcript_under_its_section() -> None:
    rows = re.findall(
        r"^\| (\S+) \| `(\S+\.txt)` \| .+ \|$", (FOLDER / "INDEX.md").read_text(), re.M
    )
    assert sorted(name for _, name in rows) == sorted(path.name for path in SCENARIOS)
    assert {section for section, _ in rows} == {*SECTIONS, "own"}
    for section, name in rows:
        if section != "own":
            assert name.startswith(section.removeprefix("§") + "-"), name
            assert section in (FOLDER / name).read_text().split("\n>")[0], name
