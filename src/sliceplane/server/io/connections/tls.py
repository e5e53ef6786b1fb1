"""The TLS context of the server, made anew when the files change that it rests on."""

from __future__ import annotations

import re
from pathlib import Path

from sliceplane.kit.io.files import CREDENTIAL_BYTES_MAX, read_bytes
from sliceplane.kit.io.start_error import StartError
from sliceplane.kit.io.tls.acceptor import FrontProxies, ServingContext, serving_context, trust
from sliceplane.server.io.keys.pki import Pki

_PEM = re.compile(r"-----BEGIN [A-Z0-9 ]*CERTIFICATE-----(.*?)-----END", re.DOTALL)


class ServerTls:
    """The context of a server as it runs: a new one whenever the files that it rests on change.
    Owned by the plane.
    """

    def __init__(
        self,
        pki: Pki,
        client_ca_file: Path | None = None,
        proxies: FrontProxies | None = None,
    ) -> None:
        """*client_ca_file* holds further authorities for client certificates.  Raises
        ``StartError``.
        """
        self._proxies = proxies
        self._pki = pki
        self._client_ca_file = client_ca_file
        #: authorities of our own that came to their end while the process ran: what they signed
        #: goes on counting
        self._former: tuple[str, ...] = ()
        self._trusted: frozenset[str] = frozenset()
        self.renew()

    def renew(self, former: str = "") -> bool:
        """Our own certificates were made anew; *former*: the authority that was trusted until now,
        if it still lay in its file. One that was taken away is trusted no more. Otherwise as
        ``follow``.
        """
        was = _certificates(former)
        if was and was <= self._trusted - _certificates(_text(self._pki.ca_file)):
            self._former = (*self._former, former)
        trusted = self._read_authorities()
        self.context = server_context(self._pki, self._client_ca_file, self._former)
        if self._proxies is not None:
            self.context.add(self._proxies)
        gone = self._trusted - trusted
        self._trusted = trusted
        return bool(gone)

    def follow(self) -> bool | None:
        """Make a new ``context`` if the authorities in the files are others; whether one is gone,
        ``None`` if nothing changed. Raises ``StartError`` and goes on as before if a file is
        missing or damaged.
        """
        return None if self._read_authorities() == self._trusted else self.renew()

    @property
    def authorities(self) -> str:
        """The trusted authorities of users (PEM).  Raises ``StartError``."""
        files = (self._pki.ca_file, self._client_ca_file)
        return "\n".join((*self._former, *(_text(file) for file in files if file is not None)))

    def _read_authorities(self) -> frozenset[str]:
        """Returns them, and those of front proxies with a mark: the same one is trusted otherwise."""
        users = _certificates(self.authorities)
        if self._proxies is None:
            return users
        proxies = _certificates(_text(self._proxies.authority_file))
        return users | {f"front proxies {authority}" for authority in proxies}


def server_context(
    pki: Pki, client_ca_file: Path | None = None, further: tuple[str, ...] = ()
) -> ServingContext:
    """*client_ca_file* and *further* (PEM) hold more authorities for client certificates.

    Raises ``StartError`` if a file is missing or damaged.
    """
    context = serving_context(pki.server_file, pki.server_key_file, client_ca_file)
    for authority in further:
        context.load_verify_locations(cadata=authority)
    trust(context, pki.ca_file)
    return context


def _text(path: Path) -> str:
    """Raises ``StartError``."""
    try:
        return read_bytes(path, CREDENTIAL_BYTES_MAX).decode("ascii", errors="replace")
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise StartError(f"cannot use the certificate authority {path}: {why}") from error


def _certificates(text: str) -> frozenset[str]:
    """Returns the certificates in *text*, each as its base64 without white space."""
    return frozenset("".join(body.split()) for body in _PEM.findall(text))
