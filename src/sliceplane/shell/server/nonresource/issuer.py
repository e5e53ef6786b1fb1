"""What programs that verify our service account tokens themselves need: OpenID discovery and the keys (KEP-1393).

Readable by service accounts, and by whomever the role ``system:service-account-issuer-discovery`` is bound to.
"""

from __future__ import annotations

from sliceplane.api.codec import encode
from sliceplane.shell.server.keys.token_keys import TokenKeys
from sliceplane.shell.server.requests.response import Response

CONFIGURATION_PATH = "/.well-known/openid-configuration"
KEYS_PATH = "/openid/v1/jwks"
_CACHE = ((b"cache-control", b"public, max-age=3600"),)


class IssuerPages:
    """*url* is where this server is reached; *keys_url*, where the keys are, if elsewhere."""

    paths = (CONFIGURATION_PATH, KEYS_PATH)

    def __init__(self, keys: TokenKeys, url: str, keys_url: str = "") -> None:
        self._keys = keys
        self._keys_url = keys_url or f"{url}{KEYS_PATH}"

    def respond(self, path: str) -> Response | None:
        """The page at *path*, ``None`` if it is none of ours."""
        if path == KEYS_PATH:
            return Response(200, encode(self._keys.key_set()), b"application/jwk-set+json", _CACHE)
        if path != CONFIGURATION_PATH:
            return None
        document = {
            "issuer": self._keys.issuer,
            "jwks_uri": self._keys_url,
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": self._keys.algorithms,
        }
        return Response(200, encode(document), headers=_CACHE)
