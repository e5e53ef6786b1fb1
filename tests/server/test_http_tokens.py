"""Service account tokens, reviews and anonymous requests over HTTP, with real keys."""

from __future__ import annotations

import base64
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from msgspec.structs import replace
from tests.server.serving import Reply, Server, run_plane
from tests.server.test_http_access import kubectl

from sliceplane.kit.io.start_error import StartError
from sliceplane.server.io.keys import token_keys
from sliceplane.server.io.keys.token_keys import TokenConfig, TokenKeys
from sliceplane.server.io.plane import PlaneConfig

ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
AUTHORIZATION = "/apis/authorization.k8s.io/v1"
TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"


def account(server: Server, name: str) -> str:
    """A new account and a token for it."""
    assert server.request("POST", ACCOUNTS, {"metadata": {"name": name}}).code == 201
    reply = server.request("POST", f"{ACCOUNTS}/{name}/token", {"spec": {}})
    assert reply.code == 201
    return str(reply.json["status"]["token"])


def shown(server: Server, token: str, path: str = "/version") -> Reply:
    return server.request("GET", path, certificate=False, authorization=f"Bearer {token}")


def test_a_token_counts_while_its_account_exists(server: Server) -> None:
    token = account(server, "one")
    assert shown(server, token).code == 200
    cannot = (
        'User "system:serviceaccount:default:one" cannot list resource "pods" in API group "" at '
        "the cluster scope"
    )
    assert shown(server, token, "/api/v1/pods").json["message"] == f"pods is forbidden: {cannot}"
    assert server.request("DELETE", f"{ACCOUNTS}/one").code == 200
    assert shown(server, token).code == 401


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_token_with_any_other_byte_is_none(server: Server, part: int) -> None:
    token = account(server, f"forged-{part}")
    parts = token.split(".")
    first = "B" if parts[part][5] == "A" else "A"
    parts[part] = parts[part][:5] + first + parts[part][6:]
    assert shown(server, ".".join(parts)).code == 401
    assert shown(server, f"{token}.").code == 401
    assert shown(server, "a.b.c").code == 401
    assert shown(server, token).code == 200


def test_a_token_without_a_signature_is_none(server: Server) -> None:
    claims = account(server, "unsigned").split(".")[1]
    head = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
    assert shown(server, f"{head}.{claims}.").code == 401


def junk(head: Any) -> str:
    raw = head if isinstance(head, bytes) else json.dumps(head).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode() + ".e30.AAAA"


@pytest.mark.parametrize(
    "head",
    [
        b"[" * 9000,
        b"\xff",
        b"1",
        [],
        {},
        {"kid": []},
        {"kid": None},
        {"alg": "ES256"},
        {"alg": ["ES256"]},
    ],
)
def test_junk_is_no_token_and_no_fault(server: Server, head: Any) -> None:
    assert shown(server, junk(head)).code == 401


def test_refusals_are_upstreams(server: Server) -> None:
    reply = server.request("POST", f"{ACCOUNTS}/nobody/token", {"spec": {}})
    assert (reply.code, reply.json["message"]) == (404, 'serviceaccounts "nobody" not found')
    assert server.get(f"{ACCOUNTS}/nobody/token").code == 405


def test_others_can_verify(server: Server) -> None:
    token = account(server, "verified")
    page = shown(server, token, "/.well-known/openid-configuration")
    assert page.headers["Cache-Control"] == "public, max-age=3600"
    assert page.json["jwks_uri"] == f"{server.plane.url}/openid/v1/jwks"
    keys = shown(server, token, "/openid/v1/jwks")
    assert keys.headers["Content-Type"] == "application/jwk-set+json"
    (key,) = keys.json["keys"]
    assert (key["kty"], key["crv"], key["alg"], key["use"]) == ("EC", "P-256", "ES256", "sig")
    head = json.loads(base64.urlsafe_b64decode(token.split(".")[0] + "=="))
    assert head == {"alg": "ES256", "kid": key["kid"]}
    assert server.request("GET", "/openid/v1/jwks", certificate=False).code == 403


