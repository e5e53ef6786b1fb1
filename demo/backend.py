"""What a Pod of the demo runs: an HTTP server that answers every GET with its own name.

The manifest asks for agnhost's ``serve-hostname``; this does the same where there is no container
runtime. Run as a script, in the Pod's network namespace: ``backend.py NAME PORT``.
"""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True


def main() -> None:
    name = sys.argv[1]
    port = int(sys.argv[2])
    body = name.encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Silence: the client counts."""

    server = Server(("0.0.0.0", port), Handler)
    print("listening", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
