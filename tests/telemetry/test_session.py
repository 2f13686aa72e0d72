"""How Spark is started: settings of pods and local runs, the JVM profile, Java."""

from __future__ import annotations

from pathlib import Path

import pytest
from brokerd_telemetry import job, session, sources
from brokerd_telemetry.session import SparkSettings, SparkUnavailable


def test_executors_as_pods_need_an_image_and_an_address() -> None:
    settings = SparkSettings("k8s://https://k:443", 3, "image:1")
    with pytest.raises(SparkUnavailable, match="POD_IP"):
        session.configuration(settings, {})
    with pytest.raises(SparkUnavailable, match="--image"):
        session.configuration(SparkSettings("k8s://x"), {"POD_IP": "10.0.0.1"})
    values = session.configuration(
        settings, {"POD_IP": "10.0.0.1", "POD_NAME": "job-1", "NAMESPACE": "mq"}
    )
    assert values["spark.driver.host"] == "10.0.0.1"
    assert values["spark.kubernetes.driver.pod.name"] == "job-1"
    assert values["spark.kubernetes.namespace"] == "mq"
    assert values["spark.executor.instances"] == "3"


def test_local_runs_bind_nothing_but_loopback() -> None:
    values = session.configuration(SparkSettings(), {})
    assert values["spark.driver.bindAddress"] == "127.0.0.1"
    assert values["spark.ui.enabled"] == "false"


def test_many_rows_get_the_full_compiler() -> None:
    few = session.configuration(SparkSettings(rows=1000), {})
    many = session.configuration(SparkSettings(rows=10_000_001), {})
    assert "TieredStopAtLevel" in few["spark.driver.extraJavaOptions"]
    assert "TieredStopAtLevel" not in many["spark.driver.extraJavaOptions"]


def test_a_machine_without_java_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkUnavailable, match="apt-get install openjdk-17-jre-headless"):
        session.find_java()


def test_a_java_that_is_too_old_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkUnavailable, match="11"):
        session.find_java()


def test_a_java_that_does_not_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with an option in JDK_JAVA_OPTIONS that it does not know."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(
        "#!/bin/sh\necho 'NOTE: an option' >&2; echo 'Unrecognized -XX:No' >&2; exit 1\n"
    )
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkUnavailable, match="Unrecognized -XX:No"):
        session.find_java()


def test_missing_java_is_noticed_before_anything_is_pulled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))

    def pull(*_: object) -> None:
        raise AssertionError("it pulled")

    monkeypatch.setattr(sources, "pull", pull)
    access = sources.Access(("127.0.0.1:1",), "guest", "guest")
    options = job.Options((sources.Source(access=access),), tmp_path / "out", SparkSettings())
    with pytest.raises(SparkUnavailable, match="there is none"):
        job.run(options, print)
    assert not (tmp_path / "out").exists()


def test_a_session_that_serves_cleans_up_and_compiles() -> None:
    """What a run leaves behind must go, and the JVM may take its time to become fast."""
    once = session.configuration(SparkSettings(), {})
    warm = session.configuration(SparkSettings(is_warm=True), {})
    assert once["spark.cleaner.referenceTracking"] == "false"
    assert "spark.cleaner.referenceTracking" not in warm
    assert "TieredStopAtLevel" not in warm["spark.driver.extraJavaOptions"]


@pytest.mark.parametrize("rows", [20_000, 5_000_000, 50_000_000])
def test_tables_are_interpreted_whatever_the_rows(rows: int) -> None:
    """What Spark is given are sums already: a plan's compiling takes longer than its rows."""
    values = session.configuration(SparkSettings(rows=rows), {})
    assert values["spark.sql.codegen.factoryMode"] == "NO_CODEGEN"
    assert values["spark.sql.codegen.wholeStage"] == "false"


def test_more_rows_are_more_parts_within_bounds() -> None:
    parts = "spark.sql.shuffle.partitions"
    for rows, count in ((600_000, 2), (5_000_000, 5), (50_000_000, 8)):
        assert session.configuration(SparkSettings(rows=rows), {})[parts] == str(count)
