"""One run over many clusters: members, a directory, object storage; tables in object storage."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pyarrow.parquet
import pytest
from brokerd_telemetry import (
    bucket_segments,
    collect,
    fleet_report,
    recompute,
    report_head,
    sinks,
    sources,
)
from brokerd_telemetry import fleet as of_a_fleet
from brokerd_telemetry.commands import telemetry
from brokerd_telemetry.commit import Ledger
from brokerd_telemetry.manifest import Manifest
from brokerd_telemetry.objects import Place
from brokerd_telemetry.sources import SourceError
from brokerd_telemetry.store import Store
from click.testing import CliRunner
from deltalake import DeltaTable

from brokerd.rpc.v1 import telemetry_pb2_grpc
from tests.telemetry import fleet
from tests.telemetry.object_server import BUCKET, ObjectServer, object_server
from tests.telemetry.oracle import Oracle
from tests.telemetry.test_job import query, run_command
from tests.telemetry.test_sources import Member

__all__ = ["object_server"]

#: A cluster for each kind of source.
DIRECTORY, BUCKETED, PULLED = "eu/shop", "us/shop", "eu/billing"
BOOTS = {DIRECTORY: 0xF1, BUCKETED: 0xF2, PULLED: 0xF3}


@dataclass
class Cluster:
    """One member with one queue, hour by hour; each hour adds messages, and one loses letters."""

    name: str
    directory: Path
    loses: bool = False
    node: fleet.Node = field(init=False)
    queue: fleet.Queue = field(init=False)
    hours: int = 0

    def __post_init__(self) -> None:
        self.node = fleet.Node(self.directory, self.name, "n0", BOOTS[self.name], [])
        self.queue = fleet.Queue(7, "q", dlx="gone" if self.loses else None)
        self.node.boot_event(fleet.BEGIN_US, "start")

    @property
    def raw(self) -> Path:
        return self.directory / "raw" / "v1"

    def hour(self, messages: int) -> None:
        at_us = fleet.BEGIN_US + self.hours * fleet.HOUR_US
        self.hours += 1
        contents = [fleet.content("k")] * messages
        self.node.counters.published("/", "web", "x", fleet.route("q"), contents)
        self.queue.counters["enq"] += messages
        self.queue.ready += messages
        self.node.now_us = at_us + fleet.INTERVAL_US
        if self.loses:
            self.node.counters.dead_lettered(
                "/", "q", "rejected", "gone", "", "at-most-once", "dlx_missing", 3, 300
            )
        self.node.collect(at_us, at_us + fleet.INTERVAL_US, [self.queue], 1)
        self.node.seal(at_us)


@dataclass
class World:
    """Three clusters, what they are reached by, and the list that names them."""

    clusters: dict[str, Cluster]
    member: Member
    storage: ObjectServer
    file: Path
    shipped: set[str] = field(default_factory=set)

    def tell(self, name: str, messages: int) -> None:
        """Let an hour pass in a cluster, and its segments be where the run asks for them."""
        cluster = self.clusters[name]
        cluster.hour(messages)
        for path in set(sources.listed(cluster.raw)) - self.shipped:
            self.shipped.add(path)
            data = (cluster.raw / path).read_bytes()
            if name == BUCKETED:
                bucket_segments.ship(Place(f"s3://{BUCKET}/raw"), path, data, print)
            elif name == PULLED:
                self.member.segments[path] = data


@pytest.fixture
def world(tmp_path: Path, object_server: ObjectServer) -> Iterator[World]:
    clusters = {name: Cluster(name, tmp_path / name, name == PULLED) for name in BOOTS}
    member = Member()
    member.segments.clear()
    with futures.ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        telemetry_pb2_grpc.add_TelemetryServicer_to_server(member, server)  # type: ignore[no-untyped-call]
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        file = tmp_path / "fleet.yaml"
        file.write_text(
            f"""sources:
- cluster: {DIRECTORY}
  raw: {DIRECTORY}
- cluster: {BUCKETED}
  raw: s3://{BUCKET}/raw
- cluster: {PULLED}
  pull: ["127.0.0.1:{port}"]
- cluster: eu/gone
  pull: ["127.0.0.1:1"]
