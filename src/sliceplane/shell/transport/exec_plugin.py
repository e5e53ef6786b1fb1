"""Login programs (``client.authentication.k8s.io/v1`` and ``v1beta1``): a token, a client certificate, or both.

The program is run when there is nothing yet, when what it gave expires, and after a 401; never twice at a time.  It
gets no input: where a person would have to answer it must have been logged in before.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sliceplane.kit.times import parse_time
from sliceplane.shell.transport.credentials import EXEC_MARGIN_S, EXEC_TIMEOUT_S, CredentialsError
from sliceplane.shell.transport.tls import Tls

API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class Exec:
    """A ``Credentials``.  *cluster*: what the program is told of the cluster, where it asks for that.
    *tls* gets the client certificates."""

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

    async def authorization(self, *, refresh: bool = False) -> str:
        seen = self._logged_in
        async with self._lock:
            # A caller that waited here takes what the first caller got.
            if self._logged_in and not self._expired() and (not refresh or self._logged_in != seen):
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
            raise CredentialsError(f"{program} answered in {version}, and was asked for {self._api_version}")
        if bool(certificate) != bool(key):
            raise CredentialsError(f"{program} printed a client certificate without its key, or a key alone")
        if not token and not certificate:
            raise CredentialsError(f"{program} printed no token: there is neither that nor a client certificate")
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
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except (OSError, RuntimeError) as error:  # no process, or no thread to wait for it
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise CredentialsError(f"cannot run {self._command[0]}: {why}. {self._hint}".strip()) from error
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
