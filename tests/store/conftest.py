"""Records for tests of the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.types import Key, Record, StoreEvent

Put = Callable[..., Record]


def make_record(
    key: Key,
    revision: int,
    created: int,
    labels: Mapping[str, str] | None = None,
    owners: tuple[str, ...] = (),
) -> Record:
    body = b'{"kind":"Pod","metadata":{"name":"%s","resourceVersion":"%d"}}' % (
        key.name.encode(),
        revision,
    )
    return Record(
        key=key,
        revision=revision,
        created=created,
        uid=f"uid-{key.name}-{created}",
        body=body,
        labels=dict(labels or {}),
        fields={},
        owners=owners,
    )


class Writer:
    """Writes to a store as the registry does."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def put(
        self, key: Key, labels: Mapping[str, str] | None = None, owners: tuple[str, ...] = ()
    ) -> Record:
        previous = self.store.latest(key)
        return self.store.stage_put(
            key,
            lambda revision: make_record(
                key, revision, previous.created if previous else revision, labels, owners
            ),
        )

    def delete(self, key: Key) -> Record:
        previous = self.store.latest(key)
        assert previous is not None
        return self.store.stage_delete(
            key,
            lambda revision: make_record(
                key, revision, previous.created, previous.labels, previous.owners
            ),
        )

    def commit(self) -> tuple[StoreEvent, ...]:
        """Everything staged becomes durable."""
        self.store.take_staged()
        return self.store.on_durable(self.store.staged_revision)


@pytest.fixture
def writer_of() -> type[Writer]:
    return Writer
