#!/usr/bin/env python3
"""Packs a folder into a one-layer docker-archive, without a daemon and without a registry.

For base images and for images of a few files (pause, a busybox of the tests); everything with a
Dockerfile goes through images.sh. The tar is read by `ctr images import`, buildah, podman, skopeo.
The same folder gives the same bytes: names sorted, times zero, owners root unless --keep-owner.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import tarfile
from pathlib import Path

SEARCH_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rootfs", type=Path, required=True)
    parser.add_argument("--name", required=True, help="such as localhost/thing:1")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--entrypoint", type=json.loads, default=[], help="JSON list")
    parser.add_argument("--cmd", type=json.loads, default=[], help="JSON list")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--user", default="")
    parser.add_argument("--keep-owner", action="store_true")
    return parser.parse_args()


def write_layer(rootfs: Path, out: Path, *, keep_owner: bool) -> str:
    """Write the folder as a tar and return its SHA-256, which is the layer's diff id."""

    def normalise(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if entry.ischr() or entry.isblk() or entry.isfifo():
            return None
        entry.mtime = 0
        if not keep_owner:
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
        return entry

    with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(rootfs.rglob("*")):
            tar.add(path, str(path.relative_to(rootfs)), recursive=False, filter=normalise)
    with out.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def image_config(args: argparse.Namespace, diff_id: str) -> bytes:
    config = {"Env": [SEARCH_PATH, *args.env], "WorkingDir": "/"}
    optional = {"Entrypoint": args.entrypoint, "Cmd": args.cmd, "User": args.user}
    config |= {key: value for key, value in optional.items() if value}
    return json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff_id}"]},
            "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "mkimage"}],
        }
    ).encode()


def add_bytes(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))


def main() -> None:
    args = arguments()
    layer = args.out.with_suffix(".layer")
    digest = write_layer(args.rootfs, layer, keep_owner=args.keep_owner)
    config = image_config(args, digest)
    config_name = hashlib.sha256(config).hexdigest() + ".json"
    layer_name = f"{digest}/layer.tar"
    manifest = [{"Config": config_name, "RepoTags": [args.name], "Layers": [layer_name]}]
    with tarfile.open(args.out, "w") as tar:
        add_bytes(tar, config_name, config)
        entry = tarfile.TarInfo(layer_name)
        entry.size = layer.stat().st_size
        with layer.open("rb") as file:
            tar.addfile(entry, file)
        add_bytes(tar, "manifest.json", json.dumps(manifest).encode())
    layer.unlink()


if __name__ == "__main__":
    main()
