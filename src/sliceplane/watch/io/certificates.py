"""Client certificates that TLS has verified, on the ports of servers."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from sliceplane.api.users import AUTHENTICATED, User
from sliceplane.kit.io.tls.acceptor import ServingContext

#: for ``public_bytes`` of a certificate of the ssl module
_DER: Final = 2


def user_of_certificate(peer: Mapping[str, Any] | None) -> User | None:
    """The user that a verified certificate names, from ``ssl.SSLSocket.getpeercert()``'s
    dictionary.
    """
    if not peer:
        return None
    name = ""
    groups = []
    for relative_name in peer.get("subject", ()):
        for attribute, value in relative_name:
            if attribute == "commonName":
                name = value
            elif attribute == "organizationName":
                groups.append(value)
    return User(name=name, groups=(*groups, AUTHENTICATED)) if name else None


class Certificate(msgspec.Struct, frozen=True):
    """A client certificate that TLS has verified: whom it names, and from when to when it counts
    (Unix time).

    That is the time in which every certificate of its chain is valid.
    """

    user: User
    begins: float
    ends: float
    #: its authority signs for users; without, it authenticates nobody
    is_user: bool = True
    #: it may say for which user a request is
    is_proxy: bool = False

    @classmethod
    def of(cls, chain: Iterable[Mapping[str, Any]]) -> Certificate | None:
        """From dictionaries as ``getpeercert()`` gives them, the client's own first; ``None`` if it
        names no user.
        """
        certificates = tuple(chain)
        user = user_of_certificate(certificates[0] if certificates else None)
        if user is None:
            return None
        begins = max(
            ssl.cert_time_to_seconds(certificate["notBefore"]) for certificate in certificates
        )
        ends = min(
            ssl.cert_time_to_seconds(certificate["notAfter"]) for certificate in certificates
        )
        return cls(user, begins, ends)

    def counts(self, now: float) -> bool:
        return self.is_user and self.begins <= now <= self.ends


def certificate_of(sock: Any) -> Certificate | None:
    """Returns the client's certificate, from an ``ssl.SSLSocket`` after its handshake, or
    ``None``.
    """
    own = None if sock is None else sock.getpeercert()
    if not own:
        return None
    # Python 3.13 has a public method for this, which gives bytes that nothing in the standard
    # library reads. A resumed session has no chain.
    chain = sock._sslobj.get_verified_chain() or ()
    certificate = Certificate.of((own, *(signer.get_info() for signer in chain[1:])))
    context = sock.context
    if certificate is None or not isinstance(context, ServingContext) or not context.proxies:
        return certificate
    signers = {signer.public_bytes(_DER) for signer in chain}
    names = context.proxy_names or {certificate.user.name}
    return replace(
        certificate,
        is_user=not signers.isdisjoint(context.users),
        is_proxy=not signers.isdisjoint(context.proxies) and certificate.user.name in names,
    )
