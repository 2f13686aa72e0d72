"""Which form of brokerd runs: plain Python, or with the rooms on a message's way compiled (ADR 32).

A wheel that was built where there is a C compiler brings the compiled form in a folder of the
package (ADR 37), and it runs where it was made from exactly these sources for this Python;
otherwise plain Python does, and `why_python` says why.  A checkout is plain Python, unless
`BROKERD_COMPILED=1` asks for what `make compiled` built; `BROKERD_COMPILED=0` asks for plain Python
anywhere.  For the package's `__init__.py`, for the parts that report the form (command line, start,
metrics), and for tools/compiled.py and tools/hatch_build.py.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

VARIABLE = "BROKERD_COMPILED"
PACKAGE = Path(__file__).resolve().parent
#: Of a checkout; one folder for each state of the sources, named by its digest.
BUILDS = PACKAGE.parent / "build" / "compiled"
#: Of an installation, as the wheel brought it; `__init__.py` names it as well.
INSTALLED = PACKAGE / "_compiled"
#: Where the C code of all modules lies; each module is a small extension that refers to it.
LIBRARY = "brokerd_compiled"
#: Written last: a folder without it is not whole.  Its first line is the digest of the sources.
STAMP = "complete"
#: What plain Python says of itself, unless it was asked for; docs/packaging.md has more.
HOW_TO_COMPILE = (
    "the compiled form takes less processor time: make install FORM=compiled in a checkout, "
    "or a wheel of make wheel"
)
#: On the way of every message, so that it is compiled wherever anything is.
_WITNESS = "brokerd.raft.node"
#: A hexadecimal digit is four bits; 64 are more than a cache of some states needs.
_DIGEST_CHARACTERS = 16

_why_python = ""


def form() -> str:
    """Return "compiled" or "python": what this process runs."""
    spec = importlib.util.find_spec(_WITNESS)
    is_extension = spec is not None and isinstance(
        spec.loader, importlib.machinery.ExtensionFileLoader
    )
    return "compiled" if is_extension else "python"


def why_python() -> str:
    """Return why the compiled form that lies here does not run; "" where it does, where there is
    none, and where it is not wanted.
    """
    form()
    return _why_python


def advice() -> str:
    """Return how to get the compiled form, "" where it runs or plain Python was asked for."""
    is_wanted = os.environ.get(VARIABLE) != "0"
    return HOW_TO_COMPILE if is_wanted and form() == "python" and not _why_python else ""


def digest() -> str:
    """Return what names this state of the sources, for this Python and processor: any change of any
    module of the package gives another, since compiled code holds constants and layouts of others.
    """
    # Here: importing it costs more than all else that a process without a compiled form needs.
    import hashlib

    state = hashlib.sha256(suffix().encode())
    for file in sorted(_sources(PACKAGE)):
        text = Path(file).read_bytes()
        state.update(f"{os.path.relpath(file, PACKAGE)} {len(text)}\n".encode())
        state.update(text)
    return state.hexdigest()[:_DIGEST_CHARACTERS]


def _sources(folder: Path) -> Iterator[str]:
    for place, _, names in os.walk(folder):
        yield from (os.path.join(place, name) for name in names if name.endswith(".py"))


def suffix() -> str:
    """Return how names of extension modules for this Python end."""
    return importlib.machinery.EXTENSION_SUFFIXES[0]


def choose(wanted: str) -> None:
    """Take the form that the environment asks for, "" where it does not; raise ImportError where it
    asks for a compiled one and none fits.

    Before any module of the package is imported: later ones would mix.
    """
    if wanted not in ("", "0", "1"):
        raise ImportError(f"{VARIABLE}={wanted}: 1 is compiled, 0 is plain Python")
    if wanted == "0":
        return
    is_installed = INSTALLED.is_dir()
    if wanted == "" and not is_installed:
        return
    extensions = _Extensions(INSTALLED if is_installed else BUILDS / digest())
    if wanted == "1" and not extensions.fit():
        raise ImportError(
            f"{VARIABLE}=1, and {_why_python}"
            if is_installed
            else f"{VARIABLE}=1, and these sources are not compiled: run make compiled"
        )
    sys.meta_path.insert(0, extensions)


def _fault(folder: Path) -> str:
    """Return why these extensions must not run beside these sources, or ""."""
    try:
        made_from = (folder / STAMP).read_text().partition("\n")[0]
    except OSError as error:
        return f"the compiled form in {folder} is not whole: {error.strerror}"
    if made_from != digest():
        return (
            f"the compiled form in {folder} is of other sources than those beside it, "
            "or for another Python"
        )
    name = f"{LIBRARY}__mypyc"
    try:
        # What the system's libraries do not fit shows here, and not half-way through the imports.
        spec = importlib.util.spec_from_file_location(name, folder / (name + suffix()))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    except ImportError as error:
        return f"the compiled form in {folder} cannot be loaded: {error}"
    return ""


class _Extensions:
    """Finds the compiled modules before their sources are looked at, if they fit.

    Whether they do is looked at with the first of them: a program that needs none, such as
    `brokerctl`, does not read all sources for it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._end = suffix()
        self._fit: bool | None = None

    def fit(self) -> bool:
        """Whether they may run; `why_python` has the reason if not."""
        if self._fit is None:
            global _why_python
            _why_python = _fault(Path(self._folder))
            self._fit = not _why_python
        return self._fit

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith("brokerd."):
            return None
        file = os.path.join(self._folder, *name.split(".")) + self._end
        if not os.path.exists(file) or not self.fit():
            return None
        return importlib.util.spec_from_file_location(name, file)
