"""Who may say to be where, and who includes which namespace, as the API server says."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from sliceplane.api.requests import Write
from sliceplane.api.users import User
from sliceplane.watch.io.base import Unreachable
from sliceplane.xds.io import admission
from sliceplane.xds.io.admission import (
    AdmissionConfig,
    NotAdmitted,
    Trust,
    VisibilityReviews,
    locate_client,
    restrict,
)
from sliceplane.xds.io.authentication import UNSECURED
from sliceplane.xds.resource import XdsClient
from sliceplane.xds.streams.actions import VisibleNamespaces
from sliceplane.xds.streams.requests import ClientFacts

NODE = User(name="system:node:a", groups=("system:nodes",))
PERSON = User(name="ana")
ACCOUNT = User(name="system:serviceaccount:shop:web")
POD = replace(ACCOUNT, extra=(("authentication.kubernetes.io/node-name", ("a",)),))
ENVOY = ClientFacts(id="e", agent="envoy", version=(1, 40, 0), zone="z1")


def claims(**metadata: str) -> ClientFacts:
    return replace(ENVOY, metadata=metadata)


@pytest.mark.parametrize(
    ("user", "claimed", "text"),
    [
        (
            NODE,
            {"node_name": "b"},
            "system:node:a is bound to the node a and may not claim the node b",
        ),
        (
            POD,
            {"node_name": "b"},
            "system:serviceaccount:shop:web is bound to the node a and may not claim the node b",
        ),
        (
            POD,
            {"namespace": "bank"},
            "system:serviceaccount:shop:web belongs to the namespace shop and may not claim the namespace bank",
        ),
    ],
)
@pytest.mark.parametrize("trust", admission.TRUSTS)
def test_a_claim_of_another_place_is_refused_in_words_that_name_both(
    user: User, claimed: dict[str, str], text: str, trust: Trust
) -> None:
    with pytest.raises(NotAdmitted) as refused:
        locate_client(claims(**claimed), user, AdmissionConfig(trust=trust))
    assert str(refused.value) == text


@pytest.mark.parametrize("trust", admission.TRUSTS)
@pytest.mark.parametrize("claimed", [{}, {"node_name": "a"}])
@pytest.mark.parametrize("user", [NODE, POD])
def test_credentials_that_are_bound_say_the_node(
    user: User, claimed: dict[str, str], trust: Trust
) -> None:
    assert locate_client(claims(**claimed), user, AdmissionConfig(trust=trust)).node == "a"


@pytest.mark.parametrize(
    ("trust", "zone", "node"), [("none", "", ""), ("zone", "z1", ""), ("node", "z1", "b")]
)
def test_others_are_believed_what_the_flag_says(trust: Trust, zone: str, node: str) -> None:
    place = locate_client(
        claims(node_name="b", namespace="shop"), PERSON, AdmissionConfig(trust=trust)
    )
    assert (place.zone, place.node, place.namespace) == (zone, node, "shop")


def test_the_machine_itself_is_believed() -> None:
    place = locate_client(claims(node_name="b"), UNSECURED, AdmissionConfig(trust="none"))
    assert place == XdsClient(kind="envoy", zone="z1", node="b", leds=True)


@pytest.mark.parametrize(
    ("node", "leds", "listeners"),
    [
        (ENVOY, True, "capture"),
        (replace(ENVOY, version=(1, 37, 9)), False, "capture"),
        (claims(leds="false"), False, "capture"),
        (claims(listeners="port"), True, "port"),
        (claims(listeners="what?"), True, "none"),
        (replace(ENVOY, agent="gRPC Go"), False, "none"),
    ],
)
def test_what_a_client_takes_follows_from_what_it_is(
    node: ClientFacts, leds: bool, listeners: str
) -> None:
    place = locate_client(node, PERSON, AdmissionConfig(listeners="capture"))
    assert (place.leds, place.listeners) == (leds, listeners)


@dataclass
class Api:
    """Who may ``get`` EndpointSlices where; "" is everywhere."""

    may: set[tuple[str, str]]
    asked: list[tuple[str, str]] = field(default_factory=list)
    away: bool = False
    now: float = 0.0

    async def perform(self, write: Write) -> bytes:
        spec = json.loads(write.body)["spec"]
        attributes = spec["resourceAttributes"]
        assert (attributes["group"], attributes["resource"], attributes["verb"]) == (
            "discovery.k8s.io",
            "endpointslices",
            "get",
        )
        await asyncio.sleep(0)
        if self.away:
            raise Unreachable("it is away")
        question = (spec["user"], attributes["namespace"])
        self.asked.append(question)
        return json.dumps({"status": {"allowed": question in self.may}}).encode()


def sights(api: Api, *namespaces: str) -> VisibilityReviews:
    return VisibilityReviews(api, lambda: api.now, lambda: namespaces)  # type: ignore[arg-type]


async def test_who_may_read_everything_is_asked_about_once_a_minute() -> None:
    api = Api({("ana", "")})
    seen = sights(api, "a", "b")
    assert seen.cached(PERSON) is None
    for _ in range(3):
        assert await seen.review(PERSON) == VisibleNamespaces()
    assert api.asked == [("ana", "")]
    api.now = admission.CACHED_S
    api.may.clear()
    assert seen.cached(PERSON) is None
    assert not (await seen.review(PERSON)).includes("a"), (
        "what was taken away is gone within a minute"
    )


async def test_others_see_the_namespaces_that_they_may_read() -> None:
    api = Api({("ana", "b")})
    visible = await sights(api, "b", "a").review(PERSON)
    assert [name for name in ("a", "b", "c") if visible.includes(name)] == ["b"]
    assert api.asked == [("ana", ""), ("ana", "a"), ("ana", "b")]


async def test_a_new_namespace_is_asked_about_at_once() -> None:
    api = Api({("ana", "b")})
    namespaces = {"a": 1}
    seen = VisibilityReviews(api, lambda: 0.0, lambda: namespaces)  # type: ignore[arg-type]
    assert not (await seen.review(PERSON)).includes("b")
    namespaces["b"] = 1
    assert (await seen.review(PERSON)).includes("b")


async def test_while_the_api_server_is_away_what_it_said_counts() -> None:
    api = Api({("ana", "a")})
    seen = sights(api, "a")
    await seen.review(PERSON)
    api.now = 10 * admission.CACHED_S
    api.away = True
    assert (await seen.review(PERSON)).includes("a")
    with pytest.raises(Unreachable):
        await seen.review(ACCOUNT)


async def test_accounts_of_one_name_with_other_groups_are_others() -> None:
    api = Api({("ana", "")})
    seen = sights(api)
    await seen.review(PERSON)
    await seen.review(replace(PERSON, groups=("more",)))
    assert api.asked == [("ana", "")] * 2


async def test_tokens_of_one_account_are_asked_about_once() -> None:
    """Each token has an id of its own among what is said of its user."""
    api = Api({("ana", "")})
    seen = sights(api)
    for number in range(5):
        extra = (("authentication.kubernetes.io/credential-id", (f"JTI={number}",)),)
        await seen.review(replace(PERSON, extra=extra))
    assert api.asked == [("ana", "")]


@pytest.mark.parametrize(
    ("wanted", "visible", "seen"),
    [
        ("", VisibleNamespaces(), {"a", "b", "c"}),
        ("a, c,d", VisibleNamespaces(), {"a", "c"}),
        ("a,c", VisibleNamespaces(False, frozenset({"a", "b"})), {"a"}),
    ],
)
def test_a_client_may_want_less(wanted: str, visible: VisibleNamespaces, seen: set[str]) -> None:
    less = restrict(visible, claims(namespaces=wanted), ("a", "b", "c"))
    assert {name for name in ("a", "b", "c") if less.includes(name)} == seen
