"""Compile the rooms on a message's way to C (mypyc, ADR 32): for `make compiled` and for wheels.

    python tools/compiled.py            # or with --check: only whether it can be done here

Into build/compiled/<digest of the sources>, which `BROKERD_COMPILED=1` uses; nothing is done when
it is there.  Prints the folder.  Needs gcc, Python.h, mypy and setuptools; about three minutes of
CPU on as many cores as there are.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "brokerd"
#: On the way of a message.  A module that is not here runs as Python beside them.
ROOMS = (
    "raft",
    "core",
    "amqp",
    "storage",
    "http2",
    "cluster",
    "server/amqp",
    "server/grpc/publication_reader.py",
    "server/messages",
    "server/queues",
    # It inherits from a compiled class, which only compiled ones may.
    "federation/internal_declare.py",
    "server/observe/telemetry_hooks.py",
    "telemetry/counters.py",
    "telemetry/histograms.py",
    "telemetry/queue_rows.py",
    "telemetry/top_keys.py",
)
#: Classes that inherit from built-in ones, generic dataclasses with slots, and classes that carry
#: attributes which are set on the class from outside.
LEFT_OUT = {
    "amqp/integers.py",
    "core/profiles.py",
    "core/unauthenticated.py",
    "cluster/peer/certificate_files.py",
    # What stands for a failing disk inherits from it or takes its place.
    "storage/disk.py",
    "storage/faults.py",
    "storage/birth_time.py",
    # Weak references to a compiled class whose base is not compiled crash the collector.
    "storage/staging.py",
}
#: What a Protocol or an exception does costs no time, and both are subclassed by tests.
LEFT_OUT_NAMES = {"__init__.py", "errors.py", "ports.py"}
#: The machine code of -O2 and -O3 is larger and no faster here; that of -O1 has 3 MB more, which an
#: image of at most 200 MB has not.
OPTIMISATION = "s"
#: Modules refer to the library by a table: nothing else of it needs a name, nor a way around one.
#: Nothing unwinds C frames here.  Unused functions and the gaps between sections go.  Warnings are
#: of C that mypyc makes, which is not edited here: pages of them hid the lines that say something.
COMPILER_OPTIONS = (
    *("-fvisibility=hidden", "-fno-asynchronous-unwind-tables", "-ffunction-sections"),
    "-w",
)
LINKER_OPTIONS = ("-Wl,--gc-sections", "-Wl,-z,noseparate-code")
#: Builds of other states of the sources that are kept, for going to and fro between branches.
BUILDS_KEPT = 3
#: `make lint` is strict; here types are only read, also where stubs of others are not installed.
MYPY_OPTIONS = (
    "--config-file=",
    "--python-version=3.11",
    "--explicit-package-bases",
    "--ignore-missing-imports",
    # What happens to be installed beside mypy would decide what is checked at run time.
    "--no-site-packages",
    "--follow-imports=silent",
)


#: Constants that another value makes a member of an earlier release of, or a queue of a handful of
#: messages a deep one: tests and benches change them in the compiled form as well.
CHANGED = {"FEATURES", "FORMAT_VERSION", "BLOCK_SPANS", "UNPACKED_MIN"}
_FUTURE = "from __future__ import annotations"
_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]+")


class NotCompiledError(Exception):
    """The sources cannot be compiled here; the text says why."""


def sources() -> list[str]:
    """Return the modules that are compiled, as paths from the root of the repository."""
    found = []
    for room in ROOMS:
        place = PACKAGE / room
        for file in [place] if place.suffix == ".py" else sorted(place.rglob("*.py")):
            name = file.relative_to(PACKAGE).as_posix()
            if name not in LEFT_OUT and file.name not in LEFT_OUT_NAMES:
                found.append(f"brokerd/{name}")
    return found


def prepared(text: str) -> str:
    """Return a module's text as it is compiled: what is fixed is said to be, line by line.

    - The constructors of dataclasses are written out.  The decorator makes them at run time, out of
      the compiler's sight: Python code that sets one attribute after the other by name.  Each takes
      the blank line behind its class.
    - Constants are final: compiled code looks up anything else by name in the module.
    """
    lines = text.splitlines()
    tree = ast.parse(text)
    for item in ast.walk(tree):
        if not isinstance(item, ast.ClassDef):
            continue
        methods = {part.name for part in item.body if isinstance(part, ast.FunctionDef)}
        if not item.bases and not methods & {"__init__", "__post_init__"}:
            for decorator in item.decorator_list:
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "dataclass":
                    _write_out(item, decorator, lines)
    if _FUTURE in lines:
        lines[lines.index(_FUTURE)] += "; from typing import Final as _Final"
        for name, statement in _constants(tree).items():
            _finish(name, statement, lines)
    return "\n".join(lines) + "\n"


def _constants(tree: ast.Module) -> dict[str, ast.Assign | ast.AnnAssign]:
    """Return the module's names that look like constants and are given a value once."""
    found: dict[str, list[ast.Assign | ast.AnnAssign]] = {}
    for item in tree.body:
        if isinstance(item, ast.Assign) and len(item.targets) == 1:
            target = item.targets[0]
        elif isinstance(item, ast.AnnAssign) and item.value is not None:
            target = item.target
        else:
            continue
        is_name = isinstance(target, ast.Name) and target.id not in CHANGED
        if is_name and _CONSTANT.fullmatch(target.id):
            found.setdefault(target.id, []).append(item)
    changed = {
        each for item in ast.walk(tree) if isinstance(item, ast.Global) for each in item.names
    }
    for name in [name for name, items in found.items() if len(items) > 1 or name in changed]:
        del found[name]
    return {name: items[0] for name, items in found.items()}


