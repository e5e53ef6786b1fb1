"""Collections of endpoints, and a client that keeps members as Envoy does: it forgets nothing that
it is not told.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.effort import machine
from tests.xds.test_messages import endpoint_pb2
from tests.xds.worlds import KEY, LEDS, NOT_READY, World, XdsClient, body, pod, service, slice_of

from sliceplane.api.discovery import SliceEndpoint
from sliceplane.xds.collections import REMEMBERED_MIN
from sliceplane.xds.names import ASSIGNMENT, CLUSTER, ENDPOINT

FROM = 6


class KeepingClient:
    """Envoy by delta: an assignment names collections; members stay, also over a reconnect, until
    they are said to be gone; a changed Cluster waits for an assignment with collections that are
    new to it.
    """

    def __init__(self, world: World, client: XdsClient) -> None:
        self.world = world
        self.view = world.view(client)
        self.assignment = b""
        self.cluster = b""
        self.members: dict[str, dict[str, bytes]] = {}
        #: every collection that it ever followed under another Cluster: of no use any more
        self.stale: set[str] = set()
        self.connect()

    def connect(self) -> None:
        """Asks for all names anew: it says the versions of Cluster and assignment, of members
        none.
        """
        self._take_cluster()
        self._take_assignment()
        for glob in self.members:
            self._subscribe(glob)

    def _take_cluster(self) -> None:
        cluster = body(self.view, CLUSTER)
        if cluster != self.cluster:
            self.cluster = cluster
            self.stale |= self.members.keys()
            self.members.clear()

    def _take_assignment(self) -> None:
        self.assignment = body(self.view)
        named = self.globs()
        assert not self.stale & set(named), (
            "a changed Cluster finds no endpoints in a collection that it knows"
        )
        for glob in [glob for glob in self.members if glob not in named]:
            # It unsubscribes, and would believe what it holds if the name came back.
            self.world_forgotten[glob] = self.members.pop(glob)
        for glob in named:
            if glob not in self.members:
                self.members[glob] = self.world_forgotten.pop(glob, {})
                self._subscribe(glob)

    @property
    def world_forgotten(self) -> dict[str, dict[str, bytes]]:
        return self.__dict__.setdefault("_forgotten", {})

    def _subscribe(self, glob: str) -> None:
        collection = self.view.collection(glob)
        assert collection is not None, f"{glob} is named by the assignment, and is not there"
        members = {member.name: member.body for member in collection.members}
        assert not members.keys() & set(collection.removed), "a name in both lists"
        self.members[glob].update(members)
        for name in collection.removed:
            self.members[glob].pop(name, None)

    def globs(self) -> list[str]:
        localities = endpoint_pb2.ClusterLoadAssignment.FromString(self.assignment).endpoints
        named = [
            locality.leds_cluster_locality_config.leds_collection_name for locality in localities
        ]
        return [name for name in named if name]

    def take(self, changes: list[tuple[str, str]]) -> None:
        if (CLUSTER, KEY) in changes:
            self._take_cluster()
        if (ASSIGNMENT, KEY) in changes:
            self._take_assignment()
        for type_url, name in changes:
            glob = f"{name.rpartition('/')[0]}/*"
            if type_url == ENDPOINT and glob in self.members:
                member = self.view.get(ENDPOINT, name)
                if member is None:
                    self.members[glob].pop(name, None)
                else:
                    self.members[glob][name] = member.body

    def endpoints(self) -> list[bytes]:
        localities = endpoint_pb2.ClusterLoadAssignment.FromString(self.assignment).endpoints
        plain = [
            held.SerializeToString() for locality in localities for held in locality.lb_endpoints
        ]
        return sorted(
            [*plain, *(held for members in self.members.values() for held in members.values())]
        )


class CollectionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.process = 0
        self.revision = 0
        self.endpoints: dict[int, SliceEndpoint] = {}
        self.sticky = False
        self.world = self._started()
        self.follower = KeepingClient(self.world, XdsClient(kind="envoy", leds=True, zone="a"))
        self.away = False

    def _objects(self) -> tuple[object, object]:
        web = service(session_affinity="ClientIP" if self.sticky else "None")
        return web, slice_of(self.endpoints.values(), self.revision)

    def _started(self) -> World:
        """Another process with the same objects."""
        self.process += 1
        return World(*self._objects(), process=f"p{self.process}", collected_from=FROM)

    def _tell(self) -> None:
        self.revision += 1
        self.world.put(*self._objects())
        changes = [(change.type_url, change.topic) for change in self.world.changes()]
        if not self.away:
            self.follower.take(changes)

    @initialize(numbers=st.sets(st.integers(0, 15)))
    def some(self, numbers: set[int]) -> None:
        self.endpoints = {number: pod(number) for number in sorted(numbers)}
        self._tell()

    @rule(
        numbers=st.sets(st.integers(0, 15), min_size=1, max_size=8),
        zone=st.sampled_from("ab"),
        hinted=st.booleans(),
        ready=st.booleans(),
    )
    def put(self, numbers: set[int], zone: str, hinted: bool, ready: bool) -> None:
        for number in sorted(numbers):
            hints = ("a",) if hinted else ()
            self.endpoints[number] = (
                pod(number, zone=zone, for_zones=hints) if ready else pod(number, NOT_READY)
            )
        self._tell()

    @rule(numbers=st.sets(st.integers(0, 15), max_size=12))
    def remove(self, numbers: set[int]) -> None:
        for number in numbers:
            self.endpoints.pop(number, None)
        self._tell()

    @rule()
    def change_cluster(self) -> None:
        self.sticky = not self.sticky
        self._tell()

    @rule()
    def disconnect(self) -> None:
        self.away = True

    @rule(restarted=st.booleans())
    def reconnect(self, restarted: bool) -> None:
        self.away = False
        if restarted:
            self.world = self.follower.world = self._started()
            self.follower.view = self.world.view(XdsClient(kind="envoy", leds=True, zone="a"))
        self.follower.connect()

    @invariant()
    def holds_what_a_client_without_collections_is_told(self) -> None:
        if self.away:
            return
        plain = body(self.world.view(XdsClient(kind="envoy", zone="a")))
        localities = endpoint_pb2.ClusterLoadAssignment.FromString(plain).endpoints
        expected = sorted(
            held.SerializeToString() for locality in localities for held in locality.lb_endpoints
        )
        assert self.follower.endpoints() == expected


TestCollections = CollectionMachine.TestCase
TestCollections.settings = machine(60)


def followed(world: World) -> KeepingClient:
    return KeepingClient(world, LEDS)


def all_of(numbers: range, revision: int = 1) -> object:
    return slice_of([pod(number) for number in numbers], revision)


def test_members_change_and_the_assignment_does_not() -> None:
    world = World(service(), all_of(range(100)))
    client = followed(world)
    before = client.assignment
    for turn in range(1, 50):
        world.put(all_of(range(turn, 100 + turn), turn + 1))
        changes = world.changes()
        assert {change.type_url for change in changes} == {ENDPOINT}
        assert len(changes) == 2
    assert body(client.view) == before


def test_a_rolling_update_of_a_large_service_does_not_turn_the_epoch() -> None:
    """All members would be sent again, beside those that are replaced."""
    count = 2 * REMEMBERED_MIN
    world = World(service(), all_of(range(count)))
    client = followed(world)
    before = client.globs()
    for revision, start in enumerate(range(32, count + 1, 32), 2):
        world.put(all_of(range(start, count + start), revision))
        assert ASSIGNMENT not in {change.type_url for change in world.changes()}
    client.connect()
    assert client.globs() == before
    assert len(client.endpoints()) == count


def test_the_epoch_turns_before_more_names_are_remembered_than_there_are_members() -> None:
    world = World(service(), all_of(range(30)))
    client = followed(world)
    (first,) = client.globs()
    for turn in range(1, REMEMBERED_MIN + 1):
        world.put(all_of(range(turn, 30 + turn), turn + 1))
        world.changes()
    held = world.catalog.shared.registry[first]
    assert (len(held.removed), len(held.members)) == (REMEMBERED_MIN, 30)
    world.put(all_of(range(300, 330), 1000))
    assert ASSIGNMENT in {change.type_url for change in world.changes()}
    client.connect()
    (second,) = client.globs()
    assert second != first
    assert client.view.collection(first) is None
    assert len(client.endpoints()) == 30


def test_epochs_of_two_processes_are_never_the_same() -> None:
    worlds = [World(service(), all_of(range(30)), process=process) for process in ("p1", "p2")]
    first, second = (followed(world).globs() for world in worlds)
    assert not set(first) & set(second)


def test_pitfall_5_a_changed_cluster_has_new_collections() -> None:
    """Envoy has no endpoints at all after 15 s if a Cluster changed and its collection kept its
    name.
    """
    world = World(service(), all_of(range(30)))
    client = followed(world)
    before = client.globs()
    world.put(service(session_affinity="ClientIP"))
    client.take([(change.type_url, change.topic) for change in world.changes()])
    assert not set(before) & set(client.globs())
    assert len(client.endpoints()) == 30


def test_pitfall_13_weights_of_collections_do_not_count_endpoints() -> None:
    world = World(service(), all_of(range(30)))
    (locality,) = endpoint_pb2.ClusterLoadAssignment.FromString(body(world.view(LEDS))).endpoints
    assert (locality.load_balancing_weight.value, len(locality.lb_endpoints)) == (1, 0)
    assert locality.leds_cluster_locality_config.leds_config.resource_api_version == 2


def test_a_collection_that_loses_its_last_member_stays_and_is_empty() -> None:
    there = [pod(number) for number in range(30)]
    world = World(service(), slice_of([*there, pod(40, zone="b")]))
    client = followed(world)
    _, last = client.globs()
    world.put(slice_of(there, 2))
    client.take([(change.type_url, change.topic) for change in world.changes()])
    collection = client.view.collection(last)
    assert collection is not None
    assert (collection.members, len(collection.removed), client.members[last]) == ([], 1, {})


def test_few_endpoints_are_not_collected_and_the_form_does_not_flap() -> None:
    world = World(service(), all_of(range(19)), collected_from=20)
    client = followed(world)
    forms = []
    for revision, size in enumerate((19, 20, 19, 10, 9, 10, 19, 20), start=2):
        world.put(all_of(range(size), revision))
        client.take([(change.type_url, change.topic) for change in world.changes()])
        forms.append(bool(client.globs()))
        assert len(client.endpoints()) == size
    assert forms == [False, True, True, True, False, False, False, True]
