"""What no program of ours may do with bytes from outside, and what it is built from."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("brokerd", "operator", "telemetry", "examples")
#: Modules that turn bytes into objects of any class, and names that run text.
UNSAFE_MODULES = {"pickle", "cPickle", "dill", "shelve", "marshal", "jsonpickle"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__"}


def sources() -> Iterator[tuple[str, ast.Module]]:
    """Yield every module that is shipped."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())


def unsafe(tree: ast.Module) -> list[str]:
    """Return what a module does that it must not."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name in UNSAFE_MODULES]
        elif isinstance(node, ast.ImportFrom) and node.module in UNSAFE_MODULES:
            found.append(str(node.module))
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in UNSAFE_CALLS:
                found.append(node.func.id)
            elif ast.unparse(node.func) in ("yaml.load", "yaml.load_all", "yaml.unsafe_load"):
                found.append(ast.unparse(node.func))
    return found


def test_no_module_runs_or_unpickles_what_it_reads() -> None:
    """SEC-51, SEC-52: no pickle, no yaml.load, no eval; what the logs hold are codecs of ours."""
    modules = dict(sources())
    assert len(modules) > 150
    assert {name: unsafe(tree) for name, tree in modules.items() if unsafe(tree)} == {}


@pytest.mark.parametrize(
    "text", ["import pickle", "from marshal import loads", "yaml.load(x)", "eval('1')"]
)
def test_what_is_unsafe_is_found(text: str) -> None:
    assert unsafe(ast.parse(text))


@pytest.mark.parametrize(
    "path", sorted((ROOT / "requirements").glob("*.txt")), ids=lambda p: p.stem
)
def test_every_package_is_pinned_with_its_hashes(path: Path) -> None:
    """SEC-53: what is installed is what was tried."""
    entries = re.sub(r"\\\n\s*", " ", path.read_text()).splitlines()
    packages = [line for line in entries if line.strip() and not line.startswith("#")]
    assert packages
    loose = [line for line in packages if not re.match(r"[\w.\[\]-]+==\S+ .*--hash=sha256:", line)]
    assert loose == []