"""
        )
        yield World(clusters, member, object_server, file)
        server.stop(None).wait()


def run(world: World, out: Path, *more: str) -> str:
    """Run over the fleet, with tables in the bucket."""
    where = ["--fleet", str(world.file), "--out", str(out), "--store", f"s3://{BUCKET}/tables"]
    return run_command("run", *where, *more)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_fleet_in_one_run_and_on_after_its_disk_is_lost(world: World, tmp_path: Path) -> None:
    """12: tables by cluster, a page that leads to each, members get their own; one goes on."""
    for number, name in enumerate(world.clusters, 1):
        world.tell(name, 10 * number)
    world.storage.asked.clear()
    said = run(world, tmp_path / "first")
    assert "eu/gone: none of the members could be asked" in said
    views_of_the_disk(tmp_path / "first")
    enqueued = "SELECT cluster, sum(enq)::INT FROM queue_1h GROUP BY 1"
    assert query(tmp_path / "first", enqueued) == [(PULLED, 30), (DIRECTORY, 10), (BUCKETED, 20)]
    one_listing_per_prefix(world.storage)
    files_are_of_one_cluster(tmp_path / "first")
    pages_are_there_and_apart(tmp_path / "first" / "publish", world.member)

    # The disk is gone, one cluster goes on: only its tables change, and the rest is not fetched.
    before = Ledger(tmp_path / "first").load()
    world.tell(BUCKETED, 5)
    world.storage.asked.clear()
    run(world, tmp_path / "second")
    after = Ledger(tmp_path / "second").load()
    for name in (DIRECTORY, PULLED):
        assert after.paths("queue_1h", None, [name]) == before.paths("queue_1h", None, [name])
    one_listing_per_prefix(world.storage)
    fetched = [path for method, path, _ in world.storage.asked if method == "GET"]
    last = [path for path in fetched if "/queue_last_1h/" in path]
    assert [path.split("/")[5] for path in last] == ["cluster_of=us~shop"]
    assert not [path for path in fetched if "/silver/" in path]
    oracle = Oracle(world.clusters[BUCKETED].directory, BUCKETED)
    hours = oracle.queue_hours()
    assert [row[2] for row in hours] == [20, 5]
    fetch_all(after, tmp_path / "second")
    columns = "epoch_us(window_start), queue, enq, dlv, ack, rejected, over_limit, dl_out, "
    columns += "dl_confirmed, ready_last, ready_max"
    mine = f"SELECT {columns} FROM queue_1h WHERE cluster = '{BUCKETED}'"
    views_of_the_disk(tmp_path / "second")
    assert query(tmp_path / "second", mine) == hours

    # Nothing new, the disk is gone again: the store knows what was published, and what was not.
    assert "had published" not in run(world, tmp_path / "third")
    assert not (tmp_path / "third" / "publish").exists()
    Store(Place(f"s3://{BUCKET}/tables"), tmp_path, print).note_published("the run before")
    assert "had published" in run(world, tmp_path / "third")
    assert (tmp_path / "third" / "publish" / "report.html").exists()
    assert "had published" not in run(world, tmp_path / "third")

    # Logs of Delta Lake for what is there already, in the bucket and for all clusters.
    tables = Place(f"s3://{BUCKET}/tables")
    run(world, tmp_path / "fourth", "--delta")
    log = DeltaTable(f"{tables.url}/gold/queue_1h", storage_options=tables.storage_options())
    rows = log.to_pyarrow_table(columns=["cluster_of", "enq"]).group_by("cluster_of")
    sums = rows.aggregate([("enq", "sum")]).sort_by("cluster_of").to_pylist()
    assert sums == [
        {"cluster_of": name, "enq_sum": count}
        for name, count in ((PULLED, 30), (DIRECTORY, 10), (BUCKETED, 25))
    ]
    reported = tables.get("publish/trino.sql")
    assert reported is not None
    assert f"'{tables.url}/gold/queue_1h'".encode() in reported[0]


def one_listing_per_prefix(storage: ObjectServer) -> None:
    """No prefix is listed twice in a run, and nothing is looked at one by one."""
    prefixes = [query["prefix"][0] for query in storage.listings()]
    assert len(prefixes) == len(set(prefixes)) <= 3
    assert not [asked for asked in storage.asked if asked[0] == "HEAD"]


def files_are_of_one_cluster(out: Path) -> None:
    manifest = Ledger(out).load()
    for table in manifest.tables:
        for item in (item for items in manifest.tables[table].values() for item in items):
            with pyarrow.parquet.ParquetFile(out / item["path"]) as file:
                found = set(file.read(["cluster"]).column(0).to_pylist())
            assert found == {item["cluster"]}, item["path"]


def pages_are_there_and_apart(publish: Path, member: Member) -> None:
    """The fleet's page leads to each cluster's; a member gets its own cluster's and no other."""
    page = (publish / "report.html").read_text()
    links = re.findall(r'href="(clusters/[^"]+)"', page)
    assert links == [f"{fleet_report.folder_of(name)}/report.html"
                     for name in (PULLED, DIRECTORY, BUCKETED)]  # fmt: skip
    assert all((publish / link).exists() for link in links)
    assert "3 clusters" in page
    assert "1 of 3 clusters needs a look" in page
    assert "eu/gone could not be asked" in page
    for outside in ("http://", "https://", "<script", "<link", "<img", "@import", "url("):
        assert outside not in page
    own = member.results["report.html"].decode()
    assert "<h1>eu/billing</h1>" in own
    assert "us/shop" not in own
    reported = json.loads(member.results["findings.json"])["findings"]
    assert {item["cluster"] for item in reported} == {PULLED}
    assert "DL-LOST" in {item["rule"] for item in reported}


