"""Documents and what refers to them: references of code, and the architecture's files.

Pages stand for themselves; links between them are checked in `test_tidy.py`.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.test_tidy import ROOT, documents, parsed, prose, python_files, relative
from tools import generate_files

DESIGN = ROOT / "docs" / "design"
#: Pages of other projects that comments name.
FOREIGN = {"PROTOCOL-HTTP2.md"}
#: A page by name, and the sections or the rule of it.
REFERENCE = re.compile(
    r"(?<![\w./-])(?P<page>[\w./-]*\w\.md)\b(?:,? (?P<kind>§|rule )(?P<first>\d+(?:\.\d+)*)"
    r"(?P<more>(?:(?:, | and )§\d+(?:\.\d+)*)*))?"
)
#: A number that says where it stands only with the name of a page or a book before it.
LOOSE = re.compile(r"§ ?\d|\b[Rr]ule \d|\b[Ss]ection \d")
#: Most files have none, and reading them token by token takes long.
ANY_REFERENCE = re.compile(r"\.md\b|§|\b[Rr]ule \d|\b[Ss]ection \d|\bADR \d")
BOOKS = re.compile(r"thesis|RFC \d|AMQP 0-9-1")


@cache
def texts(path: Path) -> tuple[str, ...]:
    """Return docstrings and comments of a module, each as one line; of another file, all of it."""
    return tuple(_texts(path))


def _texts(path: Path) -> Iterator[str]:
    source = path.read_text()
    if not ANY_REFERENCE.search(source):
        return
    if path.suffix != ".py":
        yield " ".join(source.split())
        return
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield " ".join((ast.get_docstring(node) or "").split())
    block: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if token.start[0] != last + 1:
            yield " ".join(block)
            block = []
        block.append(token.string.lstrip("#:").strip())
        last = token.start[0]
    yield " ".join(block)


def page_of(name: str, beside: Path) -> Path | None:
    """Return the page that a reference means; the bare name of a design page is enough."""
    for folder in (ROOT, ROOT / "docs", DESIGN, beside.parent):
        if (folder / name).is_file():
            return folder / name
    return None


def numbers(page: Path, kind: str) -> set[str]:
    """Return the sections (headings, bold numbers) or the rules that a page has."""
    text = page.read_text()
    if kind == "rule ":
        return set(re.findall(r"^\*\*rule (\d+)\.", text, flags=re.M))
    found = re.findall(r"^(?:#+ |- \*\*|\*\*)(\d+(?:\.\d+)*)", text, flags=re.M)
    return set(found)


def lost(text: str, beside: Path) -> list[str]:
    """Return the references of a text that lead nowhere."""
    found: list[str] = []
    for match in REFERENCE.finditer(text) if ".md" in text else ():
        name = match["page"]
        page = page_of(name, beside)
        if page is None:
            if name not in FOREIGN:
                found.append(match[0])
        elif match["kind"]:
            wanted = {match["first"], *re.findall(r"§(\d+(?:\.\d+)*)", match["more"])}
            found += [f"{name} {number}" for number in wanted - numbers(page, match["kind"])]
    return found


def readable() -> list[Path]:
    """Return code, scripts of scenarios and contracts: whatever may refer to a page."""
    others = [*(ROOT / "tests").rglob("*.txt"), *(ROOT / "protos").rglob("*.proto")]
    return [*python_files(), *others]


def test_references_of_code_lead_somewhere() -> None:
    broken = [
        f"{relative(path)}: {reference}"
        for path in readable()
        for text in texts(path)
        for reference in lost(text, path)
    ]
    assert broken == []


def test_sections_that_documents_name_exist() -> None:
    broken = [
        f"{relative(path)}: {match[0]}"
        for path in documents()
        for match in REFERENCE.finditer(prose(path.read_text()))
        if match["kind"] and lost(match[0], path)
    ]
    assert broken == []


def test_no_number_stands_without_its_page() -> None:
    """`rule 7` alone says nothing; a page in the same text or a book in the module names it."""
    strays = []
    for path in python_files():
        has_book = bool(BOOKS.search(path.read_text()))
        for text in texts(path):
            for match in LOOSE.finditer(REFERENCE.sub("", text)):
                if not has_book and not REFERENCE.search(text):
                    strays.append(f"{relative(path)}: {match[0]}")
    assert strays == []


def test_decisions_that_code_names_exist() -> None:
    known = {int(path.name[:4]) for path in (ROOT / "docs" / "adr").glob("[0-9]*.md")}
    named = {
        (relative(path), int(number))
        for path in readable()
        for text in texts(path)
        for number in re.findall(r"\bADR (\d+)", text)
    }
    assert {(path, number) for path, number in named if number not in known} == set()


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("see design/replication.md §2.1 there", []),
        ("(replication.md §1, G8)", []),
        ("design/hot-path.md rule 2", []),
        ("design/telemetry.md §7.1, §10", []),
        ("design/replication.md §2.77", ["design/replication.md 2.77"]),
        ("design/telemetry.md §7.1, §99", ["design/telemetry.md 99"]),
        ("design/hot-path.md rule 77", ["design/hot-path.md 77"]),
        ("docs/nowhere.md", ["docs/nowhere.md"]),
    ],
)
def test_what_leads_nowhere_is_found(text: str, broken: list[str]) -> None:
    assert lost(text, Path(__file__)) == broken


# ---- architecture -------------------------------------------------------------------------------

ARCHITECTURE = ROOT / "docs" / "architecture.md"
#: Methods of AMQP, rooms and entry points: the page names them in the form of `Class.method`.
NO_MEMBERS = {
    *("basic.ack", "basic.get", "basic.return", "brokerctl.commands", "brokerd.ctl"),
    *("sources.kubernetes", "telemetry.service"),
}


def modules_and_members() -> tuple[set[str], set[str]]:
    """Return the names of all files, and `Class.name`, `module.name` of what stands in them."""
    files, members = set(), set()
    for path in python_files():
        files |= {path.name, relative(path), relative(path).removeprefix("operator/")}
        if not relative(path).startswith(generate_files.SOURCES):
            continue
        for node in parsed(path).body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            members.add(f"{path.stem}.{node.name}")
            members |= {
                f"{node.name}.{inner.name}"
                for inner in ast.walk(node)
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return files, members


def test_the_rooms_of_the_architecture_are_those_that_are_there() -> None:
    """The tables of files are compared by `generate_files.py --check`."""
    named = re.findall(
        r"^\| `((?:brokerd|operator|telemetry)[\w/]*)` \|", ARCHITECTURE.read_text(), flags=re.M
    )
    present = [
        relative(folder) for folder in generate_files.packages() if generate_files.table(folder)
    ]
    assert sorted(named) == sorted(present)


def test_every_file_has_one_row_and_every_row_a_sentence() -> None:
    made = generate_files.TARGET.read_text()
    rows = re.findall(r"^\| `(\w+\.py)` \| (.*) \|$", made, flags=re.M)
    files = [
        path
        for source in generate_files.SOURCES
        for path in (ROOT / source).rglob("*.py")
        if path.name != "__init__.py" and not relative(path).startswith("brokerd/rpc/")
    ]
    assert len(rows) == len(files)
    assert [name for name, text in rows if len(text) < 12] == []


def test_what_the_ways_name_is_there() -> None:
    """Files and `Class.method` of the pages written by hand: they move, and nobody reads along."""
    files, members = modules_and_members()
    text = ARCHITECTURE.read_text()
    named = set(re.findall(r"`([\w/]+\.py)`", text))
    assert named - files == set()
    calls = set(re.findall(r"`((?:[A-Z]\w+|[a-z_]+)\.[a-z_]\w*)(?:\([^`]*\))?`", text))
    assert {call for call in calls - members if not call.endswith(".py")} == NO_MEMBERS
