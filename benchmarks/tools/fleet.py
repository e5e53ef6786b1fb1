"""A fleet of watchers as the benchmark sees it: open them, expect events, learn when all were
delivered.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from benchmarks.tools.objects import NAMESPACE
from benchmarks.tools.process import Process

SLICES_PATH = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
#: connections are opened one after the other: about 1.5 ms each
OPEN_S = 120.0
OPENSSL_SETTINGS = """\
openssl_conf = default
[default]
ssl_conf = ssl
[ssl]
system_default = order
[order]
Ciphersuites = TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256
"""


@dataclass(frozen=True, slots=True)
class Delivery:
    """``at``: when the last watcher had its last event (``time.monotonic``); ``size``: bytes that
    all of them got since they were opened; ``version``: the last event's resourceVersion.
    """

    at: float
    size: int
    version: int


class Fleet:
    """*count* watchers of the EndpointSlices after the version *since*, in one process.  A context
    manager.
    """

    def __init__(self, kubeconfig: Path, count: int, since: str, folder: Path) -> None:
        self.count = count
        path = f"{SLICES_PATH}?watch=true&resourceVersion={since}"
        # Go's order of ciphers, as client-go and so nearly every watcher has it.
        settings = folder / "openssl.cnf"
        settings.write_text(OPENSSL_SETTINGS)
        command = (
            sys.executable,
            "-m",
            "benchmarks.tools.watchers",
            str(kubeconfig),
            path,
            str(count),
        )
        self._stack = ExitStack()
        self.process = self._stack.enter_context(
            Process(*command, log=folder / "watchers.log", OPENSSL_CONF=str(settings))
        )
        try:
            word, seconds = self.process.line(OPEN_S).split()
        except BaseException:
            self._stack.close()
            raise
        assert word == "open", word
        self.open_s = float(seconds)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def expect(self, events: int) -> None:
        """Say how many events each watcher shall get; then cause them, then ``delivered``."""
        self.process.say(str(events))

    def delivered(self, timeout_s: float) -> Delivery:
        """Raises ``RuntimeError`` if they were not within *timeout_s*."""
        word, at, size, version = self.process.line(timeout_s).split()
        assert word == "got", word
        return Delivery(float(at), int(size), int(version))
