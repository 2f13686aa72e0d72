"""Resources as they stand in files of YAML or JSON, and the lines of their fields.

For the embedded mode (directory.py, local/dry_run.py). Judges no resource: validation.py does.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from brokerd_operator.local.errors import EmbeddedError

FILE_BYTES_MAX = 4 * 1024 * 1024
FILES_MAX = 1000
#: As kubectl reads them.
SUFFIXES = (".yaml", ".yml", ".json")
_INDEX = re.compile(r"\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in a file that cannot be used."""

    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


class _NotAllowed(yaml.YAMLError):
    """YAML that a resource must not use."""

    def __init__(self, message: str, mark: yaml.Mark) -> None:
        super().__init__(message)
        self.line = mark.line + 1


class _Loader(yaml.SafeLoader):
    """The safe loader without aliases, which can stand for very large documents (SEC-49), and
    without a key twice, which kubectl refuses too.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise _NotAllowed("aliases are not allowed: write the value out", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                name = (key.tag, key.value)
                if name in seen:
                    hint = ": is --- missing above it?" if key.value == "apiVersion" else ""
                    raise _NotAllowed(f"the field {key.value} is there twice{hint}", key.start_mark)
                seen.add(name)
        return super().construct_mapping(node, deep)


@dataclass(frozen=True, slots=True)
class Document:
    """One resource of a file."""

    file: Path
    #: Where it begins, counted from 1.
    line: int
    #: Its YAML, for the lines of its fields: these are looked for when one is wrong. Secrets too.
    text: str = field(repr=False)
    body: Any = field(repr=False)

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    def places(self, paths: Sequence[str]) -> list[str]:
        """The place of each field (`spec.bindings[2].source`), or of the nearest that is there."""
        if not paths:
            return []
        try:
            root = yaml.compose(self.text, _Loader)
        except yaml.YAMLError:
            # It needs a directive of its file's.
            return [self.place] * len(paths)
        assert root is not None
        return [f"{self.file}:{self.line + _line(root, path)}" for path in paths]


def _line(node: yaml.Node, path: str) -> int:
    """The line of a field below a node, from 0."""
    line = node.start_mark.line
    while path and (step := _step(node, path)):
        line, node, path = step
    return line


def _step(node: yaml.Node, path: str) -> tuple[int, yaml.Node, str] | None:
    """The line and node that a path leads to first, and the rest of it."""
    if isinstance(node, yaml.SequenceNode):
        index = _INDEX.match(path)
        if index is None or int(index[1]) >= len(node.value):
            return None
        item = node.value[int(index[1])]
        return item.start_mark.line, item, path[index.end() :].removeprefix(".")
    if not isinstance(node, yaml.MappingNode):
        return None
    # Names of annotations hold dots: the longest that fits.
    fits = [
        (len(key.value), key, value)
        for key, value in node.value
        if isinstance(key, yaml.ScalarNode)
        and key.value
        and path.startswith(key.value)
        and path[len(key.value) :][:1] in ("", ".", "[")
    ]
    if not fits:
        return None
    size, key, value = max(fits, key=lambda fit: fit[0])
    return key.start_mark.line, value, path[size:].removeprefix(".")


def read(path: Path) -> tuple[list[Document], list[Problem]]:
    """All documents of a file or of the files of a directory, in the order of their names."""
    if not path.exists():
        raise EmbeddedError(f"{path} does not exist")
    if path.is_dir():
        files = sorted(item for item in path.iterdir() if item.suffix in SUFFIXES)
        if not files:
            raise EmbeddedError(f"{path} holds no file that ends with {', '.join(SUFFIXES)}")
    else:
        files = [path]
    documents: list[Document] = []
    problems: list[Problem] = []
    for file in files[:FILES_MAX]:
        problem = _read_file(file, documents)
        if problem is not None:
            problems.append(problem)
    if len(files) > FILES_MAX:
        problems.append(Problem(str(path), f"holds more than {FILES_MAX} files"))
    return documents, problems


def _read_file(file: Path, documents: list[Document]) -> Problem | None:
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            return Problem(str(file), f"is larger than {FILE_BYTES_MAX} bytes")
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".json":
            # JSON may be indented by tabs, and holds none in texts.
            text = text.replace("\t", " ")
        loader = _Loader(text)
        try:
            while loader.check_node():
                node = loader.get_node()
                body = loader.construct_document(node)
                if body is not None and node is not None:
                    documents += (
                        Document(file, item.start_mark.line + 1, _source(text, item), value)
                        for item, value in _items(node, body)
                    )
        finally:
            loader.dispose()
    except _NotAllowed as error:
        return Problem(f"{file}:{error.line}", str(error))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        return Problem(f"{file}:{line}", f"is not YAML: {error.problem}")
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        return Problem(str(file), f"is not YAML: {error}")
    except OSError as error:
        return Problem(str(file), error.strerror or str(error))
    return None


def _source(text: str, node: yaml.Node) -> str:
    """The text of a node by itself: its first line is as far to the right as in the file."""
    return " " * node.start_mark.column + text[node.start_mark.index : node.end_mark.index]


def _items(node: yaml.Node, body: Any) -> list[tuple[yaml.Node, Any]]:
    """The resources of a document: itself, or the items of a List (also of a QueueList)."""
    if isinstance(body, dict) and isinstance(node, yaml.MappingNode):
        kind, items = body.get("kind"), body.get("items")
        if isinstance(kind, str) and kind.endswith("List") and isinstance(items, list):
            (found,) = (value for key, value in node.value if key.value == "items")
            return list(zip(found.value, items, strict=True))
    return [(node, body)]
