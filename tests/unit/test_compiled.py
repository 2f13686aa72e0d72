"""Which form runs, and that compiled code never runs beside other sources than its own (ADR 32)."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from brokerd import compiled
from tools import compiled as tool

ROOT = Path(__file__).resolve().parents[2]
FORM = "from brokerd import compiled; print(compiled.form())"
WHY = "from brokerd import compiled; print(compiled.form(), compiled.why_python())"
#: The least that Python takes for a library of compiled modules.
LIBRARY_CODE = f"""
#include <Python.h>
static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "{compiled.LIBRARY}__mypyc", 0, -1}};
PyMODINIT_FUNC PyInit_{compiled.LIBRARY}__mypyc(void) {{ return PyModule_Create(&module); }}
"""


def test_compiling_says_nothing_of_warnings_and_all_of_errors(tmp_path: Path) -> None:
    """What mypyc makes has thousands of the first."""
    file = tmp_path / "made.c"
    command = ["gcc", "-Wall", "-c", *tool.COMPILER_OPTIONS, str(file), "-o", f"{file}.o"]
    for code, is_wrong in (("int f(void) { int unused; }", False), ("int f(", True)):
        file.write_text(code)
        done = subprocess.run(command, text=True, capture_output=True)
        assert bool(done.returncode) is is_wrong
        assert ("error" in done.stderr) is is_wrong
        assert is_wrong or not done.stderr


def test_what_a_publish_passes_is_compiled() -> None:
    """A module that moves would leave the compiled form in silence."""
    passed = {
        *("amqp/channel", "amqp/connection", "server/amqp/connection", "server/amqp/session"),
        *("server/amqp/channel_publishes", "server/messages/pipeline", "server/messages/routing"),
        *("server/queues/turn", "server/queues/in_flight", "server/queues/stream"),
        *("server/queues/client", "server/queues/leaders", "server/queues/deliveries"),
        *("cluster/groups/group_client", "cluster/groups/inbox", "cluster/groups/driver"),
        *("core/queue/enqueue_commands", "core/queue/queue_machine", "raft/node", "storage/wal"),
    }
    assert {f"brokerd/{name}.py" for name in passed} <= set(tool.sources())


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the package, whose sources a test may change."""
    unneeded = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "brokerd", tmp_path / "brokerd", ignore=unneeded)
    return tmp_path


def run(checkout: Path, code: str, wanted: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(checkout), compiled.VARIABLE: wanted}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=checkout, env=env, text=True, capture_output=True
    )


def digest_of(checkout: Path) -> str:
    return run(checkout, "from brokerd import compiled; print(compiled.digest())", "0").stdout


def compile_one(checkout: Path, folder: Path | None = None) -> None:
    """Put extensions of two modules into the cache, or into a folder: the least that looks whole.

    The library is one that can be loaded; the module's name and place are all that is looked at.
    """
    digest = digest_of(checkout).strip()
    folder = folder or checkout / "build" / "compiled" / digest
    place = folder / "brokerd" / "raft" / f"node{compiled.suffix()}"
    place.parent.mkdir(parents=True)
    place.touch()
    library = folder / f"{compiled.LIBRARY}__mypyc{compiled.suffix()}"
    include = f"-I{sysconfig.get_path('include')}"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", include, "-x", "c", "-", "-o", str(library)],
        input=LIBRARY_CODE,
        text=True,
        check=True,
    )
    (folder / compiled.STAMP).write_text(f"{digest}\nrecipe\n")


def test_a_checkout_is_plain_python_unless_it_is_asked(checkout: Path) -> None:
    assert run(checkout, FORM, "0").stdout.strip() == "python"
    assert run(checkout, FORM, "").stdout.strip() == "python"


def test_what_is_not_compiled_is_said_and_not_run(checkout: Path) -> None:
    done = run(checkout, FORM, "1")
    assert done.returncode != 0
    assert "make compiled" in done.stderr


