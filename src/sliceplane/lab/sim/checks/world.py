"""A simulated cluster at a quiet point, as invariants read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from sliceplane.api.quantity import exact
from sliceplane.lab.sim.checks.view import View
from sliceplane.lab.sim.proxies import Proxies
from sliceplane.lab.sim.roster import Setup
from sliceplane.lab.sim.server import Server

#: the object of a violation, for the trace, and a sentence
Fault = tuple[str, str]
SLICES_COUNTED: Final = "count/endpointslices.discovery.k8s.io"


class Checked(Protocol):
    """The part of a process that invariants use."""

    actor: str

    def check(self) -> None: ...

    def stale(self, server: Server) -> str:
        """Returns how its caches differ from the server; "" if they do not."""


class World(msgspec.Struct, frozen=True):
    """A quiet point. ``inputs`` and ``writes``: numbers since the previous one."""

    view: View
    setup: Setup
    controllers: Sequence[str]
    processes: Sequence[Checked]
    inputs: int
    writes: int
    #: set in the ``full`` workload
    proxies: Proxies | None


def is_full(view: View, namespace: str, resource: str) -> bool:
    """Returns True if a quota admits no further object of *resource*."""
    return any(
        exact((quota.status.used or {}).get(resource, 0))
        >= exact((quota.spec.hard or {})[resource])
        for quota in view.quotas
        if quota.metadata.namespace == namespace and resource in (quota.spec.hard or {})
    )
