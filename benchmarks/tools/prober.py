"""Connects to a service address from a node's network namespace, again and again, and tells when it
got through.

Run as ``prober.py ADDRESS PORT`` in the namespace. For each line of standard input it says
``refused`` once a connection fails, if the line is ``down``, or, if it is ``up``, ``MONOTONIC`` of
the moment when one succeeds.
"""

from __future__ import annotations

import socket
import sys
import time

PAUSE_S = 0.0005
WAIT_MAX_S = 20.0


def connects(address: str, port: int) -> bool:
    with socket.socket() as sock:
        sock.settimeout(1.0)
        # Closed with a reset: thousands of ports in TIME_WAIT would be a benchmark of something
        # else.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        return sock.connect_ex((address, port)) == 0


def main() -> None:
    address = sys.argv[1]
    port = int(sys.argv[2])
    print("ready", flush=True)
    for line in sys.stdin:
        wanted = line.strip() == "up"
        deadline = time.monotonic() + WAIT_MAX_S
        while connects(address, port) is not wanted:
            assert time.monotonic() < deadline, f"{address}:{port} is not {line.strip()}"
            time.sleep(PAUSE_S)
        print(f"{time.monotonic():.6f}", flush=True)


if __name__ == "__main__":
    main()
