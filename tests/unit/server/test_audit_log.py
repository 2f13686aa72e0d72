"""The audit log: what a record says, what it never says, and files that have a bound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from brokerd.config import AuditConfig
from brokerd.core.catalog import catalog_commands
from brokerd.core.catalog.catalog_commands import put
from brokerd.server import audit_log
from brokerd.server.audit_log import AuditFile, AuditLog
from brokerd.server.catalog import audit
from brokerd.server.catalog.audit import Author
from tests.unit.core.catalog_driver import CatalogDriver

TILL = Author("till", "amqp", "127.0.0.1:5000")
NOON_MS = 1_800_000_000_000


def done(driver: CatalogDriver, operation: dict[str, Any]) -> list[dict[str, Any]]:
    """Do an operation; return its records."""
    there = audit.before(operation, driver.view)
    return list(audit.records(operation, driver.do(operation), there))


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def sizes_in(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def made(folder: Path, **settings: Any) -> AuditLog:
    return AuditLog(AuditConfig(**settings), folder, lambda: NOON_MS)


def test_a_change_is_noted_with_what_was_and_what_is() -> None:
    driver = CatalogDriver()
    exchange = {"type": "topic", "durable": True}
    operation = put("exchange", "/", "e", exchange, cause="amqp:till", declare=True)
    assert done(driver, operation) == [
        {
            "action": "put",
            "kind": "exchange",
            "vhost": "/",
            "name": "e",
            "outcome": "ok",
            "after": exchange,
        }
    ]
    # Nothing has changed, or nothing should.
    assert done(driver, operation) == []
    assert done(driver, put("exchange", "/", "x", exchange, cause="admin", dry_run=True)) == []
    (record,) = done(driver, catalog_commands.delete("exchange", "/", "e", cause="admin"))
    assert (record["action"], record["outcome"]) == ("delete", "ok")
    assert record["before"]["type"] == "topic"


def test_a_refusal_is_noted_with_its_reason_and_an_unknown_outcome_as_such() -> None:
    driver = CatalogDriver()
    operation = catalog_commands.delete("queue", "/", "none", cause="admin")
    (record,) = done(driver, operation)
    assert record["outcome"] == "not_found"
    assert "none" in record["text"]
    (record,) = audit.records(operation, None, audit.before(operation, driver.view))
    assert record["outcome"] == "unavailable"


def test_each_operation_of_a_batch_has_its_record() -> None:
    driver = CatalogDriver()
    operations = [put("vhost", "", name, {}, cause="admin") for name in ("a", "b", "/")]
    found = done(driver, catalog_commands.batch(operations))
    assert [(record["name"], record["outcome"]) for record in found] == [("a", "ok"), ("b", "ok")]


def test_secrets_are_never_noted() -> None:
    """SEC-20: neither passwords nor their hashes, nor what parameters may hold."""
    driver = CatalogDriver()
    secret = "hush-7f3a"

    def user(password_hash: str) -> dict[str, Any]:
        spec = {"password_hash": password_hash, "tags": ["monitoring"]}
        return put("user", "", "u", spec, cause="admin")

    records = done(driver, user(f"scrypt${secret}"))
    assert records[0]["after"] == {"tags": ["monitoring"]}
    records += (changed := done(driver, user(f"scrypt$2{secret}")))
    assert changed[0]["password"] == "changed"
    value = {"uri": f"amqp://u:{secret}@h", "ack-mode": "on-confirm", "more": [{"token": secret}]}
    for name in ("federation-upstream/up", "other/up"):
        records += done(driver, put("parameter", "/", name, {"value": value}, cause="admin"))
    assert len(records) == 4
    assert records[-1]["after"]["value"] == {"ack-mode": "on-confirm", "more": [{}]}
    assert secret not in json.dumps(records)


def test_a_long_or_deep_spec_stands_there_by_its_size() -> None:
    assert audit.shown("policy", "p", {"definition": {"x": "y" * 5000}})["bytes"] > 5000
    deep: Any = {}
    for _ in range(500):
        deep = {"a": deep}
    assert len(json.dumps(audit.shown("parameter", "c/n", deep))) < 500


async def test_lines_are_in_the_file_and_no_name_breaks_one(tmp_path: Path) -> None:
    log = made(tmp_path)
    log.write(TILL, {"action": "put", "name": "a\nb\u2028\x1b[31m\udcff"})
    log.write(TILL, {"action": "delete"})
    await log.close()
    path = tmp_path / "audit.log"
    assert path.stat().st_mode & 0o777 == 0o600
    assert read(path)[0] == {
        "time": "2027-01-15T08:00:00.000Z",
        "user": "till",
        "door": "amqp",
        "address": "127.0.0.1:5000",
        "action": "put",
        "name": "a\nb\u2028\x1b[31m\udcff",
    }
    assert len(path.read_bytes().splitlines()) == 2
    assert path.read_bytes().isascii()


async def test_files_are_renamed_and_the_oldest_go(tmp_path: Path) -> None:
    log = made(tmp_path, file_bytes=64 * 1024, files=3)
    for number in range(40):
        log.write(TILL, {"number": number, "text": "x" * 8000})
        if number % 4 == 3:
            await log.close()
    sizes = sizes_in(tmp_path)
    assert sorted(sizes) == ["audit.log", "audit.log.1", "audit.log.2"]
    assert max(sizes.values()) <= 64 * 1024
    numbers = [
        record["number"]
        for name in ("audit.log.2", "audit.log.1", "audit.log")
        for record in read(tmp_path / name)
    ]
    assert numbers == list(range(numbers[0], 40))
    alone = AuditFile(tmp_path / "one", 10, 1)
    alone.append([b"12345678\n"])
    alone.append([b"87654321\n"])
    assert (tmp_path / "one").read_bytes() == b"87654321\n"


async def test_a_file_that_cannot_be_written_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    missing = tmp_path / "not" / "there"
    log = made(tmp_path, path=str(missing / "audit.log"))
    log.write(TILL, {"action": "put"})
    await log.close()
    assert (log.records_total, log.lost_total) == (1, 1)
    assert "1 audit records are lost" in caplog.text
    missing.mkdir(parents=True)
    log.write(TILL, {"action": "put"})
    await log.close()
    assert log.lost_total == 1
    assert len(read(missing / "audit.log")) == 1


async def test_a_full_disk_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    log = made(Path("/nowhere"), path="/dev/full")
    log.write(TILL, {"action": "put"})
    await log.close()
    assert log.lost_total == 1
    assert "No space left on device" in caplog.text


async def test_what_waits_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "BUFFER_BYTES_MAX", 1000)
    log = made(tmp_path)
    for _ in range(100):
        log.write(TILL, {"action": "put"})
    await log.close()
    assert log.lost_total == 100 - len(read(tmp_path / "audit.log"))
    assert 0 < log.lost_total < 100


async def test_records_can_stand_in_the_ordinary_log_or_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    made(tmp_path, destination="log").write(TILL, {"action": "put"})
    made(tmp_path, destination="none").write(TILL, {"action": "delete"})
    (line,) = [record for record in caplog.records if record.name == "brokerd.audit"]
    assert json.loads(line.getMessage())["action"] == "put"
    assert sizes_in(tmp_path) == {}
