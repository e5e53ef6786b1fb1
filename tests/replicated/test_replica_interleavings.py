"""Any interleaving of two servers does what one server would have done, and tells every client the
same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort
from tests.figures import tell
from tests.replicated.interleaving import CTX, Node, World, oracle_of, shown

from sliceplane.api.scheme import ConfigMaps, Namespaces, Pods, Resource, ResourceQuotas, Services
from sliceplane.server.registry.registry import Registry
from sliceplane.server.registry.types import Body, DeleteOptions, ListOptions, Target, WriteOptions
from sliceplane.server.store.batches import Ticket
from sliceplane.server.store.writer_queue import PATIENCE_S

OPTIONS = WriteOptions()
#: without a token's volume, whose name is drawn
POD = {"spec": {"containers": [{"name": "c", "image": "i"}], "automountServiceAccountToken": False}}


def create(
    resource: Resource, name: str, namespace: str = "default", **members: Any
) -> Callable[[Registry], Any]:
    namespace = namespace if resource.namespaced else ""
    document = {"metadata": {"name": name}, **members}
    target = Target(resource=resource, namespace=namespace)
    return lambda registry: registry.create(CTX, target, Body(document=document), OPTIONS)


def patch(
    resource: Resource, name: str, change: bytes, subresource: str = ""
) -> Callable[[Registry], Any]:
    target = Target(resource=resource, namespace="default", name=name, subresource=subresource)
    return lambda registry: registry.patch(CTX, target, "merge", change, OPTIONS)


def delete(resource: Resource, name: str) -> Callable[[Registry], Any]:
    target = Target(
        resource=resource, namespace="default" if resource.namespaced else "", name=name
    )
    return lambda registry: registry.delete(CTX, target, DeleteOptions())


def delete_all(resource: Resource) -> Callable[[Registry], Any]:
    target = Target(resource=resource, namespace="default")
    return lambda registry: registry.delete_collection(CTX, target, ListOptions(), DeleteOptions())


def service(name: str, address: str, port: int) -> Callable[[Registry], Any]:
    spec = {"type": "NodePort", "clusterIP": address, "ports": [{"port": 80, "nodePort": port}]}
    return create(Services, name, spec=spec)


def some_request(draw: Callable[[int], int]) -> Callable[[Registry], Any]:
    """Everything here is something that two servers could get wrong together."""
    name = "abc"[draw(3)]
    match draw(9):
        case 0 | 1:
            return service(name, f"10.96.0.{4 + draw(2)}", 30000 + draw(2))
        case 2:
            return delete(Services, name)
        case 3:
            return create(Pods, name, **POD)
        case 4:
            return delete(Pods, name)
        case 5:
            return create(ConfigMaps, name, data={"k": str(draw(3))})
        case 6:
            return patch(ConfigMaps, name, b'{"data":{"k%d":"%d"}}' % (draw(3), draw(3)))
        case 7:
            return delete(ConfigMaps, name)
    return create(ConfigMaps, name, "other", data={}) if draw(2) else create(Namespaces, "other")


def prepared(world: World) -> World:
    """A quota that leaves room for three Pods in all."""
    node = world.nodes[0]
    world.submit(node, create(Namespaces, "default"))
    world.submit(node, create(ResourceQuotas, "q", spec={"hard": {"pods": "3"}}))
    status = b'{"status":{"hard":{"pods":"3"},"used":{"pods":"0"}}}'
    world.submit(node, patch(ResourceQuotas, "q", status, "status"))
    world.settle()
    assert [request.told for request in world.requests] == ["201", "201", "200"]
    return world


def play(world: World, moves: list[tuple[int, int]]) -> None:
    """Each move: what happens, and a number that decides the rest."""
    for what, number in moves:
        index = number % len(world.nodes)
        node: Node = world.nodes[index]
        match what:
            case 0 | 1 | 2:
                world.submit(node, some_request(world.rng.below))
            case 3 | 4:
                world.send(node)
            case 5 | 6:
                world.arrive(node, lose_answer=number % 5 == 0)
            case 7:
                world.answer(node)
            case 8 | 9:
                world.feed(node, 1 + number % 3)
            case 10:
                world.read(node)
            case 11:
                world.now += PATIENCE_S * (number % 4) / 3
            case 12 if number % 3 == 0:
                world.crash(index)
            case 12 if number % 3 == 1:
                world.reload(node)
        world.check()


moves = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 999)), max_size=150)


@effort(40)
@given(seed=st.integers(0, 1 << 30), history=moves, servers=st.integers(2, 3))
def test_any_interleaving_is_a_sequence(
    seed: int, history: list[tuple[int, int]], servers: int
) -> None:
    world = prepared(World(seed, servers))
    play(world, history)
    world.settle()
    world.check()
    expected = shown(oracle_of(world))
    for node in world.nodes:
        node.registry.check()
        assert node.store.revision == world.nodes[0].store.revision
        assert shown(node.store) == expected


def play_long(seed: int) -> None:
    world = prepared(World(seed, 2 + seed % 2))
    for _ in range(6):
        play(world, [(world.rng.below(13), world.rng.below(1000)) for _ in range(150)])
        world.settle()
    expected = shown(oracle_of(world))
    assert all(shown(node.store) == expected for node in world.nodes)
    for node in world.nodes:
        node.registry.check()


@pytest.mark.parametrize("seed", range(8))
def test_long_random_interleavings(seed: int) -> None:
    play_long(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_long_interleavings(block: int) -> None:
    for seed in range(1000 + block * 50, 1050 + block * 50):
        play_long(seed)
    tell(f"seeds {1000 + block * 50} to {1049 + block * 50}")


def test_a_quota_holds_across_servers() -> None:
    world = prepared(World(1))
    for number in range(4):
        for index, node in enumerate(world.nodes):
            world.submit(node, create(Pods, f"p{index}-{number}", **POD))
    world.settle()
    answers = [request.told[:3] for request in world.requests[3:]]
    assert (answers.count("201"), answers.count("403")) == (3, 5)


def test_one_address_goes_to_one_service() -> None:
    world = prepared(World(2))
    for index, node in enumerate(world.nodes):
        world.submit(node, service(f"s{index}", "10.96.0.4", 30000))
    world.settle()
    assert sorted(request.told[:3] for request in world.requests[3:]) == ["201", "422"]


def test_a_collection_larger_than_a_batch_is_deleted_in_several() -> None:
    world = prepared(World(3))
    for number in range(250):
        world.submit(world.nodes[0], create(ConfigMaps, f"c{number}", data={}))
    world.settle()
    request = world.submit(world.nodes[1], delete_all(ConfigMaps))
    world.settle()
    assert request.told == "200"
    assert all(node.store.count(ConfigMaps.storage_key) == 0 for node in world.nodes)
    assert max(len(group.rows) for group in world.groups()) <= 100


def test_a_lost_answer_is_not_written_twice() -> None:
    world = prepared(World(4))
    node = world.nodes[0]
    request = world.submit(node, create(ConfigMaps, "a", data={}))
    world.send(node)
    world.arrive(node, lose_answer=True)
    world.arrive(node, lose_answer=True)
    assert request.place is None
    world.settle()
    assert request.told == "201"
    assert (
        sum(len(group.rows) for group in world.groups() if group.rows[:1])
        == node.store.revision - 1
    )


def test_nothing_is_left_of_who_gave_up() -> None:
    world = prepared(World(6))
    node = world.nodes[0]
    refused = Ticket(
        lambda: delete(ConfigMaps, "none")(node.registry),
        lambda outcome: outcome.revision,
        lambda *_: None,
    )
    node.replica.submit(refused, 0.0)
    refused.abandoned = True
    world.settle()
    assert not node.replica._unconfirmed
    runs = []
    queued = Ticket(lambda: runs.append(1), lambda _: 0, lambda *_: None)
    node.replica.head += 1  # another server was first, and its batch has not come yet
    node.replica.submit(queued, 0.0)
    queued.abandoned = True
    node.replica.head -= 1
    world.settle()
    assert not runs


def test_a_refusal_that_rests_on_what_never_became_true_is_decided_again() -> None:
    """Server 0 has the name taken by a create that loses; who was refused because of it gets the
    name.
    """
    world = prepared(World(5))
    first, second = world.nodes
    world.submit(first, create(Namespaces, "other"))
    world.settle()
    lost = world.submit(first, service("s", "10.96.0.4", 30000))
    refused = world.submit(first, service("t", "10.96.0.4", 30001))
    world.submit(second, service("s", "10.96.0.5", 30001))
    world.send(second)
    world.arrive(second, lose_answer=False)
    world.settle()
    assert lost.told.startswith("409")
    assert refused.told.startswith("422"), "its port is taken now"
    assert "30001" in refused.told
