"""Tokens that somebody made to be let in: each is refused, whatever its head asks for, and none is
a fault.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jws
from joserfc.jwk import ECKey, OctKey, RSAKey
from tests.effort import effort

from sliceplane.api.users import TOKEN_CHARACTERS_MAX
from sliceplane.server.io.keys.token_keys import TokenConfig, TokenKeys

ROOT = Path(__file__).parents[2]
CLAIMS = {"sub": "system:serviceaccount:kube-system:admin"}
ON_CURVE = ec.generate_private_key(ec.SECP256R1())
ON_LARGER_CURVE = ec.generate_private_key(ec.SECP384R1())
OF_PRIMES = rsa.generate_private_key(65537, 2048)


def pem(key: Any) -> bytes:
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))


def public(key: Any) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return bytes(key.public_key().public_bytes(serialization.Encoding.PEM, form))


def large_key() -> rsa.RSAPrivateKey:
    """Of 7470 bits, from two primes that need no search (Mersenne's): to find others takes
    seconds.
    """
    p, q, e = 2**4253 - 1, 2**3217 - 1, 65537
    d = pow(e, -1, (p - 1) * (q - 1))
    parts = (rsa.rsa_crt_dmp1(d, p), rsa.rsa_crt_dmq1(d, q), rsa.rsa_crt_iqmp(p, q))
    numbers = rsa.RSAPrivateNumbers(p, q, d, *parts, rsa.RSAPublicNumbers(e, p * q))
    return numbers.private_key(unsafe_skip_rsa_key_validation=True)


def spelled(content: object) -> str:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def signed(key: Any, head: dict[str, Any], claims: object = CLAIMS) -> str:
    """By the key in earnest, under a head of the forger's choice."""
    anything = jws.JWSRegistry(
        algorithms=list(jws.JWSRegistry.algorithms), strict_check_header=False
    )
    payload = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
    return jws.serialize_compact(head, payload, key, registry=anything)


@pytest.fixture
def keys(tmp_path: Path) -> TokenKeys:
    """Sign with P-256; RSA and P-384 verify too."""
    for name, key in (("curve", ON_CURVE), ("larger", ON_LARGER_CURVE), ("primes", OF_PRIMES)):
        (tmp_path / name).write_bytes(pem(key))
    config = TokenConfig(
        issuer="i",
        signing_key_file=tmp_path / "curve",
        key_files=(tmp_path / "larger", tmp_path / "primes"),
    )
    return TokenKeys(config, tmp_path / "own", lambda token: None)


def test_honest_tokens_are_read(keys: TokenKeys) -> None:
    on_curve, on_larger, of_primes = (each["kid"] for each in keys.key_set()["keys"])
    ours, larger, primes = (
        ECKey.import_key(ON_CURVE),
        ECKey.import_key(ON_LARGER_CURVE),
        RSAKey.import_key(OF_PRIMES),
    )
    for key, head in (
        (ours, {"alg": "ES256", "kid": on_curve}),
        (larger, {"alg": "ES384", "kid": on_larger}),
        (primes, {"alg": "RS256", "kid": of_primes}),
        (primes, {"alg": "RS256"}),
        (ours, {"alg": "ES256", "typ": "JWT", "unheard-of": [1]}),
    ):
        assert keys.read(signed(key, head)) == CLAIMS, head


def test_a_head_that_lies_opens_nothing(keys: TokenKeys) -> None:
    on_curve, _, of_primes = (each["kid"] for each in keys.key_set()["keys"])
    ours, larger, primes = (
        ECKey.import_key(ON_CURVE),
        ECKey.import_key(ON_LARGER_CURVE),
        RSAKey.import_key(OF_PRIMES),
    )
    stranger = ECKey.import_key(ec.generate_private_key(ec.SECP256R1()))
    for key, head in (
        (stranger, {"alg": "ES256"}),
        (stranger, {"alg": "ES256", "kid": on_curve}),
        (stranger, {"alg": "ES256", "kid": on_curve, "jwk": stranger.as_dict()}),
        (ours, {"alg": "ES256", "kid": of_primes}),
        (ours, {"alg": "ES256", "kid": "unknown"}),
        (larger, {"alg": "ES384", "kid": on_curve}),
        (primes, {"alg": "PS256", "kid": of_primes}),
        (primes, {"alg": "RS384", "kid": of_primes}),
        (OctKey.import_key(public(OF_PRIMES).hex()), {"alg": "HS256", "kid": of_primes}),
        (OctKey.import_key(of_primes), {"alg": "HS256", "kid": of_primes}),
        (ours, {"alg": "ES256", "kid": on_curve, "crit": ["b64"], "b64": True}),
        (ours, {"alg": "ES256", "kid": on_curve, "crit": ["b64"], "b64": False}),
    ):
        claims = b"claims~in_the-open" if head.get("b64") is False else CLAIMS
        assert keys.read(signed(key, head, claims)) is None, head


def test_a_critical_extension_is_not_passed_over(keys: TokenKeys) -> None:
    """RFC 7515 4.1.11: who does not know it refuses."""
    head = {"alg": "RS256", "crit": ["exp-of-somebody"], "exp-of-somebody": 1}
    content = f"{spelled(head)}.{spelled(CLAIMS)}"
    signature = OF_PRIMES.sign(content.encode(), padding.PKCS1v15(), hashes.SHA256())
    assert keys.read(f"{content}.{spelled(signature)}") is None


def test_one_token_has_one_spelling(keys: TokenKeys) -> None:
    token = keys.sign(CLAIMS)
    assert keys.read(token) == CLAIMS
    for other in (
        f"{token}=",
        f"{token}==",
        f"{token}\n",
        f"{token}!",
        f" {token}",
        token[:-1] + "\u00e9",
    ):
        assert keys.read(other) is None, other
    # 64 bytes leave four bits of the last character unused.
    assert token[-1] in "AQgw"
    for last in "BCDR":
        assert keys.read(token[:-1] + last) is None, last


def test_claims_that_are_no_object_are_none(keys: TokenKeys) -> None:
    ours = ECKey.import_key(ON_CURVE)
    for claims in (b"", b"[]", b"1", b"null", b"\xff", b"{", b"[" * 9000):
        assert keys.read(signed(ours, {"alg": "ES256"}, claims)) is None, claims


def test_a_large_key_of_an_operator_signs_and_verifies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = serialization.load_pem_private_key
    # Whether its primes are primes takes seconds to find out.
    monkeypatch.setattr(
        serialization, "load_pem_private_key", partial(load, unsafe_skip_rsa_key_validation=True)
    )
    (tmp_path / "key").write_bytes(pem(large_key()))
    config = TokenConfig(issuer="i", signing_key_file=tmp_path / "key")
    keys = TokenKeys(config, tmp_path / "own", lambda token: None)
    long = {"sub": "s" * 9000}
    assert keys.read(keys.sign(long)) == long
    assert keys.read(keys.sign({"sub": "s" * TOKEN_CHARACTERS_MAX})) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["alg", "kid", "b64", "x"]), inner)
    ),
    max_leaves=6,
)
MEMBERS = st.sampled_from(["alg", "kid", "crit", "b64", "jwk", "jku", "typ", "x5c"])


@effort(200)
@given(
    head=st.dictionaries(
        MEMBERS, JSON | st.sampled_from(["ES256", "RS256", "none", ["b64"]]), max_size=4
    )
    | JSON,
    claims=JSON,
    signature=st.binary(max_size=70),
)
def test_whatever_a_head_says_is_no_fault(
    keyring: TokenKeys, head: object, claims: object, signature: bytes
) -> None:
    assert keyring.read(f"{spelled(head)}.{spelled(claims)}.{spelled(signature)}") is None


@pytest.fixture(scope="module")
def keyring(tmp_path_factory: pytest.TempPathFactory) -> TokenKeys:
    return TokenKeys(
        TokenConfig(issuer="i"), tmp_path_factory.mktemp("keys") / "own", lambda token: None
    )


def test_a_start_pays_for_no_token() -> None:
    """Neither library is loaded before the first token is signed or shown."""
    told = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, sliceplane.server.io.plane; print('joserfc' in sys.modules)",
        ],
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "False\n"
