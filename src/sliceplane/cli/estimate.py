"""``sliceplane estimate``: KEP-0752's estimation for any cluster, with the real sizes of our objects."""

from __future__ import annotations

from pathlib import Path

import click

from sliceplane.cli.answers import Form, output_option, rendered, screen_width, show
from sliceplane.cli.options import Command


@click.command("estimate", cls=Command, examples=[
    ("the sample cases of the KEP", "sliceplane estimate"),
    ("a Service of yours, and a picture", "sliceplane estimate --pods 3000 --nodes 200 --plot bytes.png"),
])  # fmt: skip
@click.option("--pods", type=click.IntRange(1, 10_000_000), metavar="P", help="Endpoints of the Service.")
@click.option("--nodes", type=click.IntRange(1, 1_000_000), metavar="N", help="Nodes, each of which watches.")
@click.option("--max-endpoints-per-slice", "--endpoints-per-slice", "endpoints_per_slice",
    type=click.IntRange(1, 1000), default=100, show_default=True, metavar="B",
    help="Endpoints that one EndpointSlice holds.")  # fmt: skip
@click.option("--hints", is_flag=True, help="Our objects carry a zone hint for every endpoint.")
@output_option
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Also draw the bytes on the wire into FILE (.png, .svg or .pdf; needs matplotlib).")  # fmt: skip
def command(
    *, pods: int | None, nodes: int | None, endpoints_per_slice: int, hints: bool, output: Form, plot: Path | None
) -> None:
    """Estimate what creating, updating and rolling a Service costs: writes, object sizes, watch events, bytes.

    With --pods and --nodes for that Service; without them for the two sample cases of KEP-0752, as the KEP has
    them.  Under the KEP's figures stand those of the objects that Sliceplane really writes.

    This reckons, for a Service that is not there yet.  What a change of one that is there would do is run, and not
    reckoned: 'sliceplane what-if'.
    """
    from sliceplane.estimate import kep, report
    from sliceplane.estimate.scale import Case

    if (pods is None) != (nodes is None):
        raise click.UsageError("--pods and --nodes go together; leave out both for the KEP's sample cases")
    if pods is None or nodes is None:
        if endpoints_per_slice != 100:
            raise click.UsageError("the KEP's sample cases have 100 endpoints per slice; add --pods and --nodes")
        cases = [sample.case for sample in kep.SAMPLES]
        text = report.kep_samples(hints=hints, width=screen_width())
    else:
        cases = [Case(pods=pods, nodes=nodes, per_slice=endpoints_per_slice)]
        text = report.custom(cases[0], hints=hints, width=screen_width())
    if plot is not None:
        from sliceplane.cli.estimate_plot import draw

        # First, so that a file that cannot be written is not told below pages of tables.
        draw(cases[0], plot, hints=hints)
    show(rendered(output, lambda: [report.as_document(case, hints=hints) for case in cases], lambda: text))
    if plot is not None:
        click.echo(f"picture: {plot}", err=True)
