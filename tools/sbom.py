"""Writes what images hold as CycloneDX 1.6 (JSON): Debian's packages, Python's, Spark's jars, Java.

Read from the archives that `tools/cluster/images.sh build` makes, so that it says what is in an
image, not what was asked for; the same archive gives the same bytes. For people who ship or scan
the images (`make sbom`). It looks for no vulnerabilities: that is the job of scanners, which read
such files.

    python tools/sbom.py --out build/sbom ARCHIVE...

Needs cyclonedx-python-lib (requirements/release.txt).
"""

from __future__ import annotations

import argparse
import datetime
import email
import io
import json
import re
import sys
import tarfile
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model import Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

#: Paths whose content names components. Everything else in a layer is passed over.
WANTED = re.compile(
    r"etc/os-release$|usr/lib/os-release$|var/lib/dpkg/status$|var/lib/dpkg/status\.d/[^/]+$"
    r"|.*/site-packages/[^/]+\.dist-info/METADATA$|.*/pyspark/jars/[^/]+\.jar$"
    r"|usr/local/lib/libpython3\.\d+\.so\.1\.0$|opt/java/release$"
)
#: A file of interest; the largest jar of Spark has 30 MB.
FILE_SIZE_MAX = 100_000_000
#: Another text than the name of a license, such as all of it.
LICENSE_CHARACTERS_MAX = 120
NAMESPACE = uuid.UUID("6f1f6d0e-5c9b-4c3e-9a0a-0d6c6d1f7f55")


class Archive:
    """A docker-archive: its name, when it was made, and the files of interest that are in force."""

    def __init__(self, path: Path) -> None:
        with tarfile.open(path) as tar:
            (manifest,) = json.load(_member(tar, "manifest.json"))
            config = _member(tar, manifest["Config"]).read()
            self.name = manifest["RepoTags"][0]
            self.digest = manifest["Config"].removesuffix(".json")
            self.created = datetime.datetime.fromisoformat(json.loads(config)["created"])
            self.files: dict[str, bytes] = {}
            for layer in manifest["Layers"]:
                with tarfile.open(fileobj=_member(tar, layer)) as files:
                    self._apply(files)

    def _apply(self, layer: tarfile.TarFile) -> None:
        for entry in layer:
            path = entry.name.removeprefix("./")
            folder, _, base = path.rpartition("/")
            if base == ".wh..wh..opq":
                self._drop(folder)
            elif base.startswith(".wh."):
                self._drop(f"{folder}/{base.removeprefix('.wh.')}".lstrip("/"))
            elif entry.isfile() and WANTED.match(path):
                if entry.size > FILE_SIZE_MAX:
                    raise SystemExit(f"{self.name}: {path} has {entry.size} bytes")
                self.files[path] = _content(layer, entry)

    def _drop(self, path: str) -> None:
        """A whiteout: a later layer took a file, or a folder with all that is in it, away."""
        self.files = {
            name: data
            for name, data in self.files.items()
            if name != path and not name.startswith(f"{path}/")
        }


