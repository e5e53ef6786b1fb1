"""etcd's semantics in memory, as far as we use them, on the messages that we send: one history of
transactions.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sliceplane.server.io.storage.etcd import wire
from sliceplane.server.io.storage.etcd.layout import Layout


class FakeEtcd:
    """``events[n]`` are those of revision n."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.revision = 1
        self.state: dict[bytes, Any] = {}
        self.events: dict[int, list[Any]] = {}

    def txn(self, request: Any) -> Any:
        succeeded = all(map(self._holds, request.compare))
        answers, events = [], []
        next_revision = self.revision + 1
        touched = set()
        for operation in request.success if succeeded else request.failure:
            if operation.HasField("range"):
                found = [
                    self.state[key] for key in sorted(self.state) if _covers(operation.range, key)
                ]
                answers.append(SimpleNamespace(range=SimpleNamespace(kvs=found)))
                continue
            key = operation.put.key if operation.HasField("put") else operation.delete.key
            assert key not in touched, f"duplicate key given in txn request: {key!r}"
            touched.add(key)
            if operation.HasField("put"):
                made = SimpleNamespace(
                    key=key, value=operation.put.value, mod_revision=next_revision
                )
                self.state[key] = made
                events.append(SimpleNamespace(type=0, kv=made))
            elif key in self.state:
                del self.state[key]
                gone = SimpleNamespace(key=key, value=b"", mod_revision=next_revision)
                events.append(SimpleNamespace(type=wire.DELETE, kv=gone))
        if events:
            self.revision = next_revision
            self.events[next_revision] = events
        header = SimpleNamespace(revision=self.revision, cluster_id=1)
        return SimpleNamespace(succeeded=succeeded, responses=answers, header=header)

    def _holds(self, condition: Any) -> bool:
        if condition.target == wire.MOD_REVISION:
            return self._mod(condition.key) == int(condition.number)
        assert condition.target == wire.VALUE, condition
        value, wanted = bytes(self.state[condition.key].value), bytes(condition.value)
        return value > wanted if condition.result == wire.GREATER else value < wanted

    def _mod(self, key: bytes) -> int:
        return self.state[key].mod_revision if key in self.state else 0

    @property
    def head(self) -> int:
        return self._mod(self.layout.head)

    def feed(self, after: int, most: int) -> list[Any]:
        """Events of the next *most* transactions after revision *after*."""
        found = sorted(number for number in self.events if number > after)[:most]
        return [event for number in found for event in self.events[number]]


def _covers(request: Any, key: bytes) -> bool:
    return key == request.key if not request.range_end else request.key <= key < request.range_end
