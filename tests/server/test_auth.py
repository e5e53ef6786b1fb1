"""Who asks and may they, as pure functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sliceplane.api.errors import StatusError
from sliceplane.api.users import AUTHENTICATED, User
from sliceplane.kit.io.start_error import StartError
from sliceplane.server.io.requests.auth import ANONYMOUS, Tokens, authenticate
from sliceplane.server.registry.authorization.index import PolicyIndex, require
from sliceplane.server.registry.authorization.policy import objects
from sliceplane.server.registry.types import Attributes
from sliceplane.server.store.types import Key
from sliceplane.watch.io.certificates import Certificate, user_of_certificate

ADMIN = User(name="root", groups=("system:masters", AUTHENTICATED))
ALICE = User(name="alice", groups=("devs", AUTHENTICATED))
NOW = 1_800_000_000.0
TOKENS = Tokens({"s3cret": ALICE})
POLICY = PolicyIndex()
for resource, document in objects():
    POLICY.on_stored(
        Key(
            resource.storage_key,
            document["metadata"].get("namespace", ""),
            document["metadata"]["name"],
        ),
        document,
    )


def test_certificate_subject_becomes_user_and_groups() -> None:
    subject = (
        (("organizationName", "a"),),
        (("organizationName", "b"),),
        (("commonName", "alice"),),
    )
    assert user_of_certificate({"subject": subject}) == User(
        name="alice", groups=("a", "b", AUTHENTICATED)
    )
    assert user_of_certificate({"subject": ((("organizationName", "a"),),)}) is None
    assert user_of_certificate(None) is None
    assert user_of_certificate({}) is None


@pytest.mark.parametrize("header", [b"Bearer s3cret", b"bearer s3cret", b"Bearer  s3cret "])
def test_good_token(header: bytes) -> None:
    assert authenticate(None, header, TOKENS.find, now=NOW) == ALICE


@pytest.mark.parametrize("header", [b"", b"Basic czM=", b"Bearer", b"Bearer "])
def test_no_token_is_anonymous(header: bytes) -> None:
    assert authenticate(None, header, TOKENS.find, now=NOW) == ANONYMOUS


def test_bad_token_is_401_and_certificates_win() -> None:
    with pytest.raises(StatusError) as caught:
        authenticate(None, b"Bearer nope", TOKENS.find, now=NOW)
    assert caught.value.code == 401
    assert caught.value.status()["message"] == "Unauthorized"
    assert authenticate(Certificate(ADMIN, NOW, NOW), b"Bearer nope", TOKENS.find, now=NOW) == ADMIN


@pytest.mark.parametrize("now", [NOW - 2, NOW + 2])
def test_a_certificate_counts_in_its_time_only(now: float) -> None:
    """Also with anonymous users: who shows something that is not good is not nobody in particular
    (as upstream).
    """
    certificate = Certificate(ADMIN, NOW - 1, NOW + 1)
    with pytest.raises(StatusError) as caught:
        authenticate(certificate, b"", TOKENS.find, now=now)
    assert caught.value.code == 401
    assert authenticate(certificate, b"Bearer s3cret", TOKENS.find, now=now) == ALICE


def test_a_chain_counts_as_long_as_every_certificate_in_it() -> None:
    def shown(name: str, begins: str, ends: str) -> dict[str, Any]:
        return {"subject": ((("commonName", name),),), "notBefore": begins, "notAfter": ends}

    chain = [
        shown("alice", "Jan  1 00:00:00 2026 GMT", "Jan  1 00:00:00 2030 GMT"),
        shown("between", "Jan  2 00:00:00 2026 GMT", "Jan  1 00:00:10 2027 GMT"),
        shown("authority", "Jan  1 00:00:00 2020 GMT", "Jan  1 00:00:00 2040 GMT"),
    ]
    found = Certificate.of(chain)
    assert found == Certificate(User(name="alice", groups=(AUTHENTICATED,)), 1767312000, 1798761610)
    assert Certificate.of([]) is None


def test_token_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens.csv"
    path.write_text('t1,nobody,u0\nt1,alice,u1,"devs,ops"\n\n,ghost,u9\nt2,bob,u2\n')
    tokens = Tokens.load(path)
    assert tokens.find("t1") == User(name="alice", uid="u1", groups=("devs", "ops", AUTHENTICATED))
    assert tokens.find("t2") == User(name="bob", uid="u2", groups=(AUTHENTICATED,))
    assert tokens.find("t3") is None
    assert tokens.find("") is None
    path.write_text("t1,alice\n")
    with pytest.raises(StartError, match="line 1: expected token,user,uid"):
        Tokens.load(path)
    with pytest.raises(StartError, match="cannot read the token file"):
        Tokens.load(tmp_path / "missing")


REFUSALS = [
    (
        Attributes(verb="list", resource="pods", namespace="ns1"),
        (
            'pods is forbidden: User "alice" cannot list resource "pods" in API group "" in the '
            'namespace "ns1"'
        ),
    ),
    (
        Attributes(
            verb="get", resource="endpointslices", group="discovery.k8s.io", namespace="n", name="x"
        ),
        (
            'endpointslices.discovery.k8s.io "x" is forbidden: User "alice" cannot get resource '
            '"endpointslices" in '
            'API group "discovery.k8s.io" in the namespace "n"'
        ),
    ),
    (
        Attributes(verb="update", resource="nodes", subresource="status", name="n1"),
        (
            'nodes "n1" is forbidden: User "alice" cannot update resource "nodes/status" in API '
            'group "" at the '
            "cluster scope"
        ),
    ),
    (
        Attributes(verb="get", resource="namespaces", namespace="prod", name="prod"),
        (
            'namespaces "prod" is forbidden: User "alice" cannot get resource "namespaces" in API '
            'group "" in the '
            'namespace "prod"'
        ),
    ),
    (Attributes(verb="get", path="/metrics"), 'forbidden: User "alice" cannot get path "/metrics"'),
    (
        Attributes(verb="post", path="/version"),
        'forbidden: User "alice" cannot post path "/version"',
    ),
]


@pytest.mark.parametrize(("wanted", "message"), REFUSALS)
def test_refusals_name_what_was_wanted(wanted: Attributes, message: str) -> None:
    with pytest.raises(StatusError) as caught:
        require(POLICY, ALICE, wanted)
    assert (caught.value.code, caught.value.reason, caught.value.message) == (
        403,
        "Forbidden",
        message,
    )
    require(POLICY, ADMIN, wanted)


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz", "/version", "/version/"])
def test_public_paths(path: str) -> None:
    wanted = Attributes(verb="get", path=path)
    assert POLICY.decide(ANONYMOUS, wanted).allowed
    require(POLICY, ANONYMOUS, wanted)


@pytest.mark.parametrize(
    "path", ["/api", "/apis/apps", "/openapi/v3", "/healthzz", "/livez/ping", "/", "/metrics"]
)
def test_anonymous_may_nothing_else(path: str) -> None:
    wanted = Attributes(verb="get", path=path)
    with pytest.raises(StatusError):
        require(POLICY, ANONYMOUS, wanted)


@pytest.mark.parametrize(
    "path", ["/api", "/api/", "/apis/apps/v1", "/openapi/v3/apis/apps/v1", "/livez"]
)
def test_authenticated_users_may_discover(path: str) -> None:
    wanted = Attributes(verb="get", path=path)
    assert POLICY.decide(ALICE, wanted).allowed
    require(POLICY, ALICE, wanted)
