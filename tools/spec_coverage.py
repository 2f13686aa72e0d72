"""Which rule of the specification stands in which test (`make spec-coverage`).

The rules are listed in docs/reference/rules.md. A rule counts as covered when a test that
`make test` runs names its id: in its name, its docstring, a comment inside it, its decorators, a
table of cases that it uses, or a transcript that it replays. A comment or docstring of a whole
module covers no rule. Not for judging whether the test is a good one; that takes a reader.

Exit status 1: less than RATIO_MIN of the rules of the chapters that are complete, a security
requirement of the sections that are complete without a test, a test that names a rule which does
not exist, or a reason for a rule that has a test by now.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RULES = "docs/reference/rules.md"
#: Federation and memory come later in full; everything else must reach this share.
CHAPTERS_LATER = frozenset({"10", "11"})
RATIO_MIN = 0.98
#: Sections of the security requirements whose every id needs a test.
SECURITY_COMPLETE = frozenset(
    {"Authentication", "Passwords", "Limits before authentication", "Framing", "Resources",
     "Lessons"}
)  # fmt: skip

ID = re.compile(r"(?<![\w-])(R-[A-Z]+-[A-Z]?\d+|SEC-\d+)(?![\w])")
ROW = re.compile(r"^\| (R-[A-Z]+-[A-Z]?\d+|SEC-\d+) \| (.+) \|$")
#: How a specification folder states a rule: a list item, or a row of the error table.
STATED = re.compile(r"^(?:- \*\*|\| )(R-[A-Z]+-[A-Z]?\d+|SEC-\d+)(?:\*\*| \|)", re.M)

NO_CLAIM, NOT_COVERED, SECURITY = "No behaviour to test", "Not covered", "Security"


@dataclass(slots=True)
class Rules:
    """What docs/reference/rules.md lists."""

    #: Chapter number to its title and the ids in it.
    chapters: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    #: Section of the security requirements to ids.
    security: dict[str, list[str]] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)
    #: Ids that state nothing about the broker's behaviour, with the reason.
    no_claim: dict[str, str] = field(default_factory=dict)
    #: Ids that no test covers, with the reason.
    not_covered: dict[str, str] = field(default_factory=dict)


def read_rules(text: str) -> Rules:
    """Read the tables of the list."""
    rules = Rules()
    place: list[str] | dict[str, str] | None = None
    for line in text.splitlines():
        if line.startswith("#"):
            place = _place(rules, line)
        elif found := ROW.match(line):
            name, title = found.groups()
            if isinstance(place, dict):
                place[name] = title
            elif place is not None:
                if name in rules.titles:
                    raise ValueError(f"{name} is listed twice")
                place.append(name)
                rules.titles[name] = title
    return rules


def _place(rules: Rules, heading: str) -> list[str] | dict[str, str] | None:
    """Return where the rows below a heading belong."""
    title = heading.lstrip("#").strip()
    if found := re.match(r"(\d+)\. (.+)", title):
        ids: list[str] = []
        rules.chapters[found[1]] = (found[2], ids)
        return ids
    if title == NO_CLAIM:
        return rules.no_claim
    if title == NOT_COVERED:
        return rules.not_covered
    if title.startswith(f"{SECURITY}: "):
        return rules.security.setdefault(title.removeprefix(f"{SECURITY}: "), [])
    return None


# ---- tests ---------------------------------------------------------------------------------------


def test_files(root: Path) -> list[Path]:
    """Return the test files that `make test` runs: those below the PARTS of the Makefile."""
    makefile = (root / "Makefile").read_text()
    found = re.search(r"^PARTS := ((?:.*\\\n)*.*)$", makefile, re.M)
    if found is None:
        raise ValueError("the Makefile has no PARTS")
    files: set[Path] = set()
    # Its examples name ids that mean nothing.
    own = root / "tests" / "test_spec_coverage.py"
    for part in found[1].replace("\\\n", " ").replace('"', " ").split():
        for path in root.glob(part):
            files |= set(path.rglob("test_*.py")) if path.is_dir() else {path}
    return sorted(files - {own})


class Module:
    """One file of tests: its functions, and the tables they use."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path, self.root = path, root
        self._lines = path.read_text().splitlines()
        self.tree = ast.parse("\n".join(self._lines))
        self.tables: dict[str, ast.stmt] = {}
        self._imported: dict[str, tuple[Path, str]] = {}
        for node in self.tree.body:
            self._enter(node)

    def _enter(self, node: ast.stmt) -> None:
        """Note tables of the module, and where imported ones come from."""
        if isinstance(node, ast.Assign):
            targets = [target for target in node.targets if isinstance(target, ast.Name)]
            self.tables |= {target.id: node for target in targets}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            self.tables[node.target.id] = node
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests."):
            file = self.root.joinpath(*str(node.module).split(".")).with_suffix(".py")
            if file.is_file():
                names = {alias.asname or alias.name: alias.name for alias in node.names}
                self._imported |= {name: (file, origin) for name, origin in names.items()}

    def source(self, node: ast.stmt) -> str:
        """Return the text of a statement with its decorators and comments."""
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
        last = node.end_lineno or node.lineno
        # A comment that ends a function is no part of its tree.
        while last < len(self._lines) and self._lines[last].startswith("    "):
            last += 1
        return "\n".join(self._lines[first - 1 : last])

    def tests(self) -> Iterator[tuple[str, str]]:
        """Yield the node id of each test and the text that may name its rules."""
        name = self.path.relative_to(self.root).as_posix()
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if node.name.startswith("test_"):
                    yield f"{name}::{node.name}", self._text(node)
                    yield from self._transcripts(f"{name}::{node.name}", node)
            elif isinstance(node, ast.ClassDef) and self._is_machine(node.name):
                yield f"{name}::{node.name}", self.source(node)

    def _is_machine(self, name: str) -> bool:
        """Tell whether a class is run as a state machine of Hypothesis."""
        return any(
            isinstance(table, ast.Assign)
            and isinstance(table.value, ast.Attribute)
            and table.value.attr == "TestCase"
            and isinstance(table.value.value, ast.Name)
            and table.value.value.id == name
            for table in self.tables.values()
        )

    def _text(self, node: ast.stmt) -> str:
        """Return the text of a test and of the tables that it names."""
        texts = [self.source(node)]
        for name in sorted(_names(node)):
            if name in self.tables:
                table = self.tables[name]
                texts.append(self.source(table))
                # One level deeper: a table made of others.
                texts += [self.source(self.tables[n]) for n in _names(table) & set(self.tables)]
            elif name in self._imported:
                texts.append(self._foreign(*self._imported[name]))
        return "\n".join(texts)

    def _foreign(self, file: Path, name: str) -> str:
        """Return the text of a table of another module."""
        other = Module(file, self.root)
        return other.source(other.tables[name]) if name in other.tables else ""

    def _transcripts(
        self, test: str, node: ast.FunctionDef | ast.AsyncFunctionDef
    ) -> Iterator[tuple[str, str]]:
        """Yield one test per transcript of the folder, if they are the test's parameters."""
        names = set().union(*map(_names, node.decorator_list))
        tables = [self.source(self.tables[name]) for name in names & set(self.tables)]
        if any('.glob("*.txt")' in table for table in tables):
            for path in sorted(self.path.parent.glob("*.txt")):
                yield f"{test}[{path.stem}]", path.read_text()


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def coverage(root: Path) -> dict[str, list[str]]:
    """Return each id that tests name, with the tests."""
    found: dict[str, list[str]] = {}
    for path in test_files(root):
        for test, text in Module(path, root).tests():
            for name in sorted(set(ID.findall(text + " " + _spelled(test)))):
                found.setdefault(name, []).append(test)
    return found


