"""Two busy servers: both get on, and one that hangs holds nobody up for long."""

from __future__ import annotations

from tests.replicated.interleaving import World
from tests.replicated.test_replica_interleavings import create, prepared

from sliceplane.api.scheme import ConfigMaps
from sliceplane.store.turns import PATIENCE_S


def busy_rounds(world: World, rounds: int, *, feed_lag: int) -> list[int]:
    """Each server always has eight requests under way, etcd takes what comes first, and a server learns of what
    others did *feed_lag* rounds later.  Returns how many of each were answered."""
    names = iter(f"c{number}" for number in range(1_000_000))
    done = [0 for _ in world.nodes]
    behind = [[world.etcd.revision] * feed_lag for _ in world.nodes]
    for _ in range(rounds):
        for index, node in enumerate(world.nodes):
            while len(node.requests) < 8:
                world.submit(node, create(ConfigMaps, next(names), data={}))
            world.send(node)
            before = len(node.requests)
            world.arrive(node, lose_answer=False)
            world.answer(node)
            behind[index].append(world.etcd.revision)
            seen = behind[index].pop(0)
            while node.fed < seen:
                fed = node.fed
                world.feed(node, 1)
                if node.fed == fed:
                    break
            done[index] += max(0, before - len(node.requests))
        world.now += 0.002
    return done


def test_two_busy_servers_both_get_on() -> None:
    world = prepared(World(1))
    done = busy_rounds(world, 400, feed_lag=2)
    assert min(done) > 0.6 * max(done), done
    assert min(done) > 200, done


def test_three_busy_servers_all_get_on() -> None:
    world = prepared(World(2, 3))
    done = busy_rounds(world, 400, feed_lag=2)
    assert min(done) > 0.5 * max(done), done


def test_most_work_is_not_done_twice() -> None:
    world = prepared(World(3))
    done = busy_rounds(world, 400, feed_lag=2)
    assert sum(node.replica.redone for node in world.nodes) < 0.1 * sum(done)


def test_a_server_that_hangs_with_a_turn_costs_its_time_once() -> None:
    world = prepared(World(4))
    live, hung = world.nodes
    world.submit(live, create(ConfigMaps, "a", data={}))
    world.submit(hung, create(ConfigMaps, "b", data={}))
    world.send(live)
    world.send(hung)
    world.arrive(live, lose_answer=False)
    world.arrive(hung, lose_answer=False)  # refused, and by that it asked for a turn; it hangs from here on
    world.answer(live)
    world.feed(live, 100)
    request = world.submit(live, create(ConfigMaps, "c", data={}))
    world.send(live)
    assert not live.outbox, "the other one goes first"
    world.now += PATIENCE_S + 0.01
    for _ in range(3):
        world.send(live)
        world.arrive(live, lose_answer=False)
        world.answer(live)
        world.feed(live, 100)
    assert request.told == "201"
    assert not [key for key in world.etcd.state if key.startswith(world.layout.turns)], "turns are taken away"
