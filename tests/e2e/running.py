"""A plane in a process of its own, for tests that want to see it as a user does."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
START_S = 120.0
#: of a program of this tree
PYTHON_ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}


@dataclass(frozen=True)
class Plane:
    process: subprocess.Popen[str]
    url: str
    kubeconfig: str
    kubectl: str
    environment: dict[str, str]
    log: Path


def kubectl_path() -> str:
    return str(Path(sys.executable).with_name("kubectl"))


def spawn(
    folder: Path,
    *flags: str,
    data_dir: str = "",
    command: str = "up",
    prefix: tuple[str, ...] = (),
    patience_s: float = START_S,
) -> Plane:
    """Start ``sliceplane up`` (or ``apiserver``) on a free port and wait for its ready line.

    *prefix* is a program that runs a program, such as ``ip netns exec NAME``.
    """
    log = folder / "up.log"
    environment = dict(PYTHON_ENVIRONMENT)
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [
                *(*prefix, sys.executable, "-m", "sliceplane", command, "--secure-port", "0"),
                *("--data-dir", data_dir or str(folder / "data"), *flags),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
        )
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], patience_s)
    line = process.stdout.readline() if readable else ""
    if not line.startswith("ready https://"):
        process.kill()
        process.communicate()
        raise AssertionError(f"sliceplane {command} said {line!r}\n{log.read_text()}")
    kubeconfig = line.strip().partition("kubeconfig=")[2]
    # kubectl ends before its garbage matters.
    own = {
        "KUBECONFIG": kubeconfig,
        "HOME": str(folder),
        "KUBECACHEDIR": str(folder / "cache"),
        "GOGC": "off",
    }
    return Plane(process, line.split()[1], kubeconfig, kubectl_path(), own, log)


def stop(plane: Plane) -> int:
    """SIGTERM and wait; the exit code."""
    if plane.process.poll() is None:
        plane.process.send_signal(signal.SIGTERM)
    try:
        plane.process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        plane.process.kill()
        plane.process.communicate()
        raise AssertionError(f"no end 120 s after SIGTERM\n{plane.log.read_text()}") from None
    return plane.process.returncode


@contextlib.contextmanager
def running_plane(
    folder: Path, *flags: str, data_dir: str = "", command: str = "up"
) -> Iterator[Plane]:
    plane = spawn(folder, *flags, data_dir=data_dir, command=command)
    try:
        yield plane
    finally:
        code = stop(plane)
    assert code == 0, f"exit code {code}\n{plane.log.read_text()}"


def ask(plane: Plane, path: str) -> tuple[int, str]:
    """As ``kubectl get --raw``, without starting a program: code and text of what the administrator
    is told.
    """
    pki = Path(plane.kubeconfig).with_name("pki")
    context = ssl.create_default_context(cafile=pki / "ca.crt")
    context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
    try:
        with urllib.request.urlopen(f"{plane.url}{path}", context=context, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def kubectl(plane: Plane, *arguments: str, document: object = None) -> str:
    """What kubectl prints, as the administrator; *document* is what it reads, as it is or as JSON.
    It must succeed.
    """
    text = document if document is None or isinstance(document, str) else json.dumps(document)
    done = subprocess.run(
        [plane.kubectl, *arguments],
        input=text,
        env=plane.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
    return done.stdout
