"""The interface between a node proxy and the back ends that write rules to the kernel, and their
errors.

A back end is a core (a ``node.plane.Ruleset`` for each IP family, which computes transactions from
desired rules) and the programs that execute them: ``nft_backend`` for nftables, ``iptables_backend``
for iptables. The node proxy depends on neither.
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


#: attempts of a check of all rules that writes interrupt, and seconds between them
CHECKS_MAX: Final = 5
CHECK_RETRY_S: Final = 0.2


class KernelError(Exception):
    """Rules could not be written or read.  ``str()`` is a sentence for the user, ``reason`` a code."""

    def __init__(self, reason: Reason, sentence: str) -> None:
        super().__init__(sentence)
        self.reason: Reason = reason


P = TypeVar("P", bound=AnyNodePlane)
T_contra = TypeVar("T_contra", bound=RulesTransaction, contravariant=True)


class RulesBackend(Protocol[P, T_contra]):
    """A back end.  Calls for different families may be concurrent; for one family a write ends before
    the next begins.
    """

    @property
    def mode(self) -> Mode: ...

    @property
    def writes_by_transport(self) -> Mapping[str, int]:
        """Returns the number of applied transactions by transport."""

    def plane(self, family: Family, config: NodePlaneConfig) -> P:
        """Creates the core of one family, which is an argument of the other methods."""

    async def probe(self) -> None:
        """Checks that programs and kernel support our rules, without a change.  Raises
        ``KernelError``.
        """

    async def prepare(self, plane: P) -> None:
        """Reads the kernel state that the rules of *plane* need before a full write."""

    async def write(self, plane: P, transaction: T_contra) -> None:
        """Applies the transaction.  Raises ``KernelError``: then the state of the kernel is unknown."""

    async def has_rules(self, plane: P) -> bool:
        """Returns True if the kernel has our rules of the family; cheap at any size.  Raises
        ``KernelError``.
        """

    async def differences(self, plane: P) -> tuple[str, ...]:
        """Returns a phrase for each difference between the kernel and the state that *plane*, which
        is idle, expects.  Lists all rules.  Raises ``KernelError``.
        """

    def disturbed(self) -> bool:
        """Returns True if another program changed rules since the last call, perhaps ours, as far as
        a cheap check can tell.
        """

    async def admit(
        self, families: tuple[Family, ...], addresses: tuple[str, ...], port: int
    ) -> None:
        """Redirects connections of this host to *port* of *addresses*, and no others, to that port of
        loopback; no addresses: removes the redirection.  Raises ``KernelError``.
        """

    async def remove(self, families: tuple[Family, ...]) -> None:
        """Removes our rules, if there are any.  Raises ``KernelError``."""

    async def remove_leftovers(self, families: tuple[Family, ...]) -> None:
        """Removes the rules that certainly are ours, and not another program's.  Raises
        ``KernelError``.
        """


AnyBackend = RulesBackend[Any, Any]


async def find_differences(backend: AnyBackend, plane: AnyNodePlane) -> tuple[str, ...]:
    """Returns a phrase for each difference between the kernel and the state that *plane* expects.

    Lists all rules.  Raises ``KernelError``, also if writes interrupt every attempt.
    """
    for _ in range(CHECKS_MAX):
        writes = plane.writes
        if not plane.schedule.running and not plane.rules.needs_full:
            phrases = await backend.differences(plane)
            if plane.writes == writes and not plane.schedule.running:
                return phrases
        await asyncio.sleep(CHECK_RETRY_S)
    raise KernelError("busy", f"{plane.family} rules are being written")
