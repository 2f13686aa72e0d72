"""`brokerctl telemetry …`; also the command line of the job's image.

Imports Spark only when a run needs it, for `brokerctl` loads this module to show its help.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from brokerd.ctl.settings import password_in
from brokerd_telemetry import commit, delta, job, objects, session, sources
from brokerd_telemetry import fleet as of_a_fleet
from brokerd_telemetry.manifest import LedgerError

#: What ends a command with its text.
_TOLD = (*job.Failure, session.SparkUnavailable)

_OUT = click.option(
    "--out", "out_dir", required=True, type=click.Path(file_okay=False, path_type=Path),
    help="Directory of tables, ledger and report.",
)  # fmt: skip


@click.group()
def telemetry() -> None:
    """Tables and a report of what the members counted."""


_PULL = click.option("--pull", "addresses", help="host:port of each member's gRPC port, by comma.")
_ACCESS_OPTIONS = (
    click.option("--user", help="A user with a reader's tag [default: guest]."),
    click.option("--password-file", type=click.Path(path_type=Path),
                 help="File that holds the password; - is standard input."),
    click.option("--ca-file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
                 envvar="BROKERD_CA_FILE", help="Speak TLS, trusting this."),
)  # fmt: skip
_RUN_OPTIONS = (
    click.option("--cluster", help="namespace/name; without it, every cluster that is found."),
    _PULL,
    click.option("--raw", help="Directory or s3://BUCKET/PREFIX of segments, instead of --pull."),
    click.option("--fleet", type=click.Path(exists=True, dir_okay=False, path_type=Path),
                 help="List of many clusters' sources, instead of --pull and --raw."),
    _OUT,
    click.option("--store", help="s3://BUCKET/PREFIX where the tables live; --out is then only "
                                 "where the run works, and may be lost."),
    click.option("--delta", "keeps_delta", is_flag=True,
                 help="Keep a Delta Lake log of each table, for Trino, Spark and others."),
    click.option("--master", default="local[*]", show_default=True, help="local[N] or k8s://URL."),
    click.option("--executors", default=2, show_default=True, type=click.IntRange(1, 1000)),
    click.option("--image", help="Image of executor pods."),
    click.option("--pod-template", type=click.Path(exists=True, dir_okay=False, path_type=Path),
                 help="Template of executor pods."),
    *_ACCESS_OPTIONS,
    click.option("--release", is_flag=True, help="Let members delete what has been taken over."),
)  # fmt: skip


def _with(options: Sequence[Callable[..., Any]]) -> Callable[[Callable[..., None]], Any]:
    def give(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return give


@telemetry.command()
@_with(_RUN_OPTIONS)
def run(**options: Any) -> None:
    """Take over new segments and bring tables and report up to date."""
    try:
        _tell(job.run(_job_options(**options), _say), options["out_dir"])
    except _TOLD as error:
        raise click.ClickException(str(error)) from error


@telemetry.command()
@_with(_RUN_OPTIONS)
@click.option("--every", "every_s", default=300, show_default=True, type=click.IntRange(1, 86_400),
              help="Seconds from one run's start to the next.")  # fmt: skip
def serve(every_s: int, **options: Any) -> None:
    """Run time and again in one Spark session, which costs its start once; ends on Ctrl-C.

    A run that fails is told, and the next one goes on where it stood.
    """
    asked = _job_options(**options)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        spark = session.start(replace(asked.spark, is_warm=True))
    except session.SparkUnavailable as error:
        raise click.ClickException(str(error)) from error
    _say(f"Spark runs; a run every {every_s} s")
    try:
        while True:
            began = time.monotonic()
            try:
                _tell(job.run(asked, _say, spark), options["out_dir"])
            except job.Failure as error:
                _say(f"this run failed: {error}")
            time.sleep(max(0.0, began + every_s - time.monotonic()))
    except KeyboardInterrupt:
        _say("ends")
    finally:
        spark.stop()


def _job_options(
    cluster: str | None,
    addresses: str | None,
    raw: str | None,
    fleet: Path | None,
    out_dir: Path,
    store: str | None,
    master: str,
    executors: int,
    image: str | None,
    pod_template: Path | None,
    user: str | None,
    password_file: Path | None,
    ca_file: Path | None,
    release: bool,
    keeps_delta: bool,
) -> job.Options:
    if addresses is None and raw is None and fleet is None:
        addresses = _named()
    if sum(given is not None for given in (addresses, raw, fleet)) != 1:
        raise click.UsageError(
            "give one of --pull HOST:PORT, --raw DIRECTORY and --fleet FILE; "
            "without them, brokerctl's -n or BROKERD_ADDRESS names the members"
        )
    try:
        if fleet is not None:
            if cluster is not None:
                raise click.UsageError("--cluster goes with --pull or --raw; the list names them")
            found = of_a_fleet.read(fleet)
        elif addresses is not None:
            access = _access(addresses, user, password_file, ca_file)
            found = (sources.Source(cluster, access=access),)
        else:
            assert raw is not None
            found = (_raw(cluster, raw),)
        place = None if store is None else objects.Place(store)
        if keeps_delta:
            delta.check()
    except _TOLD as error:
        raise click.ClickException(str(error)) from error
    _make(out_dir)
    return job.Options(
        sources=found,
        out_dir=out_dir.resolve(),
        spark=session.SparkSettings(master, executors, image, pod_template),
        place=place,
        release=release,
        keeps_delta=keeps_delta,
    )


@telemetry.command()
@_with(_RUN_OPTIONS)
@click.option(
    "--every",
    "every_s",
    default=60,
    show_default=True,
    type=click.IntRange(1, 86_400),
    help="Seconds from one batch to the next.",
)
@click.option("--once", is_flag=True, help="Take what there is, and end.")
def stream(every_s: int, once: bool, **options: Any) -> None:
    """Take over segments as they arrive, by Structured Streaming; ends on Ctrl-C.

    Tables are those of `run`, whatever is killed on the way. A batch that fails is told and tried
    again.
    """
    from brokerd_telemetry.stream import Stream

    asked = _job_options(**options)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        spark = session.start(replace(asked.spark, is_warm=True))
        try:
            stream = Stream(asked, spark, lambda done: _tell(done, options["out_dir"]), _say)
            _say("Spark runs; " + ("once" if once else f"a batch every {every_s} s"))
            if once:
                stream.once()
            else:
                stream.forever(every_s, ended)
        except KeyboardInterrupt:
            _say("ends")
        finally:
            ended.set()
            spark.stop()
    except _TOLD as error:
        raise click.ClickException(str(error)) from error


def _raw(cluster: str | None, raw: str) -> sources.Source:
    if raw.startswith("s3://"):
        return sources.Source(cluster, place=objects.Place(raw))
    if not Path(raw).is_dir():
        raise click.UsageError(f"--raw: there is no directory '{raw}'")
    return sources.Source(cluster, directory=Path(raw).resolve())


def _named() -> str | None:
    """Return the members that brokerctl's own options or its variable name; None without."""
    chosen = click.get_current_context().find_root().obj
    if chosen is None or not (chosen.node or os.environ.get("BROKERD_ADDRESS")):
        return os.environ.get("BROKERD_ADDRESS") or None
    return ",".join(chosen.addresses())


