"""``sliceplane-agent.pyz``: the agent as one file that Python 3.11 or newer runs (PEP 441), and
nothing compiled.

In it are the modules that ``sliceplane.cli.run.agent`` can import, and the packages that it needs,
as ``requirements.lock`` pins them: click, PyYAML (its Python half), structlog, sortedcontainers.
msgspec has no Python half, so the file has the one beside this module (``pure/msgspec``). uvloop is
left out: the agent runs on asyncio's own loop. A gRPC check needs grpcio, and says so.

Modules are there as source, and as bytecode of the Python that builds (3.11); another version
compiles at each start.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Final

from tools.environments import interpreters
from tools.release.packages import tools_python
from tools.release.running import DIST, PIP, ROOT, VERSION, WORK, checkout, run, twice

NAME: Final = "sliceplane-agent.pyz"
PYTHON: Final = "3.11"
PURE: Final = Path(__file__).parent / "pure"
#: distribution -> the package in it
VENDORED: Final = {
    "click": "click",
    "pyyaml": "yaml",
    "sortedcontainers": "sortedcontainers",
    "structlog": "structlog",
}
#: files beside modules that they read
_DATA: Final = (".toml", ".json")

_MAIN: Final = '''"""The agent in one file; ``sliceplane agent`` of the package is the same program."""

import sys

if sys.version_info < (3, 11):
    here = "this is Python %d.%d" % sys.version_info[:2]
    sys.exit("sliceplane-agent: " + here + ", and the agent needs 3.11 or newer: python3.11 " + " ".join(sys.argv))

from sliceplane.cli.entry import main

# "sliceplane-agent.pyz run ..." is "sliceplane agent run ..."; under the name sliceplane both work.
if sys.argv[1:2] not in (["agent"], ["--version"]):
    sys.argv.insert(1, "agent")
main()
'''

_COMPILE: Final = """
import compileall, sys
from py_compile import PycInvalidationMode
done = compileall.compile_dir(
    sys.argv[1], quiet=1, legacy=True, stripdir=sys.argv[1], workers=1, maxlevels=20,
    invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
)
sys.exit(not done)
"""


def imported(source: Path) -> list[Path]:
    """The files of every module that the agent can import, also in functions, and the data beside
    them.
    """
    finder = ModuleFinder(path=[str(source)])
    for name in (
        "sliceplane.cli.entry",
        "sliceplane.cli.main",
        "sliceplane.cli.run.agent",
        "sliceplane.cli.version",
    ):
        finder.import_hook(name)
    modules = [Path(module.__file__) for module in finder.modules.values() if module.__file__]
    folders = sorted({path.parent for path in modules})
    data = [path for folder in folders for path in sorted(folder.iterdir()) if path.suffix in _DATA]
    return sorted([*modules, *data])


def pins() -> str:
    """The lines of ``requirements.lock`` for what is in the file."""
    blocks = (
        (ROOT / "requirements.lock").read_text().replace(" \\\n    --hash", " --hash").splitlines()
    )
    return "\n".join(line for line in blocks if line.partition("==")[0] in VENDORED) + "\n"


def vendored() -> dict[str, str]:
    """Distribution to version."""
    return {
        name: line.split()[0]
        for name, _, line in (line.partition("==") for line in pins().splitlines())
    }


def fetch_vendored() -> Path:
    """The packages, by hash.  PyYAML has wheels with a compiled half alone, whose modules are the
    same for all.
    """
    folder = WORK / "vendored"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pinned = folder / "pinned.txt"
    pinned.write_text(pins())
    wheels = (
        "--only-binary",
        ":all:",
        "--platform",
        "manylinux2014_x86_64",
        "--python-version",
        PYTHON,
    )
    run(
        tools_python(),
        *PIP,
        "download",
        "--no-deps",
        "--require-hashes",
        *wheels,
        "-r",
        pinned,
        "-d",
        folder,
    )
    for archive in sorted(folder.glob("*.whl")):
        zipfile.ZipFile(archive).extractall(folder / "unpacked")
    return folder / "unpacked"


def gather(source: Path, packages: Path, folder: Path) -> None:
    """Everything that is in the file, in *folder*."""
    for path in imported(source / "src"):
        target = folder / path.relative_to(source / "src")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    for name in VENDORED.values():
        shutil.copytree(
            packages / name,
            folder / name,
            ignore=lambda _folder, names: [
                each
                for each in names
                if (not each.endswith((".py", ".typed")) and "." in each) or each == "__pycache__"
            ],
        )
    shutil.copytree(
        PURE / "msgspec", folder / "msgspec", ignore=shutil.ignore_patterns("__pycache__")
    )
    (folder / "__main__.py").write_text(_MAIN)
    (folder / "LICENSE").write_bytes((source / "LICENSE").read_bytes())


def pack(folder: Path, target: Path) -> None:
    """A zip of *folder* behind a line that names the interpreter, with equal bytes for equal
    content.
    """
    with target.open("wb") as opened:
        opened.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(opened, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    info = zipfile.ZipInfo(str(path.relative_to(folder)), (1980, 1, 1, 0, 0, 0))
                    info.external_attr, info.compress_type = 0o100644 << 16, zipfile.ZIP_DEFLATED
                    archive.writestr(info, path.read_bytes(), compresslevel=9)
    target.chmod(0o755)


def build(scratch: Path) -> None:
    python = interpreters().get(PYTHON)
    if python is None:
        sys.exit(f"release: the agent's file is built by Python {PYTHON}, which is not here")
    packages = fetch_vendored()

    def one(folder: Path) -> None:
        content = folder.with_name(f"{folder.name}-content")
        gather(checkout(folder.with_name(f"{folder.name}-source")), packages, content)
        # One process, one order, one hash seed: constants are marshalled the same.
        run(python, "-I", "-c", _COMPILE, content, env={**os.environ, "PYTHONHASHSEED": "0"})
        pack(content, folder / NAME)

    shutil.copy(twice(one, scratch) / NAME, DIST / NAME)
    compiled = [
        name for name in zipfile.ZipFile(DIST / NAME).namelist() if name.endswith((".so", ".pyd"))
    ]
    assert not compiled, f"{NAME} has compiled code: {compiled}"


def try_out(scratch: Path) -> None:
    """Runs the file under every Python that is here, each without packages (``-I -S``)."""
    for version, python in interpreters().items():
        begin = ("-I", "-S", str(DIST / NAME))
        said = run(python, *begin, "--version", cwd=scratch).strip()
        if said != f"sliceplane, version {VERSION}":
            sys.exit(f"release: {NAME} under Python {version} says {said!r}")
        refused = subprocess.run(
            (python, *begin, "register", "web", "--port", "80", "--kubeconfig", "/nonexistent"),
            capture_output=True,
            text=True,
            check=False,
            cwd=scratch,
        )
        if refused.returncode != 1 or "Traceback" in refused.stderr:
            sys.exit(f"release: {NAME} under Python {version}: {refused.stderr}")
        print(
            f"      {NAME} under Python {version}: {said}; without a cluster: "
            f"{refused.stderr.strip()}"
        )
