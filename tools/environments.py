"""Run the fast tests elsewhere than in ``.venv``: with the oldest packages that we allow, and under
other Pythons.

    python tools/environments.py floors     # every dependency of pyproject.toml at its lower bound
    python tools/environments.py matrix     # lint and tests under each Python that is here; says which are not
    python tools/environments.py pin        # requirements-floors.lock from pyproject.toml; needs uv

Environments are made in ``build/`` by ``tools/install.sh`` and kept. Arguments behind ``--`` go to
pytest in place of the list of fast tests. A lower bound is a promise for what we run; of what only
tests run, ``requirements-dev.lock`` says which version. ``requirements-floors.lock`` is made:
``tests/deploy`` compares it with pyproject.toml.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FLOORS = ROOT / "requirements-floors.lock"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
#: what says soon whether a package or an interpreter is too old or too new, without root and
#: without kubectl
FAST = [
    *(
        "tests/kit",
        "tests/api",
        "tests/documents",
        "tests/store",
        "tests/workqueue",
    ),
    *(
        "tests/flowcontrol",
        "tests/slices",
        "tests/balancing",
        "tests/registry",
        "tests/server",
    ),
    *("tests/client", "tests/lab/whatif", "tests/cli"),
    *("tests/agent", "tests/dns", "tests/node", "tests/watch", "tests/xds"),
    # grpcio, with a real etcd if there is one
    *("tests/replicated/test_etcd_tls.py", "tests/replicated/test_two_servers.py"),
]
MARKS = "not slow and not kernel and not kubectl and not peer"
_BOUND = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*>=\s*([0-9][^,;\s]*)")


def bounds() -> dict[str, str]:
    """Name to lowest version, of all that the package and its extras ask for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(
            requirement
            for extra in project["optional-dependencies"].values()
            for requirement in extra
        ),
    ]
    lower_bounds: dict[str, str] = {}
    for requirement in wanted:
        if requirement.startswith(f"{project['name']}["):
            continue
        bound = _BOUND.match(requirement)
        if bound is None:
            raise SystemExit(f"pyproject.toml: {requirement!r} has no lower bound")
        if lower_bounds.setdefault(bound[1], bound[2]) != bound[2]:
            raise SystemExit(f"pyproject.toml: {bound[1]} has two lower bounds")
    return lower_bounds


def pin() -> None:
    """Write the lock: bounds of ours, and the rest as far as it can be what
    ``requirements-dev.lock`` has.
    """
    with tempfile.TemporaryDirectory() as folder:
        floors = Path(folder, "floors.txt")
        floors.write_text(
            "".join(f"{name}=={version}\n" for name, version in sorted(bounds().items()))
        )
        # uv prefers the versions that its output file has already.
        made = Path(folder, FLOORS.name)
        shutil.copy(ROOT / "requirements-dev.lock", made)
        flags = (
            "--generate-hashes",
            "--python-version",
            VERSIONS[0],
            "--all-extras",
            "--group",
            "dev",
        )
        where = ("-c", str(floors), "pyproject.toml", "-o", str(made))
        subprocess.run(
            ("uv", "pip", "compile", "-q", "--no-header", "--no-annotate", *flags, *where),
            cwd=ROOT,
            check=True,
        )
        FLOORS.write_text("# Made by: python tools/environments.py pin\n" + made.read_text())


def floors(tests: list[str]) -> int:
    return tried("floors", interpreters()[VERSIONS[0]], lint=False, tests=tests)


def matrix(tests: list[str]) -> int:
    here = interpreters()
    results = {
        version: tried("dev", here[version], lint=True, tests=tests)
        for version in VERSIONS
        if version in here
    }
    for version in VERSIONS:
        said = "not here" if version not in here else "failed" if results[version] else "passed"
        print(f"Python {version}: {said}")
    return max(results.values())


def interpreters() -> dict[str, str]:
    """Version to program, of those that really run: on PATH, and where pyenv and uv keep theirs."""
    home = Path.home()
    kept = [
        Path(os.environ.get("PYENV_ROOT", home / ".pyenv"), "versions"),
        home / ".local/share/uv/python",
    ]
    pythons: dict[str, str] = {}
    for version in VERSIONS:
        name = f"python{version}"
        on_path = [str(Path(folder, name)) for folder in os.get_exec_path()]
        candidates = on_path + [
            str(each) for folder in kept for each in sorted(folder.glob(f"*/bin/{name}"))
        ]
        question = "import sys; print('%d.%d' % sys.version_info[:2])"
        for program in candidates:
            if not os.access(program, os.X_OK):
                continue
            # A shim of pyenv is there for versions that are not.
            asked = subprocess.run(
                (program, "-c", question), capture_output=True, text=True, check=False
            )
            if asked.stdout.strip() == version:
                pythons[version] = program
                break
    return pythons


def tried(what: str, python: str, *, lint: bool, tests: list[str]) -> int:
    """1 if anything fails in an environment of *what* (see ``tools/install.sh``) with *python*."""
    version = python.rpartition("python")[2]
    folder = ROOT / "build" / (f"python{version}" if what == "dev" else what)
    environment = {
        **os.environ,
        "PYTHON": python,
        "VENV": str(folder),
        "HYPOTHESIS_PROFILE": "quick",
    }

    def fails(*command: str) -> bool:
        failed = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode != 0
        if failed:
            print(f"failed: {shlex.join(command)}", flush=True)
        return failed

    print(f"== {what} with {python}", flush=True)
    if fails("tools/install.sh", what):
        return 1
    programs = folder / "bin"
    commands = [
        [
            str(programs / "python"),
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            MARKS,
            *(tests or FAST),
        ]
    ]
    if lint:
        environment["PYTHONPATH"] = "src"
        commands[:0] = [
            [str(programs / "ruff"), "check", "."],
            [str(programs / "mypy"), "--python-version", version],
            [str(programs / "lint-imports")],
        ]
    # All of them, so that one run tells all that is wrong.
    return int(sum([fails(*command) for command in commands]) > 0)


def main() -> None:
    words, _, tests = " ".join(sys.argv[1:]).partition("--")
    match words.split():
        case ["pin"]:
            pin()
        case ["floors"]:
            sys.exit(floors(tests.split()))
        case ["matrix"]:
            sys.exit(matrix(tests.split()))
        case _:
            sys.exit(str(__doc__))


if __name__ == "__main__":
    main()
