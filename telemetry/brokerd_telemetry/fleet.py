"""The list of sources of a run over many clusters (`--fleet FILE`), read and checked.

One entry per cluster: its members (`pull`), a directory (`raw`) or object storage (`raw: s3://…`).
Passwords are never in the list, only the files that hold them.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from brokerd import secret_files
from brokerd_telemetry import objects
from brokerd_telemetry.sources import Access, Source, SourceError

SOURCES_MAX = 10_000
#: Of the list; 10,000 sources take 2 MB.
BYTES_MAX = 16 * 1024 * 1024
_KEYS = {"cluster", "pull", "raw", "user", "userFile", "passwordFile", "caFile"}


def read(path: Path) -> tuple[Source, ...]:
    """Return the sources; SourceError names the entry that is wrong, and what about it."""
    try:
        with path.open("rb") as file:
            text = file.read(BYTES_MAX + 1)
        if len(text) > BYTES_MAX:
            raise SourceError(f"{path} has more than {BYTES_MAX:,} bytes")
        document = yaml.safe_load(text.decode())
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise SourceError(f"{path} cannot be read: {error}") from error
    entries = document.get("sources") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not entries or set(document) != {"sources"}:
        raise SourceError(f"{path} must have a list `sources`, and nothing else")
    if len(entries) > SOURCES_MAX:
        raise SourceError(f"{path} has more than {SOURCES_MAX:,} sources")
    found: list[Source] = []
    for number, entry in enumerate(entries, 1):
        try:
            found.append(_source(entry, path.parent))
        except (ValueError, OSError, objects.ObjectError) as error:
            raise SourceError(f"{path}, source {number}: {error}") from error
    for name, times in Counter(source.cluster for source in found).items():
        if times > 1:
            raise SourceError(f"{path} has the cluster '{name}' twice")
    return tuple(found)


def _source(entry: Any, folder: Path) -> Source:
    if not isinstance(entry, dict):
        raise ValueError("it must have `cluster` and either `pull` or `raw`")
    if unknown := sorted(set(map(str, entry)) - _KEYS):
        raise ValueError(f"there is no `{unknown[0]}`; known are {', '.join(sorted(_KEYS))}")
    cluster = entry.get("cluster")
    if not isinstance(cluster, str) or cluster.count("/") != 1 or not all(cluster.split("/")):
        raise ValueError("`cluster` must be namespace/name")
    if ("pull" in entry) == ("raw" in entry):
        raise ValueError("give either `pull` or `raw`")
    if "pull" in entry:
        return Source(cluster, access=_access(entry, folder))
    raw = entry["raw"]
    if not isinstance(raw, str):
        raise ValueError("`raw` must be a directory or s3://BUCKET/PREFIX")
    if raw.startswith("s3://"):
        return Source(cluster, place=objects.Place(raw))
    # Absolute: a stream gets the absolute paths of files.
    return Source(cluster, directory=(folder / raw).resolve())


def _access(entry: dict[str, Any], folder: Path) -> Access:
    addresses = entry["pull"]
    if not isinstance(addresses, list) or not addresses:
        raise ValueError("`pull` must be a list of host:port, one for each member")
    if not all(isinstance(address, str) and ":" in address for address in addresses):
        raise ValueError("`pull` must be a list of host:port, one for each member")
    for name in ("user", "userFile", "passwordFile", "caFile"):
        if not isinstance(entry.get(name, ""), str):
            raise ValueError(f"`{name}` must be a text")
    if "user" in entry and "userFile" in entry:
        raise ValueError("give either `user` or `userFile`")
    user, password = entry.get("user", "guest"), "guest"
    if "userFile" in entry:
        user = secret_files.read(folder / entry["userFile"]).strip()
    if "passwordFile" in entry:
        password = secret_files.read(folder / entry["passwordFile"]).strip()
    ca_file = folder / entry["caFile"] if "caFile" in entry else None
    return Access(tuple(addresses), user, password, ca_file)
