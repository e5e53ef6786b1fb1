"""The invariants of every quiet point, by name.

Each is a small function of the world that yields violations, and a row of ``INVARIANTS``, which
reports and ``docs/guarantees.md`` use. Others hold at all times and are checked at each event:
``no-lost-endpoint`` (``steady``), ``told-is-never-held`` and ``held-within-bound`` (``removals``),
``no-premature-collection`` (``collection``), ``no-part-fails`` and ``quiescence`` (``simulation``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from sliceplane.lab.sim.checks import slices, workloads
from sliceplane.lab.sim.checks.steady import Broken
from sliceplane.lab.sim.checks.world import Fault, World

#: maximum writes of controllers between two quiet points, in total and for each input
WRITES_BASE, WRITES_PER_INPUT = 500, 10


def _checks(world: World) -> Iterator[Fault]:
    for process in world.processes:
        process.check()
    world.view.server.check()
    yield from ()


def _caches(world: World) -> Iterator[Fault]:
    for process in world.processes:
        stale = process.stale(world.view.server)
        if stale:
            yield (process.actor, f"{process.actor}: {stale}")


def _marks(world: World) -> Iterator[Fault]:
    if world.proxies is not None:
        world.proxies.check()
    yield from ()


def _bounded_writes(world: World) -> Iterator[Fault]:
    """Yields a violation if controllers wrote too much. The bound is generous, since the deletion
    of a namespace writes each object once; it detects a loop that ends by luck.
    """
    most = WRITES_BASE + WRITES_PER_INPUT * world.inputs
    if world.writes > most:
        yield ("", f"{world.writes} writes after {world.inputs} changes and faults")


class Invariant(msgspec.Struct, frozen=True):
    """``faults``: yields its violations; evaluated only if the controllers in *needs* run."""

    meaning: str
    faults: Callable[[World], Iterable[Fault]]
    needs: tuple[str, ...] = ()

    def check(self, name: str, world: World) -> None:
        """Raises ``Broken``."""
        if set(self.needs) <= set(world.controllers):
            for subject, message in self.faults(world):
                raise Broken(name, subject, message)


_COLLECTOR: Final = "garbage-collector"
#: invariants of quiet points by name
INVARIANTS: Final[dict[str, Invariant]] = {
    "consistent-state": Invariant(
        "every controller's, the store's, the registry's and the hub's check() passes", _checks
    ),
    "caches-current": Invariant("every informer's cache is what the server holds", _caches),
    "convergence": Invariant("slices show exactly what the oracle says", slices.converged),
    "endpoints-true": Invariant(
        "Endpoints say what a fresh start would write", slices.endpoints, ("endpoints",)
    ),
    "mirror-true": Invariant(
        "mirrored slices have the addresses of their Endpoints",
        slices.mirrors,
        ("endpointslice-mirroring",),
    ),
    "no-duplicate-endpoint": Invariant("no endpoint is listed twice", slices.no_duplicates),
    "slice-maximum": Invariant("no slice has more endpoints than allowed", slices.slice_maximum),
    "bounded-writes": Invariant("writes are in proportion to what happened", _bounded_writes),
    "no-dead-owner": Invariant(
        "no object outlives all its owners", workloads.owners, (_COLLECTOR,)
    ),
    "deleted-services-leave-nothing": Invariant(
        "no slice is left of a Service that is gone",
        slices.deleted_services,
        (_COLLECTOR, "endpointslice"),
    ),
    "namespaces-end": Invariant(
        "a deleted namespace goes, with all that was in it",
        workloads.namespaces,
        (_COLLECTOR, "namespace"),
    ),
    "quotas-true": Invariant(
        "a quota's status counts what there is", workloads.quotas, ("resourcequota",)
    ),
    "one-address-one-pod": Invariant(
        "no two running Pods have one address", workloads.addresses, ("kubelet",)
    ),
    "no-orphaned-pod": Invariant(
        "no Pod outlives its Node", workloads.orphans, ("pod-garbage-collector",)
    ),
    "replicas": Invariant(
        "a ReplicaSet has the Pods that it asks for",
        workloads.replicas,
        (_COLLECTOR, "replicaset"),
    ),
    "deployments-true": Invariant(
        "a Deployment's sets want what it wants, and its status counts them",
        workloads.deployments,
        (_COLLECTOR, "replicaset", "deployment"),
    ),
    "slices-merged": Invariant(
        "with defragmentation no slice is kept that others have room for",
        slices.merged,
        ("endpointslice",),
    ),
    "every-namespace": Invariant(
        "every namespace has its ServiceAccount and knows the authority",
        workloads.every_namespace,
    ),
    "mark-reaches-all": Invariant(
        "every node proxy tells the newest version and the digest of the server's state", _marks
    ),
    "conditions-true": Invariant(
        "conditions of traffic distribution tell what slices show",
        slices.conditions,
        ("traffic-distribution",),
    ),
}
#: invariants that are checked at each event
ALWAYS: Final[dict[str, str]] = {
    "no-lost-endpoint": "a Pod that stays ready stays published at every commit",
    "told-is-never-held": "what a Pod says itself is never held back from slices",
    "held-within-bound": "an endpoint that no Pod said to be gone is held no longer than its bound",
    "no-premature-collection": "the garbage collector deletes nothing that has an owner",
    "no-part-fails": "no controller, store or hub raises",
    "one-leader": "of several instances one leads, never two at a time",
    "mark-never-early": "no node proxy tells a version that its kernel does not hold",
    "mark-digest-true": "a digest is told that the server's state had at that version",
    "mark-late-by-one-report": "what a kernel holds is told with the next report",
    "no-false-alarm": "no controller says that a cache lost an event",
    "quiescence": "without faults and changes writes end within bounded time, for good",
}
