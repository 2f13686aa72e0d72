"""The bill of materials: what an image's archive holds, in CycloneDX."""

from __future__ import annotations

import io
import json
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_fixtures import CACHE, IMAGES
from tests.operator.charts import ROOT, release_tool

SITE = "usr/local/lib/python3.11/site-packages"
STATUS = """Package: zlib1g
Status: install ok installed
Architecture: amd64
Version: 1:1.2.13

Package: gone
Status: deinstall ok not-installed
Architecture: amd64
Version: 1
"""


def jar(*coordinates: tuple[str, str, str]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("A.class", "")
        for group, name, version in coordinates:
            text = f"#made\ngroupId={group}\nartifactId={name}\nversion={version}\n"
            made.writestr(f"META-INF/maven/{group}/{name}/pom.properties", text)
    return file.getvalue()


def packed(files: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return file.getvalue()


def archive(path: Path, *layers: dict[str, bytes]) -> Path:
    """A docker-archive of these layers."""
    names = [f"{number}.tar" for number in range(len(layers))]
    manifest = [{"Config": "c0ffee.json", "RepoTags": ["localhost/thing:1"], "Layers": names}]
    files = {
        "manifest.json": json.dumps(manifest).encode(),
        "c0ffee.json": b'{"created": "2026-01-02T03:04:05Z"}',
    }
    files |= {name: packed(layer) for name, layer in zip(names, layers, strict=True)}
    path.write_bytes(packed(files))
    return path


def bills(out: Path, *archives: Path) -> dict[str, dict[str, Any]]:
    """By image; the program validates each against the schema of CycloneDX."""
    command = [release_tool("python"), str(ROOT / "tools" / "sbom.py"), "--out", str(out)]
    done = subprocess.run(
        [*command, *map(str, archives)], text=True, capture_output=True, timeout=170
    )
    assert done.returncode == 0, done.stderr
    return {path.name.split(".")[0]: json.loads(path.read_text()) for path in out.iterdir()}


def metadata(name: str, version: str, *lines: str) -> bytes:
    head = ("Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *lines)
    return "\n".join((*head, "", "License: of the text below")).encode()


def test_what_the_layers_leave_in_force_is_listed_with_version_and_license(tmp_path: Path) -> None:
    base = {
        "etc/os-release": b'ID=debian\nVERSION_ID="12"\n',
        "var/lib/dpkg/status": STATUS.encode(),
        "usr/local/lib/libpython3.11.so.1.0": b"\x7fELF\0/x/3.11.9\0",
        f"{SITE}/old.dist-info/METADATA": metadata("old", "1"),
        f"{SITE}/removed/x.dist-info/METADATA": metadata("removed", "1"),
        "opt/other.jar": b"no zip",
    }
    upper = {
        f"{SITE}/.wh.old.dist-info": b"",
        f"{SITE}/removed/.wh..wh..opq": b"",
        "var/lib/dpkg/status.d/tini": b"Package: tini\nArchitecture: amd64\nVersion: 0.19\n",
        f"{SITE}/new.dist-info/METADATA": metadata("Zope.New_Thing", "2", "License: MIT"),
        f"{SITE}/expr.dist-info/METADATA": metadata(
            "expr", "3", "License-Expression: Apache-2.0 OR MIT", "License: other"
        ),
        f"{SITE}/old-way.dist-info/METADATA": metadata(
            "old-way", "4", f"License: {'long ' * 50}", "Classifier: License :: OSI :: BSD License"
        ),
        f"{SITE}/pyspark/jars/one-1.0.jar": jar(("org.one", "one", "1.0"), ("org.in", "in", "5")),
        f"{SITE}/pyspark/jars/two_2.13-4.0.1.jar": jar(),
        f"{SITE}/pyspark/jars/shaded-7.jar": jar(("org.in", "other", "6")),
        "opt/java/release": b'IMPLEMENTOR="Debian"\nJAVA_VERSION="17.0.1"\n',
    }
    (bill,) = bills(tmp_path / "out", archive(tmp_path / "a.tar", base, upper)).values()
    licenses = {
        item["purl"]: [
            entry.get("expression") or entry["license"].get("id") or entry["license"]["name"]
            for entry in item.get("licenses", ())
        ]
        for item in bill["components"]
    }
    assert licenses == {
        "pkg:deb/debian/zlib1g@1:1.2.13?arch=amd64&distro=debian-12": [],
        "pkg:deb/debian/tini@0.19?arch=amd64&distro=debian-12": [],
        "pkg:generic/cpython@3.11.9": ["PSF-2.0"],
        "pkg:generic/openjdk@17.0.1": ["GPL-2.0-only WITH Classpath-exception-2.0"],
        "pkg:maven/org.in/in@5": [],
        "pkg:maven/org.in/other@6": [],
        "pkg:maven/org.one/one@1.0": [],
        "pkg:maven/shaded@7": [],
        "pkg:maven/two_2.13@4.0.1": [],
        "pkg:pypi/expr@3": ["Apache-2.0 OR MIT"],
        "pkg:pypi/old-way@4": ["BSD License"],
        "pkg:pypi/zope-new-thing@2": ["MIT"],
    }
    assert bill["specVersion"] == "1.6"
    assert bill["metadata"]["timestamp"].startswith("2026-01-02T03:04:05")
    assert bill["metadata"]["component"]["name"] == "thing"
    (about,) = [item for item in bill["dependencies"] if item["ref"].startswith("image:")]
    assert sorted(about["dependsOn"]) == sorted(licenses)


def test_the_same_archive_gives_the_same_bytes(tmp_path: Path) -> None:
    made = archive(tmp_path / "a.tar", {"var/lib/dpkg/status": STATUS.encode()})
    for name in ("one", "two"):
        bills(tmp_path / name, made)
    assert (tmp_path / "one" / "thing.cdx.json").read_bytes() == (
        tmp_path / "two" / "thing.cdx.json"
    ).read_bytes()


def locked(name: str) -> set[str]:
    """What a lock pins, as package URLs; the image is for Linux and CPython 3.11."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    found = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", text, re.MULTILINE)
    return {f"pkg:pypi/{re.sub('[-_.]+', '-', item).lower()}@{version}" for item, version in found}


@pytest.mark.slow
def test_bills_of_the_images_name_every_locked_package(tmp_path: Path) -> None:
    """Of the archives as they were built last, by `make test` or `make images`."""
    archives = {name: CACHE / "images" / f"{name}.tar" for name in IMAGES}
    if not all(path.exists() for path in archives.values()):
        pytest.skip("no images are built here: make images")
    found = bills(tmp_path, *archives.values())
    for name, image in IMAGES.items():
        bill = found[image.split("/")[1].split(":")[0]]
        parts = {item["purl"]: item for item in bill["components"]}
        python = {purl for purl in parts if purl.startswith("pkg:pypi/")}
        # pip and setuptools come with the interpreter; brokerd is what the image is for.
        assert locked(name) <= python
        own = {"pip", "setuptools", "wheel", "brokerd"}
        assert {purl.split("/")[1].split("@")[0] for purl in python - locked(name)} <= own
        # Whoever publishes no license cannot be quoted.
        without = {purl for purl in python if not parts[purl].get("licenses")}
        assert {purl.split("@")[0] for purl in without} <= {"pkg:pypi/cel-python"}
        assert sum(purl.startswith("pkg:deb/debian/libssl3@") for purl in parts) == 1
        assert sum(purl.startswith("pkg:generic/cpython@3.11.") for purl in parts) == 1
    jars = {item["name"] for item in found["brokerd-telemetry"]["components"]}
    assert {"spark-core_2.13", "hadoop-client-runtime", "tini"} <= jars
