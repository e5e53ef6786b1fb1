"""Front proxies: clients that have authenticated a user, and say in headers of each request who it is
(kubernetes.io, Authenticating proxy), as kube-apiserver does of its aggregated servers and our relay
of its parent.

The headers count if TLS has verified the certificate of a front proxy
(``kit.io.tls.acceptor.FrontProxies``), which the connection knows. They have upstream's usual names,
and are read for each request: the next one on the connection may be for another user.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import quote

from msgspec.structs import replace

from sliceplane.api.errors import StatusError
from sliceplane.api.users import ANONYMOUS_NAME, AUTHENTICATED, UNAUTHENTICATED, User
from sliceplane.server.registry.authentication.impersonation import read_identity
from sliceplane.watch.io.certificates import Certificate

#: of all headers that name a user, in lower case
PREFIX: Final = "x-remote-"
#: characters of a header's name beside letters, digits and "_.-~" (RFC 9110, section 5.6.2); "%" is
#: that of an escape
_NAME_CHARACTERS: Final = "!#$&'*+^`|"


def of_request(proxy: Certificate, headers: Iterable[tuple[bytes, bytes]]) -> Certificate:
    """Returns the certificate that authenticates a request of *proxy*: one of the user whom *headers*
    (names in lower case) name, for as long as the proxy's; its own if they name none.
    """
    identity = read_identity(
        ((name.decode("latin-1"), value.decode(errors="replace")) for name, value in headers),
        PREFIX,
    )
    if not identity.user:
        return proxy
    groups = tuple(filter(None, identity.groups))
    if identity.user != ANONYMOUS_NAME and not {AUTHENTICATED, UNAUTHENTICATED}.intersection(
        groups
    ):
        groups = (*groups, AUTHENTICATED)
    user = User(name=identity.user, uid=identity.uid, groups=groups, extra=identity.extra)
    return replace(proxy, user=user, is_user=True, is_proxy=False)


def headers_of(user: User) -> Iterator[tuple[bytes, bytes]]:
    """Returns the headers that name *user*.  Raises the 403 ``StatusError`` if they would name another
    one: servers drop white space around values.
    """
    fields = [("User", user.name), *(("Group", group) for group in user.groups)]
    if user.uid:
        fields.append(("Uid", user.uid))
    for key, values in user.extra:
        name = f"Extra-{quote(key, safe=_NAME_CHARACTERS)}"
        fields += [(name, value) for value in values]
    for name, value in fields:
        if value != value.strip() or not value.isprintable():
            why = f"no header can have the value {value!r}, which is part of the user's identity"
            raise StatusError(403, "Forbidden", why, {})
        yield f"X-Remote-{name}".encode(), value.encode()