def test_token_reviews(server: Server) -> None:
    token = account(server, "reviewed")
    reply = server.request("POST", TOKEN_REVIEWS, {"spec": {"token": token}})
    assert reply.code == 201
    assert reply.json["status"]["user"]["username"] == "system:serviceaccount:default:reviewed"
    reply = server.request("POST", TOKEN_REVIEWS, {"spec": {"token": "x"}})
    assert reply.json["status"] == {"user": {}, "error": "invalid bearer token"}
    assert server.request("POST", TOKEN_REVIEWS, {"spec": {"token": ""}}).code == 400


ON_PODS = {"verb": "get", "resource": "pods", "namespace": "default"}
MASTER = {"user": "u", "groups": ["system:masters"]}


def test_access_of_others(server: Server) -> None:
    def ask(kind: str, spec: dict[str, Any], namespace: str = "") -> Reply:
        where = f"{AUTHORIZATION}/namespaces/{namespace}" if namespace else AUTHORIZATION
        return server.request("POST", f"{where}/{kind}", {"spec": spec})

    assert ask("subjectaccessreviews", {"user": "u", "resourceAttributes": ON_PODS}).json[
        "status"
    ] == {"allowed": False}
    assert ask("subjectaccessreviews", {**MASTER, "resourceAttributes": ON_PODS}).json[
        "status"
    ] == {"allowed": True}
    reply = ask("subjectaccessreviews", {"resourceAttributes": ON_PODS})
    message = 'spec.user: Invalid value: "": at least one of user or group must be specified'
    assert (reply.code, reply.json["details"]["causes"][0]["field"]) == (422, "spec.user")
    assert reply.json["message"].endswith(message)
    local = ask("localsubjectaccessreviews", {**MASTER, "resourceAttributes": ON_PODS}, "default")
    assert (local.json["metadata"], local.json["status"]) == (
        {"namespace": "default"},
        {"allowed": True},
    )
    reply = ask(
        "localsubjectaccessreviews", {**MASTER, "resourceAttributes": ON_PODS}, "kube-system"
    )
    assert reply.json["message"].endswith(
        'spec.resourceAttributes.namespace: Invalid value: "default": must match metadata.namespace'
    )
    on_path = {**MASTER, "nonResourceAttributes": {"path": "/metrics", "verb": "get"}}
    assert ask("subjectaccessreviews", on_path).json["status"] == {"allowed": True}
    reply = ask("localsubjectaccessreviews", on_path, "default")
    assert reply.json["message"].endswith("disallowed on this kind of request")


def pem(key: Any) -> bytes:
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        (rsa.generate_private_key(65537, 2048), "RS256"),
        (ec.generate_private_key(ec.SECP384R1()), "ES384"),
        (ec.generate_private_key(ec.SECP521R1()), "ES512"),
    ],
)
def test_keys_of_an_operator(tmp_path: Path, key: Any, algorithm: str) -> None:
    (tmp_path / "key").write_bytes(pem(key))
    config = TokenConfig(issuer="i", signing_key_file=tmp_path / "key")
    keys = TokenKeys(config, tmp_path / "own", lambda token: None)
    token = keys.sign({"sub": "s"})
    assert keys.read(token) == {"sub": "s"}
    assert keys.algorithms == [algorithm]
    assert not (tmp_path / "own").exists()
    other = TokenKeys(TokenConfig(issuer="i"), tmp_path / "own", lambda token: None)
    assert other.read(token) is None
    after = TokenConfig(issuer="i", key_files=(tmp_path / "key",))
    exchanged = TokenKeys(after, tmp_path / "own", lambda token: None)
    assert exchanged.read(token) == {"sub": "s"}
    assert exchanged.read(other.sign({"sub": "t"})) == {"sub": "t"}
    assert [each["alg"] for each in exchanged.key_set()["keys"]] == ["ES256", algorithm]


