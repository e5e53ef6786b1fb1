"""Services in the process of a plane (controllers, a node proxy), and the resources that the plane
lends them.

The server knows a ``PlaneService`` and nothing of what it does; a service knows its
``ServiceContext`` and nothing of the server, so both rooms can be read, tested and started without
the other.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from sliceplane.kit.metrics import Source
from sliceplane.watch.io.base import Client

if TYPE_CHECKING:
    from sliceplane.watch.io.flight import FlightRecorder

#: why something is not well; "" if it is
Check = Callable[[], str]


class ServiceContext(msgspec.Struct, frozen=True, kw_only=True):
    """The resources that a plane lends to a service, from its ``start`` to its ``stop``."""

    #: a client of the server in this process for an administrator of this user name, with a field
    #: manager
    client: Callable[[str, str], Client]
    #: the server's wall clock
    clock: Callable[[], float]
    #: with which an administrator of this machine reaches the server
    kubeconfig: Path
    #: the server's, for processes of this machine
    url: str
    #: folder of the server's certificate, its key, and the authority that signed it
    pki: Path
    #: PEM of that authority
    authority: str
    #: a named check of ``/healthz``, ``/livez`` and ``/readyz``
    add_check: Callable[[str, Check], None]
    #: a named check of ``/readyz`` alone
    add_readiness: Callable[[str, Check], None]
    #: figures for ``/metrics``, under names that the plane does not have
    add_samples: Callable[[Source], None]
    #: what controllers are told is told to it, too; ``None``: nothing is recorded
    flight: FlightRecorder | None = None


class PlaneService(Protocol):
    """Something else that runs in the process.

    ``start`` is called when the server answers; ``stop`` is called before the server stops, also if
    ``start`` failed half-way, and returns when every task of the service has ended.
    """

    @property
    def name(self) -> str: ...

    async def start(self, context: ServiceContext) -> None: ...

    async def drain(self) -> None:
        """The process will stop, and answers for a while yet: a service that has a successor
        elsewhere ends now.
        """

    async def stop(self) -> None: ...