def _spelled(test: str) -> str:
    """Return the ids in the name of a test: test_r_ae_8_... is R-AE-8."""
    spelled = re.findall(r"(?:^|_)(r_[a-z]+_[a-z]?\d+|sec_\d+)(?=_|$)", test.rpartition("::")[2])
    return " ".join(name.upper().replace("_", "-") for name in spelled)


# ---- report --------------------------------------------------------------------------------------


def problems(rules: Rules, found: dict[str, list[str]]) -> list[str]:
    """Return everything that makes the check fail."""
    wrong = [
        f"{name} is named by {tests[0]} and is no rule"
        for name, tests in sorted(found.items())
        if name not in rules.titles
    ]
    for name in sorted(rules.no_claim | rules.not_covered):
        if name not in rules.titles:
            wrong.append(f"{name} has a reason and is no rule")
        elif name in found and name in rules.not_covered:
            wrong.append(f"{name} has a reason and a test: {found[name][0]}")
    ids, covered = share(rules, found)
    if covered < RATIO_MIN * ids:
        wrong.append(f"{covered} of {ids} rules are covered, less than {RATIO_MIN:.0%}")
    wrong += [
        f"{name} has neither a test nor a reason"
        for chapter, (_, listed) in rules.chapters.items()
        if chapter not in CHAPTERS_LATER
        for name in listed
        if name not in found | rules.no_claim | rules.not_covered
    ]
    wrong += [
        f"{name} (security, {section}) has no test"
        for section, listed in rules.security.items()
        if section in SECURITY_COMPLETE
        for name in listed
        if name not in found | rules.not_covered
    ]
    return wrong


