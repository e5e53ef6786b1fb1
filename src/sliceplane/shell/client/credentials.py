"""Who we are to an API server: a value for the Authorization header, renewed when it must be.

Client certificates are not here: they belong to the TLS context.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from sliceplane.kit.times import parse_time

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
    """A token in a file that somebody else keeps fresh."""

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


class Exec:
    """A login program (``client.authentication.k8s.io``) that prints a token; run again when that expires."""

    refreshable = True

    def __init__(
        self, command: str, arguments: Sequence[str], environment: Mapping[str, str], api_version: str, hint: str
    ) -> None:
        self._command = [command, *arguments]
        self._environment = dict(environment)
        self._api_version = api_version
        self._hint = hint
        self._value = ""
        self._expires_at: float | None = None
        self._lock = asyncio.Lock()

    async def authorization(self, *, refresh: bool = False) -> str:
        stale = self._value
        async with self._lock:
            # Whoever waited here takes what the first one got.
            if self._value and not self._expired() and (not refresh or self._value != stale):
                return self._value
            await self._login()
            return self._value

    def _expired(self) -> bool:
        return self._expires_at is not None and time.time() > self._expires_at - EXEC_MARGIN_S

    async def _login(self) -> None:
        info = {"apiVersion": self._api_version, "kind": "ExecCredential", "spec": {"interactive": False}}
        environment = {**os.environ, "KUBERNETES_EXEC_INFO": json.dumps(info), **self._environment}
        output = await self._run(environment)
        try:
            status = json.loads(output)["status"]
            token, expires = status["token"], status.get("expirationTimestamp")
            self._expires_at = parse_time(expires) if expires else None
        except (ValueError, KeyError, TypeError) as error:
            raise CredentialsError(f"{self._command[0]} printed no token: {error!r}") from error
        self._value = f"Bearer {token}"

    async def _run(self, environment: dict[str, str]) -> bytes:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise CredentialsError(f"cannot run {self._command[0]}: {error.strerror}. {self._hint}".strip()) from error
        try:
            async with asyncio.timeout(EXEC_TIMEOUT_S):
                output, complaint = await process.communicate()
        except TimeoutError as error:
            raise CredentialsError(f"{self._command[0]} took longer than {EXEC_TIMEOUT_S:g} s") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            said = complaint.decode(errors="replace").strip()
            raise CredentialsError(f"{self._command[0]} ended with {process.returncode}: {said}")
        return output
