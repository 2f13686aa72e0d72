"""Habits of the house that a machine can check: sizes, names, docstrings, generated files, links.

Each test names the files that break it and, where there is one, the command that mends them.
"""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from operator import gt
from pathlib import Path

import pytest

from tools import spec_coverage
from tools.spec_coverage import coverage

ROOT = Path(__file__).resolve().parents[1]

#: Arguments by position that a call may have; more are told apart by their names.
POSITIONAL_MAX = 7
#: Whose arguments are a row of one kind, of any length.
OF_ANY_LENGTH = {
    *("pack", "select", "agg", "_table", "cls"),
    *("debug", "info", "warning", "error", "log"),
}
#: On the way of each message or heartbeat: their arguments are those of a frame, in its order.
FRAMES = {"GroupStatus", "Message", "Progress", "Command", "Span", "_send", "send", "published"}

#: Of classes that do I/O. With more, their docstrings say "In one piece:" and why.
ATTRIBUTES_MAX = 15
METHODS_MAX = 25
LARGE_CLASSES_SAY_WHY = (
    "brokerd/server",
    "brokerd/cluster",
    "brokerd/federation",
    "brokerd/storage",
    "brokerd/telemetry",
    "operator/brokerd_operator",
    "telemetry/brokerd_telemetry",
)

CODE_FOLDERS = ("brokerd", "operator", "telemetry", "tests", "tools", "bench", "examples")
SHIPPED = ("brokerd", "operator", "telemetry")
GENERATED = ("brokerd/rpc/v1/", "brokerd/amqp/methods.py")

#: File names that say nothing about what is inside.
CATCH_ALL_NAMES = {"utils.py", "helpers.py", "manager.py", "operations.py", "common.py"}

#: Words that names of modules, classes, functions and variables had once, and what they have now.
#: docs/glossary.md has those that stay.
RETIRED = {
    "doubted": "suspected",
    "doubts": "suspected_regressions",
    "garbage": "gc_policy",
    "lanes": "jobs, rows",
    "lasts": "last_rows",
    "letterer": "dead_letter_publisher",
    "outline": "summary",
    "remembrance": "peer_logs",
    "slices": "chunks",
    "strangers": "unauthenticated",
    "teller": "recorder",
    "untold": "unreported",
    "welcome": "banner",
}

#: Marks of unfinished or undecided work. The brackets keep this file from matching itself.
FORBIDDEN_TEXT = re.compile(
    r"[T]ODO|[F]IXME|[N]otImplementedError|[p]ragma: no cover|[p]ytest\.mark\.skip\b"
    r"|(?<!\w)[t]ime\.sleep\("
)
#: Programs of one thread that wait for others and have no event loop to block.
MAY_SLEEP = ("tools/", "bench/", "examples/", "brokerd/ctl/", "telemetry/")

#: Rooms and modules that must be under the purity contract of .importlinter.
PURE = {
    "brokerd.amqp",
    "brokerd.core",
    "brokerd.http2",
    "brokerd.raft",
    "brokerd.cluster.groups.membership_steps",
    "brokerd.cluster.groups.placement",
    "brokerd.federation.upstream",
    "brokerd.federation.link_headers",
    "brokerd.federation.link_counts",
    "brokerd.federation.link_state",
    "brokerd.federation.shovel",
    "brokerd.federation.link_bindings",
    "brokerd.telemetry.counters",
    "brokerd.telemetry.histograms",
    "brokerd_operator.specs",
    "brokerd_operator.reconcile",
    "brokerd_operator.manifests",
    "brokerd_operator.conditions",
}
#: What a pure room may not import, whoever edits the contract.
IMPURE_IMPORTS = {
    *("asyncio", "socket", "ssl", "threading", "time", "random", "os", "pathlib", "logging"),
    *("grpc", "psutil", "kopf", "kubernetes", "pyspark"),
}

PACKAGE_FOLDERS = {
    "brokerd": ROOT / "brokerd",
    "brokerd_operator": ROOT / "operator" / "brokerd_operator",
    "brokerd_telemetry": ROOT / "telemetry" / "brokerd_telemetry",
}


@cache
def python_files() -> tuple[Path, ...]:
    """Return all Python files that people wrote."""
    return tuple(
        path
        for folder in CODE_FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not relative(path).startswith(GENERATED)
    )


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_of(path: Path) -> str:
    return relative(path).removesuffix(".py").replace("/", ".")