def _finish(name: str, statement: ast.Assign | ast.AnnAssign, lines: list[str]) -> None:
    """Declare one constant final."""
    if isinstance(statement, ast.Assign):
        if "TypeVar" not in ast.unparse(statement.value):
            at = statement.lineno - 1
            lines[at] = lines[at].replace(f"{name} =", f"{name}: _Final =", 1)
        return
    kind = statement.annotation
    if not ast.unparse(kind).startswith(("TypeAlias", "Final")):
        end = (kind.end_lineno or 0) - 1
        lines[end] = f"{lines[end][: kind.end_col_offset]}]{lines[end][kind.end_col_offset :]}"
        at = kind.lineno - 1
        lines[at] = f"{lines[at][: kind.col_offset]}_Final[{lines[at][kind.col_offset :]}"


def _write_out(item: ast.ClassDef, decorator: ast.Call, lines: list[str]) -> None:
    """Write out the constructor of one dataclass."""
    parameters, statements = ["self"], []
    for part in item.body:
        if not isinstance(part, ast.AnnAssign) or not isinstance(part.target, ast.Name):
            continue
        name, kind, value = part.target.id, ast.unparse(part.annotation), part.value
        if kind.startswith("ClassVar"):
            continue
        taken = name
        if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
            options = {str(word.arg): ast.unparse(word.value) for word in value.keywords}
            if not options.keys() <= {"default", "default_factory", "repr"}:
                raise NotCompiledError(f"{item.name}.{name}: a field of a kind not met before")
            if "default" in options:
                kind = f"{kind} = {options['default']}"
            elif "default_factory" in options:
                taken = f"({options['default_factory']})() if {name} is None else {name}"
                kind = f"{kind} | None = None"
        elif value is not None:
            kind = f"{kind} = {ast.unparse(value)}"
        parameters.append(f"{name}: {kind}")
        # Of one that is frozen, too: only what is not compiled is held to that.
        statements.append(f"self.{name} = {taken}")
    at, indent = (item.end_lineno or 0), " " * (item.col_offset + 4)
    body = "; ".join(statements) or "pass"
    made = f"{indent}def __init__({', '.join(parameters)}) -> None: {body}  # type: ignore"
    if at == len(lines):
        lines.append(made)
    elif lines[at]:
        raise NotCompiledError(f"{item.name}: no blank line behind the class")
    else:
        lines[at] = made
    line = lines[decorator.lineno - 1]
    opened = line.index("(", decorator.col_offset) + 1
    lines[decorator.lineno - 1] = f"{line[:opened]}init=False, {line[opened:]}"


