"""Limits of control groups: where they are, and when they are hidden."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from brokerd.server.memory import monitor
from brokerd.server.memory.cgroups import Cgroups, Found
from brokerd.server.memory.monitor import MemoryMonitor, MemorySample

V1 = "35 31 0:32 / {} rw,relatime - cgroup cgroup rw,memory\n"
V2 = "36 31 0:33 / {} rw,relatime - cgroup2 cgroup2 rw\n"


def write(file: Path, text: str) -> None:
    """Make a file with its folders."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.parametrize(
    ("files", "proc", "expected"),
    [
        ({"a/b/memory.max": "500\n", "a/memory.max": "300\n"}, "0::/a/b\n", 300),
        ({"a/b/memory.max": "max\n"}, "0::/a/b\n", None),
        ({"memory.max": "700\n"}, "0::/of/the/host\n", 700),
        ({"memory/c/memory.limit_in_bytes": "900\n"}, "5:cpu:/c\n4:memory,x:/c\n", 900),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, "4:memory:/\n", None),
        ({"a/memory.max": "nonsense"}, "0::/a\nrubbish\n", None),
    ],
)
def test_the_smallest_limit_on_the_way_up_counts(
    tmp_path: Path, files: dict[str, str], proc: str, expected: int | None
) -> None:
    """R-MEM-2, cgroup v1 and v2, inside and outside of containers."""
    for name, text in files.items():
        write(tmp_path / "cgroup" / name, text)
    write(tmp_path / "proc" / "cgroup", proc)
    assert Cgroups(tmp_path / "proc", tmp_path / "cgroup").look().limit == expected


def test_without_cgroup_files_there_is_no_limit(tmp_path: Path) -> None:
    assert Cgroups(tmp_path / "none", tmp_path).look() == Found()


@pytest.mark.parametrize(
    ("mount", "proc", "file"),
    [
        (V1, "4:memory:/c\n0::/\n", "c/memory.limit_in_bytes"),
        (V2, "0::/c\n", "c/memory.max"),
        (V2, "0::/of/the/host\n", "memory.max"),
    ],
)
def test_a_mount_elsewhere_is_found(tmp_path: Path, mount: str, proc: str, file: str) -> None:
    """R-MEM-2: the kernel says where the files are."""
    base = tmp_path / "else where"
    write(tmp_path / "proc" / "mountinfo", mount.format(str(base).replace(" ", "\\040")))
    write(tmp_path / "proc" / "cgroup", proc)
    write(base / file, "12345\n")
    found = Cgroups(tmp_path / "proc", tmp_path / "none").look()
    assert (found.limit, found.file, found.hidden) == (12345, base / file, ())


@pytest.mark.parametrize(
    ("mountinfo", "proc", "hidden"),
    [
        # As `ip netns exec` has it: the groups are named, /sys is another one.
        ("48 45 0:39 / /sys rw - sysfs sys rw\n", "4:memory:/c\n0::/\n", ((1, "/c"),)),
        ("48 45 0:39 / /sys rw - sysfs sys rw\n", "0::/kubepods/x\n", ((2, "/kubepods/x"),)),
        # The root of a container's own namespace has a limit as well.
        ("short\n", "0::/\n", ((2, "/"),)),
        # A machine's root group has no file; nothing is hidden.
        (V2.format("/sys/fs/cgroup"), "0::/\n", ()),
        ("", "3:cpu:/x\nrubbish\n", ()),
    ],
)
def test_a_group_that_cannot_be_looked_at_is_told(
    tmp_path: Path, mountinfo: str, proc: str, hidden: tuple[tuple[int, str], ...]
) -> None:
    write(tmp_path / "proc" / "mountinfo", mountinfo)
    write(tmp_path / "proc" / "cgroup", proc)
    found = Cgroups(tmp_path / "proc", tmp_path / "cgroup").look()
    assert (found.limit, found.hidden) == (None, hidden)


def test_the_log_says_what_was_found_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    """R-MEM-2, R-MEM-10."""
    monitor = MemoryMonitor(True, None)
    file, base = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup")
    found = Found(1 << 29, file, ((2, "/pod"),), (), ((2, base),))
    monkeypatch.setattr(Cgroups, "look", lambda _: found)
    assert monitor.findings(MemorySample(1, 1 << 29, "cgroup")) == (
        f"Available memory: 512 MiB (536870912 bytes), limit of the cgroup in {file}",
        "",
    )
    found = Found(None, None, ((2, "/pod"),), ((2, "/pod"),), ((2, base),))
    line, warning = monitor.findings(MemorySample(1, 1 << 30, "host"))
    assert line == (
        "Available memory: 1024 MiB (1073741824 bytes), of the machine; "
        "no limit below it in cgroup v2 /pod below /sys/fs/cgroup"
    )
    assert warning.startswith("A memory limit may be hidden from this process: it is in cgroup v2")
    found = Found()
    assert monitor.findings(MemorySample(1, None, "unknown")) == (
        "Available memory: unknown, of the machine; "
        "no limit below it in /proc/self/cgroup, which names no cgroup",
        "",
    )
    line, warning = MemoryMonitor(False, None).findings(MemorySample(1, 1 << 30, "host"))
    assert "limits of cgroups are not looked at" in line
    assert warning == ""


def test_under_ip_netns_exec_the_hidden_limit_is_told() -> None:
    """The real thing: a network namespace's /sys shows no cgroups."""
    program = (
        "from brokerd.server.memory.monitor import MemoryMonitor\n"
        "monitor = MemoryMonitor(True, None)\n"
        "print(*monitor.findings(monitor.sample()), sep='\\n')"
    )
    name = f"brokerd-{os.getpid()}"
    ip = shutil.which("ip")
    if ip is None or subprocess.run([ip, "netns", "add", name], capture_output=True).returncode:
        pytest.skip("no right to make network namespaces")
    try:
        said = subprocess.run(
            [ip, "netns", "exec", name, sys.executable, "-c", program],
            capture_output=True,
            text=True,
            cwd=Path(monitor.__file__).parents[2],
            timeout=120,
            check=True,
        ).stdout.splitlines()
    finally:
        subprocess.run([ip, "netns", "delete", name], check=True)
    assert re.match(r"Available memory: \d+ MiB \(\d+ bytes\), of the machine", said[0])
    if not re.search(r"cgroup v\d", said[0]):
        pytest.skip("this kernel has no cgroups")
    assert "A memory limit may be hidden from this process" in said[1]
