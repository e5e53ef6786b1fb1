"""Which place a client may claim, and what it may see.

A client is a User of the API server. A node's certificate, and a token that is bound to a Pod, say
where it is: a claim of another place is refused, in words that name both. Of others is believed
what ``--trust-node-metadata`` says.

It sees the namespaces in which it may ``get`` EndpointSlices. The API server is asked when the
client connects, again each minute, and soon after a namespace gets its first Service; where it does
not answer, what it said before goes on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal

import msgspec

from sliceplane.api.errors import StatusError
from sliceplane.api.requests import Write
from sliceplane.api.scheme import SubjectAccessReviews
from sliceplane.api.users import User
from sliceplane.watch.io.base import Client, Unreachable
from sliceplane.xds.io.authentication import UNSECURED
from sliceplane.xds.resource import LISTENER_MODES, ListenerMode, XdsClient
from sliceplane.xds.streams.actions import XdsSight
from sliceplane.xds.streams.requests import ClientFacts

Trust = Literal["none", "zone", "node"]
TRUSTS: Final[tuple[Trust, ...]] = ("none", "zone", "node")
#: an answer of the API server counts so long
KEPT_S: Final = 60.0
#: questions under way at a time
ASKED_AT_ONCE: Final = 16
USERS_MAX: Final = 10_000
#: the first release of Envoy in which a collection may stay while its assignment changes
#: (envoy#43667)
_LEDS_FROM: Final = (1, 38, 0)
_NODE_NAME: Final = "authentication.kubernetes.io/node-name"
_CREDENTIAL_ID: Final = "authentication.kubernetes.io/credential-id"
_NODE_USER: Final = "system:node:"
_ACCOUNT_USER: Final = "system:serviceaccount:"


class NotAdmitted(Exception):
    """PERMISSION_DENIED; the text is a sentence."""


class AdmissionConfig(msgspec.Struct, frozen=True):
    trust: Trust = "zone"
    #: of Envoys that do not say what they want
    listeners: ListenerMode = "none"
    #: endpoints one by one (LEDS), for clients that take them
    leds: bool = True


def place_of(node: ClientFacts, user: User, config: AdmissionConfig) -> XdsClient:
    """Raises ``NotAdmitted``."""
    claimed_node = node.metadata.get("node_name", "")
    claimed_namespace = node.metadata.get("namespace", "")
    bound_node = _bound_node(user)
    if bound_node and claimed_node not in ("", bound_node):
        raise NotAdmitted(
            f"{user.name} is bound to the node {bound_node}, and may not be {claimed_node}"
        )
    bound_namespace = (
        user.name.removeprefix(_ACCOUNT_USER).partition(":")[0] if _is_account(user) else ""
    )
    if bound_namespace and claimed_namespace not in ("", bound_namespace):
        raise NotAdmitted(
            f"{user.name} is of the namespace {bound_namespace}, and may not be of "
            f"{claimed_namespace}"
        )
    trusts_node = config.trust == "node" or user is UNSECURED
    listeners = node.metadata.get("listeners", config.listeners)
    is_envoy = node.agent == "envoy"
    return XdsClient(
        kind="envoy" if is_envoy else "grpc",
        zone=node.zone if config.trust != "none" or user is UNSECURED else "",
        node=bound_node or (claimed_node if trusts_node else ""),
        namespace=bound_namespace or claimed_namespace,
        leds=config.leds
        and is_envoy
        and node.version >= _LEDS_FROM
        and node.metadata.get("leds", "") != "false",
        listeners=next((mode for mode in LISTENER_MODES if mode == listeners and is_envoy), "none"),
    )


def _is_account(user: User) -> bool:
    return user.name.startswith(_ACCOUNT_USER)


def _bound_node(user: User) -> str:
    if user.name.startswith(_NODE_USER):
        return user.name.removeprefix(_NODE_USER)
    return next((values[0] for name, values in user.extra if name == _NODE_NAME and values), "")


def cut(sight: XdsSight, node: ClientFacts, known: Iterable[str]) -> XdsSight:
    """*sight* of those namespaces alone that the client wants."""
    wanted = frozenset(filter(None, map(str.strip, node.metadata.get("namespaces", "").split(","))))
    if not wanted:
        return sight
    return XdsSight(False, frozenset(name for name in known if name in wanted and sight.sees(name)))


class Sights:
    """What users may see, as the API server says.  Owned by one server; *namespaces*: those that
    have Services.
    """

    def __init__(
        self, client: Client, clock: Callable[[], float], namespaces: Callable[[], Iterable[str]]
    ) -> None:
        self._client = client
        self._clock = clock
        self._namespaces = namespaces
        self._limit = asyncio.Semaphore(ASKED_AT_ONCE)
        #: by what makes a user another one: until when it counts, for which namespaces it was
        #: asked, and what it is
        self._kept: dict[object, tuple[float, frozenset[str], XdsSight]] = {}
        #: the namespaces of the last question: users share the text of their answers
        self._last: frozenset[str] = frozenset()

    def known(self, user: User) -> XdsSight | None:
        """What is to be had at once."""
        if user is UNSECURED:
            return XdsSight()
        kept = self._kept.get(_key(user))
        return kept[2] if kept is not None and self._clock() < kept[0] else None

    async def of(self, user: User) -> XdsSight:
        """Raises ``StatusError`` and ``Unreachable`` where nothing was ever said."""
        if user is UNSECURED:
            return XdsSight()
        kept = self._kept.get(_key(user))
        namespaces = frozenset(self._namespaces())
        if namespaces == self._last:
            namespaces = self._last
        self._last = namespaces
        if (
            kept is not None
            and self._clock() < kept[0]
            and (kept[2].everything or namespaces <= kept[1])
        ):
            return kept[2]
        try:
            sight = await self._asked(user, namespaces)
        except (StatusError, Unreachable):
            if kept is None:
                raise
            return kept[2]
        while len(self._kept) >= USERS_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept.pop(_key(user), None)
        self._kept[_key(user)] = (self._clock() + KEPT_S, namespaces, sight)
        return sight

    async def _asked(self, user: User, namespaces: frozenset[str]) -> XdsSight:
        if await self._may(user, ""):
            return XdsSight()
        names = sorted(namespaces)
        answers = await asyncio.gather(*[self._may(user, name) for name in names])
        return XdsSight(
            False, frozenset(name for name, may in zip(names, answers, strict=True) if may)
        )

    async def _may(self, user: User, namespace: str) -> bool:
        attributes = {
            "group": "discovery.k8s.io",
            "resource": "endpointslices",
            "verb": "get",
            "namespace": namespace,
        }
        spec: Mapping[str, object] = {
            "user": user.name,
            "groups": list(user.groups),
            "uid": user.uid,
            "extra": {name: list(values) for name, values in user.extra},
            "resourceAttributes": attributes,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": spec,
        }
        write = Write(
            verb="create", resource=SubjectAccessReviews, body=json.dumps(review).encode()
        )
        async with self._limit:
            answer = json.loads(await self._client.perform(write))
        return bool(answer.get("status", {}).get("allowed"))


def _key(user: User) -> object:
    """What authorizers look at; the id of a credential differs with each token of an account."""
    extra = tuple((name, values) for name, values in user.extra if name != _CREDENTIAL_ID)
    return (user.name, user.uid, user.groups, extra)
