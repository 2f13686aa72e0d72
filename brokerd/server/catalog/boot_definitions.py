"""Definitions that a member loads at its start, as RabbitMQ's `load_definitions` does.

The file is read and understood before anything else, so that a broken one ends the start with a
sentence and nothing half done; it is applied once the catalog has a leader, before clients come.
All members may load the same file at once, and again at each start: what is there already stays,
and what differs and cannot change is logged.  An object that is refused for another reason ends the
start.  For start.py; `brokerctl import_definitions` does the same over gRPC.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path

from brokerd.config import ConfigError
from brokerd.core.catalog import catalog_commands, definitions_json, unsupported
from brokerd.rpc.v1 import admin_pb2
from brokerd.server.catalog import sealed_parameters, topology_batch
from brokerd.server.catalog.catalog_writer import Unavailable

log = logging.getLogger(__name__)

Operation, Result = admin_pb2.Operation, admin_pb2.OperationResult

#: The cluster-wide setting that remembers what was loaded last.
SETTING = "definitions_hash"
#: Of all files together; definitions of 100,000 queues have about 20 MiB.
BYTES_MAX = 512 * 1024 * 1024
#: Operations between two looks at what else waits.
BATCH = 256
#: Mistakes that are said; the rest is counted.
SHOWN_MAX = 20
#: There, different and not to be changed by a file: the topology goes on as it is.
_KEPT = (Result.IMMUTABLE, Result.PRECONDITION)


@dataclass(slots=True, frozen=True)
class Definitions:
    """What is to be, in an order in which each object finds what it needs."""

    #: A file, or a folder of files.
    source: str
    wanted: tuple[definitions_json.Wanted, ...]
    #: SHA-256 of the files, hexadecimal.
    digest: str

    @property
    def has_users(self) -> bool:
        """Tell whether anybody may log in by them: then guest is not made."""
        return any(kind == "user" for kind, *_ in self.wanted)


def read(source: str, *, skips_unsupported: bool = False) -> Definitions | None:
    """Read a file, or all `*.json` of a folder by name; None if nothing is configured.

    skips_unsupported: what is not here is left out, and logged.
    Raises ConfigError, which says what is wrong with which file.
    """
    if not source:
        return None
    wanted: list[definitions_json.Wanted] = []
    digest = hashlib.sha256()
    left = BYTES_MAX
    for file in _files(Path(source)):
        try:
            with file.open("rb") as stream:
                data = stream.read(left + 1)
        except OSError as error:
            raise ConfigError(f"definitions.path: cannot read {file}: {error.strerror}") from error
        left -= len(data)
        if left < 0:
            raise ConfigError(f"definitions.path: {source} has more than {BYTES_MAX} bytes")
        digest.update(data)
        try:
            wanted += definitions_json.operations(json.loads(data))
        except definitions_json.BadDefinitions as error:
            raise ConfigError(f"definitions.path: {file}: {error}") from error
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"definitions.path: {file} is not JSON: {error}") from error
    wanted, left_out = unsupported.taken(wanted, skips=skips_unsupported)
    for line in left_out:
        log.warning("definitions: left out: %s", line)
    return Definitions(source, tuple(wanted), digest.hexdigest())


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.json"))
    if not found:
        raise ConfigError(f"definitions.path: there is no *.json in {path}")
    return found


async def apply(
    room: topology_batch.Room, definitions: Definitions, *, skip_if_unchanged: bool
) -> None:
    """Make what is missing; wait as long as a majority is missing.

    Raises ConfigError if the catalog refuses an object.
    """
    before = room.view.setting(SETTING)
    if skip_if_unchanged and before == definitions.digest:
        log.info("definitions of %s are unchanged, not loaded again", definitions.source)
        return
    operations = [
        Operation(kind=kind, vhost=vhost, name=name, spec=json.dumps(spec))
        for kind, vhost, name, spec in definitions.wanted
    ]
    mistakes: list[str] = []
    for start in range(0, len(operations), BATCH):
        mistakes += await _apply(room, operations[start : start + BATCH])
    if mistakes:
        shown = mistakes[:SHOWN_MAX]
        if len(mistakes) > SHOWN_MAX:
            shown.append(f"and {len(mistakes) - SHOWN_MAX} more")
        raise ConfigError(
            f"definitions.path: {len(mistakes)} of {len(operations)} objects of "
            f"{definitions.source} are refused:\n  " + "\n  ".join(shown)
        )
    if before != definitions.digest:
        try:
            await room.write(catalog_commands.set_setting(SETTING, definitions.digest))
        except Unavailable as error:
            # All is there; the next start loads it once more.
            log.warning("definitions: not remembered as loaded: %s", error)
    log.info("loaded %d definitions of %s", len(operations), definitions.source)


def lacks_uri(operation: admin_pb2.Operation) -> bool:
    """Tell whether an upstream or shovel has no URI, as exports without passwords write them: the
    rest of a backup is worth a start.
    """
    keys = sealed_parameters.uri_keys(operation.name) if operation.kind == "parameter" else ()
    value = json.loads(operation.spec).get("value") if keys else None
    return isinstance(value, dict) and any(key not in value for key in keys)


async def _apply(room: topology_batch.Room, operations: list[admin_pb2.Operation]) -> list[str]:
    """Apply until the catalog has answered for each; return what it refused, a line each."""
    mistakes = []
    while operations:
        waiting = []
        results = await topology_batch.apply(room, operations)
        for operation, result in zip(operations, results, strict=True):
            where = f" in vhost '{operation.vhost}'" if operation.vhost else ""
            line = f"{operation.kind} '{operation.name}'{where}: {result.message}"
            if result.code == Result.UNAVAILABLE:
                waiting.append(operation)
            elif result.code in _KEPT:
                log.warning("definitions: kept as it is: %s", line)
            elif result.code not in (Result.OK, Result.UNCHANGED):
                if lacks_uri(operation):
                    log.warning(
                        "definitions: not made: %s; an export leaves out URIs with a password, "
                        "unless it is made --with-passwords: set it anew",
                        line,
                    )
                else:
                    mistakes.append(line)
        if waiting:
            log.warning("definitions: %d objects wait: %s", len(waiting), line)
        operations = waiting
    return mistakes
