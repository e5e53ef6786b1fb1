"""Ports for processes that are told theirs, and for servers that come back at the same one.

Such a port must stay free between the asking and the listening, and while its server is down. So it
is not one of the kernel's own choice: those the kernel also gives to outgoing connections, and it
may give the same one twice.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

_FIRST = 12_000
#: not node ports either, which begin at 30000
_END = min(30_000, int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]))


def _own_ports() -> Iterator[int]:
    """Each once, in an order of this process's own.

    Pytest's workers have ports of their own each: one that was returned and is not listened at yet
    looks free to all.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = range(_FIRST + worker, _END, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    yield from random.Random(os.urandom(8)).sample(own, len(own))


#: owned by ``free_port``; begun by the first who asks, in a worker
_candidates = _own_ports()


def free_port() -> int:
    """A TCP port of loopback that nobody listens at, that no connection is given, and that was not
    returned before.
    """
    for port in _candidates:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"every port from {_FIRST} to {_END - 1} was used")
