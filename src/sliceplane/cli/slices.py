"""Flags of the EndpointSlice controller that go beyond upstream's: which nodes slices are for, and merging them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict

import click

from sliceplane.api.gates import TOPOLOGY_AWARE_SUBSETTING, Gates

if TYPE_CHECKING:
    from sliceplane.slices.subsets import Subsetting


class SlicePolicy(TypedDict):
    """Arguments of ``controllers.endpointslice.EndpointSliceConfig``."""

    subsetting: Subsetting | None
    claim_unlabelled_slices: bool
    defragment: bool
    defragment_writes_per_minute: int


def slice_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(
        (
            click.option(
                "--subsetting",
                type=click.Choice(("Original", "PreferZone", "RequireZone")),
                help="Slices for the nodes of one zone, where the Service does not say.  [default: Original]",
            ),
            click.option("--defragment", is_flag=True, help="Merge under-filled slices while their Service is quiet."),
            click.option(
                "--defragment-writes-per-minute",
                type=click.IntRange(min=1),
                help="How much --defragment writes at most.  [default: 10]",
            ),
            click.option(
                "--claim-unlabelled-slices",
                is_flag=True,
                help="Take over slices of 1.16, which no label says who manages.",
            ),
        )
    ):
        command = option(command)
    return command


def check_slice_options(flags: dict[str, Any], gates: Gates) -> None:
    """Raises ``click.UsageError`` for flags that contradict each other."""
    if flags["subsetting"] is not None and gates.chosen.get(TOPOLOGY_AWARE_SUBSETTING) is False:
        raise click.UsageError(f"--subsetting contradicts --feature-gates {TOPOLOGY_AWARE_SUBSETTING}=false")

    if flags["defragment_writes_per_minute"] is not None and not flags["defragment"]:
        raise click.UsageError("--defragment-writes-per-minute bounds --defragment; add it")


def slice_policy(flags: dict[str, Any]) -> SlicePolicy:
    """What the flags say."""
    from sliceplane.controllers.defragment import WRITES_PER_MINUTE_DEFAULT
    from sliceplane.slices.subsets import APPROACHES

    return SlicePolicy(
        subsetting=None if flags["subsetting"] is None else APPROACHES[flags["subsetting"]],
        claim_unlabelled_slices=flags["claim_unlabelled_slices"],
        defragment=flags["defragment"],
        defragment_writes_per_minute=flags["defragment_writes_per_minute"] or WRITES_PER_MINUTE_DEFAULT,
    )
