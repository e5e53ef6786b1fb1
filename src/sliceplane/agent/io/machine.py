"""This machine: its identity, its address as the cluster sees it, and whether it slept."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import re
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from sliceplane.agent.io.own_files import check_folder, check_regular, read_own, write_own
from sliceplane.consume.agents.registration import family_of
from sliceplane.kit.io.interfaces import addresses

_MACHINE_ID: Final = Path("/etc/machine-id")
_HOST_FILE: Final = "host-id"
#: characters of an agent's name, and of the host's part in it
_LABEL_MAX: Final = 63
_HOST_MAX: Final = 40
#: maximum bytes; the identity becomes a part of the Lease's holder
_HOST_ID_MAX: Final = 256
#: addresses for documentation (RFC 5737, RFC 3849): they use the default route
_ELSEWHERE: Final = {4: "192.0.2.1", 6: "2001:db8::1"}
#: if the clocks with and without sleep drift apart by more seconds than this, the machine slept
SLEPT_S: Final = 5.0


class MachineError(Exception):
    """A sentence for the user."""


def state_folder() -> Path:
    """Returns $STATE_DIRECTORY of systemd, else a folder of this user; creates it if needed. Raises
    ``MachineError``.
    """
    named = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    try:
        base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
        folder = Path(named) if named else Path(base) / "sliceplane-agent"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        check_folder(folder)
    except (RuntimeError, OSError) as error:
        raise MachineError(
            f"there is no folder for the agent's state: {error}; set XDG_STATE_HOME"
        ) from error
    return folder


def default_name(service: str = "") -> str:
    """Returns the host name's first label as a Kubernetes name, prefixed with *service* if the
    agent serves only that Service. So agents of one Service on several hosts have different names.
    Raises ``MachineError`` if no valid character remains.
    """
    label = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().partition(".")[0].lower()).strip("-")[
        :_LABEL_MAX
    ]
    if not label.rstrip("-"):
        raise MachineError(
            "this machine's host name is no name for an agent: choose one with --name"
        )
    if service:
        host = label[:_HOST_MAX]
        label = f"{service[: _LABEL_MAX - 1 - len(host)]}-{host}"
    return label.rstrip("-")


def host_id(folder: Path) -> str:
    """Returns the identity of this machine, which never changes: from *folder* if stored there,
    else from /etc/machine-id.

    A machine-id is confidential (machine-id(5)), so only its hash is published. Copies of a disk
    image have the same machine-id: write another name into the file to distinguish them.
    """
    file = folder / _HOST_FILE
    try:
        written = read_own(file, _HOST_ID_MAX).strip()
    except FileNotFoundError:
        written = ""
    except OSError as error:
        raise MachineError(f"cannot read this machine's identity: {error}") from error
    if not written.isprintable():
        raise MachineError(f"{file} is no identity: it has one line of printable characters")
    if written:
        return written
    try:
        secret = _MACHINE_ID.read_bytes().strip()
    except OSError:
        secret = os.urandom(16)
    identity = f"{socket.gethostname()}-{sha256(b'sliceplane-agent' + secret).hexdigest()[:8]}"
    write_own(file, identity + "\n")
    return identity


def lock_name(folder: Path, name: str) -> int:
    """Returns a descriptor that locks the name *name* of an agent on this machine until it is
    closed.

    Raises ``MachineError`` if another process holds it.
    """
    file = folder / f"{name}.lock"
    try:
        descriptor = os.open(
            file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600
        )
        check_regular(descriptor, file)
    except OSError as error:
        raise MachineError(f"cannot lock the name {name!r}: {error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise MachineError(
            f"agent {name!r} runs on this machine already (process {holder or 'unknown'}); "
            "another one needs a name of "
            "its own: --name"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


def own_addresses(server_url: str, requested: Iterable[str]) -> tuple[str, ...]:
    """Returns the addresses for a registration: *requested*, where ``auto`` is the source address
    of the route to the server.

    Raises ``MachineError`` for an address that no other machine could reach.
    """
    resolved = []
    for text in requested:
        address = _route_source(server_url) if text == "auto" else text
        try:
            family_of(address)
        except ValueError as error:
            hint = ""
            if text == "auto":
                hint = (
                    f": the way to {server_url} leads from there; name the address that clients "
                    "use with --address"
                )
            raise MachineError(f"{error}{hint}") from error
        resolved.append(address)
    return tuple(resolved)


def _route_source(server_url: str) -> str:
    parts = urlsplit(server_url)
    try:
        source = _source_towards(
            parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        )
    except OSError as error:
        raise MachineError(
            f"there is no way to {server_url}: {error}; name an address with --address"
        ) from error
    if not source.is_loopback:
        return str(source)
    # The server runs on this machine, too. Prefer the source address of the default route, which
    # other machines reach; they do not reach the address of a container bridge.
    with suppress(OSError):
        return str(_source_towards(_ELSEWHERE[source.version], 443))
    others = [
        text
        for text in addresses(ipv6=True)
        if ipaddress.ip_address(text).version == source.version
    ]
    return next(iter(others), str(source))


def _source_towards(host: str, port: int) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Raises ``OSError``."""
    family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)  # no packet: the kernel chooses a route
        return ipaddress.ip_address(probe.getsockname()[0].partition("%")[0])


class SleepWatch:
    """Detects that the machine slept since the last check: the monotonic clock stops during sleep.

    It is compared with the time since boot, which continues. A system without that clock uses the
    wall clock; then setting the clock looks like a sleep.
    """

    def __init__(self) -> None:
        self._offset = _with_sleep() - time.monotonic()

    def slept(self) -> bool:
        offset = _with_sleep() - time.monotonic()
        jumped = abs(offset - self._offset) > SLEPT_S
        self._offset = offset
        return jumped


def _with_sleep() -> float:
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.time() if clock is None else time.clock_gettime(clock)
