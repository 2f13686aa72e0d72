"""Which form of brokerd runs: plain Python, or with the rooms on a message's way compiled (ADR 32).

A wheel that was built where there is a C compiler holds both forms, each extension module beside
its source, and Python takes the extension.  A checkout is plain Python, unless `BROKERD_COMPILED=1`
asks for what `make compiled` built from exactly these sources; `BROKERD_COMPILED=0` asks for plain
Python anywhere.  For the package's `__init__.py`, for whoever tells the form (command line,
metrics), and for tools/compiled.py.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

VARIABLE = "BROKERD_COMPILED"
PACKAGE = Path(__file__).resolve().parent
#: Of a checkout; one folder for each state of the sources, named by its digest.
BUILDS = PACKAGE.parent / "build" / "compiled"
#: Where the C code of all modules lies; each module is a small extension that refers to it.
LIBRARY = "brokerd_compiled"
#: Written last: a folder without it is not whole.
STAMP = "complete"
#: On the way of every message, so that it is compiled wherever anything is.
_WITNESS = "brokerd.raft.node"
#: A hexadecimal digit is four bits; 64 are more than a cache of some states needs.
_DIGEST_CHARACTERS = 16


def form() -> str:
    """Return "compiled" or "python": what this process runs."""
    spec = importlib.util.find_spec(_WITNESS)
    is_extension = spec is not None and isinstance(
        spec.loader, importlib.machinery.ExtensionFileLoader
    )
    return "compiled" if is_extension else "python"


def digest() -> str:
    """Return what names this state of the sources, for this Python and processor: any change of any
    module of the package gives another, since compiled code holds constants and layouts of others.
    """
    state = hashlib.sha256(suffix().encode())
    for file in sorted(PACKAGE.rglob("*.py")):
        text = file.read_bytes()
        state.update(f"{file.relative_to(PACKAGE)} {len(text)}\n".encode())
        state.update(text)
    return state.hexdigest()[:_DIGEST_CHARACTERS]


def suffix() -> str:
    """Return how names of extension modules for this Python end."""
    return importlib.machinery.EXTENSION_SUFFIXES[0]


def choose(wanted: str) -> None:
    """Take the form that the environment asks for; raise ImportError if there is none.

    Before any module of the package is imported: later ones would mix.
    """
    if wanted == "0":
        sys.meta_path.insert(0, _Sources())
    elif wanted == "1" and not _holds_extensions():
        folder = BUILDS / digest()
        if not (folder / STAMP).exists():
            raise ImportError(
                f"{VARIABLE}=1, and these sources are not compiled: run make compiled"
            )
        sys.meta_path.insert(0, _Extensions(folder))
    elif wanted not in ("", "1"):
        raise ImportError(f"{VARIABLE}={wanted}: 1 is compiled, 0 is plain Python")


def _holds_extensions() -> bool:
    """Whether this is an installation of the compiled form."""
    return any((PACKAGE / "raft").glob("*" + suffix()))


class _Extensions:
    """Finds the modules that `make compiled` has built, before the sources are looked at."""

    def __init__(self, folder: Path) -> None:
        end = suffix()
        self._files = {
            str(file.relative_to(folder)).removesuffix(end).replace(os.sep, "."): file
            for file in folder.rglob("*" + end)
        }

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(name)
        return None if file is None else importlib.util.spec_from_file_location(name, file)


class _Sources:
    """Finds the sources of the package's modules, before the extensions beside them."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith("brokerd."):
            return None
        file = PACKAGE.parent.joinpath(*name.split(".")).with_suffix(".py")
        return importlib.util.spec_from_file_location(name, file) if file.exists() else None
