"""Consumers that are wrong in one way each: what a case is worth is shown by the mutant that it
catches.

They are functions of a history, without a server: what the mutant believes at each checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sliceplane.lab.conformance.model import Belief, State
from sliceplane.lab.conformance.steps import (
    NODE,
    Away,
    Back,
    Bookmark,
    Case,
    Check,
    Cut,
    Delete,
    Expire,
    Put,
    Refuse,
    Silence,
    Step,
)

CLAIMS: frozenset[Any] = frozenset(("hints", "fallback", "local"))
Slices = dict[str, Any]


class Mutant:
    """A right consumer; subclasses spoil one thing."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.held: Slices = {}
        self.policy = "Cluster"
        self.connected = True
        self.missed: list[Put | Delete] = []

    def on(self, step: Step) -> None:
        if isinstance(step, Away):
            self.connected = False
        elif isinstance(step, Back):
            self.connected = True
            self.catch_up()
        elif isinstance(step, Put | Delete):
            if self.connected:
                self.apply(step)
            else:
                self.missed.append(step)
        elif isinstance(step, Expire | Cut | Refuse | Silence | Bookmark):
            self.trouble()

    def apply(self, step: Put | Delete) -> None:
        state = State(self.held, self.policy).after(step)
        self.held = dict(state.slices)
        self.policy = state.policy

    def catch_up(self) -> None:
        for step in self.missed:
            self.apply(step)
        self.missed = []

    def trouble(self) -> None:
        """It lists again, and misses nothing."""

    def slices(self) -> Slices:
        return self.held

    def belief(self) -> Belief:
        return State(self.slices(), self.policy).believed(self.case.query, CLAIMS)


class LastSliceOnly(Mutant):
    """kuberesolver#66."""

    def apply(self, step: Put | Delete) -> None:
        if isinstance(step, Put) and step.object["kind"] == "EndpointSlice":
            self.held = {}
        super().apply(step)


class KeepsDeleted(Mutant):
    def apply(self, step: Put | Delete) -> None:
        if isinstance(step, Put):
            super().apply(step)


class LosesDeletesInGaps(Mutant):
    """production-stack#1091."""

    def catch_up(self) -> None:
        self.missed = [step for step in self.missed if isinstance(step, Put)]
        super().catch_up()


class NeverComesBack(Mutant):
    """Whatever ends its watch ends it for good."""

    dead = False

    def trouble(self) -> None:
        self.dead = True

    def on(self, step: Step) -> None:
        if not self.dead:
            super().on(step)

    def catch_up(self) -> None:
        self.dead = True


class TakesBookmarksForObjects(Mutant):
    """An event without endpoints is a Service without endpoints."""

    def on(self, step: Step) -> None:
        if isinstance(step, Bookmark):
            self.held = {}
        super().on(step)


class CountsAddresses(Mutant):
    """Adds and removes addresses by differences of slices, without counting how often one is
    there.
    """

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.addresses: set[str] = set()

    def apply(self, step: Put | Delete) -> None:
        name = step.object["metadata"]["name"] if isinstance(step, Put) else step.name
        before = self._of(name)
        super().apply(step)
        after = self._of(name)
        self.addresses = (self.addresses - (before - after)) | (after - before)

    def _of(self, name: str) -> Belief:
        one = {name: self.held[name]} if name in self.held else {}
        return State(one).believed(self.case.query, frozenset())

    def belief(self) -> Belief:
        return frozenset(self.addresses)


class HintsPerSlice(Mutant):
    """Reads hints and fall-back slice by slice."""

    def belief(self) -> Belief:
        parts = (
            State({name: document}).believed(self.case.query, CLAIMS)
            for name, document in self.held.items()
        )
        return frozenset().union(*parts)


class IgnoresPolicy(Mutant):
    def belief(self) -> Belief:
        return State(self.slices()).believed(self.case.query, CLAIMS)


class HintsDespitePolicy(Mutant):
    """Leaves out other nodes, and then honours hints."""

    def belief(self) -> Belief:
        if self.policy == "Cluster":
            return super().belief()
        here = {
            name: {**held, "endpoints": [_here(one) for one in held["endpoints"]]}
            for name, held in self.held.items()
        }
        return State(here).believed(self.case.query, CLAIMS)


def _here(endpoint: Any) -> Any:
    gone = {"ready": False, "serving": False}
    return endpoint if endpoint.get("nodeName") == NODE else {**endpoint, "conditions": gone}


class OneByAddress(Mutant):
    """Keeps one endpoint for each address."""

    def belief(self) -> Belief:
        return frozenset(
            {
                believed.rpartition(":")[0]: believed for believed in sorted(super().belief())
            }.values()
        )


class LooksOnce(Mutant):
    first: Belief | None = None

    def belief(self) -> Belief:
        if self.first is None:
            self.first = super().belief()
        return self.first


