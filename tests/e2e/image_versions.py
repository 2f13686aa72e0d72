"""Another version of the broker's image, for the tests of upgrades: the same build with one more
layer, in which the package calls itself by another number."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

PACKAGE = "usr/local/lib/python3.11/site-packages/brokerd/__init__.py"
SOURCE = '"""The broker of a later release, as far as it says."""\n\n__version__ = "{}"\n'


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), 0o644
    tar.addfile(entry, io.BytesIO(data))


def layer(version: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        add(tar, PACKAGE, SOURCE.format(version).encode())
    return buffer.getvalue()


def relabel(archive: Path, out: Path, tag: str, version: str) -> None:
    """Write a `docker-archive` like `archive` (one image) whose broker has this version."""
    added = layer(version)
    digest = hashlib.sha256(added).hexdigest()
    with tarfile.open(archive) as given, tarfile.open(out, "w") as made:

        def read(name: str) -> bytes:
            file = given.extractfile(name)
            assert file is not None, name
            return file.read()

        [manifest] = json.loads(read("manifest.json"))
        config = json.loads(read(manifest["Config"]))
        config["rootfs"]["diff_ids"].append(f"sha256:{digest}")
        config["history"].append({"created_by": "tests/e2e/image_versions.py"})
        text = json.dumps(config).encode()
        name = f"{hashlib.sha256(text).hexdigest()}.json"
        layers = [*manifest["Layers"], f"{digest}.tar"]
        for part in dict.fromkeys(manifest["Layers"]):
            member = given.getmember(part)
            # Layers that are alike lie there once, and as links to that one.
            made.addfile(
                member, None if member.issym() or member.islnk() else given.extractfile(part)
            )
        add(made, f"{digest}.tar", added)
        add(made, name, text)
        told = [{"Config": name, "RepoTags": [tag], "Layers": layers}]
        add(made, "manifest.json", json.dumps(told).encode())
