"""The keys of service account tokens, and the JSON Web Tokens that they sign (RFC 7515, 7518,
7519).

One private key signs; it and further keys verify, so that a key can be exchanged while old tokens
are in use. ES256, ES384, ES512 and RS256, by the kind of key. A key's id is that of upstream: the
SHA-256 of its public form, in base64url, so that a cluster which is given our key file knows our
tokens. Which key a token may be of is decided here, before ``joserfc`` checks the signature, and a
key has one algorithm, whatever a token's head asks for.

Loading the cryptography library costs a fifth of a start, and ``joserfc`` 10 ms more, so our own
key is loaded when the first token is signed or shown. Verifying costs 0.1 ms; the claims of a token
whose signature was good once are remembered, since no time and no deletion changes that. What does
change (time, accounts) is the registry's question at every request.
"""

from __future__ import annotations

import base64
import hashlib
import json
import warnings
from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sliceplane.api.meta import Document
from sliceplane.api.users import TOKEN_CHARACTERS_MAX, User
from sliceplane.kit.io.start_error import StartError
from sliceplane.server.io.datadir import write_private

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from joserfc.jws import CompactSignature, JWSRegistry

    PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
    PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey

#: tokens whose claims are remembered, and the bytes that these count for
VERIFIED_MAX = 4096
VERIFIED_BYTES_MAX = 32 * 1024 * 1024
#: what claims take in memory for each character of their token: a list of short texts is the worst
_BYTES_EACH = 12
#: curve to algorithm
_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


class TokenConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``signing_key_file``: ``None`` for a key of our own; ``key_files``: further keys that verify
    (PEM, public or private). ``issuer`` is what tokens name; ``audiences`` is whom they are for, by
    default the issuer.
    """

    issuer: str
    audiences: tuple[str, ...] = ()
    signing_key_file: Path | None = None
    key_files: tuple[Path, ...] = ()


class TokenKeys:
    """A ``server.registry.types.TokenService``.  One caller at a time.

    *find_static* answers for the tokens that are no JSON Web Tokens.
    """

    def __init__(
        self, config: TokenConfig, own_key_file: Path, find_static: Callable[[str], User | None]
    ) -> None:
        """Raises ``StartError`` for a key file of *config* that is no key; our own is made if there
        is none.
        """
        self.issuer = config.issuer
        self.audiences = config.audiences or (config.issuer,)
        self._signing_file = config.signing_key_file or own_key_file
        self._key_files = config.key_files
        self._find_static = find_static
        self._verified: OrderedDict[bytes, tuple[Document, int]] = OrderedDict()
        self._verified_bytes = 0
        if config.signing_key_file is None:
            _ensure_key(own_key_file)
        if config.signing_key_file is not None or config.key_files:
            _ = self._verifiers

    def sign(self, claims: Document) -> str:
        return self._signer.sign(
            json.dumps(claims, separators=(",", ":"), ensure_ascii=False).encode()
        )

    def read(self, token: str) -> Document | User | None:
        user = self._find_static(token)
        if user is not None:
            return user
        if token.count(".") != 2 or len(token) > TOKEN_CHARACTERS_MAX:
            return None
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        cached = self._verified.get(digest)
        if cached is not None:
            self._verified.move_to_end(digest)
            return cached[0]
        claims = self._verify(token)
        if claims is not None:
            self._remember(digest, claims, _BYTES_EACH * len(token))
        return claims

    def _remember(self, digest: bytes, claims: Document, size_bytes: int) -> None:
        self._verified[digest] = claims, size_bytes
        self._verified_bytes += size_bytes
        while len(self._verified) > VERIFIED_MAX or self._verified_bytes > VERIFIED_BYTES_MAX:
            _, (_, freed_bytes) = self._verified.popitem(last=False)
            self._verified_bytes -= freed_bytes

    def key_set(self) -> Document:
        """The JSON Web Key Set with which others verify our tokens."""
        return {"keys": [key.web_key() for key in self._verifiers.values()]}

    @property
    def algorithms(self) -> list[str]:
        return sorted({key.algorithm for key in self._verifiers.values()})

    def _verify(self, token: str) -> Document | None:
        from joserfc import jws
        from joserfc.errors import JoseError

        try:
            parts = jws.extract_compact(token.encode(), registry=_rules())
            head: object = parts.protected
            # We know no extension that a token could call critical; that of unencoded claims no
            # JSON Web Token may have (RFC 7797 7).
            if not isinstance(head, dict) or "crit" in head:
                return None
            # A token without a key's id may be of any key.
            named = [head["kid"]] if "kid" in head else list(self._verifiers)
            keys = [self._verifiers[name] for name in named if name in self._verifiers]
            if not any(key.algorithm == head.get("alg") and key.verifies(parts) for key in keys):
                return None
            claims = json.loads(parts.payload)
        except (JoseError, ValueError, TypeError, RecursionError):
            return None
        return claims if isinstance(claims, dict) else None

    @cached_property
    def _signer(self) -> _Key:
        return _load(self._signing_file, private=True)

    @cached_property
    def _verifiers(self) -> dict[str, _Key]:
        """The keys that verify tokens, by id; the signing key is the first."""
        keys = [self._signer, *(_load(path, private=False) for path in self._key_files)]
        return {key.id: key for key in keys}


class _Key:
    """A key pair, or the public half of one."""

    def __init__(self, public: PublicKey, private: PrivateKey | None) -> None:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import rsa
        from joserfc.errors import SecurityWarning
        from joserfc.jwk import ECKey, RSAKey

        form = serialization.PublicFormat.SubjectPublicKeyInfo
        digest = hashlib.sha256(public.public_bytes(serialization.Encoding.DER, form)).digest()
        self.id = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        kind: Any = RSAKey if isinstance(public, rsa.RSAPublicKey) else ECKey
        self.algorithm = (
            "RS256" if isinstance(public, rsa.RSAPublicKey) else _CURVES[public.curve.name]
        )
        self._rules = _rules(self.algorithm)
        named = {"use": "sig", "kid": self.id, "alg": self.algorithm}
        with warnings.catch_warnings():
            # How long an operator's key is, is the operator's decision, as it is upstream.
            warnings.simplefilter("ignore", SecurityWarning)
            self._public: RSAKey | ECKey = kind.import_key(public, named)
            self._private: RSAKey | ECKey | None = (
                None if private is None else kind.import_key(private, named)
            )

    def sign(self, payload: bytes) -> str:
        from joserfc import jws

        return jws.serialize_compact(
            {"alg": self.algorithm, "kid": self.id}, payload, self._private, registry=self._rules
        )

    def verifies(self, token: CompactSignature) -> bool:
        from joserfc import jws

        return jws.validate_compact(token, self._public, registry=self._rules)

    def web_key(self) -> Document:
        # Of the public half: nothing private can get into it.
        return dict(self._public.as_dict())


def _rules(*algorithms: str) -> JWSRegistry:
    """Returns the rules by which the form of a token is refused unread. Its length is limited as a
    whole; a member of its head that is unknown says nothing (RFC 7515 4).
    """
    from joserfc.jws import JWSRegistry

    rules = JWSRegistry(algorithms=algorithms, strict_check_header=False)
    rules.max_header_length = rules.max_signature_length = TOKEN_CHARACTERS_MAX
    return rules


def _ensure_key(path: Path) -> None:
    """A P-256 key in *path*, unless there is a file; a file that is plainly no key is found out at
    once.

    Raises ``StartError``.
    """
    try:
        if path.exists():
            if b"PRIVATE KEY" not in path.read_bytes():
                raise StartError(
                    f"cannot use the service account key {path}: it is no private key in PEM"
                )
            return
    except OSError as error:
        raise StartError(f"cannot use the service account key {path}: {error}") from error
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    form = serialization.PrivateFormat.PKCS8
    plain = serialization.NoEncryption()
    key = ec.generate_private_key(ec.SECP256R1())
    write_private(path, key.private_bytes(serialization.Encoding.PEM, form, plain))


def _load(path: Path, *, private: bool) -> _Key:
    """Raises ``StartError``."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    try:
        pem = path.read_bytes()
        pair: Any = (
            serialization.load_pem_private_key(pem, None)
            if private or b"PRIVATE KEY" in pem
            else None
        )
        public: Any = serialization.load_pem_public_key(pem) if pair is None else pair.public_key()
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise StartError(f"cannot use the service account key {path}: {why}") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        # What the library says is made for programmers: of a wrong form, cut off, or behind a
        # password.
        kind = "private key" if private else "key"
        raise StartError(
            f"cannot use the service account key {path}: it is no unencrypted {kind} in PEM"
        ) from error
    usable = isinstance(public, rsa.RSAPublicKey) or (
        isinstance(public, ec.EllipticCurvePublicKey) and public.curve.name in _CURVES
    )
    if not usable:
        raise StartError(
            f"cannot use the service account key {path}: it is neither RSA nor on P-256, P-384 or "
            "P-521"
        )
    return _Key(public, pair)
