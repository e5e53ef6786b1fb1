"""Simulated node proxies that report their progress, and the kernels against which the reports are
checked.

They run the production cores (``consume.selections``, ``consume.progress``) over the simulator's
informers. The kernel is a dictionary: a write takes a while, may fail, and contains the state at
its beginning. Every report is checked against the history of commits when it is made. It must not
report a version that the kernel has not applied, or a digest other than that of the server's state
at its version, and it must report everything that the kernel has applied.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

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
    AppliedRevision,
    Progress,
    read_report,
)
from sliceplane.consume.selections import (
    ALL,
    Union,
    common_selector,
    name_selection,
    own_selectors,
)
from sliceplane.kit.ip import Family
from sliceplane.kit.rng import Rng
from sliceplane.lab.sim.checks.slice_history import SliceHistory
from sliceplane.lab.sim.checks.steady import Broken
from sliceplane.lab.sim.network import Actor, Network
from sliceplane.lab.sim.server import Server
from sliceplane.lab.sim.streams import SimulatedInformer
from sliceplane.watch.cache import Change, Mark

#: proxies of a simulation, on the Nodes bare-0, bare-1
PROXIES: Final = 2
GATES: Final = Gates(chosen={ENDPOINT_SLICE_SUBSETTING: True})
_FAMILY: Final[Family] = "IPv4"
_COMMON: Final = ""
_WRITE_MAX_S: Final = 2.0
_RETRY_S: Final = 1.0
_REFUSED_ONE_IN: Final = 8


class SimulatedProxy(Actor):
    """One instance of a node proxy; *kernel* belongs to the node and outlives it."""

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
        self._desired: dict[str, int] = {}
        self._pending = self._writing = self._ready = False
        self._own: dict[str, SimulatedInformer] = {}
        self._selectors: tuple[str, ...] = ()
        watches = (
            Selection(EndpointSlices, label_selector=common_selector(GATES)),
            Selection(Nodes, field_selector=f"metadata.name={node}"),
        )
        self._informers = [
            self._informer(selection, _COMMON, self._schedule_write) for selection in watches
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
        self._trace.note(self._scheduler.now, self.actor, "start", "proxy")
        for informer in self._informers:
            informer.start()
        self._tick()

    def kill(self) -> None:
        self._trace.note(self._scheduler.now, self.actor, "die", "proxy")
        self.alive = False
        for informer in (*self._informers, *self._own.values()):
            informer.stop()

    # In

    @staticmethod
    def _get_scope(name: str) -> str:
        return name_selection(name or common_selector(GATES))

    def _on_changes(self, name: str, changes: tuple[Change[Object], ...]) -> None:
        for change in changes:
            if change.resource == Nodes.key:
                self.progress.on_change(change, ALL, self._scheduler.now)
                if isinstance(change.new, Node):
                    self._follow_selectors(own_selectors(GATES, change.new))
                continue
            self._apply_difference(self._union.on_change(name, *change.typed(EndpointSlice)))
            self.progress.on_change(change, self._get_scope(name), self._scheduler.now)
        self._schedule_write()

    def _apply_difference(
        self, difference: tuple[EndpointSlice | None, EndpointSlice | None] | None
    ) -> None:
        if difference is None:
            return
        old, new = difference
        if old is not None:
            self._desired.pop(old.metadata.key, None)
        if new is not None:
            self._desired[new.metadata.key] = new.metadata.revision
        self._pending = True

    def _on_mark(self, selection: Selection, name: str, mark: Mark) -> None:
        if selection.resource is EndpointSlices:
            self.progress.on_mark(EndpointSlices.key, self._get_scope(name), mark)

    def _follow_selectors(self, selectors: tuple[str, ...]) -> None:
        """Switches to *selectors* as ``node.io.inputs`` does: new selections are listed completely
        before old ones are dropped.
        """
        self._selectors = selectors
        for selector in selectors:
            if selector not in self._own:
                selection = Selection(EndpointSlices, label_selector=selector)
                self._own[selector] = self._informer(
                    selection, selector, self._drop_former_selectors
                )
                self.progress.on_mark(EndpointSlices.key, self._get_scope(selector), None)
                self._own[selector].start()
        self._drop_former_selectors()

    def _drop_former_selectors(self) -> None:
        if all(self._own[selector].reflector.synced for selector in self._selectors):
            for selector in [selector for selector in self._own if selector not in self._selectors]:
                self._own.pop(selector).stop()
                self.progress.on_dropped(EndpointSlices.key, self._get_scope(selector))
                for difference in self._union.drop(selector):
                    self._apply_difference(difference)
            self._schedule_write()

    # The kernel

    def _schedule_write(self) -> None:
        """Schedules a write after all actions of this moment, marks included."""
        self._scheduler.after(0.0, lambda: self._receive(self._begin_write))

    def _begin_write(self) -> None:
        synced = all(
            informer.reflector.synced for informer in (*self._informers, *self._own.values())
        )
        if self._writing or not synced or not (self._pending or not self._ready):
            return
        self._writing, self._pending = True, False
        self.progress.on_taken(_FAMILY)
        carried = dict(self._desired)
        refused = self._network.faults.active and self._rng.below(_REFUSED_ONE_IN) == 0
        self._scheduler.after(
            self._rng.uniform(0.0, _WRITE_MAX_S),
            lambda: self._receive(lambda: self._written(carried, refused)),
        )

    def _written(self, carried: dict[str, int], refused: bool) -> None:
        self._writing = False
        if refused:
            self._pending = True
            self._scheduler.after(_RETRY_S, lambda: self._receive(self._schedule_write))
            return
        self._kernel.clear()
        self._kernel.update(carried)
        self._ready = True
        self.progress.on_written(_FAMILY)
        self._schedule_write()

    # ConsumerPost

    def _tick(self) -> None:
        if not self.alive:
            return
        now = self._scheduler.now
        if self._ready and not self._pending and not self._writing:
            self.progress.on_idle(_FAMILY)
        if self._ready and self.progress.next_deadline() <= now:
            self._report()
        self._scheduler.after(self.progress.changed_period_s, lambda: self._receive(self._tick))

    def _report(self) -> None:
        body = self.progress.take_report(self._scheduler.now)
        self._check(self.progress.applied)
        write = Write(
            verb="patch",
            resource=Leases,
            namespace=LEASE_NAMESPACE,
            name=self.progress.name,
            body=body,
        )
        create = Write(verb="create", resource=Leases, namespace=LEASE_NAMESPACE, body=body)

        def on_answer(answer: bytes | StatusError) -> None:
            if isinstance(answer, StatusError) and answer.reason == "NotFound":
                self._network.send(
                    self.actor, create, lambda retried: self._receive(lambda: failed(retried))
                )
            else:
                failed(answer)

        def failed(answer: bytes | StatusError) -> None:
            if isinstance(answer, StatusError):
                self.progress.on_failure()

        self._network.send(
            self.actor, write, lambda answer: self._receive(lambda: on_answer(answer))
        )

    def _check(self, reported: dict[tuple[str, str], AppliedRevision]) -> None:
        applied_by_scope = {scope: applied for (_, scope), applied in reported.items()}
        self._history.check_applied(self.actor, applied_by_scope, self._kernel)
        for scope, applied in applied_by_scope.items():
            if not applied.revision:
                continue
            true = self._history.digest(scope, applied.revision)
            if applied.digest != true:
                text = (
                    f"{self.actor} tells {applied.digest} for {scope} {applied.revision}, which is "
                    f"{true}"
                )
                raise Broken("mark-digest-true", self.actor, text)
            newest = self._history.newest(scope, self._kernel)
            if applied.revision < newest:
                text = f"{self.actor} tells {scope} {applied.revision}, and its kernel has {newest}"
                raise Broken("mark-late-by-one-report", self.actor, text)

    def check_quiet(self, server: Server) -> None:
        """Checks at a quiet point that the stored report of this proxy is complete. Raises
        ``Broken``.
        """
        self.progress.check()
        self._union.check()
        lease = server.find(Leases, LEASE_NAMESPACE, self.progress.name)
        text = ((lease or {}).get("metadata", {}).get("annotations") or {}).get(
            ANNOTATION_PROGRESS, ""
        )
        report = read_report(text)
        reported = report.applied_by_scope() if report is not None else {}
        expected = {
            (EndpointSlices.plural, self._get_scope(name)) for name in (_COMMON, *self._selectors)
        }
        if reported.keys() != expected:
            raise Broken(
                "mark-reaches-all",
                self.actor,
                f"{self.actor} tells of {sorted(reported)}, reads {sorted(expected)}",
            )
        for (_, scope), applied in reported.items():
            last = self._history.last(scope)
            if applied.revision < last or applied.digest != self._history.digest(
                scope, applied.revision
            ):
                raise Broken(
                    "mark-reaches-all",
                    self.actor,
                    f"{self.actor} tells {scope} {applied}, the last is {last}",
                )


class Proxies:
    """The node proxies of one simulation."""

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
        """Occasionally restarts or pauses one of them."""
        action, node = self._rng.below(24), f"bare-{self._rng.below(PROXIES)}"
        if action == 0:
            self._restart(node)
        elif action == 1:
            self._alive[node].pause(self._rng.uniform(1.0, 60.0))

    def kernel_slices(self, node: str, service: str) -> list[EndpointSlice]:
        """Returns the slices of *service* in the kernel of *node*, including those of other
        managers.
        """
        kernel = self._kernels.get(node, {})
        slices = (self._history.slice_at(key, revision) for key, revision in sorted(kernel.items()))
        namespace, _, name = service.partition("/")
        selected = [
            observed
            for observed in slices
            if observed is not None and observed.metadata.namespace == namespace
        ]
        return [
            observed
            for observed in selected
            if (observed.metadata.labels or {}).get(LABEL_SERVICE_NAME) == name
        ]

    def wake(self) -> None:
        for proxy in self._alive.values():
            proxy.wake()

    def check(self) -> None:
        for proxy in self._alive.values():
            proxy.check_quiet(self._network.server)
