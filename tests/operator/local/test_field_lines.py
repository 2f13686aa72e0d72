"""What is wrong with a resource of a file is told with the line of its field."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from brokerd_operator.local import directory

from brokerd.ctl import main

QUEUE = """\
apiVersion: brokerd.io/v1alpha1
kind: Queue
metadata:
  name: orders
spec:
  brokerRef: {name: orders}
"""
#: The same, as kubectl's -o json and templates write it.
ITEM = {
    "apiVersion": "brokerd.io/v1alpha1",
    "kind": "Queue",
    "metadata": {"name": "orders"},
    "spec": {"brokerRef": {"name": "orders"}},
}


def problems(folder: Path, text: str) -> list[tuple[int, str]]:
    """Return the line and the message of each thing that is wrong with a file."""
    files = folder / "files"
    files.mkdir()
    file = files / "a.yaml"
    file.write_text(text)
    store = directory.Directory(folder, lambda sentence: None)
    found = store.load_files(files)
    assert all(problem.place.startswith(f"{file}:") for problem in found)
    return [(int(problem.place.rpartition(":")[2]), problem.message) for problem in found]


def test_each_wrong_field_has_its_own_line(tmp_path: Path) -> None:
    text = QUEUE + "  # as before\n  maxLenght: 5\n  deliveryLimit: many\n"
    assert problems(tmp_path, text) == [
        (8, "Queue orders: spec.maxLenght: unknown field"),
        (9, "Queue orders: spec.deliveryLimit: must be of type integer, is string"),
    ]


def test_what_is_missing_is_told_at_what_should_hold_it(tmp_path: Path) -> None:
    ((line, message),) = problems(tmp_path, QUEUE.replace("{name: orders}", "{}"))
    assert (line, message) == (6, "Queue orders: spec.brokerRef.name: required value")


def test_documents_after_the_first_count_from_the_top_of_the_file(tmp_path: Path) -> None:
    second = QUEUE.replace("orders", "other") + "  typ: quorum\n"
    found = problems(tmp_path, f"# our queues\n---\n{QUEUE}\n---\n\n{second}...\n")
    assert found == [(18, "Queue other: spec.typ: unknown field")]


def test_items_of_lists_and_names_with_dots_are_found(tmp_path: Path) -> None:
    text = QUEUE.replace(
        "  name: orders\n",
        "  name: orders\n  annotations:\n    a: x\n    a.b/c: 1\n    a.b: x\n",
    )
    text += "  bindings:\n  - source: a\n  - source: b\n    routingKey:\n    - x\n"
    assert [line for line, _ in problems(tmp_path, text)] == [7, 14]


def test_an_anchor_is_no_obstacle(tmp_path: Path) -> None:
    text = "--- &whole\n" + QUEUE.replace("spec:", "spec: &spec") + "  typ: &typ quorum\n"
    assert problems(tmp_path, text) == [(8, "Queue orders: spec.typ: unknown field")]


@pytest.mark.parametrize("indent", [None, 2])
def test_json_has_lines_too(tmp_path: Path, indent: int | None) -> None:
    wrong = {**ITEM, "spec": {**ITEM["spec"], "typ": "quorum"}}  # type: ignore[dict-item]
    right = {**ITEM, "metadata": {"name": "right"}}
    text = json.dumps({"kind": "List", "items": [right, wrong]}, indent=indent)
    line = next(number for number, part in enumerate(text.splitlines(), 1) if '"typ"' in part)
    assert problems(tmp_path, text) == [(line, "Queue orders: spec.typ: unknown field")]


@pytest.mark.parametrize("kind", ["List", "QueueList"])
def test_items_of_a_list_of_resources_are_resources(tmp_path: Path, kind: str) -> None:
    """As `kubectl get -o yaml` and templates write it, indented or not."""
    head = f"apiVersion: v1\nkind: {kind}\nmetadata: {{}}\nitems:\n"
    wrong = QUEUE.replace("orders", "other") + "  typ: quorum\n"
    items = [
        "".join(f"{'- ' if not number else '  '}{line}\n" for number, line in enumerate(lines))
        for lines in (QUEUE.splitlines(), wrong.splitlines())
    ]
    assert problems(tmp_path, head + "".join(items)) == [
        (17, "Queue other: spec.typ: unknown field")
    ]


def test_a_document_that_needs_a_directive_is_told_with_its_own_line(tmp_path: Path) -> None:
    text = f"%TAG !y! tag:yaml.org,2002:\n---\n{QUEUE}  typ: !y!str quorum\n"
    assert problems(tmp_path, text) == [(3, "Queue orders: spec.typ: unknown field")]


def test_plan_names_the_line_of_what_only_the_planner_finds_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = QUEUE.replace("Queue", "Policy") + "  pattern: '('\n  definition: {maxLength: 1}\n"
    (tmp_path / "a.yaml").write_text(policy)
    with pytest.raises(SystemExit):
        main.run(["plan", "-f", str(tmp_path), "--data-dir", str(tmp_path / "none")])
    told = capsys.readouterr().out
    assert f"wrong: {tmp_path}/a.yaml:7: Policy orders: InvalidPattern: pattern is not a" in told
