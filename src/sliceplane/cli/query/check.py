"""``sliceplane check``: a first look at a cluster, on one screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sliceplane.cli.answers import Output
from sliceplane.cli.cluster import TargetCluster, cluster_command, note_unread
from sliceplane.cli.query.status import EXIT_CODES

if TYPE_CHECKING:
    from sliceplane.diagnose.explain.overview import Overview
    from sliceplane.watch.io.http.client import HttpClient


@cluster_command(
    "check",
    scope="all",
    examples=[
        ("a cluster that you see for the first time", "sliceplane check"),
        ("one namespace, for a program", "sliceplane check -n shop -o json"),
    ],
)
def command(*, cluster: TargetCluster, output: Output) -> None:
    """Check a cluster, and report on one screen what is wrong, what is risky, and what is unknown.

    Wrong are the errors of 'sliceplane lint'. Risky are its warnings and notes, one line for each
    code: Pods that end before nodes know, zones without endpoints, hints that nodes do not follow,
    users of Endpoints. Unknown is what you may not read, and the Nodes that report no progress; the
    report prints the command that helps. Read-only (each list once), on any cluster.

    Exit code, as of 'sliceplane status': 0: nothing but notes; 1: something needs attention; 2: cannot
    tell (something could not be read, or is too young to judge), the output or stderr says why.
    """
    import time

    from sliceplane.diagnose.explain.overview import overview, overview_text
    from sliceplane.diagnose.io.status import read_status

    async def work(client: HttpClient, _: str) -> Overview:
        return overview(await read_status(client, cluster.namespace, time.time))

    report = cluster.query(work)
    if report.status.is_blind:
        note_unread()
    output.show(report.as_document, lambda width: overview_text(report, width))
    raise SystemExit(EXIT_CODES[report.status.state])