def _access(
    addresses: str, user: str | None, password_file: Path | None, ca_file: Path | None
) -> sources.Access:
    # What stands before the command of brokerctl; None for the job's own command line.
    chosen = click.get_current_context().find_root().obj
    user = user or (chosen.user if chosen is not None else "guest")
    if password_file is not None:
        # White space around it has never counted here.
        password = password_in(password_file).strip()
    elif chosen is not None:
        password = chosen.password
    else:
        password = os.environ.get("BROKERD_PASSWORD", "guest")
    if ca_file is None and chosen is not None and chosen.ca_file:
        ca_file = Path(chosen.ca_file)
    hosts = tuple(part.strip() for part in addresses.split(",") if part.strip())
    return sources.Access(hosts, user, password, ca_file)


def _make(out_dir: Path) -> None:
    """Make the directory before Spark starts and members are asked."""
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.ClickException(
            f"--out {out_dir} cannot be made: {error.strerror}; name a directory that can be "
            "written to"
        ) from error


def _tell(result: job.Result, out_dir: Path) -> None:
    _say(
        f"done in {result.seconds:.1f} s: {result.segments} segments, {result.rows:,} rows, "
        f"{result.hours} hours, {result.findings} findings raised"
    )
    if result.hours:
        _say(f"of that {result.in_words()}")
        _say(f"report: {out_dir / 'publish' / 'report.html'}")


