"""Two busy servers: both get on, and one that hangs holds nobody up for long."""

from __future__ import annotations

import pytest
from tests.replicated.interleaving import World
from tests.replicated.test_replica_interleavings import create, prepared

from sliceplane.api.scheme import ConfigMaps
from sliceplane.server.store.writer_queue import EXPECTED_S_MAX, PATIENCE_S, WriterQueue


def busy_rounds(world: World, rounds: int, *, feed_lag: int, requests: int = 8) -> list[int]:
    """Each server always has so many requests under way, etcd takes what comes first, and a server
    learns of what others did *feed_lag* rounds later. Returns how many of each were answered.
    """
    names = iter(f"c{world.etcd.revision}-{number}" for number in range(1_000_000))
    done = [0 for _ in world.nodes]
    behind = [[world.etcd.revision] * feed_lag for _ in world.nodes]
    for _ in range(rounds):
        for index, node in enumerate(world.nodes):
            while len(node.requests) < requests:
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


@pytest.mark.parametrize("servers", [2, 3])
@pytest.mark.parametrize("requests", [1, 4])
@pytest.mark.parametrize("feed_lag", [0, 2])
def test_servers_that_stay_busy_write_in_turns_without_asking(
    servers: int, requests: int, feed_lag: int
) -> None:
    world = prepared(World(5, servers))
    busy_rounds(world, 40, feed_lag=feed_lag, requests=requests)
    conflicts = sum(node.replica.conflicts for node in world.nodes)
    before = world.etcd.revision
    done = busy_rounds(world, 100, feed_lag=feed_lag, requests=requests)
    assert sum(node.replica.conflicts for node in world.nodes) == conflicts, "a batch was refused"
    assert min(done) > 0.8 * max(done), done
    written = [group for group in world.groups() if group.position > before]
    assert len(written) == world.etcd.revision - before, "etcd took something that is no batch"


def test_a_server_that_has_nothing_more_to_do_is_waited_for_once() -> None:
    world = prepared(World(6))
    busy_rounds(world, 60, feed_lag=1)
    live, idle = world.nodes
    while idle.requests:
        for node in world.nodes:
            world.send(node)
            world.arrive(node, lose_answer=False)
            world.answer(node)
            world.feed(node, 1000)
    world.settle()
    waits = []
    for number in range(20):
        request = world.submit(live, create(ConfigMaps, f"alone{number}", data={}))
        began = world.now
        while not request.told:
            world.send(live)
            world.arrive(live, lose_answer=False)
            world.answer(live)
            world.feed(live, 1000)
            world.now += 0.001
        waits.append(world.now - began)
    assert sum(wait > 0.002 for wait in waits) <= 1, waits
    assert max(waits) < EXPECTED_S_MAX + 0.01, waits


def test_a_server_that_writes_now_and_then_is_not_waited_for() -> None:
    world = prepared(World(7))
    busy, other = world.nodes
    held = 0
    for number in range(300):
        if number % 10 == 0:
            world.submit(other, create(ConfigMaps, f"other{number}", data={}))
        if not busy.requests:
            world.submit(busy, create(ConfigMaps, f"busy{number}", data={}))
        for node in (busy, other):
            world.send(node)
            world.arrive(node, lose_answer=False)
            world.answer(node)
            world.feed(node, 1000)
        held += busy.replica.writer_queue.next_deadline(world.now) is not None
        world.now += 0.001
    assert held < 90, "less than three rounds for each batch of the other"


def test_two_busy_servers_do_not_keep_a_third_waiting_for_one_that_died() -> None:
    """What others write does not prolong the wait for a server that is expected."""
    queue = WriterQueue("own")
    for position in range(2, 40, 4):
        now = position / 1000
        queue.on_own_batch(position, now)
        for number, name in enumerate(("dead", "b", "c"), 1):
            queue.on_batch(name, position + number, position - 1, now)
    queue.on_own_batch(42, 1.0)
    now = 1.0
    for position in range(43, 500, 2):
        now += 0.001
        queue.on_batch("b", position, position - 1, now)
        queue.on_batch("c", position + 1, position, now)
        if queue.next_deadline(now) is None:
            break
    assert now <= 1.0 + 3 * EXPECTED_S_MAX + 0.002


def test_a_server_that_hangs_with_a_turn_costs_its_time_once() -> None:
    world = prepared(World(4))
    live, hung = world.nodes
    world.submit(live, create(ConfigMaps, "a", data={}))
    world.submit(hung, create(ConfigMaps, "b", data={}))
    world.send(live)
    world.send(hung)
    world.arrive(live, lose_answer=False)
    world.arrive(
        hung, lose_answer=False
    )  # refused, and by that it asked for a turn; it hangs from here on
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
    assert not [key for key in world.etcd.state if key.startswith(world.layout.queue)], (
        "turns are taken away"
    )
