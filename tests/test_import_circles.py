"""No module of the house imports itself by way of others, for types neither.

Import order never shows a circle of imports for types (TYPE_CHECKING), and linters of imports pass
it; yet none of its modules can be read, tested or changed without all the others.  What two modules
both need belongs into a third one below them, or one of them names it as a Protocol of its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE_FOLDERS = {
    "brokerd": ROOT / "brokerd",
    "brokerd_operator": ROOT / "operator" / "brokerd_operator",
    "brokerd_telemetry": ROOT / "telemetry" / "brokerd_telemetry",
}
#: Written by protoc, beside each other.
GENERATED = "brokerd.rpc.v1"


def modules() -> dict[str, Path]:
    found = {}
    for package, folder in PACKAGE_FOLDERS.items():
        for path in sorted(folder.rglob("*.py")):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            if not name.startswith(GENERATED):
                found[name] = path
    return found


def imported(source: str) -> Iterator[str]:
    """Yield what a module imports anywhere in it: modules, and names that may be modules."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, "imports are absolute"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def graph_of(sources: Mapping[str, str]) -> dict[str, set[str]]:
    return {
        name: {other for other in imported(source) if other in sources and other != name}
        for name, source in sources.items()
    }


def reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    ahead = [start]
    while ahead:
        new = graph[ahead.pop()] - found
        found |= new
        ahead += new
    return found


def circles(graph: Mapping[str, set[str]]) -> list[tuple[str, ...]]:
    """Return the modules of each circle, those of circles that meet in one list."""
    behind = {name: reached(graph, name) for name in graph}
    return sorted(
        {
            tuple(sorted(other for other in behind[name] if name in behind[other]))
            for name in graph
            if name in behind[name]
        }
    )


def test_there_is_no_circle_of_imports() -> None:
    graph = graph_of({name: path.read_text() for name, path in modules().items()})
    assert len(graph) > 400
    assert circles(graph) == []


def test_circles_are_found_in_types_too() -> None:
    sources = {
        "a": "import b",
        "b": "if TYPE_CHECKING:\n    from c import C",
        "c": "def f():\n    from a import A",
        "d": "from a import A\nimport elsewhere",
        "p.x": "from p import y",
        "p.y": "import p.x",
    }
    assert circles(graph_of(sources)) == [("a", "b", "c"), ("p.x", "p.y")]
