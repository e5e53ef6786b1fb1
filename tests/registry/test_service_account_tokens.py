"""Tokens of service accounts: what is granted, and for how long it is worth something
(KEP-1205).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.registry.conftest import Api
from tests.tables import tables

from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Document
from sliceplane.api.scheme import Nodes, Pods, Resource, Secrets, ServiceAccounts, TokenReviews
from sliceplane.api.users import User
from sliceplane.kit.rng import Rng
from sliceplane.server.registry.config import RegistryConfig
from sliceplane.server.registry.registry import Registry
from sliceplane.server.registry.types import Body, Target, WriteOptions
from sliceplane.server.store.mvcc import Store

TABLES = tables(__file__)

ISSUER = "https://here"
STATIC = User(name="alice", groups=("system:authenticated",))


class Signer:
    """Signs with nothing: a token is its claims."""

    issuer = ISSUER
    audiences = (ISSUER, "second")

    def sign(self, claims: Document) -> str:
        return json.dumps(claims)

    def read(self, token: str) -> Document | User | None:
        if token == "static":
            return STATIC
        return json.loads(token) if token.startswith("{") else None


class Plane(Api):
    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        self.registry = Registry(self.store, rng=Rng(1), config=RegistryConfig(), tokens=Signer())
        self.registry.bootstrap(self.now)
        self.commit()
        self.create(ServiceAccounts, {"metadata": {"name": "robot"}})

    def token(self, spec: Document | None = None, account: str = "robot", **head: str) -> Document:
        target = Target(
            resource=ServiceAccounts, namespace="default", name=account, subresource="token"
        )
        body = Body(document={"metadata": head, "spec": spec or {}})
        return json.loads(self.registry.create(self.ctx, target, body, WriteOptions()).body)

    def claims(self, spec: Document | None = None) -> Document:
        return json.loads(self.token(spec)["status"]["token"])

    def who(self, token: str) -> User | None:
        return self.registry.authenticate(token, self.now)

    def uid(self, resource: Resource, name: str) -> str:
        return str(self.get(resource, name)["metadata"]["uid"])

    def review(self, **spec: Any) -> Document:
        target = Target(resource=TokenReviews)
        outcome = self.registry.create(
            self.ctx, target, Body(document={"spec": spec}), WriteOptions()
        )
        return json.loads(outcome.body)["status"]


@pytest.fixture
def plane() -> Plane:
    return Plane()


def pod(account: str, node: str = "") -> Document:
    spec = {"serviceAccountName": account, "containers": [{"name": "c", "image": "i"}]}
    return {"metadata": {"name": "p"}, "spec": {**spec, **({"nodeName": node} if node else {})}}


def test_claims_are_upstreams(plane: Plane) -> None:
    answer = plane.token()
    claims = json.loads(answer["status"]["token"])
    now, uid = int(plane.now), plane.uid(ServiceAccounts, "robot")
    jti = claims.pop("jti")
    assert claims == {
        "aud": [ISSUER, "second"],
        "exp": now + 3600,
        "iat": now,
        "iss": ISSUER,
        "kubernetes.io": {"namespace": "default", "serviceaccount": {"name": "robot", "uid": uid}},
        "nbf": now,
        "sub": "system:serviceaccount:default:robot",
    }
    assert answer["spec"] == {"audiences": [ISSUER, "second"], "expirationSeconds": 3600}
    assert answer["metadata"]["name"] == "robot"
    user = plane.who(answer["status"]["token"])
    assert user == User(
        name="system:serviceaccount:default:robot",
        uid=uid,
        groups=("system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"),
        extra=(("authentication.kubernetes.io/credential-id", (f"JTI={jti}",)),),
    )


TOO_SHORT = (
    "spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes"
)
TOO_LONG = (
    "spec.expirationSeconds: Invalid value: 4294967297: may not specify a duration larger than "
    "2^32 seconds"
)
OF_OTHERS = (
    'cannot bind token for serviceaccount "robot" to pod running with different serviceaccount '
    "name."
)
REFUSALS: list[tuple[Document, int, str]] = TABLES["REFUSALS"]


@pytest.mark.parametrize(("spec", "code", "message"), REFUSALS)
def test_refusals(plane: Plane, spec: Document, code: int, message: str) -> None:
    plane.create(Pods, pod("default"))
    plane.create(Secrets, {"metadata": {"name": "s"}})
    with pytest.raises(StatusError) as caught:
        plane.token(spec)
    assert (caught.value.code, caught.value.message) == (code, message)


def test_of_whom_and_for_whom(plane: Plane) -> None:
    wrong: tuple[tuple[str, dict[str, str], int], ...] = (
        ("nobody", {}, 404),
        ("robot", {"name": "x"}, 422),
        ("robot", {"namespace": "x"}, 422),
    )
    for account, head, code in wrong:
        with pytest.raises(StatusError) as caught:
            plane.token({}, account, **head)
        assert caught.value.code == code
    with pytest.raises(StatusError) as caught:
        plane.token({}, uid="old")
    assert caught.value.code == 409


def changed(**members: Any) -> Callable[[Document], Document]:
    return lambda claims: {**claims, **members}


@pytest.mark.parametrize(
    "change",
    [
        changed(iss="https://elsewhere"),
        changed(aud=["others"]),
        changed(sub="system:serviceaccount:kube-system:robot"),
        changed(exp=0),
        changed(nbf=1 << 40),
        lambda claims: {key: value for key, value in claims.items() if key != "kubernetes.io"},
        lambda claims: {key: value for key, value in claims.items() if key != "exp"},
        changed(exp="soon"),
        changed(aud=7),
        changed(**{"kubernetes.io": []}),
        changed(**{"kubernetes.io": {"namespace": "default", "serviceaccount": "robot"}}),
        changed(**{"kubernetes.io": {"namespace": 7, "serviceaccount": {"name": []}}}),
    ],
)
def test_claims_that_are_worth_nothing(
    plane: Plane, change: Callable[[Document], Document]
) -> None:
    assert plane.who(json.dumps(plane.claims())) is not None
    assert plane.who(json.dumps(change(plane.claims()))) is None


def test_a_token_ends(plane: Plane) -> None:
    token = plane.token({"expirationSeconds": 600})["status"]["token"]
    plane.now += 600 + 59
    assert plane.who(token)
    plane.now += 2
    assert plane.who(token) is None


def test_a_token_ends_with_its_account(plane: Plane) -> None:
    token = plane.token()["status"]["token"]
    plane.delete(ServiceAccounts, "robot")
    assert plane.who(token) is None
    plane.create(ServiceAccounts, {"metadata": {"name": "robot"}})
    assert plane.who(token) is None, "another account of the same name"


@pytest.mark.parametrize(
    ("resource", "kind"), [(Secrets, "Secret"), (Nodes, "Node"), (Pods, "Pod")]
)
def test_a_token_ends_with_what_it_is_bound_to(plane: Plane, resource: Resource, kind: str) -> None:
    document = pod("robot") if resource is Pods else {"metadata": {"name": "p"}}
    plane.create(resource, document)
    uid = plane.uid(resource, "p")
    reference = {"kind": kind, "apiVersion": "v1", "name": "p", "uid": uid}
    token = plane.token({"boundObjectRef": reference})["status"]["token"]
    assert json.loads(token)["kubernetes.io"][kind.lower()] == {"name": "p", "uid": uid}
    assert plane.who(token)
    namespace = "default" if resource.namespaced else ""
    plane.delete(resource, "p", namespace=namespace)
    assert plane.who(token) is None


def test_a_pods_token_tells_its_node(plane: Plane) -> None:
    plane.create(Nodes, {"metadata": {"name": "n"}})
    plane.create(Pods, pod("robot", "n"))
    token = plane.token({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p"}})[
        "status"
    ]["token"]
    user = plane.who(token)
    assert user is not None
    extra = dict(user.extra)
    assert extra["authentication.kubernetes.io/node-name"] == ("n",)
    assert extra["authentication.kubernetes.io/node-uid"] == (plane.uid(Nodes, "n"),)
    assert extra["authentication.kubernetes.io/pod-name"] == ("p",)
    plane.delete(Nodes, "n", namespace="")
    assert plane.who(token), "bound to the Pod alone"


def test_token_reviews(plane: Plane) -> None:
    token = plane.token({"audiences": ["second", "third"]})["status"]["token"]
    status = plane.review(token=token)
    assert status["authenticated"]
    assert status["audiences"] == ["second"]
    assert status["user"]["username"] == "system:serviceaccount:default:robot"
    assert plane.review(token=token, audiences=["third", "fourth"])["audiences"] == ["third"]
    nobody = {"user": {}, "error": "invalid bearer token"}
    assert plane.review(token=token, audiences=["fourth"]) == nobody
    assert plane.review(token="junk") == nobody
    assert plane.review(token="static")["user"] == {
        "username": "alice",
        "groups": ["system:authenticated"],
    }
    assert plane.review(token="static", audiences=["fourth"]) == nobody
    with pytest.raises(StatusError, match="token is required for TokenReview in authentication"):
        plane.review()
