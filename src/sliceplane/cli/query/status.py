"""``sliceplane status``: the cluster on one screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sliceplane.cli.answers import BAD, GOOD, NO_ANSWER, Output
from sliceplane.cli.cluster import TargetCluster, cluster_command, note_unread, show_read

if TYPE_CHECKING:
    from sliceplane.diagnose.explain.status import PlaneStatus
    from sliceplane.watch.io.http.client import HttpClient

EXIT_CODES = {"well": GOOD, "attention": BAD, "unknown": NO_ANSWER}


@cluster_command(
    "status",
    scope="all",
    watch=True,
    examples=[
        ("is anything wrong at all?", "sliceplane status"),
        ("one namespace, for a program", "sliceplane status -n shop -o json"),
        ("while something is rolled out", "sliceplane status --watch"),
    ],
)
def command(*, cluster: TargetCluster, watch: bool, output: Output) -> None:
    """Show the cluster on one screen: servers, storage, controllers, queues, nodes, watches, and what
    needs attention.

    A part that is marked '!' needs attention, one marked '?' could not be read. Then come the most
    severe findings of 'sliceplane lint', at most five. Read-only, on any cluster, with the rights
    of the user; other API servers do not show all parts.

    Exit code 0: all is well; 1: something needs attention; 2: cannot tell (something could not be
    read, or is too young to judge), the output or stderr says why.
    """
    import time

    from sliceplane.diagnose.explain.status_parts import status as status_of
    from sliceplane.diagnose.explain.text import status_as_text
    from sliceplane.diagnose.io.status import read_status

    def text(status: PlaneStatus) -> str:
        return output.rendered(status.as_document, lambda width: status_as_text(status, width))

    async def read(client: HttpClient) -> PlaneStatus:
        return status_of(await read_status(client, cluster.namespace, time.time))

    status = show_read(cluster, read, text, text, watch=watch)
    if status is not None and status.is_blind:
        note_unread()
    raise SystemExit(NO_ANSWER if status is None else EXIT_CODES[status.state])
