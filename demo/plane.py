"""The processes of the demo: ``sliceplane up``, the node proxies, kubectl."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

START_S = 30.0
STOP_S = 10.0


class DemoError(RuntimeError):
    """A step failed; the text is for the person who watches."""


class Process:
    """A ``sliceplane`` command that prints one line starting with ``ready`` when it is."""

    def __init__(self, *arguments: str, log: Path) -> None:
        self._name = " ".join(arguments[:1])
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sliceplane", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        started = time.monotonic()
        self.ready_line = self._wait_ready()
        self.start_s = time.monotonic() - started

    def _wait_ready(self) -> str:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], START_S)
        line = self._process.stdout.readline() if readable else ""
        if not line.startswith("ready"):
            self.stop()
            said = self._log.read_text().strip().splitlines()
            raise DemoError(
                f"sliceplane {self._name} did not start: {said[-1] if said else 'it said nothing'}"
            )
        return line.strip()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


class Plane:
    """The plane with two emulated zones, and one proxy per client node."""

    #: where node proxies answer names, each on its own node
    NAMES = "169.254.20.10"
    NODES = {"node-1": "zone-a", "node-2": "zone-b"}

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="sliceplane-demo-")
        self.folder = Path(self._folder.name)
        self._processes: list[Process] = []
        self.kubeconfig = ""

    def __enter__(self) -> Plane:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in reversed(self._processes):
            process.stop()
        self._folder.cleanup()

    def start(self, *, external_readiness: bool) -> Process:
        readiness = "external" if external_readiness else "auto"
        up = Process(
            "up",
            *("--data-dir", str(self.folder / "data"), "--secure-port", "0"),
            *(
                "--emulate",
                "--emulate-nodes",
                str(len(self.NODES)),
                "--zones",
                ",".join(self.NODES.values()),
            ),
            *("--emulate-readiness", readiness),
            log=self.folder / "up.log",
        )
        self._processes.append(up)
        self.kubeconfig = up.ready_line.partition("kubeconfig=")[2]
        return up

    def start_proxy(self, node: str, namespace: str) -> Process:
        return Process(
            "proxy",
            *("--kubeconfig", self.kubeconfig, "--hostname-override", node, "--netns", namespace),
            *("--dns", f"{self.NAMES}:53"),
            log=self.folder / f"proxy-{node}.log",
        )

    def _kubectl(self) -> tuple[str, dict[str, str]]:
        beside = Path(sys.executable).with_name("kubectl")
        environment = {**os.environ, "KUBECONFIG": self.kubeconfig, "HOME": str(self.folder)}
        return (str(beside) if beside.exists() else "kubectl"), environment

    def kubectl(self, *arguments: str, timeout_s: float = 90.0) -> str:
        """Standard output of kubectl.  Raises ``DemoError`` with its standard error if it fails."""
        program, environment = self._kubectl()
        try:
            done = subprocess.run(
                [program, *arguments],
                capture_output=True,
                text=True,
                timeout=timeout_s,
                env=environment,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise DemoError(
                f"kubectl {' '.join(arguments)}: no end after {timeout_s:.0f} s"
            ) from error
        if done.returncode != 0:
            raise DemoError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def popen_kubectl(self, *arguments: str) -> subprocess.Popen[str]:
        """A kubectl that goes on (``--watch``); the caller ends it."""
        program, environment = self._kubectl()
        return subprocess.Popen(
            [program, *arguments], stdout=subprocess.PIPE, text=True, env=environment
        )
