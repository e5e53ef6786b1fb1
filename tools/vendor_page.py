"""What the page is made with, and what its tests use, out of the npm registry by ``npm pack``: each
package by its version and digest, the files that are taken, and their licences. Run it again after
a change of ``PACKAGES``.

The one change of a file: bare names of modules become relative ones, so that the page needs no
import map.
"""

from __future__ import annotations

import hashlib
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "src" / "sliceplane" / "diagnose" / "page" / "io" / "static" / "vendor"
TESTS = ROOT / "tests" / "ui" / "vendor"
#: done to every file of the page
REPLACED = (b'from"preact"', b'from"./preact.js"')


class Package(NamedTuple):
    name: str
    version: str
    sha256: str
    folder: Path
    #: where it is in the package -> its name here
    files: dict[str, str]


PACKAGES = (
    Package(
        "preact",
        "11.2.0",
        "3c4456766bd32b6b534d52bf4e9c2a29b33e7eedf6e96ed479300ba1a7888ebf",
        PAGE,
        {
            "dist/preact.mjs": "preact.js",
            "hooks/dist/hooks.mjs": "hooks.js",
            "LICENSE": "preact.LICENSE",
        },
    ),
    Package(
        "htm",
        "3.1.1",
        "2425b9bee11409177bcabc7f32e319926fc6690c1701c0b257c88bdff2d5ba90",
        PAGE,
        {
            "dist/htm.module.js": "htm.js",
            "LICENSE": "htm.LICENSE",
        },
    ),
    Package(
        "axe-core",
        "4.14.1",
        "e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745",
        TESTS,
        {
            "axe.min.js": "axe.min.js",
            "LICENSE": "axe.LICENSE",
        },
    ),
)


def main() -> None:
    for package in PACKAGES:
        with tempfile.TemporaryDirectory() as folder:
            take(package, Path(folder))


def take(package: Package, folder: Path) -> None:
    subprocess.run(
        ["npm", "pack", "--silent", f"{package.name}@{package.version}"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    archive = folder / f"{package.name}-{package.version}.tgz"
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != package.sha256:
        raise SystemExit(f"{archive.name} has the digest {digest}, not {package.sha256}")
    package.folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as packed:
        for source, name in package.files.items():
            found = packed.extractfile(f"package/{source}")
            assert found is not None, source
            (package.folder / name).write_bytes(found.read().replace(*REPLACED))


if __name__ == "__main__":
    main()
