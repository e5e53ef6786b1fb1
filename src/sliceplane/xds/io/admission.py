"""The locations that a client may claim, and the namespaces that it may see.

A client is a User of the API server. A node's certificate, or a token that is bound to a Pod,
proves the node of the client: a claim of another node is refused with a message that names both.
For other clients, ``--trust-node-metadata`` decides which claims are believed.

A client sees the namespaces in which it may ``get`` EndpointSlices. The server reviews this when
the client connects, again each minute, and soon after a namespace gets its first Service. While the
API server does not answer, the previous result is used.
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
from sliceplane.xds.streams.actions import VisibleNamespaces
from sliceplane.xds.streams.requests import ClientFacts

Trust = Literal["none", "zone", "node"]
TRUSTS: Final[tuple[Trust, ...]] = ("none", "zone", "node")
#: seconds for which the result of a review is cached
CACHED_S: Final = 60.0
#: concurrent reviews
REVIEWS_MAX: Final = 16
USERS_MAX: Final = 10_000
#: the first release of Envoy in which a collection may stay while its assignment changes
#: (envoy#43667)
_LEDS_FROM: Final = (1, 38, 0)
_NODE_NAME: Final = "authentication.kubernetes.io/node-name"
_CREDENTIAL_ID: Final = "authentication.kubernetes.io/credential-id"
_NODE_USER: Final = "system:node:"
_ACCOUNT_USER: Final = "system:serviceaccount:"


class NotAdmitted(Exception):
    """The client is refused (PERMISSION_DENIED); the text is a sentence."""


class AdmissionConfig(msgspec.Struct, frozen=True):
    trust: Trust = "zone"
    #: listeners for Envoys whose metadata names no mode
    listeners: ListenerMode = "none"
    #: send endpoints one by one (LEDS) to clients that support it
    leds: bool = True


def locate_client(node: ClientFacts, user: User, config: AdmissionConfig) -> XdsClient:
    """Returns the client with its location.  Raises ``NotAdmitted`` for a false claim."""
    claimed_node = node.metadata.get("node_name", "")
    claimed_namespace = node.metadata.get("namespace", "")
    bound_node = _bound_node(user)
    if bound_node and claimed_node not in ("", bound_node):
        raise NotAdmitted(
            f"{user.name} is bound to the node {bound_node} and may not claim the node {claimed_node}"
        )
    bound_namespace = (
        user.name.removeprefix(_ACCOUNT_USER).partition(":")[0] if _is_account(user) else ""
    )
    if bound_namespace and claimed_namespace not in ("", bound_namespace):
        raise NotAdmitted(
            f"{user.name} belongs to the namespace {bound_namespace} and may not claim the namespace "
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


def restrict(
    visible: VisibleNamespaces, node: ClientFacts, existing: Iterable[str]
) -> VisibleNamespaces:
    """Restricts *visible* to the namespaces that the client names in its metadata, if any."""
    desired = frozenset(
        filter(None, map(str.strip, node.metadata.get("namespaces", "").split(",")))
    )
    if not desired:
        return visible
    return VisibleNamespaces(
        False, frozenset(name for name in existing if name in desired and visible.includes(name))
    )


class VisibilityReviews:
    """Reviews by the API server of the namespaces that users may see.  Owned by one server.

    *namespaces* returns the namespaces that have Services.
    """

    def __init__(
        self, client: Client, clock: Callable[[], float], namespaces: Callable[[], Iterable[str]]
    ) -> None:
        self._client = client
        self._clock = clock
        self._namespaces = namespaces
        self._slots = asyncio.Semaphore(REVIEWS_MAX)
        #: by the part of a user that authorizers read: expiry, reviewed namespaces, result
        self._cache: dict[object, tuple[float, frozenset[str], VisibleNamespaces]] = {}
        #: the namespaces of the last review; results with equal sets share this object
        self._last_namespaces: frozenset[str] = frozenset()

    def cached(self, user: User) -> VisibleNamespaces | None:
        """Returns the cached result for *user*, if it is still valid."""
        if user is UNSECURED:
            return VisibleNamespaces()
        cached = self._cache.get(_key(user))
        return cached[2] if cached is not None and self._clock() < cached[0] else None

    async def review(self, user: User) -> VisibleNamespaces:
        """Returns the namespaces that *user* may see.

        Raises ``StatusError`` and ``Unreachable`` if there is no earlier result.
        """
        if user is UNSECURED:
            return VisibleNamespaces()
        cached = self._cache.get(_key(user))
        namespaces = frozenset(self._namespaces())
        if namespaces == self._last_namespaces:
            namespaces = self._last_namespaces
        self._last_namespaces = namespaces
        if (
            cached is not None
            and self._clock() < cached[0]
            and (cached[2].everything or namespaces <= cached[1])
        ):
            return cached[2]
        try:
            visible = await self._review_all(user, namespaces)
        except (StatusError, Unreachable):
            if cached is None:
                raise
            return cached[2]
        while len(self._cache) >= USERS_MAX:
            del self._cache[next(iter(self._cache))]
        self._cache.pop(_key(user), None)
        self._cache[_key(user)] = (self._clock() + CACHED_S, namespaces, visible)
        return visible

    async def _review_all(self, user: User, namespaces: frozenset[str]) -> VisibleNamespaces:
        if await self._is_allowed(user, ""):
            return VisibleNamespaces()
        names = sorted(namespaces)
        answers = await asyncio.gather(*[self._is_allowed(user, name) for name in names])
        return VisibleNamespaces(
            False, frozenset(name for name, may in zip(names, answers, strict=True) if may)
        )

    async def _is_allowed(self, user: User, namespace: str) -> bool:
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
        async with self._slots:
            answer = json.loads(await self._client.perform(write))
        return bool(answer.get("status", {}).get("allowed"))


def _key(user: User) -> object:
    """Returns the part of a user that authorizers read: without the id of the credential, which
    differs between tokens of an account.
    """
    extra = tuple((name, values) for name, values in user.extra if name != _CREDENTIAL_ID)
    return (user.name, user.uid, user.groups, extra)
