"""A program of a user: backends of gRPC, and calls by ``xds:///``, told what to do by lines of
standard input.

It knows nothing of us: the address of the xDS server is in ``GRPC_XDS_BOOTSTRAP``, which gRPC reads
once a process, so each bootstrap is a process of its own.

    backend ADDRESS             serves there; answers its port
    stop PORT                   ends a backend within a second of grace
    call TARGET COUNT           so many calls, one after the other; how many each backend answered, what failed
    load TARGET RATE            calls on and on, so many a second, until "end"
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from concurrent import futures
from typing import Any

import grpc

METHOD = "/test.Echo/Say"
CALL_TIMEOUT_S = 20.0


class Program:
    def __init__(self) -> None:
        self.backends: dict[int, grpc.Server] = {}
        self.channels: dict[str, grpc.Channel] = {}
        self.loading: threading.Event | None = None
        self.seen: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.loader: threading.Thread | None = None

    def backend(self, address: str) -> Any:
        server = grpc.server(futures.ThreadPoolExecutor(4))
        port = 0

        def say(request: bytes, context: grpc.ServicerContext) -> bytes:
            return str(port).encode()

        handlers = {"Say": grpc.unary_unary_rpc_method_handler(say)}
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("test.Echo", handlers),)
        )
        port = server.add_insecure_port(f"{address}:0")
        server.start()
        self.backends[port] = server
        return port

    def stop(self, port: str) -> Any:
        self.backends.pop(int(port)).stop(1.0).wait()
        return "stopped"

    def _once(self, target: str) -> str:
        channel = self.channels.get(target)
        if channel is None:
            channel = self.channels[target] = grpc.insecure_channel(target)
        say = channel.unary_unary(METHOD)
        try:
            answer: bytes = say(b"", timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            return f"!{error.code().name}: {error.details()}"
        return answer.decode()

    def call(self, target: str, count: str) -> Any:
        began = time.monotonic()
        answers = Counter(self._once(target) for _ in range(int(count)))
        took_s = time.monotonic() - began
        failed = {text: number for text, number in answers.items() if text.startswith("!")}
        return {
            "answered": {port: n for port, n in answers.items() if port not in failed},
            "failed": failed,
            "s": took_s,
        }

    def load(self, target: str, rate: str) -> Any:
        stop = self.loading = threading.Event()
        pause_s = 1.0 / float(rate)
        pool = futures.ThreadPoolExecutor(16)

        def note(done: futures.Future[str]) -> None:
            text = done.result()
            (self.failed if text.startswith("!") else self.seen)[text] += 1

        def work() -> None:
            due = time.monotonic()
            while not stop.is_set():
                due = max(due + pause_s, time.monotonic() - 0.1)
                pool.submit(self._once, target).add_done_callback(note)
                time.sleep(max(due - time.monotonic(), 0.0))
            pool.shutdown()

        self.loader = threading.Thread(target=work)
        self.loader.start()
        return "loading"

    def end(self) -> Any:
        assert self.loading is not None
        assert self.loader is not None
        self.loading.set()
        self.loader.join()
        return {"answered": dict(self.seen), "failed": dict(self.failed)}

    def so_far(self) -> Any:
        return {"answered": dict(self.seen), "failed": dict(self.failed)}


def main() -> None:
    program = Program()
    for line in sys.stdin:
        verb, *arguments = line.split()
        print(json.dumps(getattr(program, verb)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
