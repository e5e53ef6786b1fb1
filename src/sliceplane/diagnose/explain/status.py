"""``sliceplane status``: one screen about a cluster. Each part is well, needs attention, or is
unknown, which is never the same as well.

Parts are in the order of their dependencies: servers, storage, controllers, queues, relays (if any
report), nodes, consumers. The worst findings of ``lint`` follow. ``status_parts`` decides, ``text`` prints.
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
    """``why``: the reason if the page is unavailable; ``status``: the HTTP status of the answer, 0
    for none.
    """

    text: str = ""
    why: str = ""
    status: int = 200


class StatusFacts(msgspec.Struct, frozen=True):
    """``leases`` by namespace, and ``nodes``: a sentence if they could not be read."""

    server: str
    now: float
    version: ReadPage
    readyz: ReadPage
    metrics: ReadPage
    leases: Mapping[str, tuple[Lease, ...] | str]
    nodes: tuple[Node, ...] | str
    lint: Explanation


class Part(msgspec.Struct, frozen=True):
    """``lines``: for people; ``figures``: the same for programs; ``unread``: a phrase for each
    failed read. ``table``: lines below, of at most 78 columns, which are not wrapped.
    """

    name: str
    state: State
    lines: tuple[str, ...]
    figures: Mapping[str, Any]
    unread: tuple[str, ...] = ()
    table: tuple[str, ...] = ()

    @property
    def is_absent(self) -> bool:
        """Returns True if the cluster does without such a part, so that no screen names it."""
        return self.state == "well" and not self.lines


class PlaneStatus(msgspec.Struct, frozen=True):
    """``parts`` are in the order of the screen. ``findings``: the worst; ``more``: the number of
    others. ``too_young``: the number of all these that may become errors.
    """

    parts: tuple[Part, ...]
    findings: tuple[Finding, ...]
    more: int
    too_young: int
    services: int
    is_blind: bool
    unchecked: tuple[str, ...]
    missing_rights: tuple[str, ...]

    @property
    def state(self) -> State:
        judged = [finding for finding in self.findings if finding.too_young is None]
        if judged or any(part.state == "attention" for part in self.parts):
            return "attention"
        # Not well if the server's readiness or Services are unknown, the reader lacks a right, or a
        # fault is too young to judge. Not every server has the other parts.
        is_unknown = self.is_blind or self.missing_rights or self.findings
        return "unknown" if is_unknown or self.parts[0].state == "unknown" else "well"

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
            "notLookedAt": list(self.unchecked),
            "missingRights": list(self.missing_rights),
        }
