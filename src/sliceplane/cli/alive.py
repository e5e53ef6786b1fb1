"""The health check of a container's command: ``python -m sliceplane.cli.alive``, the image's
HEALTHCHECK.

The container's first process determines the query: its command, and its flags or environment if its
port is not the default. Ports of other processes are never queried, since containers may share a
network. Exit code 0: the process reports that it is alive, or it has no health page and runs; 1: it
reports that it is not alive, or does not answer.

A probe contains no secret and goes only to this machine, so the certificate is not verified: the
authority may be in any folder. Little more than the standard library is imported, since the check
runs every few seconds.
"""

from __future__ import annotations

import http.client
import ssl
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from sliceplane.kit.terminal_text import printable

#: seconds; Docker gives the whole probe five
TIMEOUT_S = 3.0


class HealthPage(msgspec.Struct, frozen=True):
    """The address of a health page."""

    host: str
    port: int
    tls: bool


def find_health_page(arguments: Sequence[str], environment: Mapping[str, str]) -> HealthPage | None:
    """Returns the health page of the process with this command line; None if it has none."""
    command = next(
        (
            argument
            for argument in arguments
            if argument in ("up", "apiserver", "controllers", "proxy", "observe")
        ),
        "",
    )

    def flag_value(flag: str, default: str) -> str:
        for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
            if argument == f"--{flag}":
                return following
            if argument.startswith(f"--{flag}="):
                return argument.partition("=")[2]
        return environment.get(f"SLICEPLANE_{command}_{flag}".upper().replace("-", "_")) or default

    match command:
        case "up" | "apiserver":
            return _health_page(
                flag_value("bind-address", "127.0.0.1"), flag_value("secure-port", "6443"), tls=True
            )
        case "controllers" | "proxy" | "observe":
            # All but the proxy have their health pages beside their metrics, too.
            default = (
                "0.0.0.0:10256" if command == "proxy" else flag_value("metrics-bind-address", "")
            )
            host, _, port = flag_value("healthz-bind-address", default).rpartition(":")
            return _health_page(host, port, tls=False)
    return None


def _health_page(host: str, port: str, *, tls: bool) -> HealthPage | None:
    """Returns the page at this address; an unspecified address is queried on loopback."""
    name = host.strip("[]")
    here = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(name, name)
    return HealthPage(here, int(port), tls) if port.isdigit() else None


def probe(page: HealthPage, path: str) -> tuple[int, str]:
    """Returns the status and the first line of the answer.  Raises ``OSError`` without an answer."""
    connection = (
        http.client.HTTPSConnection(page.host, page.port, timeout=TIMEOUT_S, context=_trusting())
        if page.tls
        else http.client.HTTPConnection(page.host, page.port, timeout=TIMEOUT_S)
    )
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read(4096).decode(errors="replace").partition("\n")[0]
    except http.client.HTTPException as error:
        raise OSError(f"no answer of HTTP: {error}") from error
    finally:
        connection.close()


def _trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def main(process: Path = Path("/proc/1")) -> int:
    """Prints the health of the process and returns the exit code."""

    def entries(name: str) -> list[str]:
        return (process / name).read_bytes().decode(errors="replace").strip("\0").split("\0")

    arguments = entries("cmdline")
    page = find_health_page(
        arguments, dict(entry.partition("=")[::2] for entry in entries("environ"))
    )
    if page is None:
        print(f"it runs, without a health page (--healthz-bind-address): {' '.join(arguments)}")
        return 0
    try:
        status, line = probe(page, "/livez")
    except OSError as error:
        print(f"{page.host} port {page.port}: {error}")
        return 1
    print(f"{page.host} port {page.port}: {status} {printable(line)}")
    return 0 if status == 200 else 1


if __name__ == "__main__":
    sys.exit(main())
