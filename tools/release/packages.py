"""Wheel and sdist, as an index gets them.

Built with what ``requirements-dist.lock`` pins by hash, without isolation, so that nothing else is
fetched; the wheel is built once more out of the sdist. ``twine check --strict`` reads what the
index page will show.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from tools.release.running import DIST, PIP, WORK, checkout, commit_time, digests, run, twice


def tools_python() -> Path:
    """The interpreter of an environment with what builds and checks."""
    python = WORK / "tools" / "bin" / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", python.parents[1])
    run(python, *PIP, "install", "--require-hashes", "-r", "requirements-dist.lock")
    return python


def build(scratch: Path) -> None:
    python = tools_python()

    def both(folder: Path) -> None:
        run(
            python,
            "-m",
            "hatchling",
            "build",
            "-d",
            folder,
            cwd=checkout(folder.with_name(f"{folder.name}-source")),
        )

    built = twice(both, scratch)
    (sdist,) = built.glob("*.tar.gz")
    run("tar", "-xf", sdist, "-C", scratch)
    offline = ("--no-index", "--no-deps", "--no-build-isolation")
    unpacked = scratch / sdist.name.removesuffix(".tar.gz")
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(commit_time())}
    run(python, *PIP, "wheel", *offline, "-w", scratch / "wheel", unpacked, env=env)
    (wheel,) = built.glob("*.whl")
    if digests(scratch / "wheel") != {wheel.name: digests(built)[wheel.name]}:
        sys.exit(
            f"release: the wheel out of the sdist is another: {digests(scratch / 'wheel')}, "
            f"{digests(built)}"
        )
    run(python, "-m", "twine", "check", "--strict", *built.iterdir())
    print(
        "      the same bytes twice, and the wheel once more out of the sdist; twine check "
        f"--strict: {wheel.name}"
    )
    for path in built.iterdir():
        shutil.copyfile(path, DIST / path.name)
