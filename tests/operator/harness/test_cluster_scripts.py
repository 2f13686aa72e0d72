"""What tools/cluster does to the machine it runs on: packages, services, compilers.

With programs of the same names in front of the real ones, so that nothing is installed or built.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cluster_fixtures import BIN, CLUSTER

#: The scripts take a second; a machine with two busy cores takes its time.
DEADLINE_S = 120
#: Knows no package, so that all are missing, and writes down what it is asked to install. Like the
#: packages it stands for, it starts units with the next boot.
APT_GET = """
echo "$*" >>"$CLUSTER_ROOT/asked"
case "$*" in
  *update*)
    if [ -e "$CLUSTER_ROOT/locked" ]; then
      rm "$CLUSTER_ROOT/locked"
      echo "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1 (apt)" >&2
      exit 100
    fi
    [ ! -e "$CLUSTER_ROOT/no-network" ] || { echo "E: no network" >&2; exit 100; } ;;
  *install*)
    cp "$CLUSTER_ROOT/usr/sbin/policy-rc.d" "$CLUSTER_ROOT/policy-seen"
    ln -s /lib/x "$CLUSTER_ROOT/etc/systemd/system/multi-user.target.wants/containerd.service"
    ln -s ../init.d/x "$CLUSTER_ROOT/etc/rc2.d/S01rabbitmq-server" ;;
esac
"""
DISABLE_UNIT = 'echo "$*" >>"$CLUSTER_ROOT/disabled"'
#: Compiles nothing: says what it was given, and ends a build when the test lets it.
GO = """
case "$*" in
  "list -m"*) echo v1.34.1 ;;
  "list -deps"*) printf 'one/a\\ntwo/b\\nthree/c\\n' ;;
  build*)
    echo "GOMAXPROCS=$GOMAXPROCS $*" >>"$CLUSTER_CACHE/builds"
    printf 'go: downloading one/module v1.2.3\\none/a\\n' >&2
    until [ -e "$CLUSTER_CACHE/go-on" ] || [ "$SECONDS" -gt 60 ]; do :; done
    [ ! -e "$CLUSTER_CACHE/broken" ] || { echo "two/b: syntax error" >&2; exit 1; } ;;
