"""What a message to one client costs the xDS server's port, its acknowledgement included: CPU of
the server's process.

The same client program asks both: ours (``xds.io`` with a handler that pushes ready bytes) and
``grpc.aio`` with the same bytes. Plain and over TLS. ``benchmarks.xds`` compares whole servers.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from msgspec.json import encode

from benchmarks.harness import Result, main, note
from benchmarks.tools.process import Process, scratch
from benchmarks.tools.push_clients import Wish
from sliceplane.server.io.keys.pki import Pki, ensure

#: of a message
SIZES = (235, 23_000)
#: plain, over TLS
BUDGETS_US = {235: (30.0, 40.0), 23_000: (36.0, 60.0)}
#: clients, rounds
LARGE = (1_000, 40)
SMALL = (20, 5)
WARM_ROUNDS = 3


def cost_us(kind: str, size: int, small: bool, pki: Pki | None, log: Path) -> tuple[float, float]:
    """CPU of the server for a message, and its memory in MiB."""
    clients, rounds = SMALL if small else LARGE
    with ExitStack() as stack:
        python = (sys.executable, "-m")
        further = () if pki is None else (str(pki.folder),)
        server = stack.enter_context(
            Process(*python, "benchmarks.tools.push_server", kind, str(size), *further, log=log)
        )
        wish = encode(Wish(ca_file="" if pki is None else str(pki.ca_file))).decode()
        program = (*python, "benchmarks.tools.push_clients", server.line(), str(clients), wish)
        fleet = stack.enter_context(Process(*program, log=log))

        def until_all_have_it() -> None:
            fleet.say(str(clients))
            fleet.line(120.0)

        until_all_have_it()
        began = 0.0
        for number in range(WARM_ROUNDS + rounds):
            if number == WARM_ROUNDS:
                began = server.cpu_s()
            server.say("")
            until_all_have_it()
        time.sleep(0.3)  # acknowledgements of the last round are on their way
        return (server.cpu_s() - began) / rounds / clients * 1e6, server.rss_mib()


def run(small: bool) -> list[Result]:
    clients, _ = SMALL if small else LARGE
    results = []
    with scratch() as name:
        folder = Path(name)
        pki, _ = ensure(folder / "pki", ("localhost",), time.time())
        for size in SIZES[:1] if small else SIZES:
            for tls in (pki,) if small else (None, pki):
                where = f"{size:,} bytes, {clients:,} clients{', TLS' if tls else ''}"
                value, rss = cost_us("ours", size, small, tls, folder / "log")
                note(f"{where}: {rss:.0f} MiB")
                ours = Result(
                    name="CPU of a push and its ACK",
                    size=where,
                    value=value,
                    unit="us",
                    budget=BUDGETS_US[size][tls is not None],
                )
                if not small:
                    cost, rss = cost_us("grpc", size, small, tls, folder / "log")
                    note(f"{where}: grpc.aio {rss:.0f} MiB")
                    ours = replace(ours, peer="grpc.aio", peer_value=cost)
                results.append(ours)
    return results


if __name__ == "__main__":
    main(run)
