"""``sliceplane status``: one screen about a cluster. What was read becomes parts: what is well,
what needs attention, and what could not be looked at, which is never the same as well.

Parts stand in the order in which they lean on each other: servers, storage, controllers, queues,
nodes, consumers. What needs attention besides are the worst findings of ``lint``. ``status_parts``
decides, ``text`` prints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from sliceplane.api.core import Lease, Node
from sliceplane.api.findings.finding import Finding
from sliceplane.diagnose.explain.question import Explanation

State = Literal["well", "attention", "unknown"]


class ReadPage(msgspec.Struct, frozen=True):
    """``why``: it was not to be had, and why; ``status``: the HTTP status of the answer, 0 for
    none.
    """

    text: str = ""
    why: str = ""
    status: int = 200


class StatusFacts(msgspec.Struct, frozen=True):
    """``leases`` by namespace, and ``nodes``: a sentence where they could not be read."""

    server: str
    now: float
    version: ReadPage
    readyz: ReadPage
    metrics: ReadPage
    leases: Mapping[str, tuple[Lease, ...] | str]
    nodes: tuple[Node, ...] | str
    lint: Explanation


class Part(msgspec.Struct, frozen=True):
    """``lines``: what is to be told of it; ``figures``: the same for programs; ``unseen``: a phrase
    each.
    """

    name: str
    state: State
    lines: tuple[str, ...]
    figures: Mapping[str, Any]
    unseen: tuple[str, ...] = ()


class PlaneStatus(msgspec.Struct, frozen=True):
    """``parts`` are in the order of the screen. ``findings``: the worst; ``more``: how many others
    there are. ``too_young``: how many of all these may yet turn out to be errors.
    """

    parts: tuple[Part, ...]
    findings: tuple[Finding, ...]
    more: int
    too_young: int
    services: int
    is_blind: bool
    not_looked_at: tuple[str, ...]
    missing_rights: tuple[str, ...]

    @property
    def state(self) -> State:
        settled = [finding for finding in self.findings if finding.too_young is None]
        if settled or any(part.state == "attention" for part in self.parts):
            return "attention"
        # Without the server's word or Services, or with a fault that may be one, nothing is said to
        # be well.
        is_unknown = self.is_blind or self.findings or self.parts[0].state == "unknown"
        return "unknown" if is_unknown else "well"

    def as_document(self) -> dict[str, Any]:
        """For ``--output json``."""
        return {
            "state": self.state,
            "parts": [
                {
                    "name": part.name,
                    "state": part.state,
                    "says": list(part.lines),
                    "figures": dict(part.figures),
                }
                for part in self.parts
            ],
            "services": self.services,
            "findings": [finding.as_document() for finding in self.findings],
            "moreFindings": self.more,
            "tooYoung": self.too_young,
            "notLookedAt": list(self.not_looked_at),
            "missingRights": list(self.missing_rights),
        }
