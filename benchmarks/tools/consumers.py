"""Judge consumers of others with ``sliceplane conformance``, and keep their reports: ``make consumers``.

    python -m benchmarks.tools.consumers --report docs/consumers [NAME ...]

Python libraries go into an environment of their own; CoreDNS is built from its module.  What cannot be had on this
machine is named, and its earlier report stays.  One after another: a busy machine would be blamed on the consumer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import note
from benchmarks.informers import REQUIREMENTS, environment
from benchmarks.tools import peers

CONSUME = Path(__file__).parent.parent / "peers" / "python" / "consume.py"
LIBRARIES = {
    "kubernetes-informer": "the official Python client's informer, its cache",
    "kubernetes-watch": "the official Python client's Watch, in a loop",
    "lightkube": "lightkube's list and watch, as its documentation shows",
    "kr8s": "kr8s' watch, in a loop",
}
OURS = {"view": "our EndpointView", "dns": "our name server"}
#: three back-offs of a client that waits a few seconds after an error
PATIENCE = "20s"
_COREFILE = """.:{port} {{
    kubernetes cluster.local {{
        kubeconfig {{$KUBECONFIG}}
    }}
}}
"""


def commands(folder: Path, wanted: set[str]) -> Iterator[tuple[str, str]]:
    """Name and ``--run`` of each consumer that can be had here."""
    for name in OURS:
        if not wanted or name in wanted:
            yield name, name
    libraries = [name for name in LIBRARIES if not wanted or name in wanted]
    if libraries:
        python = asyncio.run(environment(folder / "environment"))
        for name in libraries:
            yield name, f"program:{python} {CONSUME} {name}"
    if not wanted or "coredns" in wanted:
        program = peers.build("coredns")
        if program is None:
            note("coredns: not judged")
        else:
            corefile = folder / "Corefile"
            corefile.write_text(_COREFILE.format(port="{$PORT}"))
            yield "coredns", f"name-server:env PORT={{port}} {program} -conf {corefile}"


def judge(name: str, run: str, folder: Path) -> str:
    """Its summary.  Raises ``RuntimeError`` if it could not be asked."""
    command = [sys.executable, "-m", "sliceplane", "conformance", "--run", run, "--name", name]
    command += ["--shrink", "--patience", PATIENCE, "--report", str(folder)]
    done = subprocess.run(
        command, check=False, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": "src"}
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{name} could not be asked")
    return done.stdout.strip().splitlines()[-1]


def index(folder: Path) -> str:
    """A table of the reports that are there."""
    lines = [
        "# Reports of consumers",
        "",
        f"Made by `make consumers`; Python libraries: {', '.join(REQUIREMENTS)}.",
        "",
    ]
    lines += ["| consumer | | passed | failed | not asked |", "|---|---|---|---|---|"]
    described = {**OURS, **LIBRARIES, "coredns": "CoreDNS' kubernetes plugin, without a cache"}
    for name, text in described.items():
        path = folder / f"{name}.json"
        if path.exists():
            report = json.loads(path.read_text())
            numbers = " | ".join(str(report[key]) for key in ("passed", "failed", "notAsked"))
            lines.append(f"| [{name}]({name}.md) | {text} | {numbers} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, default=Path("docs/consumers"))
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        for name, run in commands(Path(folder), set(arguments.names)):
            print(judge(name, run, arguments.report), flush=True)
    (arguments.report / "index.md").write_text(index(arguments.report))


if __name__ == "__main__":
    main()
