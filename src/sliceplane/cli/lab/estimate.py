"""``sliceplane estimate``: what a Service costs that is not there yet; the small sister of
``what-if``.
"""

from __future__ import annotations

import click

from sliceplane.cli.answers import Output, output_option
from sliceplane.cli.flags import number, option, switch
from sliceplane.cli.options import Command


@click.command(
    "estimate",
    cls=Command,
    examples=[
        ("the second sample case of KEP-0752", "sliceplane estimate"),
        (
            "a Service of yours, whose clients keep to their zone",
            "sliceplane estimate --pods 3000 --nodes 200 --hints",
        ),
    ],
)
@option("--pods", "Endpoints of the Service.", 20, type=click.IntRange(1, 100_000), metavar="P")
@number("--nodes", "Nodes in three zones, each of which watches.", 10, least=1, most=10000)
@option(
    "--max-endpoints-per-slice --endpoints-per-slice per_slice",
    "Endpoints that one EndpointSlice holds.",
    100,
    type=click.IntRange(1, 1000),
    metavar="B",
)
@switch("--hints", "The Service has trafficDistribution PreferSameZone.")
@output_option
def command(*, pods: int, nodes: int, per_slice: int, hints: bool, output: Output) -> None:
    """Estimate what a Service costs that is not there yet: writes, watch events and bytes on the
    wire.

    Makes up a cluster, and runs the controllers of this version on virtual time: the Service is
    made, one of its Pods changes, it is rolled out. KEP-0752's section "Estimation" has the same
    three.

    Of a Service that is there: 'sliceplane what-if'.
    """
    from sliceplane.cli.progress import ProgressLine
    from sliceplane.lab.whatif.estimate import EstimateQuestion, as_document, as_text, estimate

    distribution = "PreferSameZone" if hints else ""
    question = EstimateQuestion(
        pods=pods, nodes=nodes, per_slice=per_slice, traffic_distribution=distribution
    )
    with ProgressLine() as report_progress:
        steps = estimate(question, report_progress)
    output.show(lambda: as_document(question, steps), lambda width: as_text(question, steps, width))
