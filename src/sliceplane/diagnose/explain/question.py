"""The query of a user (why does this not work, seen from where), and the answer as data."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from sliceplane.api.findings.finding import Finding

QuestionKind = Literal["service", "pod", "node", "zone", "everything"]


class ClientReference(msgspec.Struct, frozen=True):
    """``--from``: a Pod (``namespace`` and ``name``), a Node, a zone, or an address outside the
    cluster.
    """

    kind: Literal["pod", "node", "zone", "address"]
    name: str
    namespace: str = ""

    def __str__(self) -> str:
        """Returns the text for the command line."""
        if self.kind == "address":
            return self.name
        return (
            f"{self.kind}/{self.namespace}/{self.name}"
            if self.namespace
            else f"{self.kind}/{self.name}"
        )


class ExplainQuestion(msgspec.Struct, frozen=True):
    """``port``: a number or a name that clients dial, "" for all; ``protocol``: "" for those of the
    Service.

    ``everything`` is the query of ``lint``: every Service of ``namespace``, "" for all.
    """

    kind: QuestionKind
    name: str = ""
    namespace: str = ""
    port: str = ""
    protocol: str = ""
    client: ClientReference | None = None

    @property
    def is_of_cluster(self) -> bool:
        """Returns True for all Services of all namespaces."""
        return self.kind == "everything" and not self.namespace

    def __str__(self) -> str:
        if self.kind == "everything":
            return f"every Service of {self.namespace}" if self.namespace else "every Service"
        name = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{self.kind} {name}"


class Explanation(msgspec.Struct, frozen=True):
    """``findings`` are sorted: the first is the cause, unless it is a note. ``well``: links without
    findings whose reads succeeded. ``summary``: a sentence about the state of the object, "":
    unknown. ``unchecked``: a phrase for each unchecked link, with the reason.
    ``missing_rights``: "VERB RESOURCE" that the server refused to the reader. ``services``: number
    of Services checked. ``is_blind``: too little could be read for a verdict.
    """

    question: ExplainQuestion
    findings: tuple[Finding, ...]
    summary: str
    well: tuple[str, ...]
    unchecked: tuple[str, ...]
    missing_rights: tuple[str, ...]
    services: int
    is_blind: bool

    @property
    def cause(self) -> Finding | None:
        first = self.findings[0] if self.findings else None
        return first if first is not None and first.severity != "note" else None

    @property
    def too_young(self) -> tuple[Finding, ...]:
        """The findings that may become errors."""
        return tuple(finding for finding in self.findings if finding.too_young is not None)

    def as_document(self) -> dict[str, Any]:
        """For ``--output json``."""
        cause = self.cause
        return {
            "question": str(self.question),
            "cause": cause.code if cause is not None else "",
            "tooYoung": len(self.too_young),
            "story": self.summary,
            "services": self.services,
            "findings": [finding.as_document() for finding in self.findings],
            "well": list(self.well),
            "notLookedAt": list(self.unchecked),
            "missingRights": list(self.missing_rights),
        }