def test_there_is_something_to_check() -> None:
    assert len(python_files()) > 200


def calls(path: Path) -> Iterator[ast.Call]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Call):
            yield node


def name_of(call: ast.Call) -> str:
    """Return the last name of what is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)


def shipped() -> tuple[Path, ...]:
    """Return the files that users run."""
    return tuple(p for p in python_files() if relative(p).startswith(SHIPPED))


def test_no_call_packs_its_arguments_into_a_literal() -> None:
    """`f(*(a, b))` hides from readers and tools which argument is which."""
    found = [
        f"{relative(path)}:{call.lineno}"
        for path in shipped()
        for call in calls(path)
        for argument in call.args
        if isinstance(argument, ast.Starred) and isinstance(argument.value, ast.Tuple | ast.List)
    ]
    assert found == []


def test_calls_with_many_arguments_name_them() -> None:
    many = [
        (name_of(call), f"{relative(path)}:{call.lineno}")
        for path in shipped()
        for call in calls(path)
        if len(call.args) > POSITIONAL_MAX
    ]
    assert [place for name, place in many if name not in OF_ANY_LENGTH | FRAMES] == []
    # An exception that is no longer needed goes.
    assert {name for name, _ in many} >= FRAMES


def size_of(class_: ast.ClassDef) -> tuple[int, int]:
    """Return how many attributes a class gives itself, and how many methods it has."""
    attributes, methods = set(), 0
    for method in class_.body:
        if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        methods += 1
        for node in ast.walk(method):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name)
                and node.value.id == "self"
            ):
                attributes.add(node.attr)
    return len(attributes), methods


def test_classes_that_are_large_say_why_they_are_in_one_piece() -> None:
    """A service locator grows an attribute at a time. Pure machines aside: they are one thing."""
    pure = contract("pure")["source_modules"]
    large = [
        f"{relative(path)}: {class_.name} has {size_of(class_)} attributes, methods"
        for folder in LARGE_CLASSES_SAY_WHY
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not any(f"{module_of(path)}.".startswith(f"{room}.") for room in pure)
        for class_ in ast.walk(parsed(path))
        if isinstance(class_, ast.ClassDef)
        and any(map(gt, size_of(class_), (ATTRIBUTES_MAX, METHODS_MAX)))
        and "In one piece:" not in (ast.get_docstring(class_) or "")
    ]
    assert large == []


def test_large_classes_are_recognised() -> None:
    """The attributes of a class are what its own methods assign, each once."""
    methods = ("def f(self): self.a, self.b = 1, 2; self.a.c = self.d", "def g(self): self.b += 1")
    (class_,) = ast.parse("class A:\n  " + "\n  ".join(methods)).body
    assert isinstance(class_, ast.ClassDef)
    assert size_of(class_) == (2, 2)


def test_the_composition_root_assigns_nothing_afterwards() -> None:
    """What a part needs it gets in its constructor, so that none is there half made."""
    root = ROOT / "brokerd" / "server" / "composition.py"
    stores = (
        node
        for node in ast.walk(parsed(root))
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store)
    )
    assert [ast.unparse(node) for node in stores] == []


def test_fakes_have_types() -> None:
    """A bare namespace has whatever a test asks it for, and goes on when the real thing changes."""
    bare = "Simple" + "Namespace"
    found = [relative(path) for path in python_files() if bare in path.read_text()]
    assert found == []


def test_nothing_in_the_simulator_is_hidden_from_the_type_checker() -> None:
    """The real classes run there: what stands beside them fits, or a seed shows what is not so."""
    hidden = "type: " + "ignore"
    files = (ROOT / "tests" / "simulation").rglob("*.py")
    assert [relative(path) for path in files if hidden in path.read_text()] == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        relative(path)
        for path in python_files()
        if path.name != "__init__.py" and not ast.get_docstring(parsed(path))
    ]
    assert silent == []


def test_init_files_hold_nothing_but_the_version() -> None:
    """Imports in them would make rooms import each other by accident.  That of the package chooses
    the form (ADR 32), which must be known before the first room is imported.
    """
    full = [
        relative(path)
        for path in python_files()
        if path.name == "__init__.py"
        and path != ROOT / "brokerd" / "__init__.py"
        and re.sub(r'""".*?"""|__version__ = "[^"]*"', "", path.read_text(), flags=re.S).strip()
    ]
    assert full == []


def test_operator_and_telemetry_are_folders_and_not_packages() -> None:
    """operator/__init__.py would shadow the standard library's module `operator`."""
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert not (ROOT / "telemetry" / "__init__.py").exists()


