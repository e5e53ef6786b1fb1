"""Helpers that every part uses: commands, digests, archives of equal bytes, and where things
are.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final
from unittest.mock import patch

ROOT: Final = Path(__file__).parents[2]
DIST: Final = ROOT / "dist"
#: what is fetched or made on the way, and kept
WORK: Final = ROOT / "build" / "release"
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION: Final = str(PROJECT["version"])
SOURCE_URL: Final = str(PROJECT["urls"]["Source"])
PIP: Final = ("-m", "pip", "--disable-pip-version-check", "-q")
#: seconds until a program is ready or has ended, also on a busy machine
START_S: Final = 120


def run(*command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> str:
    """The command's standard output.  Ends the program if it fails."""
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"release: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def sha256(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def digests(folder: Path) -> dict[str, str]:
    return {path.name: sha256(path) for path in sorted(folder.iterdir())}


@functools.cache
def commit() -> str:
    return run("git", "rev-parse", "HEAD").strip()


@functools.cache
def commit_time() -> int:
    """Seconds since the epoch: the time of every file in a release (SOURCE_DATE_EPOCH)."""
    return int(run("git", "log", "-1", "--format=%ct"))


def checkout(folder: Path) -> Path:
    """What is committed, in *folder*, which is made."""
    folder.mkdir(parents=True)
    archive = folder.with_suffix(".tar")
    run("git", "archive", "-o", archive, "HEAD")
    run("tar", "-xf", archive, "-C", folder)
    return folder


def twice(build: Callable[[Path], None], scratch: Path) -> Path:
    """The folder that *build* filled. It is called again elsewhere, under another umask, time zone
    and hash seed; ends the program if the bytes differ.
    """
    first, again = scratch / "one", scratch / "and-another-one"
    for folder, umask, zone, seed in (
        (first, 0o022, "UTC", "1"),
        (again, 0o077, "Pacific/Kiritimati", "2"),
    ):
        folder.mkdir(parents=True)
        before = os.umask(umask)
        elsewhere = {"TZ": zone, "PYTHONHASHSEED": seed, "SOURCE_DATE_EPOCH": str(commit_time())}
        try:
            with patch.dict(os.environ, elsewhere):
                build(folder)
        finally:
            os.umask(before)
    if digests(first) != digests(again):
        sys.exit(f"release: not the same twice: {digests(first)}, {digests(again)}")
    return first


def tar_of(members: Iterable[tuple[str, Path | bytes]], *, compressed: bool = False) -> bytes:
    """An archive of files, the same for the same content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in members:
            body = content if isinstance(content, bytes) else content.read_bytes()
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.mode = len(body), commit_time(), 0o644
            archive.addfile(info, io.BytesIO(body))
    return gzip.compress(buffer.getvalue(), mtime=0) if compressed else buffer.getvalue()
