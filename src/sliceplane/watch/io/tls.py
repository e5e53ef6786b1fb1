"""Contexts of TLS connections, kept current: certificates in files change while we run, and some
are handed out by a login program.

A context is never changed once connections were made with it; a new one is made, under a new
number, and a client that keeps connections opens new ones when the number has changed. Files that
cannot be read at that moment (they are being replaced) leave everything as it was.
"""

from __future__ import annotations

import os
import ssl
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from sliceplane.kit.io.files import CREDENTIAL_BYTES_MAX, FILE_CHECK_PERIOD_S, read_bytes, stamp
from sliceplane.kit.io.log import get_logger

_log = get_logger("client")


class Pem(msgspec.Struct, frozen=True):
    """PEM text that was given, or is in a file that may change."""

    data: bytes = b""
    path: Path | None = None

    def read(self) -> bytes:
        """Raises ``OSError``."""
        return self.data or (
            b"" if self.path is None else read_bytes(self.path, CREDENTIAL_BYTES_MAX)
        )


NO_PEM: Final = Pem()


class Tls:
    """Owned by one connection. *authority* without text: the system's. Raises ``OSError`` and
    ``ssl.SSLError`` for what cannot be used from the start.
    """

    def __init__(
        self,
        *,
        authority: Pem = NO_PEM,
        certificate: Pem = NO_PEM,
        key: Pem = NO_PEM,
        insecure: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._authority = authority
        self._certificate = certificate
        self._key = key
        self._insecure = insecure
        self._clock = clock
        #: certificate and key of a login program, which take precedence over the configured ones
        self._login_pem = b""
        self._stamps = self._file_stamps()
        self._checked_at = clock()
        self._number = 1
        self._context = self._make()

    def showing(self, certificate: Pem = NO_PEM, key: Pem = NO_PEM) -> Tls:
        """The same authority for connections that show another certificate, or none."""
        return Tls(
            authority=self._authority,
            certificate=certificate,
            key=key,
            insecure=self._insecure,
            clock=self._clock,
        )

    def current(self) -> tuple[int, ssl.SSLContext]:
        """The context for new connections, and its number."""
        now = self._clock()
        if now - self._checked_at >= FILE_CHECK_PERIOD_S:
            self.check_files()
        return self._number, self._context

    def check_files(self) -> None:
        """Replaces the context if the files have changed."""
        self._checked_at = self._clock()
        stamps = self._file_stamps()
        if stamps != self._stamps:
            self._replace(stamps)

    def use(self, pem: bytes) -> None:
        """*pem*: a certificate and its key, from a login program.  Raises ``ssl.SSLError``."""
        if pem == self._login_pem:
            return
        before, self._login_pem = self._login_pem, pem
        try:
            self._context = self._make()
        except (OSError, ssl.SSLError):
            self._login_pem = before
            raise
        self._number += 1

    def _replace(self, stamps: tuple[object, ...]) -> None:
        try:
            context = self._make()
        except (OSError, ssl.SSLError) as error:
            _log.warning("changed certificates cannot be used", problem=str(error))
            return
        # Taken before the files were read: the next check finds a change in between.
        self._stamps = stamps
        self._context = context
        self._number += 1

    def _file_stamps(self) -> tuple[object, ...]:
        return tuple(stamp(pem.path) for pem in (self._authority, self._certificate, self._key))

    def _make(self) -> ssl.SSLContext:
        authority = self._authority.read()
        context = ssl.create_default_context(cadata=authority.decode() if authority else None)
        if self._insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        pem = self._login_pem or b"\n".join(
            filter(None, (self._certificate.read(), self._key.read()))
        )
        if pem:
            _load(context, pem)
        return context


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    """OpenSSL takes certificates from files only. This one is in memory: a key has no business on a
    disk, and where the file system is read-only there may be no folder for temporary files.
    """
    if not hasattr(os, "memfd_create"):
        with tempfile.NamedTemporaryFile() as file:
            file.write(pem)
            file.flush()
            context.load_cert_chain(file.name)
        return
    with os.fdopen(os.memfd_create("certificate"), "wb") as file:
        file.write(pem)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
