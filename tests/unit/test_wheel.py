"""The wheel: what is in it, what it asks for, and that a broker starts from it with nothing set."""

from __future__ import annotations

import email
import email.message
import os
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerd import __version__, compiled
from brokerd.config import ListenerConfig
from tests.integration.members import PATIENCE_SECONDS, eventually
from tests.ports import free_ports
from tools import compiled as tool

ROOT = Path(__file__).resolve().parents[2]
#: Where nothing has been compiled yet; with `make test` all is there.
COMPILE_SECONDS = 900
PACKAGES = {
    "brokerd": ROOT / "brokerd",
    "brokerd_operator": ROOT / "operator" / "brokerd_operator",
    "brokerd_telemetry": ROOT / "telemetry" / "brokerd_telemetry",
}


def built(folder: Path, form: str) -> Path:
    """Build the wheel as `make wheel` does; what `make compiled` made of these sources is taken."""
    command = [str(Path(sys.executable).with_name("uv")), "build", "-q", "--wheel"]
    wanted = {"HATCH_BUILD_HOOK_ENABLE_CUSTOM": str(form == "compiled").lower()}
    done = subprocess.run(
        [*command, "--out-dir", str(folder), str(ROOT)],
        env=os.environ | wanted,
        timeout=COMPILE_SECONDS,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("*.whl")
    return found


def unpacked(wheel: Path, folder: Path) -> Path:
    """Unpack it where nothing of the checkout is; its dependencies are those of the tests."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("wheel"), "python")


@pytest.fixture(scope="module")
def compiled_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("compiled-wheel"), "compiled")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(wheel, tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="module")
def compiled_installed(compiled_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(compiled_wheel, tmp_path_factory.mktemp("compiled-installed"))


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {
        f"{package}/{path.relative_to(folder)}"
        for package, folder in PACKAGES.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    expected |= {f"brokerd_operator/crds/{path.name}" for path in (ROOT / "crds").iterdir()}
    assert found == expected
    assert {f"{package}/py.typed" for package in PACKAGES} <= found
    assert "brokerd/rpc/v1/admin_pb2_grpc.py" in found
    assert len([name for name in found if name.startswith("brokerd_operator/crds/")]) >= 14


def metadata(wheel: Path) -> email.message.Message:
    """Return what it says of itself."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_says_its_version_and_what_each_extra_brings(wheel: Path) -> None:
    found = metadata(wheel)
    assert found["Version"] == __version__
    assert found["Requires-Python"] == ">=3.11"
    extras = ("", "operator", "telemetry", "delta")
    wanted: dict[str, set[str]] = {extra: set() for extra in extras}
    for line in found.get_all("Requires-Dist", []):
        extra = re.search(r"extra == '(\w+)'", line)
        name = re.match(r"[\w-]+", line)
        assert name is not None
        wanted[extra.group(1) if extra else ""].add(name.group().lower())
    assert wanted["telemetry"] == {"botocore", "pyarrow", "pyspark"}
    assert wanted["delta"] == {"deltalake"}
    assert {"kopf", "kubernetes"} <= wanted["operator"]
    assert "pyspark" not in wanted[""]


def test_a_broker_starts_from_the_wheel_with_nothing_but_free_ports(
    installed: Path, tmp_path: Path
) -> None:
    start_from(installed, tmp_path, "python")


@pytest.mark.slow
@pytest.mark.timeout(COMPILE_SECONDS + 120)
def test_a_broker_starts_from_the_compiled_wheel_and_says_which_form_runs(
    compiled_installed: Path, tmp_path: Path
) -> None:
    start_from(compiled_installed, tmp_path, "compiled")


@pytest.mark.slow
@pytest.mark.timeout(COMPILE_SECONDS + 120)
def test_the_compiled_wheel_has_both_forms_and_is_of_one_platform(
    wheel: Path, compiled_wheel: Path, compiled_installed: Path
) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not compiled_wheel.name.endswith("-any.whl")
    with zipfile.ZipFile(wheel) as plain, zipfile.ZipFile(compiled_wheel) as both:
        added = set(both.namelist()) - set(plain.namelist())
    inside = f"brokerd/{compiled.INSTALLED.name}/"
    modules = {inside + name.removesuffix(".py") + compiled.suffix() for name in tool.sources()}
    library = inside + f"{compiled.LIBRARY}__mypyc{compiled.suffix()}"
    assert added == modules | {library, inside + compiled.STAMP}
    code = (compiled_installed / library).read_bytes()
    # Nothing of where it was made: a path to search would be one on somebody else's machine.
    assert sys.base_prefix.encode() not in code
    assert str(ROOT).encode() not in code


@pytest.mark.slow
@pytest.mark.timeout(COMPILE_SECONDS + 120)
def test_a_traceback_through_compiled_code_names_the_lines_of_its_source(
    compiled_installed: Path, tmp_path: Path
) -> None:
    code = "from brokerd.core.catalog import definitions_json as d; d.operations([], '/')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(compiled_installed), compiled.VARIABLE: ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert 'File "brokerd/core/catalog/definitions_json.py", line ' in done.stderr
    assert ", in operations\n" in done.stderr
    assert "BadDefinitions: definitions are a JSON object" in done.stderr


def start_from(installed: Path, tmp_path: Path, form: str) -> None:
    """From any folder, as a user without a configuration; it says all that one needs to know."""
    names = [name.upper() for name in ListenerConfig.model_fields if name != "backlog"]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BROKERD_")}
    kept.pop("XDG_STATE_HOME", None)
    env = kept | {"PYTHONPATH": str(installed), "HOME": str(tmp_path)}
    env |= {f"BROKERD_LISTENERS_{name}": str(port) for name, port in ports.items()}
    place = subprocess.check_output(
        [sys.executable, "-c", "import brokerd; print(brokerd.__file__)"], env=env, cwd=tmp_path
    )
    assert place.decode().startswith(str(installed))
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "brokerd", "serve"],
            env=env,
            cwd=tmp_path,
            stdout=output,
            stderr=output,
        )
    try:
        eventually(lambda: "  user  " in log.read_text(), f"ready: {log.read_text()}")
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
    said = log.read_text()
    assert said.startswith(f"brokerd {__version__} ({form}): member ")
    assert f"data in {tmp_path}/.local/state/brokerd/brokerd@" in said
    assert f"amqp://localhost:{ports['AMQP']}" in said
    assert "guest, password guest, from this machine only" in said
    assert {path.name for path in tmp_path.iterdir()} == {".local", "log"}


@pytest.fixture
def without_extras(tmp_path: Path) -> Iterator[Path]:
    """A folder that hides what the extras bring, as if they had not been installed."""
    for module in ("celpy", "kopf", "kubernetes", "pyspark"):
        text = f"raise ModuleNotFoundError('No module named {module}', name={module!r})\n"
        (tmp_path / f"{module}.py").write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("module", "arguments", "extra"),
    [
        ("brokerd.ctl.main", ["up", "-f", "."], "operator"),
        ("brokerd.ctl.main", ["telemetry", "--help"], "telemetry"),
        ("brokerd_operator.__main__", [], "operator"),
        ("brokerd_operator.__main__", ["selftest"], "operator"),
        (
            "brokerd_operator.__main__",
            ["uninstall-hook", "--binding=b", "--namespaces=n"],
            "operator",
        ),
    ],
)
def test_what_an_extra_brings_is_named_where_it_is_missing(
    installed: Path, without_extras: Path, module: str, arguments: list[str], extra: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"from {module} import main; main()", *arguments],
        env=os.environ | {"PYTHONPATH": f"{without_extras}:{installed}"},
        cwd=without_extras,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert f"{sys.executable} -m pip install 'brokerd[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr
