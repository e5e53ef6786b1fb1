"""Requests of hostile clients of xDS, and what must hold whatever they ask.

``python -m tests.fuzz.xds_requests --seconds 3600``, or ``--case N`` to see one again. Nothing is
raised; what the library of protobuf reads of a request we read too; what is sent the library can
read, has each name once and is within the limits; and a stream that is finished says nothing more.
"""

from __future__ import annotations

from random import Random
from typing import Any

from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf.message import DecodeError
from tests.fuzz.cases_of_seconds import run_cases
from tests.xds.streams.clients import delta_request, node, whole_request
from tests.xds.worlds import ENDING, GRPC, LEDS, NOT_READY, READY, World, pod, service, slice_of

from sliceplane.kit.protobuf import varint
from sliceplane.xds.names import ASSIGNMENT, CLUSTER, ENDPOINT, LISTENER, ROUTES
from sliceplane.xds.resource import XdsClient
from sliceplane.xds.streams.actions import VisibleNamespaces, XdsAdmit, XdsFinish, XdsSend
from sliceplane.xds.streams.delta import DeltaStream
from sliceplane.xds.streams.messages import MESSAGE_BYTES_MAX, ResponseEncoder
from sliceplane.xds.streams.requests import (
    DeltaRequest,
    RequestError,
    WholeRequest,
    read_delta,
    read_whole,
    run_steps,
)
from sliceplane.xds.streams.stream import AdsStream
from sliceplane.xds.streams.whole import WholeStream

_TYPES = (CLUSTER, ASSIGNMENT, ENDPOINT, LISTENER, ROUTES, "", "type.googleapis.com/other", "\0")
_NAMES = (
    *(
        "default/web:http",
        "default/api:http",
        "web",
        "web.default:80",
        "web.default.svc:http",
        "*",
        "",
        "x" * 400,
    ),
    *(
        "a/b/c",
        "xdstp://sp/*",
        "xdstp://sp/envoy.config.endpoint.v3.LbEndpoint/a/b/*",
        "é%7E",
        "/:",
        ":",
    ),
)
_CLIENTS = (
    GRPC,
    LEDS,
    XdsClient(kind="envoy", zone="a", leds=True, listeners="cluster-ip"),
    XdsClient(kind="envoy", node="n1", listeners="capture"),
)
_TIMES_S = (0.0, 0.0, 0.5, 3.0, 40.0)


def _some(rng: Random, known: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(rng.choice(known) for _ in range(rng.choice((0, 1, 1, 2, 5))))


def request(rng: Random, delta: bool, known: tuple[str, ...], nonces: list[str]) -> bytes:
    """What a client sends: often what one would, often with octets of another mind."""
    type_url = rng.choice(_TYPES) if rng.random() < 0.3 else rng.choice(_TYPES[:5])
    of_node = (
        node({"namespaces": "default"} if rng.random() < 0.2 else {})
        if rng.random() < 0.5
        else None
    )
    nonce = nonces[-1] if rng.random() < 0.6 else rng.choice(nonces)
    error = "no" * rng.choice((1, 2000)) if rng.random() < 0.2 else None
    if delta:
        versions = dict.fromkeys(_some(rng, known), rng.choice(("", "0" * 16, "x")))
        raw = delta_request(
            type_url,
            subscribe=_some(rng, known),
            unsubscribe=_some(rng, known),
            initial=versions,
            nonce=nonce,
            error=error,
            of_node=of_node,
        )
    else:
        raw = whole_request(
            type_url, *_some(rng, known), version="1", nonce=nonce, error=error, of_node=of_node
        )
    if rng.random() < 0.5:
        return raw
    octets = bytearray(raw)
    while rng.random() < 0.6:
        at = rng.randrange(len(octets) + 1)
        match rng.randrange(4):
            case 0:
                octets[at : at + rng.randrange(4)] = rng.randbytes(rng.randrange(4))
            case 1:
                octets[at:at] = varint(rng.getrandbits(rng.choice((3, 7, 32, 64)))) * rng.choice(
                    (1, 1, 12)
                )
            case 2:
                del octets[at:]
            case _:
                octets += raw[at:]
    return bytes(octets)


def compare_with_the_library(raw: bytes, delta: bool) -> None:
    """Fields that are a text or a list of texts; of a field that we do not take there is nothing to
    compare.
    """
    read: DeltaRequest | WholeRequest
    try:
        read = run_steps(read_delta(raw)) if delta else run_steps(read_whole(raw))
    except RequestError:
        return
    kind: Any = discovery_pb2.DeltaDiscoveryRequest if delta else discovery_pb2.DiscoveryRequest
    try:
        known = kind.FromString(raw)
    except DecodeError:
        return  # it looks into what we pass over
    assert (read.type_url, read.nonce) == (known.type_url, known.response_nonce)
    if isinstance(read, DeltaRequest):
        assert read.subscribe == tuple(dict.fromkeys(known.resource_names_subscribe))
        assert read.unsubscribe == tuple(dict.fromkeys(known.resource_names_unsubscribe))
        held = dict(known.initial_resource_versions)
        assert held.items() <= read.initial.items(), (
            "it passes over an entry with a field that it does not know"
        )
    else:
        assert (read.version, read.names) == (
            known.version_info,
            tuple(dict.fromkeys(known.resource_names)),
        )


def _change(rng: Random, world: World) -> None:
    name = rng.choice(("web", "api"))
    if rng.random() < 0.3:
        world.put(service(name, session_affinity=rng.choice(("None", "ClientIP"))))
        return
    numbers = rng.sample(range(1, 12), rng.randrange(9))
    endpoints = [
        pod(number, rng.choice((READY, READY, NOT_READY, ENDING))) for number in sorted(numbers)
    ]
    world.put(
        slice_of(endpoints, rng.randrange(1, 10**6), name=f"{name}-{rng.randrange(2)}", of=name)
    )


class _Played:
    """A stream of a client, and what the server hands it."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.delta = rng.random() < 0.6
        self.world = World(
            service(), slice_of([pod(number) for number in range(1, 7)]), collected_from=3
        )
        self.view = self.world.view(rng.choice(_CLIENTS))
        self.stream: AdsStream = (DeltaStream if self.delta else WholeStream)(ResponseEncoder())
        self.nonces = [""]
        self.names = dict.fromkeys(_NAMES)
        self.now = 10.0
        self.finished = False

    def step(self) -> None:
        rng, stream = self.rng, self.stream
        match rng.randrange(10):
            case 0 | 1:
                _change(rng, self.world)
                stream.on_changes(self.world.changes(), self.world.catalog.revision, self.now)
            case 2:
                self.now += rng.choice(_TIMES_S)
                stream.on_deadline(self.now)
            case 3 if stream.view is not None and not stream.finished:
                visible = VisibleNamespaces(
                    rng.random() < 0.5,
                    frozenset(rng.sample(("default", "other"), rng.randrange(3))),
                )
                stream.on_admitted(
                    self.view, visible, self.world.catalog.revision, self.now
                )  # as the server asks again
            case _:
                raw = request(rng, self.delta, tuple(self.names), self.nonces)
                compare_with_the_library(raw, self.delta)
                stream.on_request(raw, self.now)
        while stream.has_work:
            stream.work(self.now)
        self.perform()
        stream.status()
        due = stream.next_deadline()
        assert due is None or due > self.now - 1e3, "a deadline that never ends"

    def perform(self) -> None:
        for action in self.stream.take_actions():
            assert not self.finished, f"{action} behind the end"
            match action:
                case XdsAdmit():
                    self.stream.on_admitted(
                        self.view, VisibleNamespaces(), self.world.catalog.revision, self.now
                    )
                    while self.stream.has_work:
                        self.stream.work(self.now)
                    self.perform()
                case XdsSend(type_url, message):
                    self.heard(type_url, message)
                case XdsFinish():
                    assert self.stream.finished
                    self.finished = True

    def heard(self, type_url: str, message: bytes) -> None:
        assert len(message) <= MESSAGE_BYTES_MAX
        kind: Any = (
            discovery_pb2.DeltaDiscoveryResponse if self.delta else discovery_pb2.DiscoveryResponse
        )
        response = kind.FromString(message)
        assert response.type_url == type_url
        assert response.nonce not in self.nonces, "a nonce twice on a stream"
        self.nonces.append(response.nonce)
        if self.delta:
            told = [item.name for item in response.resources] + list(response.removed_resources)
            assert len(set(told)) == len(told), "a name twice in a response"
            for item in response.resources:
                if type_url == ASSIGNMENT:
                    self.note_globs(item.resource.value)

    def note_globs(self, assignment: bytes) -> None:
        from envoy.config.endpoint.v3 import endpoint_pb2

        for locality in endpoint_pb2.ClusterLoadAssignment.FromString(assignment).endpoints:
            self.names[locality.leds_cluster_locality_config.leds_collection_name] = None


def case(number: int) -> None:
    """One stream.  Raises ``AssertionError``, or whatever is wrong."""
    rng = Random(number)
    played = _Played(rng)
    for _ in range(rng.randrange(1, 60)):
        played.step()
    played.world.catalog.release(played.view)
    played.world.catalog.check()


if __name__ == "__main__":
    run_cases("tests.fuzz.xds_requests", case, "clients of xDS")
