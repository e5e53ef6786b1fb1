"""Two or more servers over one fake etcd, with every message in the hands of the test.

A *world* runs one thing at a time: a request at a server, a batch on its way to etcd, an answer on
its way back (or lost), some of the feed, a crash, a reload. What requests were told, and where in
the log they took effect, is kept for the comparison with a server that does one thing after the
other (``oracle_of``).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.replicated.fake_etcd import FakeEtcd

from sliceplane.api.errors import StatusError
from sliceplane.api.users import User
from sliceplane.kit.rng import Rng
from sliceplane.server.io.storage.etcd.layout import Layout, decode_head, decode_row
from sliceplane.server.registry.config import RegistryConfig
from sliceplane.server.registry.registry import Registry
from sliceplane.server.registry.types import Context
from sliceplane.server.store.backend import Loaded, chain
from sliceplane.server.store.batches import Batch, Group, HeadName, Ticket
from sliceplane.server.store.hub import Hub
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.replica import Replica

CONFIG = RegistryConfig(
    service_cidrs=("10.96.0.0/28",), node_port_first=30000, node_port_last=30003
)
NOW = 1_800_000_000.0
CTX = Context(now=NOW, user=User(name="tester", groups=("system:masters",)))

Verb = Callable[[Registry], Any]


@dataclass
class Request:
    """``place`` is where it took effect: (position, 0 for what is in the batch and 1 for what
    follows it, order).
    """

    number: int
    verb: Verb
    server: str = ""
    #: where the log was when it was asked
    asked: int = 0
    order: int = 0
    until: int = 0
    place: tuple[int, int, int] | None = None
    told: str = ""
    #: nobody was told, as the server died or lost the thread
    lost: bool = False


def told(result: Any, error: Exception | None) -> str:
    if error is None:
        return str(result.code)
    assert isinstance(error, StatusError), repr(error)
    return f"{error.code} {error.reason} {error.message}"


@dataclass
class Node:
    """One server's life."""

    name: str
    store: Store
    hub: Hub
    registry: Registry
    replica: Replica
    #: how far the feed came
    fed: int
    outbox: list[Batch] = field(default_factory=list)
    inbox: list[Callable[[], None]] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)


