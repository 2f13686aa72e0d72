"""packaging/: the unit of systemd, the settings and the scripts of the Debian package."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from brokerd import cli, config
from brokerd.server import app

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "packaging"


def test_every_setting_of_the_shipped_file_is_one_of_the_broker(tmp_path: Path) -> None:
    """Commented ones too: an unknown setting or a wrong value ends the start."""
    shipped = FOLDER / "brokerd.toml"
    assert config.load(shipped, {}, {}).data_dir == Path("/var/lib/brokerd")
    for file in ("/etc/brokerd/tls.crt", "/etc/brokerd/tls.key"):
        assert f'"{file}"' in shipped.read_text()
    # What the page has people add stands in no section twice.
    assert re.findall(r"^\[(\w+)\]", shipped.read_text(), flags=re.MULTILINE) == ["node"]
    settings = re.sub(r"^# (\w+ = |\[\w+\]$)", r"\1", shipped.read_text(), flags=re.MULTILINE)
    file = tmp_path / "all.toml"
    file.write_text(settings)
    found = config.load(file, {}, {})
    assert found.auth.admin_password_file == "/etc/brokerd/admin.password"
    assert found.cluster.members.count("=") == 3
    assert found.tls.key_file == "/etc/brokerd/tls.key"


def unit() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(FOLDER / "brokerd.service")
    return parser["Service"]


def test_the_unit_starts_what_the_package_installs_where_it_may_write() -> None:
    service = unit()
    command, *arguments = service["ExecStart"].split()
    assert command == "/usr/bin/brokerd"
    assert "launcher brokerd brokerd.cli" in (ROOT / "tools" / "deb.sh").read_text()
    assert arguments == ["serve", "--config", "/etc/brokerd/brokerd.toml"]
    options = {name for item in cli.serve.params for name in item.opts}
    assert "--config" in options
    assert CliRunner().invoke(cli.main, ["serve", "--help"]).exit_code == 0
    # The only folder that it may write is the one of its settings.
    assert f"/var/lib/{service['StateDirectory']}" == "/var/lib/brokerd"
    assert service["RestartPreventExitStatus"] == str(app.EXIT_CONFIG)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing")
def test_the_unit_is_confined() -> None:
    """systemd judges it: at most 2.0 of 10 exposed, as few services of Debian's are."""
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20"]
    done = subprocess.run(
        [*command, str(FOLDER / "brokerd.service")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["postinst", "prerm", "postrm"])
def test_scripts_of_the_package_are_sound(name: str) -> None:
    script = FOLDER / "deb" / name
    assert script.stat().st_mode & 0o111
    assert script.read_text().startswith("#!/bin/sh\nset -e\n")
    subprocess.run(["sh", "-n", str(script)], check=True, timeout=60)


def test_only_a_purge_deletes_data_and_settings() -> None:
    removal, _, rest = (FOLDER / "deb" / "postrm").read_text().partition('if [ "$1" = purge ]')
    assert "rm -rf /var/lib/brokerd /etc/brokerd" in rest
    assert "rm " not in removal
    for name in ("postinst", "prerm"):
        assert "rm " not in (FOLDER / "deb" / name).read_text()
