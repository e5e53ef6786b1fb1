"""What a message to one client costs the xDS server's port, its acknowledgement included: CPU of the server's process.

The same client program asks all three: ours (``shell.xds`` with a handler that pushes ready bytes), ``grpc.aio`` with
the same bytes, and go-control-plane's linear cache, which makes the message itself.  Plain and over TLS.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.harness import Result, main, note
from benchmarks.tools import peers
from benchmarks.tools.process import Process, scratch
from sliceplane.shell.server.keys.pki import Pki, ensure

GO = "go-control-plane 0.14.0"
#: of a message, and how many endpoints the peer's has for about as many
SIZES = ((235, 10), (23_000, 1000))
#: plain, over TLS
BUDGETS_US = {235: (30.0, 40.0), 23_000: (36.0, 60.0)}
WARM_ROUNDS = 3


def cost_us(command: Sequence[str], clients: int, rounds: int, pki: Pki | None, log: Path) -> tuple[float, float, int]:
    """CPU of the server for a message, its memory in MiB, and bytes of the message."""
    with ExitStack() as stack:
        server = stack.enter_context(Process(*command, log=log))
        port = server.line()
        authority = () if pki is None else (str(pki.ca_file),)
        program = (sys.executable, "-m", "benchmarks.tools.push_clients")
        fleet = stack.enter_context(Process(*program, port, str(clients), *authority, log=log))
        size = int(fleet.line(120.0))
        began = 0.0
        for number in range(WARM_ROUNDS + rounds):
            if number == WARM_ROUNDS:
                began = server.cpu_s()
            server.say("")
            size = int(fleet.line(120.0))
        time.sleep(0.3)  # acknowledgements of the last round are on their way
        return (server.cpu_s() - began) / rounds / clients * 1e6, server.rss_mib(), size


def run(small: bool) -> list[Result]:
    clients, rounds = (20, 5) if small else (1000, 40)
    go = None if small else peers.build("xds")
    results = []
    with scratch() as name:
        folder = Path(name)
        pki, _ = ensure(folder / "pki", ("localhost",), time.time())
        log = folder / "log"
        for size, endpoints in SIZES[:1] if small else SIZES:
            for tls in (pki,) if small else (None, pki):
                where = f"{size:,} bytes, {clients:,} clients{', TLS' if tls else ''}"
                python = (sys.executable, "-m", "benchmarks.tools.push_server")
                further = () if tls is None else (str(tls.folder),)
                value, rss, _ = cost_us((*python, "ours", str(size), *further), clients, rounds, tls, log)
                note(f"{where}: {rss:.0f} MiB")
                ours = Result(
                    name="CPU of a push and its ACK",
                    size=where,
                    value=value,
                    unit="us",
                    budget=BUDGETS_US[size][tls is not None],
                )
                theirs = [] if small else [("grpc.aio", (*python, "grpc", str(size), *further))]
                if go is not None:
                    files = () if tls is None else (str(tls.server_file), str(tls.server_key_file))
                    theirs.append((GO, (str(go), str(endpoints), *files)))
                for peer, command in theirs:
                    cost, rss, sent = cost_us(command, clients, rounds, tls, log)
                    note(f"{where}: {peer} {rss:.0f} MiB, messages of {sent:,} bytes")
                    results.append(replace(ours, peer=peer, peer_value=cost))
                if not theirs:
                    results.append(ours)
    return results


if __name__ == "__main__":
    main(run)
