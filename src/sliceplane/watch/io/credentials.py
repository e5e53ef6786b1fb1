"""Credentials that are renewed when they must be: token files and login programs.

A login program (``client.authentication.k8s.io/v1`` and ``v1beta1``) gives a token, a certificate,
or both. It is run when there is nothing yet, when what it gave expires, and after a 401; never
twice at a time. It gets no input: where a person would have to answer it must have been logged in
before. It and what it starts end with this process, whatever ends that.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sliceplane.kit.io.files import CREDENTIAL_BYTES_MAX, read_text
from sliceplane.kit.times import parse_time
from sliceplane.watch.io.connection import CredentialsError
from sliceplane.watch.io.tls import Tls

#: service account tokens are rotated by the kubelet; the file is read again after this
TOKEN_FILE_PERIOD_S = 60.0
#: a login may ask a person; a plugin that hangs must not hang us
EXEC_TIMEOUT_S = 60.0
#: a token is renewed this long before it expires
EXEC_MARGIN_S = 10.0
API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class TokenFile:
    """A token in a file that another program keeps fresh."""

    refreshable = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._value = ""
        self._read_at = float("-inf")

    async def authorization(self, *, refused: str | None = None) -> str:
        now = time.monotonic()
        is_refused = refused is not None and refused == self._value
        if is_refused or now - self._read_at > TOKEN_FILE_PERIOD_S:
            try:
                token = read_text(self._path, CREDENTIAL_BYTES_MAX).strip()
            except OSError as error:
                if self._value and not is_refused:
                    return self._value
                raise CredentialsError(f"token file {self._path}: {error.strerror}") from error
            self._value = f"Bearer {token}"
            self._read_at = now
        return self._value


class Exec:
    """A ``Credentials``. *cluster*: what the program is told of the cluster, where it asks for
    that. *tls* gets the client certificates.
    """

    refreshable = True

    def __init__(
        self,
        command: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        api_version: str,
        hint: str,
        *,
        cluster: Mapping[str, Any] | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._command = [command, *arguments]
        self._environment = dict(environment)
        self._api_version = api_version
        self._hint = hint
        self._cluster = cluster
        self._tls = tls
        self._logged_in = 0
        self._value = ""
        self._expires_at: float | None = None
        self._lock = asyncio.Lock()

    async def authorization(self, *, refused: str | None = None) -> str:
        login = self._logged_in
        async with self._lock:
            # A caller that waited here takes what the first caller got.
            is_refused = refused == self._value and self._logged_in == login
            if self._logged_in and not self._expired() and not is_refused:
                return self._value
            await self._login()
            return self._value

    def _expired(self) -> bool:
        return self._expires_at is not None and time.time() > self._expires_at - EXEC_MARGIN_S

    async def _login(self) -> None:
        spec: dict[str, Any] = {"interactive": False}
        if self._cluster is not None:
            spec["cluster"] = self._cluster
        info = {"apiVersion": self._api_version, "kind": "ExecCredential", "spec": spec}
        # The program's own variables cannot hide what it is asked.
        environment = {**os.environ, **self._environment, "KUBERNETES_EXEC_INFO": json.dumps(info)}
        output = await self._run(environment)
        program = self._command[0]
        try:
            answer = json.loads(output)
            status = answer["status"]
            token = status.get("token") or ""
            expires = status.get("expirationTimestamp")
            certificate = status.get("clientCertificateData") or ""
            key = status.get("clientKeyData") or ""
            expires_at = parse_time(expires) if expires else None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CredentialsError(f"{program} printed no token: {error!r}") from error
        version = answer.get("apiVersion", self._api_version)
        if version != self._api_version:
            raise CredentialsError(
                f"{program} answered in {version}, and was asked for {self._api_version}"
            )
        if bool(certificate) != bool(key):
            raise CredentialsError(
                f"{program} printed a client certificate without its key, or a key alone"
            )
        if not token and not certificate:
            raise CredentialsError(
                f"{program} printed no token: there is neither that nor a client certificate"
            )
        if self._tls is not None and certificate:
            try:
                self._tls.use(f"{certificate}\n{key}".encode())
            except (OSError, ssl.SSLError) as error:
                raise CredentialsError(
                    f"{program} printed a client certificate that cannot be used: {error}"
                ) from error
        self._value = f"Bearer {token}" if token else ""
        self._expires_at = expires_at
        self._logged_in += 1

    async def _run(self, environment: dict[str, str]) -> bytes:
        from sliceplane.kit.io.process.orphans import ended_with_us  # which most clients never need

        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                process_group=0,
            )
        except (OSError, RuntimeError) as error:  # no process, or no thread to wait for it
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise CredentialsError(
                f"cannot run {self._command[0]}: {why}. {self._hint}".strip()
            ) from error
        try:
            with ended_with_us(process.pid):
                async with asyncio.timeout(EXEC_TIMEOUT_S):
                    output, complaint = await process.communicate()
        except TimeoutError as error:
            raise CredentialsError(
                f"{self._command[0]} took longer than {EXEC_TIMEOUT_S:g} s"
            ) from error
        finally:
            # Its whole group: a program that waits for a browser has children.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if process.returncode:
            message = complaint.decode(errors="replace").strip()
            raise CredentialsError(f"{self._command[0]} ended with {process.returncode}: {message}")
        return output
