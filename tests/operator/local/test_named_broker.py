"""Which broker `plan`, `export`, `up` and `telemetry` mean, and what `export` leaves out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from brokerd.ctl import main

QUEUE = """\
apiVersion: brokerd.io/v1alpha1
kind: Queue
metadata: {name: q}
spec: {brokerRef: {name: orders}, type: quorum}
"""
CLUSTER = """\
apiVersion: brokerd.io/v1alpha1
kind: BrokerCluster
metadata: {name: orders}
spec: {replicas: 1}
"""
NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize(
    "words",
    [
        ["-n", NOWHERE, "export"],
        ["export", "-n", NOWHERE],
        ["export", "--broker", NOWHERE],
        ["-n", NOWHERE, "plan", "-f", "."],
        ["plan", "-n", NOWHERE, "-f", "."],
    ],
)
def test_the_node_is_asked_that_was_named(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "queue.yaml").write_text(QUEUE)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main.run(words)
    assert f"{NOWHERE}: cannot be reached" in capsys.readouterr().err


def test_the_variable_names_it_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BROKERD_ADDRESS", NOWHERE)
    with pytest.raises(SystemExit):
        main.run(["export"])
    assert f"{NOWHERE}: cannot be reached" in capsys.readouterr().err


def test_up_refuses_a_node(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["-n", NOWHERE, "up", "-f", "."]) == 64
    assert "`up` runs clusters of its own" in capsys.readouterr().err


def _plan(directory: Path, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        main.run(["plan", "-f", str(directory), "--data-dir", str(directory / "none")])
    return capsys.readouterr().out


def test_a_misspelt_broker_is_wrong_with_the_one_that_was_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "queue.yaml").write_text(QUEUE.replace("name: orders", "name: ordres"))
    told = _plan(tmp_path, capsys)
    place = f"wrong: {tmp_path}/queue.yaml:4: Queue q: BrokerNotFound: "
    assert f"{place}brokerRef: no file has the cluster" in told
    assert "did you mean default/orders?" in told
    assert "+ queue" not in told


def test_a_cluster_that_does_not_run_has_the_first_vhost_and_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "queue.yaml").write_text(QUEUE)
    told = _plan(tmp_path, capsys)
    assert "+ queue q in / on default/orders (Queue q)" in told
    assert "waits" not in told
    (tmp_path / "queue.yaml").write_text(QUEUE.replace("type: quorum", "type: quorum, vhost: v"))
    assert "waits: vhost v does not exist" in _plan(tmp_path, capsys)


def test_a_wrong_file_makes_nothing_seem_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "queue.yaml").write_text(QUEUE)
    (tmp_path / "wrong.yaml").write_text(": [")
    told = _plan(tmp_path, capsys)
    assert "what would be deleted is not known before all files are right" in told


def test_what_brokerd_lacks_is_left_out_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = {"vhost": "/", "durable": True, "auto_delete": False}
    stream = {"name": "s", "arguments": {"x-queue-type": "stream"}, **common}
    delayed = {"name": "d", "type": "x-recent-history", "arguments": {}, **common}
    ends = {"source": "d", "destination": "s", "destination_type": "queue"}
    binding = {**ends, "vhost": "/", "routing_key": "", "arguments": {}}
    file = tmp_path / "definitions.json"
    content = {"queues": [stream], "exchanges": [delayed], "bindings": [binding]}
    file.write_text(json.dumps(content))
    with pytest.raises(SystemExit):
        main.run(["export", "--definitions", str(file)])
    told = capsys.readouterr()
    assert told.out == ""
    assert (
        "queue s is left out, with its bindings: brokerd has no queues of the type st" in told.err
    )
    assert "exchange d is left out" in told.err
