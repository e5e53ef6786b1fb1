"""Who may say to be where, and who sees which namespace, as the API server says."""

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
from sliceplane.xds.io.admission import AdmissionConfig, NotAdmitted, Sights, Trust, cut, place_of
from sliceplane.xds.io.authentication import UNSECURED
from sliceplane.xds.resource import XdsClient
from sliceplane.xds.streams.actions import XdsSight
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
        (NODE, {"node_name": "b"}, "system:node:a is bound to the node a, and may not be b"),
        (
            POD,
            {"node_name": "b"},
            "system:serviceaccount:shop:web is bound to the node a, and may not be b",
        ),
        (
            POD,
            {"namespace": "bank"},
            "system:serviceaccount:shop:web is of the namespace shop, and may not be of bank",
        ),
    ],
)
@pytest.mark.parametrize("trust", admission.TRUSTS)
def test_a_claim_of_another_place_is_refused_in_words_that_name_both(
    user: User, claimed: dict[str, str], text: str, trust: Trust
) -> None:
    with pytest.raises(NotAdmitted) as refused:
        place_of(claims(**claimed), user, AdmissionConfig(trust=trust))
    assert str(refused.value) == text


@pytest.mark.parametrize("trust", admission.TRUSTS)
@pytest.mark.parametrize("claimed", [{}, {"node_name": "a"}])
@pytest.mark.parametrize("user", [NODE, POD])
def test_credentials_that_are_bound_say_the_node(
    user: User, claimed: dict[str, str], trust: Trust
) -> None:
    assert place_of(claims(**claimed), user, AdmissionConfig(trust=trust)).node == "a"


@pytest.mark.parametrize(
    ("trust", "zone", "node"), [("none", "", ""), ("zone", "z1", ""), ("node", "z1", "b")]
)
def test_others_are_believed_what_the_flag_says(trust: Trust, zone: str, node: str) -> None:
    place = place_of(claims(node_name="b", namespace="shop"), PERSON, AdmissionConfig(trust=trust))
    assert (place.zone, place.node, place.namespace) == (zone, node, "shop")


def test_the_machine_itself_is_believed() -> None:
    place = place_of(claims(node_name="b"), UNSECURED, AdmissionConfig(trust="none"))
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
    place = place_of(node, PERSON, AdmissionConfig(listeners="capture"))
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


def sights(api: Api, *namespaces: str) -> Sights:
    return Sights(api, lambda: api.now, lambda: namespaces)  # type: ignore[arg-type]


async def test_who_may_read_everything_is_asked_about_once_a_minute() -> None:
    api = Api({("ana", "")})
    seen = sights(api, "a", "b")
    assert seen.known(PERSON) is None
    for _ in range(3):
        assert await seen.of(PERSON) == XdsSight()
    assert api.asked == [("ana", "")]
    api.now = admission.KEPT_S
    api.may.clear()
    assert seen.known(PERSON) is None
    assert not (await seen.of(PERSON)).sees("a"), "what was taken away is gone within a minute"


async def test_others_see_the_namespaces_that_they_may_read() -> None:
    api = Api({("ana", "b")})
    sight = await sights(api, "b", "a").of(PERSON)
    assert [name for name in ("a", "b", "c") if sight.sees(name)] == ["b"]
    assert api.asked == [("ana", ""), ("ana", "a"), ("ana", "b")]


async def test_a_new_namespace_is_asked_about_at_once() -> None:
    api = Api({("ana", "b")})
    namespaces = {"a": 1}
    seen = Sights(api, lambda: 0.0, lambda: namespaces)  # type: ignore[arg-type]
    assert not (await seen.of(PERSON)).sees("b")
    namespaces["b"] = 1
    assert (await seen.of(PERSON)).sees("b")


async def test_while_the_api_server_is_away_what_it_said_counts() -> None:
    api = Api({("ana", "a")})
    seen = sights(api, "a")
    await seen.of(PERSON)
    api.now = 10 * admission.KEPT_S
    api.away = True
    assert (await seen.of(PERSON)).sees("a")
    with pytest.raises(Unreachable):
        await seen.of(ACCOUNT)


async def test_accounts_of_one_name_with_other_groups_are_others() -> None:
    api = Api({("ana", "")})
    seen = sights(api)
    await seen.of(PERSON)
    await seen.of(replace(PERSON, groups=("more",)))
    assert api.asked == [("ana", "")] * 2


async def test_tokens_of_one_account_are_asked_about_once() -> None:
    """Each token has an id of its own among what is said of its user."""
    api = Api({("ana", "")})
    seen = sights(api)
    for number in range(5):
        extra = (("authentication.kubernetes.io/credential-id", (f"JTI={number}",)),)
        await seen.of(replace(PERSON, extra=extra))
    assert api.asked == [("ana", "")]


@pytest.mark.parametrize(
    ("wanted", "sight", "seen"),
    [
        ("", XdsSight(), {"a", "b", "c"}),
        ("a, c,d", XdsSight(), {"a", "c"}),
        ("a,c", XdsSight(False, frozenset({"a", "b"})), {"a"}),
    ],
)
def test_a_client_may_want_less(wanted: str, sight: XdsSight, seen: set[str]) -> None:
    less = cut(sight, claims(namespaces=wanted), ("a", "b", "c"))
    assert {name for name in ("a", "b", "c") if less.sees(name)} == seen