def test_file_names_say_what_is_inside() -> None:
    names = [relative(path) for path in python_files() if path.name in CATCH_ALL_NAMES]
    assert names == []


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")


def words_of(path: Path) -> set[str]:
    """Return the words that names in a file are made of, its own among them, in small letters."""
    names = {path.stem}
    for node in ast.walk(parsed(path)):
        names |= {
            found
            for field in ("name", "id", "attr", "arg")
            if isinstance(found := getattr(node, field, None), str)
        }
    return {word.lower() for name in names for word in re.findall(_WORD, name)}


def test_retired_words_stay_out_of_names() -> None:
    found = {
        relative(path): sorted(words)
        for path in python_files()
        if relative(path).startswith(("brokerd/", "operator/"))
        and not relative(path).startswith(GENERATED)
        and (words := words_of(path) & RETIRED.keys())
    }
    assert found == {}, {word: RETIRED[word] for words in found.values() for word in words}


def test_words_of_names_are_whole(tmp_path: Path) -> None:
    file = tmp_path / "some_slices.py"
    file.write_text("class HTTPTeller:\n    def teleport(self, _outline: int) -> None: ...\n")
    assert words_of(file) & {*RETIRED, "port"} == {"slices", "teller", "outline"}


def test_no_marks_of_unfinished_work_and_no_sleeps() -> None:
    found = [
        f"{relative(path)}:{number}: {line.strip()}"
        for path in python_files()
        if not relative(path).startswith(MAY_SLEEP)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if FORBIDDEN_TEXT.search(line)
    ]
    assert found == []


def test_the_marks_are_recognised() -> None:
    marks = ["# TO" + "DO x", "raise NotImplemented" + "Error", "    time." + "sleep(1)"]
    assert all(FORBIDDEN_TEXT.search(mark) for mark in marks)


def contract(name: str) -> dict[str, set[str]]:
    """Return the lists of one contract of .importlinter."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    section = parser[f"importlinter:contract:{name}"]
    return {key: set(value.split()) for key, value in section.items()}


def module_exists(name: str) -> bool:
    package, _, rest = name.partition(".")
    path = PACKAGE_FOLDERS[package].joinpath(*rest.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def test_pure_rooms_are_under_contract() -> None:
    pure = contract("pure")
    assert PURE - pure["source_modules"] == set()
    assert IMPURE_IMPORTS - pure["forbidden_modules"] == set()
    assert [name for name in pure["source_modules"] if not module_exists(name)] == []


def test_every_branch_of_pure_rooms_is_under_coverage() -> None:
    """`make coverage` counts what the purity contract lists, but for the layouts of the log's files
    and the operator, whose tests need files and the API server's schemas.
    """
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]
    counted = {
        name.replace(".", "/") + ("/**" if (ROOT / name.replace(".", "/")).is_dir() else ".py")
        for name in contract("pure")["source_modules"]
        if name.startswith("brokerd.") and not name.startswith("brokerd.storage.")
    }
    report = settings["report"]
    assert set(report.pop("include")) == counted
    assert report == {"fail_under": 100, "show_missing": True, "skip_covered": True}
    assert settings["run"] == {"branch": True, "source": ["brokerd"]}


def test_modules_that_call_themselves_pure_are_under_contract() -> None:
    contracts = ("pure", "tables", "columns")
    covered = set().union(*(contract(name)["source_modules"] for name in contracts))
    strays = []
    for package, folder in PACKAGE_FOLDERS.items():
        for path in sorted(folder.rglob("*.py")):
            docstring = ast.get_docstring(parsed(path)) or ""
            if not re.search(r"\b(PURE|Pure)\b", docstring.split("\n\n")[0]):
                continue
            name = ".".join((package, *path.relative_to(folder).with_suffix("").parts))
            if not any(name == room or name.startswith(room + ".") for room in covered):
                strays.append(name)
    assert strays == []


def test_generated_grpc_code_is_fresh(tmp_path: Path) -> None:
    """`make protos` mends it."""
    protos = sorted(path.relative_to(ROOT) for path in (ROOT / "protos").rglob("*.proto"))
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        "-I",
        "protos",
        *outputs,
        *map(str, protos),
    ]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=50)
    fresh = {path.name: path.read_text() for path in (tmp_path / "brokerd/rpc/v1").iterdir()}
    committed = {
        path.name: path.read_text()
        for path in (ROOT / "brokerd" / "rpc" / "v1").glob("*_pb2*")
        if path.is_file()
    }
    assert len(fresh) == 3 * len(protos)
    stale = {name for name in fresh | committed if fresh.get(name) != committed.get(name)}
    assert stale == set()


@pytest.mark.parametrize(
    "generator",
    [
        "generate_amqp.py",
        "generate_files.py",
        "generate_chart_reference.py",
        "generate_dashboards.py",
        "generate_settings_schema.py",
        "sync_chart_crds.py",
        "generate_config_reference.py",
        "generate_resource_reference.py",
        "generate_reasons.py",
        "generate_http_api.py",
    ],
)
def test_generated_files_are_fresh(generator: str) -> None:
    """`python tools/GENERATOR` mends it."""
    command = [sys.executable, f"tools/{generator}", "--check"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert run.returncode == 0, (
        f"python tools/{generator} writes it anew:\n{run.stdout}{run.stderr}"
    )


# ---- documents ----------------------------------------------------------------------------------


@cache
def documents() -> tuple[Path, ...]:
    found = list(ROOT.glob("*.md"))
    for folder in ("docs", "charts", *CODE_FOLDERS):
        found += (ROOT / folder).rglob("*.md")
    return tuple(sorted(found))


def prose(text: str) -> str:
    """Return a document without its code: what is in a code block is no link and no heading."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^ *```.*?^ *```", "", text, flags=re.S | re.M))


