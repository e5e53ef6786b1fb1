"""The catalog and an Envoy's stream together, in virtual time: each answer of the client may take
as long as it likes, and the connection may break; in the end it holds what its place should use.

The client follows assignments to their collections, keeps their members over a reconnect and
subscribes anew, as Envoy does (docs/xds.md).
"""

from __future__ import annotations

from random import Random
from typing import Any

from envoy.config.endpoint.v3 import endpoint_components_pb2, endpoint_pb2
from tests.effort import scaled
from tests.xds.streams.clients import Response, delta_request, node, read_response
from tests.xds.test_model_against_node_proxy import told
from tests.xds.worlds import KEY, World, pod, service, slice_of

from sliceplane.xds import names
from sliceplane.xds.names import ASSIGNMENT, CLUSTER, ENDPOINT
from sliceplane.xds.resource import XdsClient
from sliceplane.xds.streams.actions import VisibleNamespaces, XdsAdmit, XdsSend
from sliceplane.xds.streams.delta import DeltaStream
from sliceplane.xds.streams.messages import ResponseEncoder


class SlowEnvoy:
    """What the server sends waits in ``coming`` until the test has it taken."""

    def __init__(self, world: World, client: XdsClient) -> None:
        self.world = world
        self.view = world.view(client)
        self.visible = VisibleNamespaces()
        self.coming: list[Response] = []
        self.clusters: dict[str, str] = {}
        self.assignment: tuple[str, bytes] | None = None
        #: by collection
        self.members: dict[str, dict[str, bytes]] = {}
        self.connect()

    def connect(self) -> None:
        self.stream = DeltaStream(ResponseEncoder())
        self.coming.clear()
        self._say(delta_request(CLUSTER, initial=self.clusters, of_node=node()))
        if self.clusters:
            initial = {KEY: self.assignment[0]} if self.assignment else {}
            self._say(delta_request(ASSIGNMENT, subscribe=tuple(self.clusters), initial=initial))
        if self.members:
            self._say(delta_request(ENDPOINT, subscribe=tuple(self.members)))

    def _say(self, message: bytes) -> None:
        self.stream.on_request(message, 1.0)
        self._hear()

    def see(self, visible: VisibleNamespaces) -> None:
        self.visible = visible
        self.stream.on_admitted(self.view, visible, self.world.catalog.revision, 1.0)
        self._hear()

    def tell(self) -> None:
        self.stream.on_changes(self.world.changes(), self.world.catalog.revision, 1.0)
        self._hear()

    def _hear(self) -> None:
        for action in self.stream.take_actions():
            match action:
                case XdsAdmit():
                    self.see(self.visible)
                case XdsSend():
                    self.coming.append(read_response(action.message, delta=True))

    def take(self, index: int = 0) -> None:
        """The answer to one of the responses; types do not wait for each other."""
        response = self.coming.pop(index)
        match response.type_url:
            case names.CLUSTER:
                self._take_clusters(response)
            case names.ASSIGNMENT if KEY in response.resources and KEY in self.clusters:
                self.assignment = response.resources[KEY]
                self._follow()
            case names.ENDPOINT:
                for glob, members in self.members.items():
                    for name in response.removed:
                        members.pop(name, None)
                    told_of = {name: body for name, (_, body) in response.resources.items()}
                    members |= {
                        name: body
                        for name, body in told_of.items()
                        if names.collection_of(name) == glob
                    }
        self._say(delta_request(response.type_url, nonce=response.nonce))

    def _take_clusters(self, response: Response) -> None:
        fresh = tuple(name for name in response.resources if name not in self.clusters)
        gone = tuple(name for name in response.removed if name in self.clusters)
        self.clusters |= {name: version for name, (version, _) in response.resources.items()}
        for name in gone:
            del self.clusters[name]
        if fresh or gone:
            self._say(delta_request(ASSIGNMENT, subscribe=fresh, unsubscribe=gone))
        if KEY in gone:
            self.assignment = None
            self._follow()

    def _follow(self) -> None:
        wanted = [glob for locality in self._localities() if (glob := _glob(locality))]
        gone = tuple(glob for glob in self.members if glob not in wanted)
        fresh = tuple(glob for glob in wanted if glob not in self.members)
        self.members = {glob: self.members.get(glob, {}) for glob in wanted}
        if gone or fresh:
            self._say(delta_request(ENDPOINT, subscribe=fresh, unsubscribe=gone))

    def _localities(self) -> list[Any]:
        if self.assignment is None:
            return []
        return list(endpoint_pb2.ClusterLoadAssignment.FromString(self.assignment[1]).endpoints)

    def settle(self) -> None:
        self.tell()
        while self.coming:
            self.take()

    def uses(self) -> list[tuple[str, int]]:
        endpoints = [
            *[held for locality in self._localities() for held in locality.lb_endpoints],
            *[
                endpoint_components_pb2.LbEndpoint.FromString(body)
                for of in self.members.values()
                for body in of.values()
            ],
        ]
        sockets = [held.endpoint.address.socket_address for held in endpoints]
        return sorted((socket.address, socket.port_value) for socket in sockets)


def _glob(locality: Any) -> str:
    glob: str = locality.leds_cluster_locality_config.leds_collection_name
    return glob


ZONE_A = XdsClient(kind="envoy", zone="a", leds=True)


def hinted(revision: int, numbers: range, *, hints: bool, **more: Any) -> Any:
    return slice_of(
        [pod(number, for_zones=("a",) if hints else ()) for number in numbers], revision, **more
    )


def test_a_member_that_comes_while_another_pool_counts_is_told_when_the_assignment_stays_as_it_was() -> (
    None
):
    """The client never hears of the other pool: its answer to another Service's assignment comes
    after that.
    """
    world = World(service(), service("api"), hinted(1, range(1, 7), hints=False), collected_from=3)
    envoy = SlowEnvoy(world, ZONE_A)
    envoy.settle()
    told(
        world.view(XdsClient(kind="envoy", zone="b", leds=True))
    )  # it keeps the pool of all endpoints
    world.put(hinted(2, range(20, 22), hints=False, name="api-1", of="api"))
    envoy.tell()
    assert [response.type_url for response in envoy.coming] == [ASSIGNMENT]
    for revision, last, hints in ((3, 7, True), (4, 9, True), (5, 9, False)):
        world.put(hinted(revision, range(1, last), hints=hints))
        envoy.tell()
    envoy.settle()
    assert len(envoy.uses()) == 8
    assert envoy.uses() == told(envoy.view)


def test_a_client_whose_sight_changes_keeps_the_members_that_it_may_see() -> None:
    world = World(service(), hinted(1, range(1, 7), hints=False), collected_from=3)
    envoy = SlowEnvoy(world, ZONE_A)
    envoy.settle()
    before = envoy.uses()
    envoy.see(VisibleNamespaces(False, frozenset({"default", "other"})))
    assert [response.removed for response in envoy.coming if response.type_url == ENDPOINT] in (
        [],
        [()],
    )
    envoy.settle()
    assert envoy.uses() == before == told(envoy.view)


def test_names_of_members_are_not_told_to_a_client_that_may_not_see_them() -> None:
    world = World(service(), hinted(1, range(1, 7), hints=False), collected_from=3)
    envoy = SlowEnvoy(world, ZONE_A)
    envoy.settle()
    envoy.visible = VisibleNamespaces(False, frozenset({"other"}))
    envoy.connect()
    removed = [
        name
        for response in envoy.coming
        if response.type_url == ENDPOINT
        for name in response.removed
    ]
    assert removed == list(envoy.members)


def play(seed: int) -> None:
    rng = Random(seed)
    world = World(service(), service("api"), collected_from=3)
    envoy = SlowEnvoy(world, ZONE_A)
    envoy.settle()
    other = world.view(XdsClient(kind="envoy", zone="b", leds=True))
    exists = True
    for revision in range(1, rng.randrange(4, 40)):
        match rng.randrange(16):
            case 0 | 1 | 2 | 3:
                start = rng.choice((0, 20))
                numbers = range(start + rng.randrange(1, 4), start + rng.randrange(4, 12))
                world.put(hinted(revision, numbers, hints=rng.random() < 0.5, name=f"web-{start}"))
            case 4 | 5:
                world.put(
                    hinted(
                        revision,
                        range(40, 40 + rng.randrange(3)),
                        hints=False,
                        name="api-1",
                        of="api",
                    )
                )
            case 6:
                world.put(service(session_affinity=rng.choice(("None", "ClientIP"))))
                exists = True
            case 7 if exists:
                world.delete(service())
                exists = False
            case 8:
                envoy.connect()
            case 9 if exists:
                told(other)
            case 10 | 11 if envoy.coming:
                envoy.take(rng.randrange(len(envoy.coming)))
            case _:
                envoy.tell()
    envoy.settle()
    envoy.settle()
    expected = told(envoy.view) if exists else []
    assert envoy.uses() == expected, f"seed {seed}"


def test_a_slow_envoy_comes_to_hold_what_its_place_uses() -> None:
    for seed in range(scaled(200)):
        play(seed)