def test_a_signature_is_verified_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_keys, "VERIFIED_MAX", 2)
    keys = TokenKeys(TokenConfig(issuer="i"), tmp_path / "own", lambda token: None)
    tokens = [keys.sign({"n": number}) for number in range(3)]
    verified: list[str] = []
    verify = keys._verify
    monkeypatch.setattr(keys, "_verify", lambda token: verified.append(token) or verify(token))
    for token in (tokens[0], tokens[0], tokens[1], tokens[0], tokens[2], tokens[0], tokens[1]):
        assert keys.read(token) is not None
    assert verified == [tokens[0], tokens[1], tokens[2], tokens[1]]


def test_a_key_that_is_none_fails_the_start(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("junk")
    with pytest.raises(StartError, match="no unencrypted private key in PEM"):
        TokenKeys(
            TokenConfig(issuer="i", signing_key_file=tmp_path / "key"),
            tmp_path / "own",
            lambda token: None,
        )
    with pytest.raises(StartError, match="no private key in PEM"):
        TokenKeys(TokenConfig(issuer="i"), tmp_path / "key", lambda token: None)


def test_tokens_survive_a_restart_and_are_nobodys_business(kept: PlaneConfig) -> None:
    token = ""
    for attempt in range(2):
        plane, end = run_plane(kept)
        server = Server(plane)
        try:
            token = token or account(server, "kept")
            assert shown(server, token).code == 200, attempt
            folder = plane.data_dir.path
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            found = {path: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
            assert folder / "pki/sa.key" in found
            assert {mode for path, mode in found.items() if path.is_file()} == {0o600}
            assert {mode for path, mode in found.items() if path.is_dir()} == {0o700}
        finally:
            end()


def test_nobody_in_particular(server: Server) -> None:
    for path in ("/livez", "/readyz", "/healthz", "/version"):
        assert server.request("GET", path, certificate=False).code == 200
    cannot = (
        'namespaces is forbidden: User "system:anonymous" cannot list resource "namespaces" in '
        'API group "" at the'
    )
    refused = server.request("GET", "/api/v1/namespaces", certificate=False)
    assert (refused.code, refused.json["message"]) == (403, f"{cannot} cluster scope")


def test_nobody_may_be_nobody(kept: PlaneConfig) -> None:
    plane, end = run_plane(replace(kept, anonymous=False))
    try:
        for path in ("/livez", "/version", "/api/v1/namespaces"):
            reply = Server(plane).request("GET", path, certificate=False)
            assert (reply.code, reply.json["message"]) == (401, "Unauthorized")
        assert Server(plane).get("/version").code == 200
    finally:
        end()


@pytest.mark.kubectl
def test_kubectl_create_token(server: Server, tmp_path: Path) -> None:
    def admin(*arguments: str) -> tuple[int, str]:
        return kubectl(server, tmp_path, *arguments)

    assert admin("create", "serviceaccount", "tool")[0] == 0
    code, token = admin(
        "create", "token", "tool", "--audience=vault", "--audience=other", "--duration=20m"
    )
    assert code == 0
    claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
    assert (claims["aud"], claims["exp"] - claims["iat"]) == (["vault", "other"], 1200)
    too_short = (
        "spec.expirationSeconds: Invalid value: 60: may not specify a duration less than 10 minutes"
    )
    code, text = admin("create", "token", "tool", "--duration=1m")
    assert (code, too_short in text) == (1, True)
    assert admin("create", "secret", "generic", "held")[0] == 0
    code, token = admin(
        "create", "token", "tool", "--bound-object-kind=Secret", "--bound-object-name=held"
    )
    assert code == 0
    code, text = kubectl(server, tmp_path, "auth", "whoami", token=token.strip())
    assert (code, "system:serviceaccount:default:tool" in text) == (0, True)
    assert admin("delete", "secret", "held")[0] == 0
    assert "Unauthorized" in kubectl(server, tmp_path, "auth", "whoami", token=token.strip())[1]
