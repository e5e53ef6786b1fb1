"""The server's TLS context: TLS 1.2 or newer, client certificates optional but, if sent, ours.

No session is handed out to be resumed, but for what TLS 1.2 does without tickets, which the ssl module cannot turn
off: a resumed session brings the certificate of the first one, unverified.  It does so within its own context alone
and for two hours at most, so a change of what is trusted makes a new context, and time is looked at for each
request (``auth.Certificate``).  Clients of Kubernetes resume none.
"""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import Any

from sliceplane.shell.process.start_error import StartError
from sliceplane.shell.server.keys.pki import Pki
from sliceplane.shell.server.requests.auth import Certificate

_PEM = re.compile(r"-----BEGIN [A-Z0-9 ]*CERTIFICATE-----(.*?)-----END", re.DOTALL)


class ServerTls:
    """The context of a server as it runs: a new one whenever the files that it rests on change.  Owned by the plane."""

    def __init__(self, pki: Pki, client_ca_file: Path | None = None) -> None:
        """*client_ca_file* holds further authorities for client certificates.  Raises ``StartError``."""
        self._pki = pki
        self._client_ca_file = client_ca_file
        #: authorities of our own that came to their end while the process ran: what they signed goes on counting
        self._former: tuple[str, ...] = ()
        self._trusted: frozenset[str] = frozenset()
        self.renew()

    def renew(self, former: str = "") -> bool:
        """Our own certificates were made anew; *former*: the authority that was trusted until now, if it still lay in
        its file.  One that was taken away is trusted no more.  Otherwise as ``follow``."""
        was = _certificates(former)
        if was and was <= self._trusted - _certificates(_text(self._pki.ca_file)):
            self._former = (*self._former, former)
        trusted = self._wanted()
        self.context = server_context(self._pki, self._client_ca_file, self._former)
        gone = self._trusted - trusted
        self._trusted = trusted
        return bool(gone)

    def follow(self) -> bool | None:
        """Make a new ``context`` if the authorities in the files are others; whether one is gone, ``None`` if nothing
        changed.  Raises ``StartError`` and goes on as before if a file is missing or damaged."""
        return None if self._wanted() == self._trusted else self.renew()

    def _wanted(self) -> frozenset[str]:
        files = (self._pki.ca_file, self._client_ca_file)
        texts = (*self._former, *(_text(file) for file in files if file is not None))
        return frozenset().union(*map(_certificates, texts))


def server_context(pki: Pki, client_ca_file: Path | None = None, further: tuple[str, ...] = ()) -> ssl.SSLContext:
    """*client_ca_file* and *further* (PEM) hold more authorities for client certificates.

    Raises ``StartError`` if a file is missing or damaged.

    A certificate of a foreign authority fails the handshake; no certificate at all is fine here and left
    to authentication.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_OPTIONAL
    # The client's order of ciphers counts: all of them are good, and Go clients put AES-128 first, which encrypts
    # faster than OpenSSL's own first choice, AES-256.
    context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    # No client does it any more (TLS 1.3 has none, nor have Go's servers), and a write would have to wait for a read.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.set_alpn_protocols(["http/1.1"])
    if client_ca_file is not None:
        _trust(context, client_ca_file)
    for authority in further:
        context.load_verify_locations(cadata=authority)
    _trust(context, pki.ca_file)
    try:
        context.load_cert_chain(pki.server_file, pki.server_key_file)
    except (OSError, ssl.SSLError) as error:
        raise StartError(f"cannot use the server certificate {pki.server_file}: {error}") from error
    return context


def certificate_of(sock: Any) -> Certificate | None:
    """What a client has shown, from an ``ssl.SSLSocket`` after its handshake."""
    own = sock.getpeercert()
    if not own:
        return None
    # Python 3.13 has a public method for this, which gives bytes that nothing in the standard library reads.  A
    # resumed session has no chain.
    chain = sock._sslobj.get_verified_chain() or ()
    return Certificate.of((own, *(certificate.get_info() for certificate in chain[1:])))


def _text(path: Path) -> str:
    """Raises ``StartError``."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise StartError(f"cannot use the certificate authority {path}: {why}") from error


def _certificates(text: str) -> frozenset[str]:
    """Those in *text*, each as its base64 without white space."""
    return frozenset("".join(found.split()) for found in _PEM.findall(text))


def _trust(context: ssl.SSLContext, authority: Path) -> None:
    try:
        context.load_verify_locations(authority)
    except ssl.SSLError as error:
        raise StartError(f"cannot use the certificate authority {authority}: it holds no certificate in PEM") from error
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise StartError(f"cannot use the certificate authority {authority}: {why}") from error