@cache
def anchors(path: Path) -> frozenset[str]:
    """Return the anchors that a reader can link to, as GitHub makes them."""
    text = re.sub(r"^ *```.*?^ *```", "", path.read_text(), flags=re.S | re.M)
    headings = re.findall(r"^#+ +(.*?) *$", text, flags=re.M)
    return frozenset(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings)


def broken_links(path: Path) -> list[str]:
    text = prose(path.read_text())
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    broken = []
    for target in targets:
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(f"{relative(path)}: {target}")
    return broken


def test_links_of_documents_lead_somewhere() -> None:
    assert [link for path in documents() for link in broken_links(path)] == []


def test_a_broken_link_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("# A title\n[a](#a-title) [b](missing.md) [c](#no) [d](https://x) `[e](f)`\n")
    assert broken_links(page) == ["page.md: missing.md", "page.md: #no"]


def test_documents_name_no_path_of_somebodys_machine() -> None:
    pattern = re.compile(r"(?<![\w.~$}-])/(?:root|work|home)/\w")
    found = [
        f"{relative(path)}:{number}"
        for path in documents()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


#: What brokerd decided by itself where no source says anything.
OWN_DECISIONS = (
    "R-POL-3",
    "R-MQ-7",
    "R-MQ-10",
    "R-MQ-12",
    "R-MQ-13",
    "R-MEM-2",
    "R-ALM-9",
    "R-CON-1",
    "R-CON-2",
)


@pytest.mark.timeout(300)  # every test of the house is read
def test_each_decision_of_our_own_has_a_test() -> None:
    """R-OPEN-7: nobody else's behaviour proves these."""
    found = coverage(spec_coverage.ROOT)
    for rule in OWN_DECISIONS:
        assert any(not name.startswith("tests/test_tidy.py") for name in found[rule]), rule


def test_make_test_runs_all_tests() -> None:
    """A file that stands in no part of the Makefile runs nowhere and fails without anybody."""
    makefile = (ROOT / "Makefile").read_text()
    parts = makefile.partition("PARTS :=")[2].partition("\n\n")[0].partition("\n#")[0]
    named = set(re.findall(r"tests/[\w./]+", parts))
    files = {relative(path) for path in sorted((ROOT / "tests").rglob("test_*.py"))}
    assert [
        path for path in sorted(files) if not any(path.startswith(part) for part in named)
    ] == []
