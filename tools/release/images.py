"""The image for two architectures: built by ``tools/image.sh`` from ``Dockerfile``, and put into
one OCI archive.

The archive's index names an image index ``<version>`` with one image for each architecture, and for
each image an SBOM and its provenance that refer to it (image-spec 1.1, ``subject``), as a
registry's referrers API lists them. An image of another architecture than this machine's is built
and run under qemu-user (Debian's qemu-user-static).
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

from tools.release.documents import PROVENANCE_TYPE, SBOM_TYPE, image_components, provenance, sbom
from tools.release.oci import Descriptor, Layout
from tools.release.running import DIST, ROOT, START_S, VERSION, commit, commit_time, run

ARCHITECTURES: Final = ("amd64", "arm64")
ARCHIVE: Final = f"sliceplane-image-{VERSION}.oci.tar"
#: ELF's number of a machine (elf(5), e_machine)
_MACHINES: Final = {"amd64": 62, "arm64": 183}


def folder_of(architecture: str) -> Path:
    """Where ``tools/image.sh`` leaves an image."""
    return ROOT / "build" / f"image-{architecture}"


def _add(layout: Layout, architecture: str, builder: str, *, tagged: bool) -> Descriptor:
    folder = folder_of(architecture)
    config, layers = layout.add_from(folder / "oci")
    assert config["architecture"] == architecture, f"{folder} is for {config['architecture']}"
    # OCI's format has no health check, and engines that have one read it from there.
    inspected = json.loads((folder / "config.json").read_text())["Docker"]["config"]
    config["config"]["Healthcheck"] = inspected["Healthcheck"]
    body = layout.blob(
        json.dumps(config, sort_keys=True).encode(), "application/vnd.oci.image.config.v1+json"
    )
    manifest = layout.manifest(body, layers)
    digest = manifest["digest"].partition(":")[2]
    name = f"sliceplane-image-{VERSION}-{architecture}"
    document = sbom(name, "container", image_components(folder / "rootfs"), digest)
    (DIST / f"{name}.cdx.json").write_bytes(document)
    layout.refer(manifest, document, SBOM_TYPE)
    layout.refer(manifest, provenance({name: digest}, builder, tagged=tagged), PROVENANCE_TYPE)
    return {**manifest, "platform": {"os": "linux", "architecture": architecture}}


def build(builder: str, *, tagged: bool) -> None:
    for architecture in ARCHITECTURES:
        # The base anew: a kept one has yesterday's Debian packages.
        shutil.rmtree(folder_of(architecture), ignore_errors=True)
        environment = {**os.environ, "ARCH": architecture, "OUT": str(folder_of(architecture))}
        environment["SOURCE_DATE_EPOCH"] = str(commit_time())
        done = subprocess.run((ROOT / "tools" / "image.sh",), env=environment, check=False)
        if done.returncode:
            sys.exit(f"release: no image for {architecture}")
    layout = Layout()
    images = [_add(layout, architecture, builder, tagged=tagged) for architecture in ARCHITECTURES]
    annotations = {
        "org.opencontainers.image.version": VERSION,
        "org.opencontainers.image.revision": commit(),
    }
    layout.list_as(layout.index(images, annotations), VERSION)
    (DIST / ARCHIVE).write_bytes(layout.archive())


def machines(rootfs: Path) -> Counter[int]:
    """ELF machine to number of files."""
    counted: Counter[int] = Counter()
    for path in rootfs.rglob("*"):
        if path.is_symlink() or not path.is_file():
            continue
        with path.open("rb") as opened:
            head = opened.read(20)
        if head.startswith(b"\x7fELF"):
            counted[struct.unpack_from("<H", head, 18)[0]] += 1
    return counted


def unpack(architecture: str, scratch: Path) -> Path:
    """Returns the root file system of the archive's image for *architecture*, as an engine unpacks
    it.
    """
    buildah = (
        "buildah",
        "--root",
        scratch / "storage",
        "--runroot",
        scratch / "run",
        "--storage-driver",
        "vfs",
    )
    source = f"oci-archive:{DIST / ARCHIVE}:{VERSION}"
    container = run(*buildah, "from", "-q", "--arch", architecture, source).strip()
    return Path(run(*buildah, "mount", container).strip())


def try_out(scratch: Path) -> None:
    """Runs each image out of the archive: its binaries are for its machine, and a plane in memory
    becomes ready.
    """
    for architecture in ARCHITECTURES:
        rootfs = unpack(architecture, scratch / architecture)
        counted = machines(rootfs)
        if set(counted) != {_MACHINES[architecture]}:
            sys.exit(
                f"release: the image for {architecture} has binaries of the machines "
                f"{dict(counted)}"
            )
        inside = (
            "chroot",
            "--userspec=65532:65532",
            rootfs,
            "env",
            "HOME=/tmp",
            "/opt/sliceplane/bin/sliceplane",
        )
        printed = run(*inside, "--version").strip()
        if printed != f"sliceplane, version {VERSION}":
            sys.exit(f"release: the image for {architecture} prints {printed!r}")
        ready = _becomes_ready(inside)
        print(
            f"      {architecture}: {printed}; {counted.total()} ELF files, all for "
            f"{architecture}; {ready}"
        )


def _becomes_ready(inside: tuple[str | Path, ...]) -> str:
    command = (*inside, "up", "--data-dir", "memory:", "--secure-port", "0")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline().strip()
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=START_S)
    if not line.startswith("ready https://"):
        sys.exit(f"release: sliceplane up in the image prints {line!r}\n{errors}")
    return "sliceplane up is ready"
