"""``sliceplane lint``: checks every Service."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sliceplane.cli.answers import Output
from sliceplane.cli.cluster import TargetCluster, cluster_command, note_unread
from sliceplane.cli.flags import switch
from sliceplane.cli.query.explain import explained, finish

if TYPE_CHECKING:
    from sliceplane.diagnose.explain.question import Explanation
    from sliceplane.watch.io.base import Client


@cluster_command(
    "lint",
    scope="all",
    examples=[
        ("every Service of the cluster", "sliceplane lint"),
        ("those of one namespace, in a pipeline", "sliceplane lint -n shop -o json"),
        ("with notes", "sliceplane lint --notes"),
    ],
)
@switch("--notes", "Include notes: what is configured so, and perhaps not as expected.")
def command(*, cluster: TargetCluster, notes: bool, output: Output) -> None:
    """Check every Service, and report what is wrong with it.

    Prints the findings of 'sliceplane explain', a row each, the most severe first; notes are only
    counted. Read-only (each list once), on any cluster, with the rights of the user. In one
    namespace at most 8 addresses in slices of other managers are looked up among all Pods.

    Exit code 0: nothing is wrong; 1: there are errors or warnings; 2: cannot tell (something could
    not be read, or is too young to judge), the output or stderr says why.
    """
    from sliceplane.diagnose.explain.question import ExplainQuestion
    from sliceplane.diagnose.explain.text import as_list

    question = ExplainQuestion("everything", namespace=cluster.namespace)

    async def work(client: Client, _: str) -> Explanation:
        return await explained(client, question)

    explanation = cluster.query(work)
    if explanation.is_blind:
        note_unread()
    finish(explanation, output, partial(as_list, notes=notes))