def share(rules: Rules, found: dict[str, list[str]]) -> tuple[int, int]:
    """Return (rules that state behaviour, covered ones) of the chapters that are complete."""
    ids = [
        name
        for chapter, (_, listed) in rules.chapters.items()
        if chapter not in CHAPTERS_LATER
        for name in listed
        if name not in rules.no_claim
    ]
    return len(ids), sum(name in found for name in ids)


def report(rules: Rules, found: dict[str, list[str]]) -> str:
    """Return the tables that people read."""
    lines = [f"{'chapter':44}{'rules':>7}{'no claim':>10}{'covered':>9}{'share':>8}"]
    reasons = rules.no_claim | rules.not_covered
    open_lines: list[str] = []
    for chapter, (title, ids) in rules.chapters.items():
        idle = [name for name in ids if name in rules.no_claim]
        claims = [name for name in ids if name not in rules.no_claim]
        lines.append(_row(f"{chapter:>2}. {title}", len(ids), len(idle), claims, found))
        # No reason is needed in the chapters that come later.
        later = "the chapter comes later" if chapter in CHAPTERS_LATER else "NO REASON GIVEN"
        missing = [*idle, *(name for name in claims if name not in found)]
        open_lines += [f"  {name:10} {reasons.get(name, later)}" for name in missing]
    count, covered = share(rules, found)
    later_chapters = " and ".join(sorted(CHAPTERS_LATER))
    lines.append(f"all but {later_chapters}: {covered} of {count} covered, {covered / count:.1%}")
    lines += ["", "not covered, or nothing to cover:", *open_lines, ""]
    lines.append(f"{'security':44}{'ids':>7}{'':>10}{'covered':>9}{'share':>8}")
    for section, listed in rules.security.items():
        mark = "" if section in SECURITY_COMPLETE else " (for information)"
        lines.append(_row(f"    {section}{mark}", len(listed), None, listed, found))
        lines += [f"  {name:10} {reasons.get(name, '')}".rstrip() for name in listed
                  if name not in found]  # fmt: skip
    return "\n".join(lines)


def _row(
    title: str, count: int, idle: int | None, claims: list[str], found: dict[str, list[str]]
) -> str:
    covered = sum(name in found for name in claims)
    percent = f"{covered / len(claims):.0%}" if claims else "-"
    return f"{title:44}{count:>7}{'' if idle is None else idle:>10}{covered:>9}{percent:>8}"


def stated(folder: Path) -> set[str]:
    """Return the ids that a folder with the specification states."""
    return {name for path in folder.rglob("*.md") for name in STATED.findall(path.read_text())}


def compare(rules: Rules, folder: Path) -> list[str]:
    """Return the differences between the list and a folder with the specification."""
    there, here = stated(folder), {name for name in rules.titles if name.startswith("R-")}
    there = {name for name in there if name.startswith("R-")}
    return [f"{name} is stated in {folder} and not listed" for name in sorted(there - here)] + [
        f"{name} is listed and not stated in {folder}" for name in sorted(here - there)
    ]


def main() -> int:
    """Print the tables; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--spec", type=Path, help="compare the list with this folder's rules")
    parser.add_argument("--rule", help="list the tests that name this rule, and nothing else")
    arguments = parser.parse_args()
    rules, found = read_rules((ROOT / RULES).read_text()), coverage(ROOT)
    if arguments.rule:
        print("\n".join(found.get(arguments.rule, [])))
        return 0 if arguments.rule in found else 1
    print(report(rules, found))
    wrong = problems(rules, found)
    if arguments.spec:
        wrong += compare(rules, arguments.spec)
    print("".join(f"\nspec-coverage: {line}" for line in wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
