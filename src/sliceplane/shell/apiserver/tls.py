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
    context.set_alpn_protocols(["http/1.1"])
    for path in (pki.ca_file, client_ca_file):
        try:
            if path is not None:
                context.load_verify_locations(path)
        except ssl.SSLError as error:
            raise StartError(f"cannot use the certificate authority {path}: it holds no certificate in PEM") from error
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise StartError(f"cannot use the certificate authority {path}: {why}") from error
    load_server_certificate(context, pki)
    return context


def load_server_certificate(context: ssl.SSLContext, pki: Pki) -> None:
    """(Re)load the server's certificate; handshakes from now on use it.  Raises ``StartError``."""
    try:
        context.load_cert_chain(pki.server_file, pki.server_key_file)
    except (OSError, ssl.SSLError) as error:
        raise StartError(f"cannot use the server certificate {pki.server_file}: {error}") from error
