"""The report: findings, writers, clients, and the verdict if the Endpoints controller may be
switched off, with the reasons.

A client is a reason against it if it reads Endpoints of that controller: by name, or with all
others of a namespace. A client that reads its own lock, or objects that it writes itself, is not.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from sliceplane.api.findings.finding import Finding
from sliceplane.diagnose.audit.audit import Auditor, WriterRow
from sliceplane.diagnose.audit.judge import HARMLESS
from sliceplane.diagnose.audit.usage import AuditLogUsage, EndpointsClient

QUESTION: Final = "safe to switch the Endpoints controller off"


class ClientRow(msgspec.Struct, frozen=True):
    """``concerned``: the client reads Endpoints of the Endpoints controller. ``reads``: a phrase
    about the objects that it reads.
    """

    client: EndpointsClient
    concerned: bool
    reads: str


class Report(msgspec.Struct, frozen=True):
    """``log`` None: no audit log was given. ``reasons``: why it is not safe; empty if no reason is
    known. ``namespace``: the only one that was read; "": all.
    """

    counts: dict[str, int]
    unreadable: dict[str, int]
    findings: tuple[Finding, ...]
    writers: tuple[WriterRow, ...]
    clients: tuple[ClientRow, ...]
    log: AuditLogUsage | None
    reasons: tuple[str, ...]
    namespace: str = ""

    @property
    def safe(self) -> bool:
        return not self.reasons

    @property
    def verdict(self) -> str:
        """One line."""
        asked = f"{QUESTION} for namespace {self.namespace}" if self.namespace else QUESTION
        if self.reasons:
            return f"{asked}: no, because {_joined(self.reasons)}"
        if self.log is None:
            return f"{asked}: yes, judged by the objects; only an audit log shows who reads them"
        return (
            f"{asked}: yes, no client that depends on it was seen from {self.log.begins} to "
            f"{self.log.ends}"
        )

    def as_document(self) -> dict[str, Any]:
        """For ``--output json``."""
        log = self.log
        return {
            "safe": self.safe,
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "read": self.counts,
            "unreadable": self.unreadable,
            "findings": [
                {**finding.as_document(), "blocks": finding.code not in HARMLESS}
                for finding in self.findings
            ],
            "writers": [
                {
                    "manager": row.manager,
                    "endpointsOfSelectors": row.selecting,
                    "otherEndpoints": row.others,
                    "locks": row.locks,
                    "endpointSlices": row.slices,
                    "lastWrite": row.last,
                }
                for row in self.writers
            ],
            "auditLog": None
            if log is None
            else {
                "lines": log.lines,
                "unreadable": log.unreadable,
                "begins": log.begins,
                "ends": log.ends,
                "uncountedRequests": log.overflow,
            },
            "clients": [
                {
                    "user": row.client.user,
                    "program": row.client.agent,
                    "dependsOnController": row.concerned,
                    "reads": row.reads,
                    "requests": dict(sorted(row.client.requests.items())),
                    "lastRequest": row.client.last,
                }
                for row in self.clients
            ],
        }


def report(
    auditor: Auditor,
    findings: tuple[Finding, ...],
    log: AuditLogUsage | None,
    namespace: str = "",
) -> Report:
    """*findings*: the confirmed ones of *auditor*, who saw *namespace* alone ("": all)."""
    clients = tuple(
        _client_row(auditor, client) for client in (log.clients if log is not None else ())
    )
    return Report(
        counts=auditor.counts,
        unreadable=dict(sorted(auditor.unreadable.items())),
        findings=findings,
        writers=auditor.writers(),
        clients=clients,
        log=log,
        reasons=tuple(_reasons(auditor, findings, clients, log)),
        namespace=namespace,
    )


def _client_row(auditor: Auditor, client: EndpointsClient) -> ClientRow:
    own = sorted(key for key in client.objects if not auditor.is_lock(key))
    concerned = (
        any(auditor.needs_controller(key) for key in own)
        or bool(client.namespaces & auditor.namespaces_in_need())
        or ((client.everywhere or client.more_objects) and bool(auditor.namespaces_in_need()))
    )
    if client.everywhere:
        reads = "all namespaces"
    elif client.namespaces:
        names = sorted(client.namespaces)
        reads = f"namespace {names[0]}" if len(names) == 1 else f"{len(names)} namespaces"
    elif client.more_objects or len(client.objects) > 1:
        reads = f"{len(client.objects)}{'+' if client.more_objects else ''} objects"
    else:
        reads = next(iter(client.objects), "nothing")
    return ClientRow(client, concerned, reads)


def _reasons(
    auditor: Auditor,
    findings: tuple[Finding, ...],
    clients: tuple[ClientRow, ...],
    log: AuditLogUsage | None,
) -> list[str]:
    reasons = []
    readers = sum(client.concerned for client in clients)
    if readers:
        reasons.append(
            "1 client reads Endpoints" if readers == 1 else f"{readers:,} clients read Endpoints"
        )
    if log is not None and log.overflow:
        reasons.append("there are more clients than the audit counts")
    against = [finding.code for finding in findings if finding.code not in HARMLESS]
    if against:
        codes = ", ".join(dict.fromkeys(against))
        number = len(against)
        reasons.append(
            f"{'1 finding is' if number == 1 else f'{number:,} findings are'} against it ({codes})"
        )
    unreadable = sum(auditor.unreadable.values())
    if unreadable:
        reasons.append(
            "1 object could not be read"
            if unreadable == 1
            else f"{unreadable:,} objects could not be read"
        )
    return reasons


def _joined(parts: tuple[str, ...]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