def test_a_word_that_means_nothing_is_refused(checkout: Path) -> None:
    done = run(checkout, FORM, "yes")
    assert done.returncode != 0
    assert "BROKERD_COMPILED=yes" in done.stderr


def test_what_was_compiled_from_these_sources_is_taken(checkout: Path) -> None:
    compile_one(checkout)
    assert run(checkout, FORM, "1").stdout.strip() == "compiled"


@pytest.mark.parametrize("name", ["raft/node.py", "config.py", "ctl/main.py"])
def test_compiled_code_of_older_sources_is_not_taken(checkout: Path, name: str) -> None:
    """Any module counts: constants of others stand in compiled code."""
    compile_one(checkout)
    with (checkout / "brokerd" / name).open("a") as source:
        source.write("\n")
    done = run(checkout, FORM, "1")
    assert done.returncode != 0
    assert "make compiled" in done.stderr


def test_a_build_that_was_broken_off_is_not_taken(checkout: Path) -> None:
    compile_one(checkout)
    for stamp in checkout.rglob(compiled.STAMP):
        stamp.unlink()
    assert run(checkout, FORM, "1").returncode != 0


@pytest.fixture
def installed(checkout: Path) -> Path:
    """The package as a wheel with both forms lies."""
    compile_one(checkout, checkout / "brokerd" / compiled.INSTALLED.name)
    return checkout


def test_an_installation_with_both_forms_runs_the_compiled_one_unless_asked(
    installed: Path,
) -> None:
    assert run(installed, FORM, "1").stdout.strip() == "compiled"
    assert run(installed, FORM, "").stdout.strip() == "compiled"
    assert run(installed, FORM, "0").stdout.strip() == "python"
    done = run(installed, "import brokerd.raft.node as n; print(n.__file__)", "0")
    assert done.stdout.strip().endswith("node.py")


def test_an_installation_whose_sources_were_changed_runs_them_and_says_so(installed: Path) -> None:
    with (installed / "brokerd" / "raft" / "log.py").open("a") as source:
        source.write("\n")
    done = run(installed, WHY, "")
    assert done.stdout.startswith("python the compiled form in ")
    assert "other sources than those beside it" in done.stdout
    asked = run(installed, FORM, "1")
    assert asked.returncode != 0
    assert "other sources than those beside it" in asked.stderr


@pytest.mark.parametrize("kept", [0, 100])
def test_an_installation_whose_library_was_cut_runs_python_and_says_so(
    installed: Path, kept: int
) -> None:
    """As one that the system's C library is too old for."""
    (library,) = installed.rglob(f"{compiled.LIBRARY}*")
    library.write_bytes(library.read_bytes()[:kept])
    done = run(installed, WHY, "")
    assert done.stdout.startswith("python the compiled form in ")
    assert "cannot be loaded" in done.stdout


def test_an_installation_that_is_not_whole_runs_python_and_says_so(installed: Path) -> None:
    for stamp in installed.rglob(compiled.STAMP):
        stamp.unlink()
    assert "is not whole" in run(installed, WHY, "").stdout


def test_what_runs_and_why_is_said_with_the_version(installed: Path) -> None:
    command = [sys.executable, "-m", "brokerd", "--version"]
    env = os.environ | {"PYTHONPATH": str(installed), compiled.VARIABLE: "0"}
    said = subprocess.check_output(command, env=env, cwd=installed, text=True)
    assert said.endswith(", python\n")
    for stamp in installed.rglob(compiled.STAMP):
        stamp.unlink()
    said = subprocess.check_output(command, env=env | {compiled.VARIABLE: ""}, cwd=installed)
    assert b", python: the compiled form in " in said
    assert compiled.HOW_TO_COMPILE.encode() not in said


