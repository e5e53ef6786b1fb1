"""Flags of the controllers that make EndpointSlices and Endpoints, shared by ``up`` and ``controllers``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from sliceplane.cli.slices import slice_policy
from sliceplane.cli.values import DurationType

if TYPE_CHECKING:
    from sliceplane.api.gates import Gates
    from sliceplane.heuristics.asking import Find
    from sliceplane.shell.hosting.catalogue import DiscoveryConfig

_SECTIONS: tuple[Callable[[Callable[..., Any]], Callable[..., Any]], ...] = (
    click.option("--max-endpoints-per-slice", type=click.IntRange(1, 1000), default=100, show_default=True,
        help="Endpoints that are put into one slice."),
    click.option("--concurrent-service-endpoint-syncs", type=click.IntRange(1, 50), default=5, show_default=True,
        help="Services whose slices are written side by side."),
    click.option("--endpointslice-updates-batch-period", type=DurationType(), default="0s", show_default=True,
        help="How long changes of Pods are gathered before slices are written."),
    click.option("--concurrent-endpoint-syncs", type=click.IntRange(1), default=5, show_default=True,
        help="Endpoints that are written side by side."),
    click.option("--endpoint-updates-batch-period", type=DurationType(), default="0s", show_default=True,
        help="How long changes of Pods are gathered before Endpoints are written."),
    click.option("--mirroring-concurrent-service-endpoint-syncs", type=click.IntRange(1, 50), default=5,
        show_default=True, help="Endpoints that are mirrored side by side."),
    click.option("--mirroring-max-endpoints-per-subset", type=click.IntRange(1, 1000), default=1000, show_default=True,
        help="Addresses of one subset that are mirrored."),
    click.option("--mirroring-max-endpoints-per-slice", type=click.IntRange(1, 1000), default=None,
        help="Pack mirrored slices so; upstream cannot.  [default: all of a subset in one]"),
    click.option("--mirroring-endpointslice-updates-batch-period", type=DurationType(), default="0s",
        show_default=True, help="How long changes of mirrored slices are gathered before they are put right."),
    click.option("--selector-changes", type=click.Choice(("hand-over", "upstream")), default="hand-over",
        show_default=True, help="What becomes of slices and Endpoints when a Service gets or loses its selector."),
)  # fmt: skip


def discovery_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_SECTIONS):
        command = option(command)
    return command


def discovery_config(flags: dict[str, Any], gates: Gates, find_heuristic: Find) -> DiscoveryConfig:
    """What *flags* (among others the values of ``discovery_options`` and ``slice_options``) ask for."""
    from sliceplane.controllers.endpoints import EndpointsConfig
    from sliceplane.controllers.endpointslice import EndpointSliceConfig
    from sliceplane.controllers.endpointslice_mirroring import MirroringConfig
    from sliceplane.shell.hosting.catalogue import DiscoveryConfig
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
            **slice_policy(flags),
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
            endpointslice_updates_batch_period_s=flags["mirroring_endpointslice_updates_batch_period"],
            selector_changes=changes,
        ),
    )
