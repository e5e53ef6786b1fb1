"""The token of an agent's account: it is requested, and renewed after half of its lifetime.

``sliceplane agent grant`` requests the first token, which the user copies to the machine in a
kubeconfig. The agent requests the others, as its account may (``agent.rights``), and stores the
newest in its state folder. If that one is refused, the kubeconfig's is tried, so a newly copied one
takes effect. Half of a lifetime is counted from the renewal on our own clock: times in a token are
the server's.

Other credentials (certificates, login programs, token files, other accounts) are used unchanged.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from sliceplane.agent.io.own_files import read_own, write_own
from sliceplane.api.errors import StatusError
from sliceplane.consume.agents.grants import agent_of_account
from sliceplane.consume.agents.registration import FIELD_MANAGER, account_name
from sliceplane.consume.io.accounts import request_token
from sliceplane.kit.io.log import get_logger
from sliceplane.watch.io.base import Client, Unreachable
from sliceplane.watch.io.connection import Connection, Fixed
from sliceplane.watch.io.http.client import HttpClient

#: seconds between two attempts while the server is unreachable
_RETRY_S: Final = 60.0
#: servers issue no shorter ones (kubernetes.io, "TokenRequest")
_LIFETIME_MIN_S: Final = 600.0
#: maximum bytes; no server accepts a longer one
_TOKEN_MAX: Final = 16 * 1024
#: an agent reads single objects, and pages of few Nodes; a longer answer would delay its renewals
ANSWER_BYTES_MAX: Final = 1_536 * 1024
_SUBJECT: Final = "system:serviceaccount:"

_log = get_logger("agent")


class _Claims(NamedTuple):
    namespace: str
    account: str
    begins: float
    ends: float


class OwnToken:
    """A ``Credentials``. *initial*: the kubeconfig's token; *file*: stores the newest."""

    refreshable = True

    def __init__(self, initial: str, claims: _Claims, file: Path) -> None:
        self._claims = claims
        self._file = file
        self._token = initial
        #: tried next if that one is refused
        self._spare = initial
        with suppress(OSError):
            stored = read_own(file, _TOKEN_MAX).strip()
            stored_claims = _claims_of(stored)
            if (
                stored_claims is not None
                and stored_claims[:2] == claims[:2]
                and stored_claims.ends > claims.ends
            ):
                self._token = stored

    async def authorization(self, *, refused: str | None = None) -> str:
        if refused == f"Bearer {self._token}":
            self._token, self._spare = self._spare, self._token
        return f"Bearer {self._token}"

    async def keep_renewed(self, client: Client) -> None:
        """Renews the token until it is cancelled, or the account has no right to renew."""
        claims = self._claims
        lifetime_s = max(_LIFETIME_MIN_S, claims.ends - claims.begins)
        while True:
            pause_s = _RETRY_S
            try:
                token = await request_token(client, claims.namespace, claims.account, lifetime_s)
            except StatusError as error:
                if error.code == 403:
                    _log.info("the token is not renewed", problem=str(error))
                    return
            except Unreachable:
                pass
            else:
                self._store(token)
                renewed = _claims_of(token)
                # a server may issue a shorter one
                pause_s = lifetime_s / 2 if renewed is None else (renewed.ends - renewed.begins) / 2
            await asyncio.sleep(pause_s)

    def _store(self, token: str) -> None:
        self._token = token
        try:
            write_own(self._file, token + "\n")
        except OSError as error:
            _log.warning("the renewed token cannot be kept for the next start", problem=str(error))


@asynccontextmanager
async def agent_client(
    connection: Connection, agent: str, folder: Path
) -> AsyncIterator[HttpClient]:
    """Opens a client of *connection*; renews the token in the meantime if it is the agent's own."""
    token, claims = await _read_token(connection)
    if claims is None or claims.account != account_name(agent):
        async with HttpClient(
            connection, field_manager=FIELD_MANAGER, bytes_max=ANSWER_BYTES_MAX
        ) as client:
            yield client
        return
    own = OwnToken(token, claims, folder / f"{agent}.token")
    connection = replace(connection, credentials=own)
    async with HttpClient(
        connection, field_manager=FIELD_MANAGER, bytes_max=ANSWER_BYTES_MAX
    ) as client:
        renewing = asyncio.create_task(own.keep_renewed(client))
        try:
            yield client
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)


async def granted_name(connection: Connection) -> str:
    """Returns the agent whose account *connection* uses (``agent grant``); "" for other accounts."""
    _, claims = await _read_token(connection)
    return agent_of_account(claims.account) if claims is not None else ""


async def _read_token(connection: Connection) -> tuple[str, _Claims | None]:
    """Returns the token of *connection*'s kubeconfig and its claims; ``None``: it is not a service
    account's.
    """
    credentials = connection.credentials
    value = await credentials.authorization() if isinstance(credentials, Fixed) else ""
    token = value.removeprefix("Bearer ")
    return token, None if token == value else _claims_of(token)


def _claims_of(token: str) -> _Claims | None:
    """Returns the claims of a service account's expiring token (RFC 7519), unverified: the server
    verifies them.
    """
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        namespace, _, account = claims["sub"].removeprefix(_SUBJECT).partition(":")
        return _Claims(namespace, account, float(claims["iat"]), float(claims["exp"]))
    except (IndexError, KeyError, TypeError, ValueError, AttributeError):
        return None
