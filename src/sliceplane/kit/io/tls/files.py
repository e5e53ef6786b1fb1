"""The TLS context of a port whose certificates are in files, made anew when they change."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Protocol

from sliceplane.kit.io.files import FILE_CHECK_PERIOD_S, stamp
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.io.start_error import StartError
from sliceplane.kit.io.tls.acceptor import FrontProxies, serving_context

_log = get_logger("tls")


class UseContext(Protocol):
    """``Listener.use``"""

    def __call__(self, context: ssl.SSLContext, *, distrusting: bool) -> None: ...


class FileTls:
    """Owned by one port."""

    def __init__(
        self,
        cert_file: Path,
        key_file: Path,
        client_ca_file: Path | None,
        proxies: FrontProxies | None = None,
    ) -> None:
        """Raises ``StartError``."""
        self._settings = cert_file, key_file, client_ca_file, proxies
        self._files = (
            cert_file,
            key_file,
            client_ca_file,
            proxies.authority_file if proxies else None,
        )
        self._stamps = tuple(map(stamp, self._files))
        self.context = serving_context(*self._settings)

    async def follow(self, use: UseContext, period_s: float = FILE_CHECK_PERIOD_S) -> None:
        """Has the port *use* changed files, until cancelled.

        If a file of authorities changed, one may have been removed: clients that are authenticated
        by a certificate must reconnect.
        """
        while True:
            await asyncio.sleep(period_s)
            stamps = tuple(map(stamp, self._files))
            if stamps == self._stamps:
                continue
            try:
                self.context = serving_context(*self._settings)
            except StartError as error:  # they are being replaced
                _log.warning(
                    "new certificates are not valid yet: the previous ones stay in use",
                    problem=str(error),
                )
                continue
            use(self.context, distrusting=stamps[2:] != self._stamps[2:])
            self._stamps = stamps
            _log.info("certificates were reloaded")