def _member(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    file = tar.extractfile(name)
    if file is None:
        raise SystemExit(f"{name} is no file")
    return file


def _content(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(entry)
    return b"" if file is None else file.read()


def components(archive: Archive) -> list[Component]:
    """All that an image holds, sorted by package URL."""
    files = archive.files
    release = files.get("etc/os-release") or files.get("usr/lib/os-release") or b""
    found: list[Component] = []
    for path, data in files.items():
        if path.startswith("var/lib/dpkg/status"):
            found += _debian(data.decode(), _properties(release.decode()))
        elif path.endswith("/METADATA"):
            found.append(_python(data))
        elif path.endswith(".jar"):
            found += _jar(path, data)
        elif "/libpython3." in path:
            found.append(_interpreter(path, data))
        elif path == "opt/java/release":
            version = _properties(data.decode())["JAVA_VERSION"]
            purl = PackageURL("generic", None, "openjdk", version)
            found.append(_component(purl, ("GPL-2.0-only WITH Classpath-exception-2.0",), path))
    unique = {str(item.purl): item for item in found}
    return [unique[key] for key in sorted(unique)]


def _component(purl: PackageURL, licenses: tuple[str, ...] = (), path: str = "") -> Component:
    factory = LicenseFactory()
    return Component(
        name=purl.name,
        group=purl.namespace if purl.type == "maven" else None,
        version=purl.version,
        type=ComponentType.LIBRARY,
        purl=purl,
        bom_ref=str(purl),
        licenses=[factory.make_from_string(text) for text in licenses],
        properties=[Property(name="brokerd:path", value=path)] if path else [],
    )


def _properties(text: str) -> dict[str, str]:
    """Lines of NAME=VALUE, as in os-release and Java's files."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key: value.strip().strip('"') for key, _, value in pairs}


def _debian(text: str, release: dict[str, str]) -> Iterator[Component]:
    """Packages of dpkg's status, or of one file of status.d for what was copied by itself."""
    distribution = f"{release.get('ID', 'debian')}-{release.get('VERSION_ID', '')}".rstrip("-")
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        fields = email.message_from_string(paragraph)
        if "Package" in fields and "not-installed" not in fields.get("Status", ""):
            qualifiers = {"arch": fields["Architecture"], "distro": distribution}
            name, version = fields["Package"], fields["Version"]
            yield _component(PackageURL("deb", "debian", name, version, qualifiers))


def _python(data: bytes) -> Component:
    fields = email.message_from_bytes(data)
    name = re.sub(r"[-_.]+", "-", fields["Name"]).lower()
    return _component(PackageURL("pypi", None, name, fields["Version"]), _python_licenses(fields))


def _python_licenses(fields: email.message.Message) -> tuple[str, ...]:
    """The expression, or the field before there were expressions, or the classifiers."""
    for key in ("License-Expression", "License"):
        text = (fields.get(key) or "").strip()
        if text and "\n" not in text and len(text) <= LICENSE_CHARACTERS_MAX:
            return (text,)
    classifiers = fields.get_all("Classifier") or []
    prefix = "License :: "
    return tuple(
        dict.fromkeys(text.rpartition(" :: ")[2] for text in classifiers if text.startswith(prefix))
    )


def _jar(path: str, data: bytes) -> Iterator[Component]:
    """What Maven wrote into a jar about it and about what was packed into it, and the jar itself,
    by the file's name, where nothing was written about it.
    """
    stem = path.rpartition("/")[2].removesuffix(".jar")
    names: list[tuple[str | None, str, str | None]] = []
    with zipfile.ZipFile(io.BytesIO(data)) as jar:
        for entry in jar.namelist():
            if entry.startswith("META-INF/maven/") and entry.endswith("/pom.properties"):
                found = _properties(jar.read(entry).decode("utf-8", "replace"))
                if {"groupId", "artifactId", "version"} <= found.keys():
                    names.append((found["groupId"], found["artifactId"], found["version"]))
    if not any(stem.startswith(name) for _, name, _ in names):
        split = re.match(r"(.+?)-(\d[\w.+-]*)$", stem)
        names.append((None, split[1], split[2]) if split else (None, stem, None))
    for group, name, version in names:
        yield _component(PackageURL("maven", group, name, version), path=path)


def _interpreter(path: str, data: bytes) -> Component:
    """CPython, which no package manager put there: its version stands in the library."""
    minor = path.rpartition("libpython")[2].removesuffix(".so.1.0")
    found = re.search(rb"(" + re.escape(minor).encode() + rb"\.\d+)\0", data)
    version = found[1].decode() if found else minor
    return _component(PackageURL("generic", None, "cpython", version), ("PSF-2.0",), path)


def bill(archive: Archive) -> Bom:
    """The bill of one image; what it is called, its id and time come from the image itself."""
    bom = Bom(serial_number=uuid.uuid5(NAMESPACE, archive.digest))
    name, _, version = archive.name.rpartition(":")
    image = Component(
        name=name.rpartition("/")[2],
        version=version,
        type=ComponentType.CONTAINER,
        bom_ref=f"image:{archive.name}",
        licenses=[LicenseFactory().make_from_string("Apache-2.0")],
        properties=[Property(name="brokerd:image-id", value=f"sha256:{archive.digest}")],
    )
    bom.metadata.component = image
    bom.metadata.timestamp = archive.created
    parts = components(archive)
    bom.components.update(parts)
    bom.register_dependency(image, parts)
    return bom


def rendered(bom: Bom) -> str:
    """The bill as JSON; a bill that breaks CycloneDX's schema ends the program."""
    text = JsonV1Dot6(bom).output_as_string(indent=1)
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if problem is not None:
        raise SystemExit(f"the bill is not valid CycloneDX 1.6: {problem}")
    return text + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archives", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for path in args.archives:
        archive = Archive(path)
        bom = bill(archive)
        target = args.out / f"{archive.name.rpartition('/')[2].rpartition(':')[0]}.cdx.json"
        target.write_text(rendered(bom))
        print(f"{target}: {len(bom.components)} components")
    return 0


if __name__ == "__main__":
    sys.exit(main())