def test_plain_python_that_was_not_asked_for_says_how_to_get_the_compiled_form(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", "brokerd", "--version"]
    env = os.environ | {"PYTHONPATH": str(compiled.PACKAGE.parent), compiled.VARIABLE: ""}
    said = subprocess.check_output(command, env=env, cwd=tmp_path, text=True)
    first, advice = said.splitlines()
    assert first.endswith(", python")
    assert advice == compiled.HOW_TO_COMPILE


def checked(env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "compiled.py"), "--check"]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_what_compiling_lacks_is_said_at_once(tmp_path: Path) -> None:
    """`make install FORM=compiled` and `make deb` said it after minutes, or not by its name."""
    env = {name: value for name, value in os.environ.items() if name != "CC"}
    without = checked(env | {"PATH": str(tmp_path)})
    assert without.returncode == 1
    assert without.stderr.startswith("compiled: ")
    assert "is missing: apt-get install gcc" in without.stderr
    assert "FORM=python" in without.stderr
    compiler = tmp_path / "some-cc"
    compiler.touch(mode=0o755)
    assert checked(env | {"PATH": str(tmp_path), "CC": "some-cc -pthread"}).returncode == 0


def test_header_of_python_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CC", sys.executable)
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(tool.NotCompiledError, match=r"Python\.h is missing: .*python3\.\d+-dev"):
        tool.check()
    (tmp_path / "Python.h").touch()
    tool.check()


def test_every_module_that_is_named_for_compiling_exists() -> None:
    names = tool.sources()
    assert len(names) > 150
    for left_out in tool.LEFT_OUT:
        assert (ROOT / "brokerd" / left_out).exists()


def handlers(function: ast.AST) -> Iterator[ast.ExceptHandler]:
    """What catches in one function, without those in it."""
    for node in ast.iter_child_nodes(function):
        if isinstance(node, ast.ExceptHandler):
            yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from handlers(node)


def test_a_name_stands_for_one_kind_of_exception_in_a_function() -> None:
    """Where one is compiled, the first `except` decides what the name may hold; another kind of
    exception is a TypeError then, in the middle of handling it.
    """
    found = []
    for source in tool.sources():
        for function in ast.walk(ast.parse((ROOT / source).read_text())):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            kinds: dict[str, set[str]] = {}
            for handler in handlers(function):
                if handler.name and handler.type:
                    kinds.setdefault(handler.name, set()).add(ast.unparse(handler.type))
            found += [(source, function.name, *of) for of in kinds.values() if len(of) > 1]
    assert found == []


def awaits(nodes: Iterable[ast.AST]) -> bool:
    """Tell whether anything is waited for there."""
    waiting = ast.Await | ast.AsyncWith | ast.AsyncFor | ast.Yield | ast.YieldFrom
    return any(isinstance(item, waiting) for node in nodes for item in ast.walk(node))


def test_nothing_waits_while_an_exception_is_handled() -> None:
    """mypyc keeps the exception of a `finally` that awaits where all coroutines look for theirs: a
    later one of them raises it once more, with nothing wrong (a member asked for its cluster for
    ever so).  `async with` is for what ends without waiting: timeouts and locks.
    """
    found = []
    for source in tool.sources():
        for node in ast.walk(ast.parse((ROOT / source).read_text())):
            if isinstance(node, ast.Try):
                handled = [item for handler in node.handlers for item in handler.body]
                if awaits([*handled, *node.finalbody]):
                    found.append((source, node.lineno))
            elif isinstance(node, ast.AsyncWith):
                managers = {ast.unparse(item.context_expr).partition("(")[0] for item in node.items}
                if not managers <= {"asyncio.timeout", "self._peers_lock", "self._collecting"}:
                    found.append((source, node.lineno))
    assert found == []


def imported(tree: ast.AST) -> dict[str, str]:
    """Return where each name that a module imports from the package comes from."""
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("brokerd")
        for alias in node.names
    }


