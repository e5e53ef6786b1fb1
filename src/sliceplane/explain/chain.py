"""The chain from a name to an endpoint: links in the order in which a connection needs them.

The first link that is broken is the cause; what is found behind it mostly follows from it.  A link says what it must
have read (``wants``): a link whose reading was refused is "not looked at", never "fine".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from sliceplane.api.requests import Selection
from sliceplane.explain.case import NodeCase, ServiceCase, ZoneCase
from sliceplane.explain.checks import foreign_slices, ports, services, slices
from sliceplane.findings.finding import Finding

ServiceCheck = Callable[[ServiceCase], Iterable[Finding]]
NodeCheck = Callable[[NodeCase], Iterable[Finding]]
ZoneCheck = Callable[[ZoneCase], Iterable[Finding]]


def _nothing(_: ServiceCase | NodeCase | ZoneCase) -> Iterable[Selection]:
    return ()


@dataclass(frozen=True)
class Link:
    """``name``: as answers call it.  ``wants``, and those of nodes and zones: what to read before the checks run; asked
    again after each reading, so that one reading may follow from another."""

    name: str
    checks: tuple[ServiceCheck, ...] = ()
    wants: Callable[[ServiceCase], Iterable[Selection]] = _nothing
    node_checks: tuple[NodeCheck, ...] = ()
    node_wants: Callable[[NodeCase], Iterable[Selection]] = _nothing
    zone_checks: tuple[ZoneCheck, ...] = ()
    zone_wants: Callable[[ZoneCase], Iterable[Selection]] = _nothing


CHAIN: Final[tuple[Link, ...]] = (
    Link("name", services.NAME_CHECKS, services.wants),
    Link("ports", ports.CHECKS, slices.wants),
    Link("slices", slices.CHECKS, slices.wants),
    Link("other slices", foreign_slices.CHECKS, foreign_slices.wants),
)