class World:
    def __init__(self, seed: int, servers: int = 2) -> None:
        self.rng = Rng(seed)
        self.layout = Layout("/test")
        self.etcd = FakeEtcd(self.layout)
        self.etcd.txn(self.layout.beginning("nobody"))
        self.now = 0.0
        self.orders = 0
        self.lives = 0
        self.requests: list[Request] = []
        self.reads = 0
        self.nodes = [self._begin() for _ in range(servers)]

    def snapshot(self) -> tuple[Loaded, int, list[tuple[str, int]]]:
        state, layout = self.etcd.state, self.layout
        head = decode_head(state[layout.head].value)
        rows = [decode_row(kv.value) for key, kv in state.items() if key.startswith(layout.objects)]
        rows.sort(key=lambda row: row.record.revision)
        queued = [
            (key[len(layout.queue) :].decode(), kv.mod_revision)
            for key, kv in state.items()
            if key.startswith(layout.queue)
        ]
        return (
            Loaded(tuple(chain(rows, head.revision)), head.revision, head.revision),
            self.etcd.head,
            queued,
        )

    def head_name(self) -> HeadName:
        return decode_head(self.etcd.state[self.layout.head].value).name

    def _begin(self) -> Node:
        self.lives += 1
        loaded, position, queued = self.snapshot()
        store = Store.restore(loaded.history, loaded.revision, loaded.compacted)
        hub = Hub(store)
        registry = Registry(store, rng=Rng(self.lives), config=CONFIG)
        replica = Replica(
            store,
            hub,
            registry,
            server=f"server{self.lives}",
            position=position,
            name=self.head_name(),
        )
        replica.writer_queue.reset(queued, self.now)
        return Node(replica.server, store, hub, registry, replica, self.etcd.revision)

    # One thing at a time

    def submit(self, node: Node, verb: Verb) -> Request:
        request = Request(len(self.requests), verb, node.name, self.etcd.head)
        self.requests.append(request)
        node.requests.append(request)

        def step() -> Any:
            self.orders += 1
            request.order = self.orders
            try:
                return verb(node.registry)
            finally:
                request.until = node.store.staged_revision

        def done(result: Any, error: Exception | None) -> None:
            if isinstance(error, StatusError) and "not known" in error.message:
                request.lost = True
            else:
                request.told = told(result, error)
                batch = 0 if ticket.until else 1
                request.place = (node.replica.position, batch, request.order)
                assert node.replica.position >= request.asked, (
                    f"{request.told} was decided by what was old when asked"
                )
            node.requests.remove(request)

        ticket = Ticket(step, lambda outcome: outcome.revision, done)
        node.replica.submit(ticket, self.now)
        return request

    def read(self, node: Node) -> None:
        """A linearizable read: it must see what the log had when it was asked for."""
        head = self.etcd.head

        def done() -> None:
            assert node.replica.position >= head, (
                f"read at {node.replica.position}, the head was at {head}"
            )
            self.reads += 1

        node.replica.reads.add(done)

    def send(self, node: Node) -> None:
        replica = node.replica
        replica.tick(self.now)
        batch = replica.take_batch(self.now)
        if batch is not None:
            node.outbox.append(batch)
        number = replica.take_read()
        if number is not None:
            head, name = self.etcd.head, self.head_name()
            node.inbox.append(lambda: replica.on_head(number, head, name, self.now))
        if replica.is_queued_without_work():
            self.etcd.txn(_gone(self.layout.queue_key(replica.server)))

    def arrive(self, node: Node, *, lose_answer: bool) -> None:
        """A batch reaches etcd.  Without its answer it is sent again, as long as its fate is
        open.
        """
        if not node.outbox:
            return
        batch = node.outbox.pop(0)
        replica = node.replica
        answer = self.etcd.txn(self.layout.batch(replica.server, batch))
        if lose_answer:
            node.outbox.append(batch)
        elif answer.succeeded:
            node.inbox.append(
                lambda: replica.on_taken(batch.number, answer.header.revision, self.now)
            )
        else:
            head = answer.responses[0].range.kvs[0].mod_revision
            node.inbox.append(lambda: replica.on_refused(batch.number, head))

    def answer(self, node: Node) -> None:
        if node.inbox:
            node.inbox.pop(0)()
        node.outbox = [batch for batch in node.outbox if node.replica.waits_for(batch.number)]

    def feed(self, node: Node, most: int) -> None:
        events = self.etcd.feed(node.fed, most)
        if events:
            node.fed = events[-1].kv.mod_revision
            node.replica.on_feed(self.layout.items(events), self.now)

    def crash(self, index: int) -> None:
        node = self.nodes[index]
        for request in node.requests:
            request.lost = True
        if node.outbox and self.rng.below(2):
            self.etcd.txn(self.layout.batch(node.name, node.outbox[0]))  # it was on its way
        self.nodes[index] = self._begin()

    def reload(self, node: Node) -> None:
        loaded, position, queued = self.snapshot()
        node.fed = self.etcd.revision
        node.replica.on_reloaded(loaded, position, self.head_name(), queued, self.now)

    def settle(self) -> None:
        """Until nothing is left to do."""
        for _ in range(1000):
            for node in self.nodes:
                self.send(node)
                self.arrive(node, lose_answer=False)
                self.answer(node)
                self.feed(node, 1000)
            self.now += 0.01
            if not any(
                node.requests or node.replica.busy or node.replica.reads.has_waiting
                for node in self.nodes
            ):
                break
        else:
            raise AssertionError("the servers never came to rest")
        for node in self.nodes:
            self.feed(node, 1000)

    def check(self) -> None:
        for node in self.nodes:
            node.replica.check()
            node.hub.check()

    # The comparison

    def groups(self) -> list[Group]:
        items = self.layout.items(self.etcd.feed(0, 1_000_000))
        return [item for item in items if isinstance(item, Group)]

    def places(self) -> list[Request]:
        """The requests that took effect or were answered, in the order of the log."""
        position_of = {
            (group.name.server, row.record.revision): group.position
            for group in self.groups()
            for row in group.rows
        }
        for request in self.requests:
            landed = position_of.get((request.server, request.until))
            if request.lost and landed is not None:
                request.place = (landed, 0, request.order)
        return sorted(
            (each for each in self.requests if each.place is not None),
            key=lambda each: each.place or (),
        )


def oracle_of(world: World) -> Store:
    """One server alone does the same requests in the order of the log, and tells the same."""
    store = Store()
    registry = Registry(store, rng=Rng(99), config=CONFIG)
    for request in world.places():
        try:
            result, error = request.verb(registry), None
        except StatusError as raised:
            result, error = None, raised
        if not request.lost:
            assert told(result, error) == request.told, (
                f"request {request.number} at {request.place}"
            )
        store.take_staged()
        store.on_durable(store.staged_revision)
    return store


def shown(store: Store) -> dict[str, Any]:
    """All objects, without what chance and the revision counter gave them."""
    found = {}
    for resource in store.resources():
        for record in store.list(resource).records:
            document = copy.deepcopy(json.loads(record.body))
            for member in ("uid", "resourceVersion", "managedFields"):
                document["metadata"].pop(member, None)
            found[f"{resource}/{record.key.path}"] = document
    return found


def _gone(key: bytes) -> Any:
    from sliceplane.server.io.storage.etcd import wire

    return wire.TxnRequest(success=[wire.delete(key)])
