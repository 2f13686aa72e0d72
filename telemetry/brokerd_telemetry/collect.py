"""What the sources of a run have, brought to where the run can read it (design/telemetry.md §7.1).

Sources are asked beside each other, for most of it is waiting; one that fails does not stop the
others.  Nothing is judged here: `verify` does that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from brokerd_telemetry import bucket_segments, objects, schema, sources, verify
from brokerd_telemetry.manifest import Manifest

#: Sources that are asked at once.
AT_ONCE = 8
#: Later rows do not change tables any more (design/telemetry.md §10).
LATE_HOURS = 72


@dataclass(slots=True, frozen=True)
class Asked:
    """What is known already, and where to put what is not."""

    manifest: Manifest
    raw_dir: Path
    say: Callable[[str], None]


def late_from(manifest: Manifest, cluster: str) -> str | None:
    """Return the oldest hour that rows of a cluster may still be late for; None: any."""
    hours = manifest.hours("silver", [cluster])
    if not hours:
        return None
    return schema.hour_of(schema.hour_start_us(hours[-1]) - LATE_HOURS * schema.HOUR_US)


@dataclass(slots=True, frozen=True)
class Found:
    """Segments of a source: paths below a directory."""

    raw_dir: Path
    paths: list[str]
    #: What members were asked and not; None: it is not known who there is.
    pulled: sources.Pulled | None = None


def ask(asked_sources: Collection[sources.Source], asked: Asked) -> list[Found | Exception]:
    """Return what each source has, or why it could not be asked."""
    known = {entry["path"] for entry in asked.manifest.segments.values()}

    def one(source: sources.Source) -> Found | Exception:
        try:
            return _found(source, asked, known)
        except (sources.SourceError, objects.ObjectError, OSError) as error:
            return error

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(one, asked_sources))


def _found(source: sources.Source, asked: Asked, known: Collection[str]) -> Found:
    if source.directory is not None:
        raw_dir = sources.raw_root(source.directory)
        return Found(raw_dir, sources.listed(raw_dir, source.cluster))
    whose = "" if source.cluster is None else f" of {source.cluster}"
    if source.access is not None:
        asked.say(f"asking {', '.join(source.access.addresses)} for telemetry{whose}")
        pulled = sources.pull(source.access, asked.raw_dir, known, asked.say, source.cluster)
    else:
        assert source.place is not None
        asked.say(f"asking {source.place.url} for telemetry{whose}")
        names = asked.manifest.clusters()
        since = {verify.cluster_folder(name): late_from(asked.manifest, name) for name in names}
        pulled = sources.Pulled()
        bucket_segments.fetch(source.place, asked.raw_dir, known, source.cluster, since.get, pulled)
    asked.say(f"{pulled.segments} segments pulled{whose}, {pulled.size_bytes / 1024:,.0f} KiB")
    for name, why in sorted(pulled.absent.items()):
        asked.say(f"nothing is known from member {name}{whose}: {why}")
    for name, ahead_s in sorted(pulled.clocks.items()):
        asked.say(f"the clock of member {name}{whose} is {ahead_s:+,.0f} s off the one here")
    return Found(asked.raw_dir, sources.listed(asked.raw_dir, source.cluster), pulled)


def of(source: sources.Source, raw_dir: Path, arrived: Collection[Path]) -> Found:
    """Return which of these files are a source's."""
    if source.directory is not None:
        raw_dir = sources.raw_root(source.directory)
    folder = "" if source.cluster is None else f"{verify.cluster_folder(source.cluster)}/"
    below = [path.relative_to(raw_dir) for path in arrived if path.is_relative_to(raw_dir)]
    paths = [path.as_posix() for path in below]
    # One that is gone again had its time, or a run by hand has taken it.
    return Found(
        raw_dir, [path for path in paths if path.startswith(folder) and (raw_dir / path).exists()]
    )