def test_what_inherits_from_a_compiled_class_is_compiled() -> None:
    """Otherwise there is a TypeError when the first object of it is made."""
    modules = {name.removesuffix(".py").replace("/", "."): name for name in tool.sources()}
    found = []
    for path in sorted((ROOT / "brokerd").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name in modules.values():
            continue
        tree = ast.parse(path.read_text())
        origins = imported(tree)
        for node in ast.walk(tree):
            for base in node.bases if isinstance(node, ast.ClassDef) else []:
                root, _, rest = ast.unparse(base).partition("[")[0].partition(".")
                origin = origins.get(root, "") + (f".{rest}" if rest else "")
                if origin.rpartition(".")[0] in modules:
                    found.append((name, node.lineno, origin))
    assert found == []


def test_nothing_is_copied_by_the_library() -> None:
    """It makes an object without its arguments, which a compiled class refuses."""
    copying = re.compile(r"^(import|from) (copy|pickle)\b", re.MULTILINE)
    modules = (ROOT / "brokerd").rglob("*.py")
    found = [path.name for path in modules if copying.search(path.read_text())]
    assert found == []


#: What is prepared for the compiler, and must mean the same to Python.
MODULE = '''
from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

LIMIT = 4
NAMES: dict[str,
            int] = {"a": 1}
TWICE = 1
TWICE = 2
T_ = TypeVar("T_")
CHANGING = 0


def change() -> int:
    global CHANGING
    CHANGING += LIMIT
    return CHANGING


@dataclass(slots=True)
class Plain:
    """A docstring."""

    kind: ClassVar[str] = "plain"
    #: A comment.
    first: int
    text: str = field(default="x", repr=False)
    items: list[int] = field(default_factory=list)
    limit: int = LIMIT


@dataclass(
    slots=True,
    frozen=True,
)
class Frozen:
    node: str
    many: tuple[int, ...] = ()


@dataclass(slots=True)
class Odd:
    raw: int
    twice: int = 0

    def __post_init__(self) -> None:
        self.twice = 2 * self.raw
'''


def test_what_is_prepared_for_the_compiler_keeps_its_lines_and_its_meaning() -> None:
    prepared = tool.prepared(MODULE)
    before, after = MODULE.splitlines(), prepared.splitlines()
    assert len(before) == len(after)
    assert [text for text in before if text.startswith(("def ", "class "))] == [
        text for text in after if text.startswith(("def ", "class "))
    ]
    module = sys.modules["prepared"] = ModuleType("prepared")
    names: dict[str, Any] = vars(module)
    try:
        # mypy lets nothing but the constructor set what is frozen; compiled code does so as well.
        exec(compile(prepared.replace("frozen=True", "unsafe_hash=True"), "m.py", "exec"), names)
    finally:
        del sys.modules["prepared"]
    plain, frozen = names["Plain"], names["Frozen"]
    assert repr(plain(1)) == "Plain(first=1, items=[], limit=4)"
    assert plain(1, items=[2]) == dataclasses.replace(plain(3, "x", [2]), first=1)
    assert plain(1).items is not plain(1).items
    assert "kind" not in inspect.signature(plain).parameters
    assert frozen("a", (1,)) == frozen(node="a", many=(1,))
    assert hash(frozen("a")) == hash(frozen("a", ()))
    assert names["Odd"](2).twice == 4
    assert names["change"]() == 4
    final = {line.partition(":")[0] for line in after if ": _Final" in line}
    assert final == {"LIMIT", "NAMES"}
    assert names["__annotations__"]["NAMES"].replace("\n", "").startswith("_Final[dict[str,")


def test_a_field_of_an_unknown_kind_is_refused_by_name() -> None:
    text = "@dataclass()\nclass Odd:\n    raw: int = field(kw_only=True)\n\n\n"
    with pytest.raises(tool.NotCompiledError, match=r"Odd\.raw"):
        tool.prepared(text)


def test_every_module_that_is_compiled_keeps_its_lines() -> None:
    written_out = 0
    for name in tool.sources():
        text = (ROOT / name).read_text()
        prepared = tool.prepared(text)
        # A class at the end of its file has no blank line behind it.
        assert len(prepared.splitlines()) - len(text.splitlines()) in (0, 1), name
        written_out += prepared.count("init=False")
    assert written_out > 150
