"""The server's TLS context: TLS 1.2 or newer, client certificates optional but, if sent, ours."""

from __future__ import annotations

import ssl
from pathlib import Path

from sliceplane.shell.pki import Pki
from sliceplane.shell.start_error import StartError


def server_context(pki: Pki, client_ca_file: Path | None = None) -> ssl.SSLContext:
    """*client_ca_file* holds further authorities for client certificates.

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
    # Nobody does it any more (TLS 1.3 has none, nor have Go's servers), and a write would have to wait for a read.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    if client_ca_file is not None:
        _trust(context, client_ca_file)
    load_server_certificate(context, pki)
    return context


def load_server_certificate(context: ssl.SSLContext, pki: Pki) -> None:
    """(Re)load the server's certificate and the authority behind it; handshakes from now on use them.

    An authority that is new at this moment made the administrator's certificate too, so it must be trusted; a former
    one stays trusted until the process ends.  Raises ``StartError``.
    """
    _trust(context, pki.ca_file)
    try:
        context.load_cert_chain(pki.server_file, pki.server_key_file)
    except (OSError, ssl.SSLError) as error:
        raise StartError(f"cannot use the server certificate {pki.server_file}: {error}") from error


def _trust(context: ssl.SSLContext, authority: Path) -> None:
    try:
        context.load_verify_locations(authority)
    except ssl.SSLError as error:
        raise StartError(f"cannot use the certificate authority {authority}: it holds no certificate in PEM") from error
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise StartError(f"cannot use the certificate authority {authority}: {why}") from error
