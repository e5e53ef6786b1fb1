"""``sliceplane up``: the whole plane in one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sliceplane.cli.emulation import emulation_config, emulation_options
from sliceplane.cli.serving import serve, serving_options

if TYPE_CHECKING:
    from sliceplane.shell.plane import PlaneConfig, Service


@click.command("up")
@serving_options
@click.option(
    "--max-endpoints-per-slice",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    help="Endpoints that the EndpointSlice controller puts into one slice.",
)
@click.option(
    "--endpointslice-updates-batch-period",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="How long changes of Pods are gathered before slices are written.",
)
@emulation_options
def command(
    *,
    bind_address: str,
    secure_port: int,
    data_dir: str,
    service_cluster_ip_range: tuple[str, ...],
    log_level: str,
    max_endpoints_per_slice: int,
    endpointslice_updates_batch_period: float,
    **emulation: Any,
) -> None:
    """Run the whole plane in one process: API server, controllers and, with --emulate, workloads.

    Prints one line, "ready URL kubeconfig=PATH", when it answers; stops cleanly on SIGINT and SIGTERM.
    """
    emulated = emulation_config(emulation)

    def config() -> PlaneConfig:
        from sliceplane.shell.plane import PlaneConfig

        return PlaneConfig(
            bind_address=bind_address,
            secure_port=secure_port,
            data_dir=data_dir,
            service_cidrs=service_cluster_ip_range,
        )

    def services() -> tuple[Service, ...]:
        from sliceplane.controllers.endpointslice import EndpointSliceConfig
        from sliceplane.shell.controllers import ControllerService, default_controllers, emulation_controllers

        slices = EndpointSliceConfig(
            max_endpoints_per_slice=max_endpoints_per_slice,
            endpointslice_updates_batch_period_s=endpointslice_updates_batch_period,
        )
        entries = default_controllers(slices)
        if emulated is not None:
            entries += emulation_controllers(emulated)
        return (ControllerService(entries),)

    serve(config, services, log_level=log_level)
