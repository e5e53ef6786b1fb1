"""Who we are to an API server: a value for the Authorization header, renewed when it must be.

Client certificates are not here: they belong to the TLS context.
"""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Protocol

#: service account tokens are rotated by the kubelet; the file is read again after this
TOKEN_FILE_PERIOD_S = 60.0
#: a login may ask a person; a plugin that hangs must not hang us
EXEC_TIMEOUT_S = 60.0
#: a token is renewed this long before it expires
EXEC_MARGIN_S = 10.0


class CredentialsError(Exception):
    """A token could not be had.  The text is a sentence for a person."""


class Credentials(Protocol):
    @property
    def refreshable(self) -> bool:
        """After a 401, asking with ``refresh`` may help."""

    async def authorization(self, *, refresh: bool = False) -> str:
        """The header's value; "" for none.  Raises ``CredentialsError``."""


class Fixed:
    """None, a token, or a user name with a password."""

    refreshable = False

    def __init__(self, value: str = "") -> None:
        self._value = value

    async def authorization(self, *, refresh: bool = False) -> str:
        return self._value


def bearer(token: str) -> Fixed:
    return Fixed(f"Bearer {token}")


def basic(name: str, password: str) -> Fixed:
    return Fixed("Basic " + base64.b64encode(f"{name}:{password}".encode()).decode())


class TokenFile:
    """A token in a file that another program keeps fresh."""

    refreshable = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._value = ""
        self._read_at = float("-inf")

    async def authorization(self, *, refresh: bool = False) -> str:
        now = time.monotonic()
        if refresh or now - self._read_at > TOKEN_FILE_PERIOD_S:
            try:
                token = self._path.read_text().strip()
            except OSError as error:
                if self._value and not refresh:
                    return self._value
                raise CredentialsError(f"token file {self._path}: {error.strerror}") from error
            self._value, self._read_at = f"Bearer {token}", now
        return self._value
