"""The way to an API server, as kubeconfigs and Pods configure it; ``kubeconfig`` reads them."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    import ssl

    from sliceplane.watch.io.tls import Tls


class KubeconfigError(Exception):
    """The configuration cannot be used.  The text is a sentence for a person and names the file."""


class NoKubeconfig(KubeconfigError):
    """No file was named, and there is none where one is looked for."""


class CredentialsError(Exception):
    """A token could not be had.  The text is a sentence for a person."""


class Credentials(Protocol):
    @property
    def refreshable(self) -> bool:
        """After a 401, asking with ``refused`` may help."""

    async def authorization(self, *, refused: str | None = None) -> str:
        """The header's value; "" for none.  Raises ``CredentialsError``.

        *refused*: the value that was answered with 401. Several requests may be refused at once:
        what one of them has made better, the next must not make worse, so only what is refused and
        still current is renewed.
        """


class Fixed:
    """None, a token, or a user name with a password."""

    refreshable = False

    def __init__(self, value: str = "") -> None:
        self._value = value

    async def authorization(self, *, refused: str | None = None) -> str:
        return self._value


def bearer(token: str) -> Fixed:
    return Fixed(f"Bearer {token}")


def basic(name: str, password: str) -> Fixed:
    return Fixed("Basic " + base64.b64encode(f"{name}:{password}".encode()).decode())


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """``server``: a URL without a slash at its end.  ``ssl_context``: ``None`` for plain HTTP."""

    server: str
    #: as it was at first; where there is ``tls``, that has the current one
    ssl_context: ssl.SSLContext | None
    credentials: Credentials
    namespace: str = "default"
    #: whose rights it has, as the kubeconfig names its users or whom it impersonates; "": not known
    account: str = ""
    #: the name that the server's certificate must have, if that is not the URL's host
    server_hostname: str | None = None
    tls: Tls | None = None
    #: an HTTP proxy; "": none
    proxy: str = ""
    #: the path of the Unix socket where the server is; "": at the host of its URL
    socket_path: str = ""
    #: sent with every request (impersonation)
    headers: tuple[tuple[str, str], ...] = ()