def _copy(folder: Path) -> None:
    """Copy the package as it is compiled."""
    written_out = set(sources())
    for file in (*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")):
        place = folder / file.relative_to(ROOT)
        text = file.read_text()
        place.parent.mkdir(parents=True, exist_ok=True)
        is_compiled = file.relative_to(ROOT).as_posix() in written_out
        place.write_text(prepared(text) if is_compiled else text)


def form() -> ModuleType:
    """Return brokerd/compiled.py without importing the package, which may ask for what is made."""
    spec = importlib.util.spec_from_file_location("_form", PACKAGE / "compiled.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check() -> None:
    """Raise NotCompiledError, before a minute of work, if the machine lacks what C needs."""
    words = os.environ.get("CC") or sysconfig.get_config_var("CC") or "gcc"
    compiler = shlex.split(words)[0]
    if shutil.which(compiler) is None:
        raise NotCompiledError(f"{compiler} is missing: apt-get install gcc libc6-dev")
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        version = "python{}.{}".format(*sys.version_info)
        raise NotCompiledError(f"{header} is missing: apt-get install {version}-dev")


def build(folder: Path) -> None:
    """Compile into `folder`, as the modules lie in a wheel; raise NotCompiledError."""
    check()
    # They take a second to import, and a look at what is there needs neither.
    import setuptools
    from mypyc.build import mypycify
    from setuptools.command.build_ext import build_ext

    class Build(build_ext):
        """Compiles all files of one extension side by side; setuptools has no way to."""

        def build_extensions(self) -> None:
            compile_one = self.compiler.compile

            def compile_all(files: Iterable[str], **options: Any) -> list[str]:
                with ThreadPoolExecutor(os.cpu_count()) as lanes:
                    made = lanes.map(lambda file: compile_one([file], **options), files)
                    return [item for items in made for item in items]

            self.compiler.compile = compile_all
            # Where Python lies on this machine is nothing to search on another.
            self.compiler.linker_so = [
                word
                for word in self.compiler.linker_so
                if not word.startswith(("-L", "-Wl,-rpath"))
            ]
            super().build_extensions()

    here = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="brokerd-compiled-") as scratch:
        try:
            _copy(Path(scratch, "sources"))
            # Paths in tracebacks are as in a checkout.
            os.chdir(Path(scratch, "sources"))
            extensions = mypycify(
                [*MYPY_OPTIONS, f"--cache-dir={scratch}/mypy", *sources()],
                opt_level=OPTIMISATION,
                debug_level="0",
                multi_file=True,
                target_dir=f"{scratch}/c",
                group_name=form().LIBRARY,
            )
            for extension in extensions:
                extension.extra_compile_args += COMPILER_OPTIONS
                extension.extra_link_args += LINKER_OPTIONS
            distribution = setuptools.Distribution({"name": "brokerd", "ext_modules": extensions})
            command = Build(distribution)
            command.build_lib, command.build_temp = str(folder), f"{scratch}/objects"
            command.parallel = os.cpu_count()
            command.ensure_finalized()
            command.run()
        except (Exception, SystemExit) as error:
            raise NotCompiledError(str(error)) from error
        finally:
            os.chdir(here)


def recipe_digest() -> str:
    """Return what names the way of compiling: this file, the compiler's version, and the C library
    that the result needs (an image is built on another machine than it runs on).
    """
    means = " ".join((metadata.version("mypy"), *platform.libc_ver()))
    return hashlib.sha256(Path(__file__).read_bytes() + means.encode()).hexdigest()


def cached() -> Path:
    """Return the folder of these sources in the cache, compiling them if they are not there."""
    described = form()
    digest = described.digest()
    folder = Path(described.BUILDS) / digest
    stamp, recipe = folder / described.STAMP, f"{digest}\n{recipe_digest()}\n"
    if stamp.exists() and stamp.read_text() == recipe:
        os.utime(folder)
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Under its name only when it is whole: another process may look for it.
    made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".making-"))
    try:
        build(made)
        if described.digest() != digest:
            raise NotCompiledError("the sources were changed meanwhile: once more")
        (made / described.STAMP).write_text(recipe)
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    builds = [each for each in folder.parent.iterdir() if (each / described.STAMP).exists()]
    for old in sorted(builds, key=lambda each: each.stat().st_mtime)[:-BUILDS_KEPT]:
        shutil.rmtree(old)
    return folder


def main() -> int:
    os.chdir(ROOT)
    # What compilers say goes to stderr: the folder is all that stdout has.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        if sys.argv[1:] == ["--check"]:
            check()
            return 0
        folder = cached()
    except NotCompiledError as error:
        print(f"compiled: {error} (FORM=python does without)", file=sys.stderr)
        return 1
    print(folder, file=answer, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
