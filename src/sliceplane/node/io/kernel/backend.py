"""The seam between a node proxy and the kernel: what ``node_proxy`` needs of a back end, and what
may go wrong there.

A back end is a core (a ``node.plane.Ruleset`` for each IP family: desired rules in, difference out)
and the programs that carry out what it says. ``nft_backend`` has nftables, ``iptables_backend``
iptables; the node proxy knows neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol, TypeVar

from sliceplane.kit.ip import Family
from sliceplane.node.configuration.fields import Mode
from sliceplane.node.plane import AnyNodePlane, NodePlaneConfig, RulesTransaction

Reason = Literal[
    "missing", "permission", "namespace", "resources", "version", "rejected", "timeout", "busy"
]


#: a look at all rules that met a write is taken again, so often and after so long
LOOKS_MAX: Final = 5
LOOK_AGAIN_S: Final = 0.2


class KernelError(Exception):
    """Rules could not be written or read; ``str()`` is one sentence for people, ``reason`` is for
    programs.
    """

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason: Reason = reason


P = TypeVar("P", bound=AnyNodePlane)
T_contra = TypeVar("T_contra", bound=RulesTransaction, contravariant=True)


class RulesBackend(Protocol[P, T_contra]):
    """Calls for different families may run side by side; for one family a write ends before the
    next begins.
    """

    @property
    def mode(self) -> Mode: ...

    @property
    def ways(self) -> Mapping[str, int]:
        """How many transactions the kernel took, by the way that they went there."""

    def plane(self, family: Family, config: NodePlaneConfig) -> P:
        """The core of one family; the other methods take it back."""

    async def probe(self) -> None:
        """Whether programs and kernel can hold our rules.  Changes nothing.  Raises
        ``KernelError``.
        """

    async def prepare(self, plane: P) -> None:
        """Tells the rules of *plane* what they want to know of the kernel before they are written
        whole.
        """

    async def write(self, plane: P, transaction: T_contra) -> None:
        """The kernel takes the transaction.  Raises ``KernelError``: then what it has is
        unknown.
        """

    async def holds(self, plane: P) -> bool:
        """Whether our rules of the family are there at all; cheap at any size.  Raises
        ``KernelError``.
        """

    async def differences(self, plane: P) -> tuple[str, ...]:
        """Where the kernel is not as *plane*, which is at rest, believes; a phrase each. Lists
        everything. Raises ``KernelError``.
        """

    def disturbed(self) -> bool:
        """Whether another program changed rules, ours perhaps, since this was last asked; as far as
        can be told at a small price.
        """

    async def admit(
        self, families: tuple[Family, ...], addresses: tuple[str, ...], port: int
    ) -> None:
        """Connections of this host to *port* of these addresses come to that port of loopback, and
        no others; none: all is taken away. Raises ``KernelError``.
        """

    async def remove(self, families: tuple[Family, ...]) -> None:
        """Takes our rules away, whether they are there or not.  Raises ``KernelError``."""

    async def remove_leftovers(self, families: tuple[Family, ...]) -> None:
        """Takes away those rules that are surely ours, and not another program's.  Raises
        ``KernelError``.
        """


AnyBackend = RulesBackend[Any, Any]


async def look(backend: AnyBackend, plane: AnyNodePlane) -> tuple[str, ...]:
    """Where the kernel is not as *plane* believes, a phrase each. Lists everything. Raises
    ``KernelError``, also where rules are being written all the time.
    """
    for _ in range(LOOKS_MAX):
        writes = plane.writes
        if not plane.schedule.running and not plane.rules.needs_full:
            phrases = await backend.differences(plane)
            if plane.writes == writes and not plane.schedule.running:
                return phrases
        await asyncio.sleep(LOOK_AGAIN_S)
    raise KernelError("busy", f"{plane.family} rules are being written")
