"""``sliceplane endpoints``: the migration away from the Endpoints API."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sliceplane.cli.answers import BAD, GOOD, Output
from sliceplane.cli.cluster import TargetCluster, cluster_command
from sliceplane.cli.flags import FILE, duration, option
from sliceplane.cli.options import CommandGroup

if TYPE_CHECKING:
    from sliceplane.diagnose.audit.verdict import Report
    from sliceplane.watch.io.base import Client


@click.group(
    "endpoints",
    cls=CommandGroup,
    examples=[
        ("can the Endpoints controller be switched off?", "sliceplane endpoints audit"),
    ],
)
def command() -> None:
    """Find what still depends on the Endpoints API, and what is wrong with its objects."""


@cluster_command(
    "audit",
    parent=command,
    scope="all",
    short_help="Report what depends on it, and whether it can be switched off.",
    examples=[
        ("the whole cluster", "sliceplane endpoints audit"),
        (
            "one namespace, with the readers of an audit log",
            "sliceplane endpoints audit -n shop --audit-log audit.log",
        ),
    ],
)
@option(
    "--audit-log audit_logs",
    "The server's audit log, which names readers; can be repeated.",
    type=FILE,
    multiple=True,
)
@duration(
    "--second-look recheck",
    "When to check a difference again that may be a change under way.",
    "5s",
)
def audit(
    *, cluster: TargetCluster, audit_logs: tuple[Path, ...], recheck: float, output: Output
) -> None:
    """Reports the writers and readers of Endpoints, wrong objects, and if the Endpoints controller
    can be switched off.

    Read-only (get and list of Services, Endpoints and EndpointSlices), on any cluster. The last
    line is the verdict; for one namespace it covers that namespace only.

    Exit code 0: safe; 1: not safe, the line has the reason; 2: cannot tell.
    """
    from sliceplane.diagnose.audit.text import as_text

    async def work(client: Client, _: str) -> Report:
        return await _audit(client, cluster.namespace, audit_logs, recheck)

    report = cluster.query(work, _CannotAudit)
    output.show(report.as_document, lambda width: as_text(report, width))
    raise SystemExit(GOOD if report.safe else BAD)


class _CannotAudit(Exception):
    """A sentence."""


async def _audit(
    client: Client, namespace: str, audit_logs: tuple[Path, ...], recheck_s: float
) -> Report:
    from sliceplane.diagnose.io.endpoints_audit import audit as audit_cluster
    from sliceplane.diagnose.io.endpoints_audit import read_log

    log = None
    try:
        if audit_logs:
            log = await read_log(audit_logs)
    except OSError as error:
        raise _CannotAudit(f"audit log {error.filename}: {error.strerror}") from error
    if log is not None and log.lines == log.unreadable:
        raise _CannotAudit(
            f"audit log {audit_logs[0]}: none of its {log.lines:,} lines is an audit event"
        )
    return await audit_cluster(client, namespace, log=log, recheck_delay_s=recheck_s)
