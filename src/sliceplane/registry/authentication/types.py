"""The seam between the registry, which knows accounts, and the holder of the key that signs their tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sliceplane.api.meta import Document
from sliceplane.registry.types import User
from sliceplane.store.types import Key


class TokenService(Protocol):
    """Signs and reads tokens; knows nothing of accounts or of time."""

    @property
    def issuer(self) -> str: ...

    @property
    def audiences(self) -> tuple[str, ...]:
        """Whom tokens are for if a request does not say; one of these must be in a token that is shown to us."""

    def sign(self, claims: Document) -> str:
        """A JSON Web Token of *claims*."""

    def read(self, token: str) -> Document | User | None:
        """The claims of a token with a signature of ours, the user of a static token, or ``None``."""


class NoTokens:
    """The ``TokenService`` of a registry without tokens."""

    issuer = ""
    audiences: tuple[str, ...] = ()

    def sign(self, claims: Document) -> str:
        raise AssertionError(f"there is no key to sign the token of {claims.get('sub')}")

    def read(self, token: str) -> Document | User | None:
        return None


@dataclass(frozen=True, slots=True)
class Authenticated:
    """Who showed a token, and which of the audiences that were asked for it is good for.

    ``supports`` are the objects without which it is worth nothing, ``until`` is when that is so in any case.
    """

    user: User
    audiences: tuple[str, ...]
    supports: tuple[Key, ...] = ()
    until: float | None = None
