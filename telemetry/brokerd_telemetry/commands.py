"""`brokerctl telemetry run|serve|report|tables`; also the command line of the job's image.

Imports Spark only when a run needs it, for `brokerctl` loads this module to show its help.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from brokerd_telemetry import commit, job, session, sources

_OUT = click.option(
    "--out", "out_dir", required=True, type=click.Path(file_okay=False, path_type=Path),
    help="Directory of tables, ledger and report.",
)  # fmt: skip


@click.group()
def telemetry() -> None:
    """Tables and a report of what the members counted."""


_RUN_OPTIONS = (
    click.option("--cluster", help="namespace/name; without it, every cluster that is found."),
    click.option("--pull", "addresses", help="host:port of each member's gRPC port, by comma."),
    click.option("--raw", "raw_dir", help="Directory of segments, instead of --pull.",
                 type=click.Path(exists=True, file_okay=False, path_type=Path)),
    _OUT,
    click.option("--master", default="local[*]", show_default=True, help="local[N] or k8s://URL."),
    click.option("--executors", default=2, show_default=True, type=click.IntRange(1, 1000)),
    click.option("--image", help="Image of executor pods."),
    click.option("--pod-template", type=click.Path(exists=True, dir_okay=False, path_type=Path),
                 help="Template of executor pods."),
    click.option("--user", default="guest", show_default=True, help="A user with a reader's tag."),
    click.option("--password-file", type=click.Path(exists=True, dir_okay=False, path_type=Path)),
    click.option("--ca-file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
                 envvar="BROKERD_CA_FILE", help="Speak TLS, trusting this."),
    click.option("--release", is_flag=True, help="Let members delete what has been taken over."),
)  # fmt: skip


def _with_run_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_RUN_OPTIONS):
        command = option(command)
    return command


@telemetry.command()
@_with_run_options
def run(**options: Any) -> None:
    """Take over new segments and bring tables and report up to date."""
    try:
        _tell(job.run(_job_options(**options), _say), options["out_dir"])
    except (commit.LedgerError, sources.SourceError, session.SparkUnavailable) as error:
        raise click.ClickException(str(error)) from error


@telemetry.command()
@_with_run_options
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
            except (commit.LedgerError, sources.SourceError) as error:
                _say(f"this run failed: {error}")
            time.sleep(max(0.0, began + every_s - time.monotonic()))
    except KeyboardInterrupt:
        _say("ends")
    finally:
        spark.stop()


def _job_options(
    cluster: str | None,
    addresses: str | None,
    raw_dir: Path | None,
    out_dir: Path,
    master: str,
    executors: int,
    image: str | None,
    pod_template: Path | None,
    user: str,
    password_file: Path | None,
    ca_file: Path | None,
    release: bool,
) -> job.Options:
    if (addresses is None) == (raw_dir is None):
        raise click.UsageError("give either --pull or --raw")
    access = None
    if addresses is not None:
        if password_file is not None:
            password = password_file.read_text().strip()
        else:
            password = os.environ.get("BROKERD_PASSWORD", "guest")
        hosts = tuple(part.strip() for part in addresses.split(",") if part.strip())
        access = sources.Access(hosts, user, password, ca_file)
    return job.Options(
        cluster=cluster,
        out_dir=out_dir.resolve(),
        spark=session.SparkSettings(master, executors, image, pod_template),
        access=access,
        raw_dir=raw_dir,
        release=release,
    )


def _tell(result: job.Result, out_dir: Path) -> None:
    _say(
        f"done in {result.seconds:.1f} s: {result.segments} segments, {result.rows:,} rows, "
        f"{result.hours} hours, {result.findings} findings raised"
    )
    if result.hours:
        _say(f"of that {result.in_words()}")
        _say(f"report: {out_dir / 'publish' / 'report.html'}")


@telemetry.command()
@_OUT
def report(out_dir: Path) -> None:
    """Write the report anew from the tables as they are, and say where it is."""
    from brokerd_telemetry import publish

    try:
        manifest = commit.Ledger(out_dir).load()
    except commit.LedgerError as error:
        raise click.ClickException(str(error)) from error
    if not manifest.run_id:
        raise click.ClickException(f"there are no tables in {out_dir} yet: use `run` first")
    for name, data in publish.render(out_dir, manifest).items():
        commit.write_durably(out_dir / "publish" / name, data)
    click.echo(out_dir / "publish" / "report.html")


@telemetry.command()
@_OUT
@click.argument("table", required=False)
def tables(out_dir: Path, table: str | None) -> None:
    """List the tables, or the live Parquet files of one."""
    try:
        manifest = commit.Ledger(out_dir).load()
    except commit.LedgerError as error:
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
