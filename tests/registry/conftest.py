"""A registry over a store, with a clock that the test moves and one call per verb.

A run of the whole room fails if its tests break less than every rule of validation
(``tests.registry.rules``).
"""

from __future__ import annotations

import json
from copy import copy
from typing import Any, NamedTuple

import pytest
from tests.registry.rules import RuleCheck

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import Resource
from sliceplane.api.users import User
from sliceplane.kit.rng import Rng
from sliceplane.server.registry.config import RegistryConfig
from sliceplane.server.registry.registry import Registry
from sliceplane.server.registry.types import (
    Body,
    Context,
    DeleteOptions,
    ListOptions,
    ListOutcome,
    Outcome,
    PatchType,
    Target,
    WatchOptions,
    WatchPlan,
    WriteOptions,
)
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.types import StoreEvent


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(RuleCheck(config))


class Beginning(NamedTuple):
    """What a bootstrap left behind: a new cluster takes several times as long as one that starts
    again.
    """

    events: tuple[StoreEvent, ...]
    revision: int
    rng: Rng


_beginnings: dict[str, Beginning] = {}


def begin(seed: int, config: RegistryConfig, now: float) -> tuple[Store, Rng]:
    """What every cluster has, and the generator as it was left: made once in a process for the same
    arguments.
    """
    key = repr((seed, config, now))
    if key not in _beginnings:
        store, rng = Store(), Rng(seed)
        revision = Registry(store, rng=rng, config=config).bootstrap(now)
        store.take_staged()
        _beginnings[key] = Beginning(store.on_durable(revision), revision, rng)
    events, revision, rng = _beginnings[key]
    return Store.restore(events, revision, 1), copy(rng)


class Api:
    """Short spellings; every write is committed at once unless ``commits`` is off."""

    def __init__(self, seed: int = 1, **config: Any) -> None:
        self.now = 1_800_000_000.0
        self.store, rng = begin(seed, RegistryConfig(**config), self.now)
        self.registry = Registry(self.store, rng=rng, config=RegistryConfig(**config))
        self.commits = True
        self.events: list[StoreEvent] = []
        self.registry.bootstrap(self.now)
        self.commit()
        self.events.clear()

    @property
    def ctx(self) -> Context:
        return Context(now=self.now, user=User(name="tester", groups=("system:masters",)))

    def commit(self) -> None:
        self.store.take_staged()
        self.events += self.store.on_durable(self.store.staged_revision)

    def _done(self, outcome: Outcome) -> Outcome:
        if self.commits:
            self.commit()
        return outcome

    @staticmethod
    def target(
        resource: Resource, name: str = "", namespace: str = "default", subresource: str = ""
    ) -> Target:
        namespace = namespace if resource.namespaced else ""
        return Target(resource=resource, namespace=namespace, name=name, subresource=subresource)

    def create(
        self,
        resource: Resource,
        document: Any,
        *,
        namespace: str = "default",
        problems: tuple[str, ...] = (),
        **options: Any,
    ) -> Outcome:
        body = Body(document=document, problems=problems)
        return self._done(
            self.registry.create(
                self.ctx, self.target(resource, namespace=namespace), body, WriteOptions(**options)
            )
        )

    def update(
        self,
        resource: Resource,
        name: str,
        document: Any,
        *,
        namespace: str = "default",
        subresource: str = "",
        **options: Any,
    ) -> Outcome:
        target = self.target(resource, name, namespace, subresource)
        return self._done(
            self.registry.update(self.ctx, target, Body(document=document), WriteOptions(**options))
        )

    def patch(
        self,
        resource: Resource,
        name: str,
        patch: Any,
        kind: PatchType = "merge",
        *,
        namespace: str = "default",
        subresource: str = "",
        **options: Any,
    ) -> Outcome:
        target = self.target(resource, name, namespace, subresource)
        raw = patch if isinstance(patch, bytes) else json.dumps(patch).encode()
        return self._done(self.registry.patch(self.ctx, target, kind, raw, WriteOptions(**options)))

    def delete(
        self, resource: Resource, name: str, *, namespace: str = "default", **options: Any
    ) -> Outcome:
        target = self.target(resource, name, namespace)
        return self._done(self.registry.delete(self.ctx, target, DeleteOptions(**options)))

    def delete_collection(
        self, resource: Resource, *, namespace: str = "default", **selection: Any
    ) -> Outcome:
        target = self.target(resource, namespace=namespace)
        return self._done(
            self.registry.delete_collection(
                self.ctx, target, ListOptions(**selection), DeleteOptions()
            )
        )

    def get(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str = "default",
        subresource: str = "",
        rv: Any = None,
    ) -> Any:
        target = self.target(resource, name, namespace, subresource)
        return json.loads(self.registry.get(self.ctx, target, rv).body)

    def list(
        self, resource: Resource, *, namespace: str = "default", **options: Any
    ) -> ListOutcome:
        return self.registry.list(
            self.ctx, self.target(resource, namespace=namespace), ListOptions(**options)
        )

    def names(self, resource: Resource, *, namespace: str = "default", **options: Any) -> list[str]:
        return [
            record.key.path
            for record in self.list(resource, namespace=namespace, **options).records
        ]

    def watch(self, resource: Resource, *, namespace: str = "default", **options: Any) -> WatchPlan:
        return self.registry.watch_plan(
            self.ctx, self.target(resource, namespace=namespace), WatchOptions(**options)
        )

    def fails(self, verb: str, *arguments: Any, **keywords: Any) -> StatusError:
        """The error that a verb must end with, having changed nothing."""
        before = self.store.staged_revision
        with pytest.raises(StatusError) as caught:
            getattr(self, verb)(*arguments, **keywords)
        assert self.store.staged_revision == before, "a failed write left something staged"
        self.registry.check()
        return caught.value


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture(scope="session")
def make_api() -> type[Api]:
    return Api