@telemetry.command()
@_PULL
@click.option("--to", "url", required=True, help="s3://BUCKET/PREFIX")
@_with(_ACCESS_OPTIONS)
@click.option("--keep", is_flag=True, help="Let the members keep what has been taken.")
def ship(
    addresses: str | None,
    url: str,
    user: str | None,
    password_file: Path | None,
    ca_file: Path | None,
    keep: bool,
) -> None:
    """Bring the members' segments to object storage, for a run over many clusters; no Spark."""
    from brokerd_telemetry import bucket_segments

    addresses = addresses or _named()
    if addresses is None:
        raise click.UsageError("--pull HOST:PORT is missing: the members to ship from")
    access = _access(addresses, user, password_file, ca_file)
    taken: set[str] = set()
    try:
        place = objects.Place(url)

        def take(path: str, read: Callable[[], bytes]) -> int:
            data = read()
            bucket_segments.ship(place, path, data, _say)
            taken.add(path)
            return len(data)

        shipped = sources.each_segment(access, take, _say)
        if not keep:
            sources.release(replace(access, addresses=tuple(shipped.reached)), taken, _say)
    except _TOLD as error:
        raise click.ClickException(str(error)) from error
    _say(f"{shipped.segments} segments shipped, {shipped.size_bytes / 1024:,.0f} KiB")


@telemetry.command()
@_OUT
def report(out_dir: Path) -> None:
    """Write the report anew from the tables as they are, and say where it is."""
    from brokerd_telemetry import publish, sinks

    try:
        manifest = commit.Ledger(out_dir).load()
    except LedgerError as error:
        raise click.ClickException(str(error)) from error
    if not manifest.run_id:
        raise click.ClickException(f"there are no tables in {out_dir} yet: use `run` first")
    live = sinks.Live(out_dir, manifest)
    base = str(out_dir.resolve())
    try:
        files = publish.render(live, base, live.names("silver"))
        if (out_dir / "publish" / delta.TRINO).exists():
            files[delta.TRINO] = delta.trino_sql(base, live)
    except FileNotFoundError as error:
        raise click.ClickException(
            f"{error.filename} is not here: if the tables live in a store, "
            "its publish/report.html is the report"
        ) from error
    for name, data in files.items():
        commit.write_durably(out_dir / "publish" / name, data)
    click.echo(out_dir / "publish" / "report.html")


@telemetry.command()
@_OUT
@click.argument("table", required=False)
def tables(out_dir: Path, table: str | None) -> None:
    """List the tables, or the live Parquet files of one."""
    try:
        manifest = commit.Ledger(out_dir).load()
    except LedgerError as error:
        raise click.ClickException(str(error)) from error
    if table is not None:
        if table not in manifest.tables:
            raise click.ClickException(f"there is no table '{table}'")
        for path in manifest.paths(table):
            click.echo(out_dir / path)
        return
    for name in sorted(manifest.tables):
        entries = [item for items in manifest.tables[name].values() for item in items]
        rows = sum(item["rows"] for item in entries)
        click.echo(f"{name:18} {rows:>12,} rows  {len(entries):>5} files")


def _say(text: str) -> None:
    click.echo(f"telemetry: {text}", file=sys.stderr)