esac
"""


def programs(folder: Path, **scripts: str) -> str:
    """A PATH that finds these first."""
    folder.mkdir()
    for name, script in scripts.items():
        file = folder / name.replace("_", "-")
        file.write_text(f"#!/bin/bash\n{script}\n")
        file.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """The environment of setup.sh on a machine where Docker starts at boot and nothing else."""
    root = tmp_path / "root"
    for folder in ("etc/systemd/system/multi-user.target.wants", "etc/rc2.d", "usr/sbin"):
        (root / folder).mkdir(parents=True)
    wanted = root / "etc/systemd/system/multi-user.target.wants"
    (wanted / "docker.service").symlink_to("/lib/x")
    path = programs(
        tmp_path / "bin",
        id="echo 0",
        dpkg_query="exit 1",
        apt_get=APT_GET,
        update_rc_d=DISABLE_UNIT,
        sleep="",
        go="exit 1",
    )
    (tmp_path / "bin" / "update-rc-d").rename(tmp_path / "bin" / "update-rc.d")
    # What setup.sh does after the packages, which is to build, ends at once.
    cache = str(tmp_path / "cache")
    return {**os.environ, "PATH": path, "CLUSTER_ROOT": str(root), "CLUSTER_CACHE": cache}


def set_up(machine: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(CLUSTER / "setup.sh"), "api"],
        env=machine,
        text=True,
        capture_output=True,
        timeout=DEADLINE_S,
    )


def test_packages_start_nothing_with_the_next_boot(machine: dict[str, str]) -> None:
    root = Path(machine["CLUSTER_ROOT"])
    set_up(machine)
    wanted = root / "etc/systemd/system/multi-user.target.wants"
    assert [link.name for link in wanted.iterdir()] == ["docker.service"]
    assert (root / "disabled").read_text().splitlines() == ["rabbitmq-server disable"]
    assert "exit 101" in (root / "policy-seen").read_text(), "nothing is started now either"
    assert not (root / "usr/sbin/policy-rc.d").exists(), "and the policy goes again"


def test_a_policy_of_the_machines_own_stays(machine: dict[str, str]) -> None:
    policy = Path(machine["CLUSTER_ROOT"]) / "usr/sbin/policy-rc.d"
    policy.write_text("mine")
    set_up(machine)
    assert policy.read_text() == "mine"


def test_a_machine_without_services_is_set_up_too(machine: dict[str, str]) -> None:
    root = Path(machine["CLUSTER_ROOT"])
    shutil.rmtree(root / "etc")
    set_up(machine)
    assert "install" in (root / "asked").read_text()


def test_another_apt_is_waited_for(machine: dict[str, str]) -> None:
    root = Path(machine["CLUSTER_ROOT"])
    (root / "locked").touch()
    said = set_up(machine).stderr
    asked = (root / "asked").read_text().splitlines()
    assert "locked by another process; waiting" in said
    assert [line.split()[2] for line in asked] == ["update", "update", "install"]
    assert all(line.startswith("-o DPkg::Lock::Timeout=") for line in asked)


def test_an_apt_that_fails_is_not_tried_for_ever(machine: dict[str, str]) -> None:
    (Path(machine["CLUSTER_ROOT"]) / "no-network").touch()
    done = set_up(machine)
    assert done.returncode == 1
    assert "E: no network" in done.stderr


@pytest.fixture
def builder(tmp_path: Path) -> dict[str, str]:
    """The environment of build.sh on a machine of two cores, with a cache of its own."""
    cache = tmp_path / "cache"
    cache.mkdir()
    path = programs(tmp_path / "bin", go=GO, nproc="echo 2")
    return {**os.environ, "PATH": path, "CLUSTER_CACHE": str(cache), "CLUSTER_BEAT": "1"}


def test_a_build_says_how_far_it_is_and_takes_no_more_compilers_than_cores(
    builder: dict[str, str],
) -> None:
    cache = Path(builder["CLUSTER_CACHE"])
    said: list[str] = []
    with subprocess.Popen(
        [str(CLUSTER / "build.sh"), "api"], env=builder, text=True, stderr=subprocess.PIPE
    ) as script:
        assert script.stderr is not None
        for line in script.stderr:
            said.append(line)
            if "still building etcd" in line:
                (cache / "go-on").touch()
    assert script.returncode == 0, said
    heard = "".join(said)
    assert "building etcd (1 of 5" in heard
    assert "1 of at most 3 packages compiled" in heard
    # On two cores, before anything is compiled.
    assert heard.index("takes about 6 minutes, once") < heard.index("building etcd")
    assert re.search(r"built in [0-9]+ s \([0-9]+ s of processor time\): ", heard)
    builds = (cache / "builds").read_text().splitlines()
    assert len(builds) == 5
    for build in builds:
        jobs = build.split()[0].removeprefix("GOMAXPROCS=")
        assert jobs in ("1", "2")
        assert f" -p {jobs} " in build


def test_what_does_not_compile_is_told(builder: dict[str, str]) -> None:
    for name in ("go-on", "broken"):
        (Path(builder["CLUSTER_CACHE"]) / name).touch()
    command = [str(CLUSTER / "build.sh"), "api"]
    done = subprocess.run(command, env=builder, text=True, capture_output=True, timeout=DEADLINE_S)
    assert done.returncode == 1
    assert "two/b: syntax error" in done.stderr
    assert "etcd does not build" in done.stderr


def test_the_tools_are_put_on_the_path() -> None:
    lines = subprocess.run(
        [str(CLUSTER / "node.sh"), "env"], text=True, capture_output=True, check=True
    ).stdout
    found = subprocess.run(
        ["bash", "-c", f"{lines}\ncommand -v kubectl helm"],
        text=True,
        capture_output=True,
        check=True,
    ).stdout
    assert found.split() == [str(BIN / "kubectl"), str(BIN / "helm")]


#: A disk of so many free megabytes, and inodes.
DF = "printf 'Filesystem total used free\\n/dev/vda 9 9 %s 9 /\\n' {}"
#: Says of /proc/meminfo that 17 MB are left; of all else the truth.
AWK = 'case "$*" in *MemAvailable*) echo 17 ;; *) exec /usr/bin/awk "$@" ;; esac'


def check_machine(folder: Path, **fakes: str) -> subprocess.CompletedProcess[str]:
    """What node.sh asks of a machine before it starts anything."""
    script = ". tools/cluster/env.sh; . tools/cluster/preconditions.sh; check_machine"
    return subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PATH": programs(folder, **fakes)},
        cwd=CLUSTER.parents[1],
        text=True,
        capture_output=True,
        timeout=DEADLINE_S,
    )


def test_a_machine_without_room_for_nodes_is_told_all_that_it_lacks(tmp_path: Path) -> None:
    """Else pods never run, hours later, and nobody says why."""
    full = check_machine(
        tmp_path / "full", df=DF.format(1234), find="seq 100000", cat="echo 128", awk=AWK
    )
    assert full.returncode == 1
    for lack in (
        "1234 MB free on the disk",
        "1234 inodes free",
        "17 MB of memory available",
        "100000 inotify instances of root's in use of at most 128",
        "threads of at most 128",
    ):
        assert lack in full.stderr, full.stderr


def test_a_machine_with_room_for_nodes_is_told_nothing(tmp_path: Path) -> None:
    fine = check_machine(tmp_path / "fine", df=DF.format(999999), find="")
    assert (fine.returncode, fine.stderr) == (0, "")


def test_the_environment_of_the_cluster_has_the_plugin_and_no_other_python() -> None:
    """`make cluster-env`: `kubectl brokerd` works in that shell without a link made by hand."""
    script = f'eval "$("{CLUSTER}/node.sh" env)"; command -v kubectl-brokerd; command -v python3'
    path = "/usr/local/bin:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", "-c", script],
        env={"PATH": path, "HOME": os.environ["HOME"]},
        text=True,
        capture_output=True,
        timeout=DEADLINE_S,
        check=True,
    )
    plugin, python = map(Path, done.stdout.splitlines())
    assert plugin.resolve() == (CLUSTER.parents[1] / ".venv/bin/kubectl-brokerd").resolve()
    assert python.parent != plugin.parent
    assert python.parent != plugin.resolve().parent
    assert not {"python", "python3"} & {item.name for item in plugin.parent.iterdir()}