def fetch_all(manifest: Manifest, out: Path) -> None:
    place = Place(f"s3://{BUCKET}/tables")
    for path in manifest.paths("queue_1h"):
        found = place.get(path)
        assert found is not None
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_bytes(found[0])


def views_of_the_disk(out: Path) -> None:
    """Those of the store name the bucket, which DuckDB needs an extension for."""
    views = out / "publish" / "views.sql"
    base = f"s3://{BUCKET}/tables"
    text = views.read_text()
    assert f"'{base}/gold/queue_1h/" in text
    lines = [line for line in text.splitlines() if " queue_1h " in line]
    views.write_text("\n".join(lines).replace(base, str(out)))


def test_segments_are_shipped_once_and_leave_the_member_unless_they_are_to_stay(
    world: World,
) -> None:
    """A shipment that was cut off before the release is repeated, and does no harm."""
    world.tell(PULLED, 5)
    segments = dict(world.member.segments)
    address = of_a_fleet.read(world.file)[2].access
    assert address is not None
    arguments = ["ship", "--pull", *address.addresses, "--to", f"s3://{BUCKET}/raw"]

    def ship(*more: str) -> str:
        done = CliRunner().invoke(telemetry, [*arguments, *more])
        assert done.exit_code == 0, done.output
        return done.output

    assert "2 segments shipped" in ship("--keep")
    assert world.member.segments == segments
    assert ship().count("was there already") == 2
    assert world.member.segments == {}
    place = Place(f"s3://{BUCKET}/raw")
    for path, data in segments.items():
        assert (place.get(f"raw/v1/{path}") or (b"",))[0] == data
    # It lists nothing.
    assert world.storage.listings() == []


SOUND = {"cluster": "a/b", "pull": ["h:1"]}


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ("[", "cannot be read"),
        ("- a", "must have a list `sources`"),
        ("sources: []", "must have a list `sources`"),
        (json.dumps({"sources": [SOUND], "source": []}), "and nothing else"),
        (json.dumps({"sources": [SOUND, SOUND]}), "has the cluster 'a/b' twice"),
        (json.dumps({"sources": [SOUND, "x"]}), "source 2: it must have `cluster`"),
        (json.dumps({"sources": [{**SOUND, "pul": 1}]}), "there is no `pul`; known are caFile"),
        (json.dumps({"sources": [{**SOUND, "cluster": "b"}]}), "must be namespace/name"),
        (json.dumps({"sources": [{"cluster": "a/b"}]}), "give either `pull` or `raw`"),
        (json.dumps({"sources": [{**SOUND, "raw": "x"}]}), "give either `pull` or `raw`"),
        (json.dumps({"sources": [{**SOUND, "pull": "h:1"}]}), "a list of host:port"),
        (json.dumps({"sources": [{**SOUND, "passwordFile": "none"}]}), "No such file"),
        (json.dumps({"sources": [{**SOUND, "passwordFile": "/dev/zero"}]}), "more than 4096 bytes"),
        (json.dumps({"sources": [{**SOUND, "userFile": "/dev/zero"}]}), "more than 4096 bytes"),
        (json.dumps({"sources": [{"cluster": "a/b", "raw": "s3://"}]}), "s3://BUCKET/PREFIX"),
    ],
)
def test_a_list_that_is_wrong_says_where_and_what(tmp_path: Path, document: str, text: str) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(document)
    with pytest.raises(SourceError, match=text):
        of_a_fleet.read(file)


def test_a_list_has_a_bound() -> None:
    with pytest.raises(SourceError, match="/dev/zero has more than 16,777,216 bytes"):
        of_a_fleet.read(Path("/dev/zero"))