class Debounced(Mutant):
    """Takes the first of several quick changes, and forgets the others."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.changed: set[str] = set()

    def apply(self, step: Put | Delete) -> None:
        name = step.object["metadata"]["name"] if isinstance(step, Put) else step.name
        if name not in self.changed:
            self.changed.add(name)
            super().apply(step)

    def belief(self) -> Belief:
        self.changed.clear()
        return super().belief()


class Toggles(Mutant):
    """Whatever an update tells is there unless it was there before."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.there: set[str] = set()

    def apply(self, step: Put | Delete) -> None:
        super().apply(step)
        if isinstance(step, Put) and step.object["kind"] == "EndpointSlice":
            for endpoint in step.object["endpoints"]:
                one = {"one": {**step.object, "endpoints": [endpoint]}}
                self.there ^= State(one).believed(self.case.query, frozenset())

    def belief(self) -> Belief:
        return frozenset(self.there)


def reads(name: str, mutate: Callable[[Any], Any]) -> type[Mutant]:
    """A mutant that reads each slice as *mutate* gives it, or not at all."""

    def slices(self: Mutant) -> Slices:
        read = {name: mutate(document) for name, document in self.held.items()}
        return {name: document for name, document in read.items() if document is not None}

    return type(name, (Mutant,), {"slices": slices})


def endpoints(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda document: {
        **document,
        "endpoints": [change(endpoint) for endpoint in document["endpoints"]],
    }


def ports(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda document: {**document, "ports": [change(port) for port in document["ports"]]}


def conditions(**changed: bool) -> Callable[[Any], Any]:
    return endpoints(
        lambda endpoint: {**endpoint, "conditions": {**endpoint["conditions"], **changed}}
    )


def _absent_is_not_ready(endpoint: Any) -> Any:
    return {**endpoint, "conditions": {"ready": False, **endpoint["conditions"]}}


def _terminating_is_not_ready(endpoint: Any) -> Any:
    ending = endpoint["conditions"].get("terminating", False)
    return {
        **endpoint,
        "conditions": {**endpoint["conditions"], **({"ready": False} if ending else {})},
    }


def _no_hints(endpoint: Any) -> Any:
    return {key: value for key, value in endpoint.items() if key != "hints"}


def _zone_by_itself(endpoint: Any) -> Any:
    """Takes every endpoint of its own zone as hinted, and others as not there."""
    return (
        endpoint
        if endpoint.get("zone", "east") == "east"
        else {**endpoint, "conditions": {"ready": False}}
    )


def _first_port(document: Any) -> Any:
    return (
        {**document, "ports": [{**document["ports"][0], "name": "http"}]}
        if document["ports"]
        else document
    )


def _any_service(document: Any) -> Any:
    labels = {**document["metadata"]["labels"], "kubernetes.io/service-name": "web"}
    return {**document, "metadata": {**document["metadata"], "labels": labels}}


def _one_manager(document: Any) -> Any:
    manager = document["metadata"]["labels"].get("endpointslice.kubernetes.io/managed-by")
    return document if manager == "endpointslice-controller.k8s.io" else None


MUTANTS: tuple[type[Mutant], ...] = (
    LastSliceOnly,
    KeepsDeleted,
    LosesDeletesInGaps,
    NeverComesBack,
    CountsAddresses,
    HintsPerSlice,
    IgnoresPolicy,
    HintsDespitePolicy,
    TakesBookmarksForObjects,
    LooksOnce,
    Debounced,
    Toggles,
    reads("TerminatingIsNotReady", endpoints(_terminating_is_not_ready)),
    OneByAddress,
    reads("AbsentIsNotReady", endpoints(_absent_is_not_ready)),
    reads("EverythingIsReady", conditions(ready=True)),
    reads("NothingTerminates", conditions(terminating=False)),
    reads("EverythingServes", conditions(serving=True, terminating=True)),
    reads("NoHints", endpoints(_no_hints)),
    reads("ZoneByItself", endpoints(_zone_by_itself)),
    reads("FirstPort", _first_port),
    reads("AnyService", _any_service),
    reads("OneManager", _one_manager),
    reads("FamiliesAlike", lambda document: {**document, "addressType": "IPv4"}),
    reads("ProtocolsAlike", ports(lambda port: {**port, "name": "http", "protocol": "TCP"})),
    reads("NumbersAlike", ports(lambda port: {**port, "port": 8080})),
    reads(
        "FirstHundred", lambda d: {**d, "endpoints": d["endpoints"][:100], "ports": d["ports"][:50]}
    ),
)


def beliefs(mutant: Mutant) -> Iterator[tuple[Belief, Belief]]:
    """Believed and right, at each checkpoint."""
    state = State()
    for step in (*mutant.case.setup, *mutant.case.steps):
        state = state.after(step)
        if isinstance(step, Check):
            yield mutant.belief(), state.believed(mutant.case.query, CLAIMS)
        else:
            mutant.on(step)


def catches(case: Case, kind: type[Mutant]) -> bool:
    return any(believed != right for believed, right in beliefs(kind(case)))
