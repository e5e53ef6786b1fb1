"""Whether the command that this container runs is alive: ``python -m sliceplane.cli.alive``, the image's HEALTHCHECK.

It asks the health page of whatever listens on loopback: the API server (``SLICEPLANE_UP_SECURE_PORT`` or 6443), the
controllers (10257) or the node proxy (10256).  The first port that takes the connection decides.  Exit code 0: it said
so; 1: it did not, or there is none to ask.

Nothing of a probe is secret and it goes to this machine alone, so the certificate is not looked at: the authority may
be in a folder of any name.  Only the standard library is imported, since this runs every few seconds.
"""

from __future__ import annotations

import http.client
import os
import ssl
import sys

#: seconds for each port; Docker gives the whole probe five
TIMEOUT_S = 1.5


def api_port() -> int:
    """Where the API server listens, as far as its environment says."""
    named = (os.environ.get(f"SLICEPLANE_{command}_SECURE_PORT", "") for command in ("UP", "APISERVER"))
    return next((int(port) for port in named if port.isdigit()), 6443)


def ask(port: int, *, tls: bool, path: str) -> tuple[int, str]:
    """The status and the first line of the answer.  Raises ``OSError`` where nothing listens or nothing comes."""
    connection = (
        http.client.HTTPSConnection("127.0.0.1", port, timeout=TIMEOUT_S, context=ssl._create_unverified_context())
        if tls
        else http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    )
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read(4096).decode(errors="replace").partition("\n")[0]
    except http.client.HTTPException as error:
        raise OSError(f"no answer of HTTP: {error}") from error
    finally:
        connection.close()


def main(places: tuple[tuple[int, bool, str], ...] | None = None) -> int:
    """The exit code; *places* are port, whether TLS, and path."""
    places = places or ((api_port(), True, "/livez"), (10257, False, "/livez"), (10256, False, "/livez"))
    for port, tls, path in places:
        try:
            status, line = ask(port, tls=tls, path=path)
        except ConnectionRefusedError:
            continue
        except OSError as error:
            print(f"port {port}: {error}")
            return 1
        print(f"port {port}: {status} {line}")
        return 0 if status == 200 else 1
    print(f"nothing listens on 127.0.0.1, port {', '.join(str(port) for port, _, _ in places)}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
