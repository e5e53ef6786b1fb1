"""Flags of the controllers that make EndpointSlices and Endpoints, shared by ``up`` and
``controllers``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sliceplane.api.gates import TOPOLOGY_AWARE_SUBSETTING, Gates
from sliceplane.cli.options import with_options
from sliceplane.cli.values import DurationType

if TYPE_CHECKING:
    from sliceplane.controllers.io.catalogue import DiscoveryConfig
    from sliceplane.slices.heuristics.asking import Find

#: upstream's flags of those controllers
discovery_options = with_options(
    click.option(
        "--max-endpoints-per-slice",
        type=click.IntRange(1, 1000),
        default=100,
        show_default=True,
        help="Endpoints that are put into one slice.",
    ),
    click.option(
        "--concurrent-service-endpoint-syncs",
        type=click.IntRange(1, 50),
        default=5,
        show_default=True,
        help="Services whose slices are written side by side.",
    ),
    click.option(
        "--endpointslice-updates-batch-period",
        type=DurationType(),
        default="0s",
        show_default=True,
        help="How long changes of Pods are gathered before slices are written.",
    ),
    click.option(
        "--concurrent-endpoint-syncs",
        type=click.IntRange(1),
        default=5,
        show_default=True,
        help="Endpoints that are written side by side.",
    ),
    click.option(
        "--endpoint-updates-batch-period",
        type=DurationType(),
        default="0s",
        show_default=True,
        help="How long changes of Pods are gathered before Endpoints are written.",
    ),
    click.option(
        "--mirroring-concurrent-service-endpoint-syncs",
        type=click.IntRange(1, 50),
        default=5,
        show_default=True,
        help="Endpoints that are mirrored side by side.",
    ),
    click.option(
        "--mirroring-max-endpoints-per-subset",
        type=click.IntRange(1, 1000),
        default=1000,
        show_default=True,
        help="Addresses of one subset that are mirrored.",
    ),
    click.option(
        "--mirroring-max-endpoints-per-slice",
        type=click.IntRange(1, 1000),
        default=None,
        help="Pack mirrored slices so; upstream cannot.  [default: all of a subset in one]",
    ),
    click.option(
        "--mirroring-endpointslice-updates-batch-period",
        type=DurationType(),
        default="0s",
        show_default=True,
        help="How long changes of mirrored slices are gathered before they are put right.",
    ),
    click.option(
        "--selector-changes",
        type=click.Choice(("hand-over", "upstream")),
        default="hand-over",
        show_default=True,
        help="What becomes of slices and Endpoints when a Service gets or loses its selector.",
    ),
)

#: what the EndpointSlice controller can do beyond upstream's
slice_options = with_options(
    click.option(
        "--subsetting",
        type=click.Choice(("Original", "PreferZone", "RequireZone")),
        help=(
            "Slices for the nodes of one zone, where the Service does not say.  [default: Original]"
        ),
    ),
    click.option(
        "--hold-mass-removals",
        is_flag=True,
        help=(
            "Keep endpoints for five minutes that are lost in great number although no Pod says "
            "that it goes."
        ),
    ),
    click.option(
        "--probe-held-endpoints",
        is_flag=True,
        help=(
            "Try a TCP connection to each endpoint that is so kept, each minute; one that is "
            "refused goes."
        ),
    ),
    click.option(
        "--defragment", is_flag=True, help="Merge under-filled slices while their Service is quiet."
    ),
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


def check_slice_options(flags: dict[str, Any], gates: Gates) -> None:
    """Raises ``click.UsageError`` for flags that contradict each other."""
    if flags["subsetting"] is not None and gates.chosen.get(TOPOLOGY_AWARE_SUBSETTING) is False:
        raise click.UsageError(
            f"--subsetting contradicts --feature-gates {TOPOLOGY_AWARE_SUBSETTING}=false"
        )
    if flags["defragment_writes_per_minute"] is not None and not flags["defragment"]:
        raise click.UsageError("--defragment-writes-per-minute bounds --defragment; add it")


def discovery_config(flags: dict[str, Any], gates: Gates, find_heuristic: Find) -> DiscoveryConfig:
    """What *flags* (among others the values of ``discovery_options`` and ``slice_options``) ask
    for.
    """
    from sliceplane.controllers.defragment import WRITES_PER_MINUTE_DEFAULT
    from sliceplane.controllers.endpoints import EndpointsConfig
    from sliceplane.controllers.endpointslice import EndpointSliceConfig
    from sliceplane.controllers.endpointslice_mirroring import MirroringConfig
    from sliceplane.controllers.io.catalogue import DiscoveryConfig
    from sliceplane.slices.subsets import APPROACHES
    from sliceplane.slices.succession import SelectorChanges

    changes = SelectorChanges(flags["selector_changes"])
    return DiscoveryConfig(
        slices=EndpointSliceConfig(
            max_endpoints_per_slice=flags["max_endpoints_per_slice"],
            concurrent_service_endpoint_syncs=flags["concurrent_service_endpoint_syncs"],
            endpointslice_updates_batch_period_s=flags["endpointslice_updates_batch_period"],
            selector_changes=changes,
            gates=gates,
            find_heuristic=find_heuristic,
            subsetting=None if flags["subsetting"] is None else APPROACHES[flags["subsetting"]],
            claim_unlabelled_slices=flags["claim_unlabelled_slices"],
            hold_mass_removals=flags["hold_mass_removals"],
            probe_held=flags["probe_held_endpoints"],
            defragment=flags["defragment"],
            defragment_writes_per_minute=flags["defragment_writes_per_minute"]
            or WRITES_PER_MINUTE_DEFAULT,
        ),
        endpoints=EndpointsConfig(
            concurrent_endpoint_syncs=flags["concurrent_endpoint_syncs"],
            endpoint_updates_batch_period_s=flags["endpoint_updates_batch_period"],
            selector_changes=changes,
            gates=gates,
        ),
        mirroring=MirroringConfig(
            concurrent_service_endpoint_syncs=flags["mirroring_concurrent_service_endpoint_syncs"],
            max_endpoints_per_subset=flags["mirroring_max_endpoints_per_subset"],
            max_endpoints_per_slice=flags["mirroring_max_endpoints_per_slice"],
            endpointslice_updates_batch_period_s=flags[
                "mirroring_endpointslice_updates_batch_period"
            ],
            selector_changes=changes,
        ),
    )
