"""To whom a data directory belongs, and which start of that member this is.

Incarnations rise from start to start, so that queues tell a restarted member's new channels from
its old ones whatever they hear first.  For app.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections.abc import Mapping
from pathlib import Path

from brokerd.config import BrokerConfig, ConfigError

FILE = "node.json"
FORMAT = 1
#: Random bits of an incarnation, below the wall clock in milliseconds.
_RANDOM_BITS = 20


def named(config: BrokerConfig) -> BrokerConfig:
    """Return the configuration with the name of a lone member that was given none.

    A data directory that was given keeps its member's: a container that is made anew has another
    host name, and its volume is the same.
    """
    if config.node.name or not config.node.data_dir or config.cluster.members:
        return config
    try:
        stored = json.loads((config.data_dir / FILE).read_text())
    except (OSError, ValueError):
        # Not there yet; `claim` says what is wrong with one that is.
        return config
    name = stored.get("name") if isinstance(stored, dict) else None
    if not isinstance(name, str):
        return config
    return config.model_copy(update={"node": config.node.model_copy(update={"name": name})})


def claim(data_dir: Path, name: str, now_ms: int) -> int:
    """Make the directory this member's, or see that it is; return the incarnation of this start.

    It is above that of the last start even if the clock went back.  ConfigError: the directory is
    another member's, or cannot be used.
    """
    file = data_dir / FILE
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        stored = json.loads(file.read_text()) if file.exists() else {"name": name}
    except OSError as error:
        raise _unusable(data_dir, error) from error
    except ValueError as error:
        raise ConfigError(f"{file} is damaged ({error}): was it written by brokerd?") from error
    if not isinstance(stored, dict) or "name" not in stored:
        raise ConfigError(f"{file} is damaged (no name): was it written by brokerd?")
    check_format(file, stored, FORMAT)
    if stored["name"] != name:
        raise ConfigError(
            f"{data_dir} belongs to the member '{stored['name']}', not to '{name}': "
            "use another --data-dir or --node-name"
        )
    last = stored.get("incarnation", 0)
    fresh = (now_ms << _RANDOM_BITS) | random.SystemRandom().getrandbits(_RANDOM_BITS)
    incarnation = max(fresh, last + 1) if isinstance(last, int) else fresh
    text = json.dumps({"name": name, "format": FORMAT, "incarnation": incarnation})
    try:
        replace(file, text)
    except OSError as error:
        if not file.exists():
            raise _unusable(data_dir, error) from error
        # A full disk must not keep a member down that was here before; the clock goes on rising.
    return incarnation


def check_format(file: Path, stored: Mapping[str, object], known: int) -> None:
    """ConfigError: another version wrote this file, and overwriting it would lose what it says."""
    version = stored.get("format", known)
    if version != known:
        raise ConfigError(
            f"{file}: format version {version}; this build reads {known}. "
            "Start the build that wrote it; the file was not changed"
        )


def _unusable(data_dir: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot use the data directory {data_dir}: {error.strerror}")


def replace(file: Path, text: str) -> None:
    """Write all or nothing: a power cut leaves the old text or the new one."""
    new = file.with_suffix(".new")
    try:
        with new.open("w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise
