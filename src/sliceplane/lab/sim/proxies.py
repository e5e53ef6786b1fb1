"""Node proxies that say how far they are, and what their kernels hold to hold them to.

The production cores (``consume.selections``, ``consume.progress``) over the simulator's informers,
and a kernel that is a dictionary: a write takes a while, may fail, and carries what was known when
it began. Every report is held against the history of commits at the moment at which it is made:
nothing may be told that the kernel does not hold, no digest may differ from that of the server's
state at its version, and all that the kernel holds must be told.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from sliceplane.api.codec import decode
from sliceplane.api.core import Node
from sliceplane.api.discovery import LABEL_SERVICE_NAME, EndpointSlice
from sliceplane.api.errors import StatusError
from sliceplane.api.gates import ENDPOINT_SLICE_SUBSETTING, Gates
from sliceplane.api.meta import Object
from sliceplane.api.requests import Selection, Write
from sliceplane.api.scheme import EndpointSlices, Leases, Nodes
from sliceplane.consume.progress import (
    ANNOTATION_PROGRESS,
    LEASE_NAMESPACE,
    Held,
    Progress,
    read_report,
)
from sliceplane.consume.selections import (
    ALL,
    Union,
    common_selector,
    own_selectors,
    reading_of,
    readings_of_slice,
)
from sliceplane.kit.ip import Family
from sliceplane.kit.rng import Rng
from sliceplane.lab.sim.checks.steady import Broken
from sliceplane.lab.sim.network import Actor, Network
from sliceplane.lab.sim.server import Server
from sliceplane.lab.sim.streams import SimulatedInformer
from sliceplane.server.store.types import EventType, StoreEvent
from sliceplane.watch.cache import Change, Mark
from sliceplane.watch.digest import digest_of

#: proxies of a simulation, on the Nodes bare-0, bare-1
PROXIES: Final = 2
GATES: Final = Gates(chosen={ENDPOINT_SLICE_SUBSETTING: True})
_FAMILY: Final[Family] = "IPv4"
_COMMON: Final = ""
_WRITE_MAX_S: Final = 2.0
_RETRY_S: Final = 1.0
_REFUSED_ONE_IN: Final = 8


class _Commit(NamedTuple):
    revision: int
    before: EndpointSlice | None
    after: EndpointSlice | None

    def touches(self, reading: str) -> bool:
        return reading in (*readings_of_slice(self.before), *readings_of_slice(self.after))


class SliceHistory:
    """Every commit of EndpointSlices; a listener of the server."""

    def __init__(self, server: Server) -> None:
        self._commits: dict[str, list[_Commit]] = {}
        for record in server.records(EndpointSlices):  # a simulation may go on from a recording
            self._commits[record.key.path] = [
                _Commit(record.revision, None, decode(record.body, EndpointSlice))
            ]
        server.listeners.append(self._on_commit)

    def _on_commit(self, event: StoreEvent) -> None:
        if event.record.key.resource != EndpointSlices.storage_key:
            return
        before = decode(event.previous.body, EndpointSlice) if event.previous is not None else None
        after = (
            None if event.type is EventType.DELETED else decode(event.record.body, EndpointSlice)
        )
        self._commits.setdefault(event.record.key.path, []).append(
            _Commit(event.revision, before, after)
        )

    def last(self, reading: str) -> int:
        """The version of the last commit that concerns *reading*."""
        touching = (
            commit
            for commits in self._commits.values()
            for commit in commits
            if commit.touches(reading)
        )
        return max((commit.revision for commit in touching), default=0)

    def newest(self, reading: str, kernel: dict[str, int]) -> int:
        """The newest version that *kernel* has of what *reading* shows."""
        commits = (self._at(self._commits[key], held) for key, held in kernel.items())
        shown = (
            commit.revision
            for commit in commits
            if commit is not None and reading in _readings(commit)
        )
        return max(shown, default=0)

    def digest(self, reading: str, revision: int) -> str:
        """Of the server's state at *revision*."""
        states = (self._at(commits, revision) for commits in self._commits.values())
        return digest_of(
            commit.after
            for commit in states
            if commit is not None and commit.after and reading in _readings(commit)
        )

    @staticmethod
    def _at(commits: list[_Commit], revision: int) -> _Commit | None:
        index = bisect_right(commits, revision, key=lambda commit: commit.revision)
        return commits[index - 1] if index else None

    def slice_at(self, name: str, revision: int) -> EndpointSlice | None:
        """*name* as in ``metadata.key``."""
        for commits in (commits for path, commits in self._commits.items() if path.endswith(name)):
            commit = self._at(commits, revision)
            if (
                commit is not None
                and commit.after is not None
                and commit.after.metadata.key == name
            ):
                return commit.after
        return None

    def check_held(self, actor: str, told: dict[str, Held], kernel: dict[str, int]) -> None:
        """*kernel*, versions by slice, holds all that each reading showed up to the version that is
        *told* of it.

        But for a slice that left it while another reading, which is not so far, still shows it:
        that node cannot know yet whether it was deleted or given to the other one, and keeps it
        (``Union``). Who waits for a slice to leave waits for every reading that showed it
        (``consume.drain.departure``). Raises ``Broken``.
        """
        for reading, key in ((reading, key) for reading in told for key in sorted(self._commits)):
            revision = told[reading].revision
            touching = [commit for commit in self._commits[key] if commit.touches(reading)]
            commit = self._at(touching, revision) if revision else None
            if commit is None:
                continue
            held = kernel.get(key)
            there = commit.after is not None and reading in _readings(commit)
            later = self._commits[key][-1].revision > revision
            lags = (
                held is not None
                and held < commit.revision
                and (there or not self._shows(key, held, told))
            )
            if lags or (held is None and there and not later):
                what = (
                    f"{actor} tells {reading} {revision}, and its kernel has {key} at {held}, not "
                    f"{commit.revision}"
                )
                raise Broken("mark-never-early", key, what)

    def _shows(self, key: str, revision: int, told: dict[str, Held]) -> bool:
        """At the version that is told of it, one of the readings shows the slice as it was at
        *revision*.
        """
        states = (
            (reading, self._at(self._commits[key], held.revision)) for reading, held in told.items()
        )
        return any(
            state and state.revision == revision and reading in _readings(state)
            for reading, state in states
        )


def _readings(commit: _Commit) -> tuple[str, ...]:
    return readings_of_slice(commit.after)


class SimulatedProxy(Actor):
    """One life of a node proxy; *kernel* is the node's and outlives it."""

    def __init__(
        self, node: str, kernel: dict[str, int], history: SliceHistory, network: Network, rng: Rng
    ) -> None:
        super().__init__(f"proxy-{node}", network)
        self._node = node
        self._kernel = kernel
        self._history = history
        self._rng = rng
        self.progress = Progress(node, (_FAMILY,))
        self._union = Union()
        self._wanted: dict[str, int] = {}
        self._pending = self._writing = self._ready = False
        self._own: dict[str, SimulatedInformer] = {}
        self._aimed: tuple[str, ...] = ()
        watches = (
            Selection(EndpointSlices, label_selector=common_selector(GATES)),
            Selection(Nodes, field_selector=f"metadata.name={node}"),
        )
        self._informers = [
            self._informer(selection, _COMMON, self._ask_write) for selection in watches
        ]

    def _informer(
        self, selection: Selection, name: str, on_synced: Callable[[], None]
    ) -> SimulatedInformer:
        return SimulatedInformer(
            selection,
            self._network,
            self._rng.fork(),
            receive=self._receive,
            deliver=partial(self._on_changes, name),
            on_synced=on_synced,
            on_mark=partial(self._on_mark, selection, name),
        )

    def start(self) -> None:
        self._trace.note(self._agenda.now, self.actor, "start", "proxy")
        for informer in self._informers:
            informer.start()
        self._beat()

    def kill(self) -> None:
        self._trace.note(self._agenda.now, self.actor, "die", "proxy")
        self.alive = False
        for informer in (*self._informers, *self._own.values()):
            informer.stop()

    # In

    @staticmethod
    def _reading(name: str) -> str:
        return reading_of(name or common_selector(GATES))

    def _on_changes(self, name: str, changes: tuple[Change[Object], ...]) -> None:
        for change in changes:
            if change.resource == Nodes.key:
                self.progress.on_change(change, ALL, self._agenda.now)
                if isinstance(change.new, Node):
                    self._aim(own_selectors(GATES, change.new))
                continue
            self._take(self._union.on_change(name, *change.typed(EndpointSlice)))
            self.progress.on_change(change, self._reading(name), self._agenda.now)
        self._ask_write()

    def _take(self, difference: tuple[EndpointSlice | None, EndpointSlice | None] | None) -> None:
        if difference is None:
            return
        old, new = difference
        if old is not None:
            self._wanted.pop(old.metadata.key, None)
        if new is not None:
            self._wanted[new.metadata.key] = new.metadata.revision
        self._pending = True

    def _on_mark(self, selection: Selection, name: str, mark: Mark) -> None:
        if selection.resource is EndpointSlices:
            self.progress.on_mark(EndpointSlices.key, self._reading(name), mark)

    def _aim(self, selectors: tuple[str, ...]) -> None:
        """As ``node.io.inputs``: the new ones are listed whole before the old ones go."""
        self._aimed = selectors
        for selector in selectors:
            if selector not in self._own:
                selection = Selection(EndpointSlices, label_selector=selector)
                self._own[selector] = self._informer(selection, selector, self._settle)
                self.progress.on_mark(EndpointSlices.key, self._reading(selector), None)
                self._own[selector].start()
        self._settle()

    def _settle(self) -> None:
        if all(self._own[selector].reflector.synced for selector in self._aimed):
            for selector in [selector for selector in self._own if selector not in self._aimed]:
                self._own.pop(selector).stop()
                self.progress.on_dropped(EndpointSlices.key, self._reading(selector))
                for difference in self._union.drop(selector):
                    self._take(difference)
            self._ask_write()

    # The kernel

    def _ask_write(self) -> None:
        """Once all that comes now has come, marks included."""
        self._agenda.after(0.0, lambda: self._receive(self._begin_write))

    def _begin_write(self) -> None:
        synced = all(
            informer.reflector.synced for informer in (*self._informers, *self._own.values())
        )
        if self._writing or not synced or not (self._pending or not self._ready):
            return
        self._writing, self._pending = True, False
        self.progress.on_taken(_FAMILY)
        carried = dict(self._wanted)
        refused = self._network.faults.active and self._rng.below(_REFUSED_ONE_IN) == 0
        self._agenda.after(
            self._rng.uniform(0.0, _WRITE_MAX_S),
            lambda: self._receive(lambda: self._written(carried, refused)),
        )

    def _written(self, carried: dict[str, int], refused: bool) -> None:
        self._writing = False
        if refused:
            self._pending = True
            self._agenda.after(_RETRY_S, lambda: self._receive(self._ask_write))
            return
        self._kernel.clear()
        self._kernel.update(carried)
        self._ready = True
        self.progress.on_written(_FAMILY)
        self._ask_write()

    # Telling

    def _beat(self) -> None:
        if not self.alive:
            return
        now = self._agenda.now
        if self._ready and not self._pending and not self._writing:
            self.progress.on_idle(_FAMILY)
        if self._ready and self.progress.next_deadline() <= now:
            self._report()
        self._agenda.after(self.progress.changed_period_s, lambda: self._receive(self._beat))

    def _report(self) -> None:
        body = self.progress.take_report(self._agenda.now)
        self._check(self.progress.held)
        write = Write(
            verb="patch",
            resource=Leases,
            namespace=LEASE_NAMESPACE,
            name=self.progress.name,
            body=body,
        )
        create = Write(verb="create", resource=Leases, namespace=LEASE_NAMESPACE, body=body)

        def answered(answer: bytes | StatusError) -> None:
            if isinstance(answer, StatusError) and answer.reason == "NotFound":
                self._network.send(
                    self.actor, create, lambda again: self._receive(lambda: failed(again))
                )
            else:
                failed(answer)

        def failed(answer: bytes | StatusError) -> None:
            if isinstance(answer, StatusError):
                self.progress.on_failure()

        self._network.send(
            self.actor, write, lambda answer: self._receive(lambda: answered(answer))
        )

    def _check(self, told: dict[tuple[str, str], Held]) -> None:
        readings = {reading: held for (_, reading), held in told.items()}
        self._history.check_held(self.actor, readings, self._kernel)
        for reading, held in readings.items():
            if not held.revision:
                continue
            true = self._history.digest(reading, held.revision)
            if held.digest != true:
                what = (
                    f"{self.actor} tells {held.digest} for {reading} {held.revision}, which is "
                    f"{true}"
                )
                raise Broken("mark-digest-true", self.actor, what)
            newest = self._history.newest(reading, self._kernel)
            if held.revision < newest:
                what = f"{self.actor} tells {reading} {held.revision}, and its kernel has {newest}"
                raise Broken("mark-late-by-one-report", self.actor, what)

    def check_settled(self, server: Server) -> None:
        """At a quiet point: what the server has of this proxy tells all.  Raises ``Broken``."""
        self.progress.check()
        self._union.check()
        lease = server.find(Leases, LEASE_NAMESPACE, self.progress.name)
        text = ((lease or {}).get("metadata", {}).get("annotations") or {}).get(
            ANNOTATION_PROGRESS, ""
        )
        report = read_report(text)
        told = report.places() if report is not None else {}
        wanted = {(EndpointSlices.plural, self._reading(name)) for name in (_COMMON, *self._aimed)}
        if told.keys() != wanted:
            raise Broken(
                "mark-reaches-all",
                self.actor,
                f"{self.actor} tells of {sorted(told)}, reads {sorted(wanted)}",
            )
        for (_, reading), held in told.items():
            last = self._history.last(reading)
            if held.revision < last or held.digest != self._history.digest(reading, held.revision):
                raise Broken(
                    "mark-reaches-all",
                    self.actor,
                    f"{self.actor} tells {reading} {held}, the last is {last}",
                )


class Proxies:
    """Those of one simulation."""

    def __init__(self, network: Network, rng: Rng) -> None:
        self._network = network
        self._rng = rng
        self._history = SliceHistory(network.server)
        self._kernels: dict[str, dict[str, int]] = {
            f"bare-{number}": {} for number in range(PROXIES)
        }
        self._alive: dict[str, SimulatedProxy] = {}

    def start(self) -> None:
        for node in self._kernels:
            self._restart(node)

    def _restart(self, node: str) -> None:
        if node in self._alive:
            self._alive[node].kill()
        proxy = SimulatedProxy(
            node, self._kernels[node], self._history, self._network, self._rng.fork()
        )
        self._alive[node] = proxy
        proxy.start()

    def step(self) -> None:
        """Now and then one of them starts anew, or stands still for a while."""
        what, node = self._rng.below(24), f"bare-{self._rng.below(PROXIES)}"
        if what == 0:
            self._restart(node)
        elif what == 1:
            self._alive[node].pause(self._rng.uniform(1.0, 60.0))

    def kernel_slices(self, node: str, service: str) -> list[EndpointSlice]:
        """What the kernel of *node* has of *service*, slices of other managers, too."""
        kernel = self._kernels.get(node, {})
        slices = (self._history.slice_at(key, revision) for key, revision in sorted(kernel.items()))
        namespace, _, name = service.partition("/")
        found = [
            seen for seen in slices if seen is not None and seen.metadata.namespace == namespace
        ]
        return [
            seen for seen in found if (seen.metadata.labels or {}).get(LABEL_SERVICE_NAME) == name
        ]

    def wake(self) -> None:
        for proxy in self._alive.values():
            proxy.wake()

    def check(self) -> None:
        for proxy in self._alive.values():
            proxy.check_settled(self._network.server)