def test_a_list_names_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "name").write_text("u\n")
    (tmp_path / "word").write_text("hunter2\n")
    entries: list[dict[str, Any]] = [
        {**SOUND, "userFile": "name", "passwordFile": "word", "caFile": "ca.crt"},
        {"cluster": "a/c", "raw": "segments"},
    ]
    (tmp_path / "fleet.yaml").write_text(json.dumps({"sources": entries}))
    first, second = of_a_fleet.read(tmp_path / "fleet.yaml")
    assert first.access is not None
    assert (first.access.user, first.access.password) == ("u", "hunter2")
    assert first.access.ca_file == tmp_path / "ca.crt"
    assert second.directory == tmp_path / "segments"


def line(cluster: str, **figures: Any) -> fleet_report.Line:
    known: dict[str, Any] = {
        "critical": 0, "warnings": 0, "fates": report_head.Fates(5, 5, 0, 0, 0), "judged": 3,
        "unbalanced": 0, "completeness": 1.0, "as_of_us": fleet.BEGIN_US, "hourly": (1, 4),
    }  # fmt: skip
    return fleet_report.Line(cluster, **{**known, **figures})


def test_the_worst_cluster_comes_first_and_silence_is_told() -> None:
    lines = [
        line("a/well"),
        line("a/warned", warnings=2),
        line("a/books", unbalanced=1),
        line("a/<silent>", as_of_us=fleet.BEGIN_US - 3 * fleet.HOUR_US),
        line("a/letters", critical=1, fates=report_head.Fates(5, 4, 0, 1, 0)),
    ]
    page = fleet_report.render(lines, [], {}, "r").decode()
    assert re.findall(r'report\.html">([^<]+)</a>', page) == [
        "a/books", "a/letters", "a/warned", "a/&lt;silent&gt;", "a/well",
    ]  # fmt: skip
    assert "3 of 5 clusters need a look" in page
    assert page.count(">silent</span>") == 1
    assert "Clients published 25 messages, 24 were delivered, 1 were lost." in page


@pytest.mark.parametrize("name", ["a/b", "a~b/c%2Fd", "plain", "%7E/~%25", "ü/ö +&?*"])
def test_a_cluster_is_read_back_from_its_directory(name: str) -> None:
    component = sinks.encoded(name)
    assert "/" not in component
    assert sinks.cluster_of(component) == name


def known(**hours: list[int]) -> Manifest:
    """Tables of clusters by the hours that they told of."""
    silver: dict[str, list[dict[str, Any]]] = {}
    for cluster, numbers in hours.items():
        for number in numbers:
            item = {"path": f"{cluster}-{number}", "rows": 1, "bytes": 1, "cluster": cluster}
            silver.setdefault(f"2026-11-20T{number:02}", []).append(item)
    return Manifest(tables={"silver": silver})


def test_a_cluster_that_tells_of_yesterday_touches_its_own_hours_only() -> None:
    """Those of the same first hour are made in one pass."""
    live = sinks.Live(Path(), known(a=[1, 2, 3], b=[3, 4], c=[2, 3]))
    first, third = "2026-11-20T02", "2026-11-20T03"
    groups = recompute.touched(live, {"a": third, "b": third, "c": first})
    assert groups == [
        (["c"], [first, third]),
        (["a", "b"], [third, "2026-11-20T04"]),
    ]


def test_what_is_late_is_decided_by_the_clusters_own_hours() -> None:
    """One that was away for a week is not late because others went on."""
    manifest = known(a=[4], b=[23])
    assert collect.late_from(manifest, "a") == "2026-11-17T04"
    assert collect.late_from(manifest, "b") == "2026-11-17T23"
    assert collect.late_from(manifest, "never") is None


def test_files_that_arrived_are_of_the_source_whose_folder_they_lie_in(tmp_path: Path) -> None:
    """A stream over several directories has one list; one that is gone again is left out."""
    found = {}
    for name in ("a", "b"):
        path = tmp_path / name / "raw/v1" / f"cluster=x+{name}" / "n" / "s.jsonl.gz"
        path.parent.mkdir(parents=True)
        path.touch()
        found[name] = path
    arrived = (*found.values(), found["a"].with_name("gone.jsonl.gz"))
    own = tmp_path / "own"
    for name, other in (("a", "b"), ("b", "a")):
        there = sources.Source(f"x/{name}", directory=tmp_path / name)
        raw_dir = tmp_path / name / "raw/v1"
        assert collect.of(there, own, arrived) == collect.Found(
            raw_dir, [f"cluster=x+{name}/n/s.jsonl.gz"]
        )
        wrong = sources.Source(f"x/{other}", directory=tmp_path / name)
        assert collect.of(wrong, own, arrived).paths == []
