"""What a mutant changes, as text: read from mutmut's generated files, compared with explanations.

For the mutation run only; no processes, no verdicts (runs.py).
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from pathlib import Path

#: Separates class and method in mutmut's names.
CLASS_MARK = "ǁ"
#: Stands for any text in explained.txt.
WILD = "…"
#: A string that is a sentence, and None in its place.
_SENTENCE = re.compile(r"""[rbf]{0,2}("[^"\n]*\s[^"\n]*"|'[^'\n]*\s[^'\n]*')|\bNone\b""")


@dataclass(slots=True, frozen=True)
class Change:
    """One mutant's difference; equal in every run as long as the line stands."""

    file: str
    function: str
    before: str
    after: str

    @property
    def is_wording(self) -> bool:
        """Only a sentence for people is different: no test should care."""
        if self.before == self.after:
            return True
        return _SENTENCE.sub("-", self.before) == _SENTENCE.sub("-", self.after) and any(
            match[1] for match in _SENTENCE.finditer(self.before)
        )

    @property
    def is_oracle(self) -> bool:
        """In a function that asserts invariants for tests: weaker, it still holds."""
        return self.function.rpartition(".")[2] in ("check", "check_invariants")

    def __str__(self) -> str:
        return f"{self.file} {self.function}\n- {self.before}\n+ {self.after}"


def read_changes(mutants: Path, file: str) -> dict[str, Change]:
    """Return mutant name -> change of a file that mutmut has generated below `mutants`."""
    spans = json.loads((mutants / f"{file}.spans").read_text())["spans"]
    lines = (mutants / file).read_text().splitlines()
    module = file.removesuffix(".py").replace("/", ".")
    changes = {}
    for name, span in spans.items():
        mangled, _, number = name.partition("__mutmut_")
        if number == "orig":
            continue
        original = _body(lines, spans[f"{mangled}__mutmut_orig"])
        before, after = _difference(original, _body(lines, span))
        function = mangled.removeprefix("x").strip(CLASS_MARK).replace(CLASS_MARK, ".")
        if CLASS_MARK not in mangled:
            function = mangled.removeprefix("x_")
        changes[f"{module}.{name}"] = Change(file, function, before, after)
    return changes


def _body(lines: list[str], span: list[int]) -> list[str]:
    found = [line.strip() for line in lines[span[0] - 1 : span[1]]]
    # The name in the `def` line is the mutant's own.
    return [re.sub(r"\b(def )\w+", r"\1_", line) for line in found]


def _difference(before: list[str], after: list[str]) -> tuple[str, str]:
    removed = []
    added = []
    for line in difflib.unified_diff(before, after, lineterm="", n=0):
        if line.startswith("-") and not line.startswith("---"):
            removed.append(line[1:])
        elif line.startswith("+") and not line.startswith("+++"):
            added.append(line[1:])
    return " ".join(removed), " ".join(added)


@dataclass(slots=True, frozen=True)
class Explanation:
    """Why nothing can notice a change; WILD stands for any text."""

    reason: str
    pattern: Change

    def fits(self, change: Change) -> bool:
        """Whether this explains the change."""
        wanted = self.pattern
        return (
            wanted.file in (change.file, WILD)
            and wanted.function in (change.function, WILD)
            and _fits(wanted.before, change.before)
            and _fits(wanted.after, change.after)
        )


def _fits(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split(WILD))), text) is not None


def read_explanations(path: Path) -> list[Explanation]:
    """Read explained.txt.

    A reason (lines with #) holds for all changes below it until the next reason; a line with file
    and function for all changes below it until the next such line.
    """
    found: list[Explanation] = []
    reason: list[str] = []
    head: list[str] = []
    before = ""
    is_reason = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("#"):
            if not is_reason:
                reason = []
            reason.append(line[1:].strip())
        elif line.startswith("- "):
            before = line[2:]
        elif line.startswith("+ "):
            if len(head) != 2 or not before or not reason:
                raise ValueError(f"{path.name}:{number}: a change needs file, function and reason")
            found.append(Explanation(" ".join(reason), Change(head[0], head[1], before, line[2:])))
            before = ""
        elif line.strip():
            head = line.split()
        is_reason = line.startswith("#")
    return found
