"""``sliceplane up``: the whole plane in one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sliceplane.cli.serving import serve, serving_options

if TYPE_CHECKING:
    from sliceplane.shell.plane import PlaneConfig, Service


@click.command("up")
@serving_options
def command(
    bind_address: str,
    secure_port: int,
    data_dir: str,
    service_cluster_ip_range: tuple[str, ...],
    log_level: str,
) -> None:
    """Run the whole plane in one process.

    Prints one line, "ready URL kubeconfig=PATH", when it answers; stops cleanly on SIGINT and SIGTERM.
    """

    def config() -> PlaneConfig:
        from sliceplane.shell.plane import PlaneConfig

        return PlaneConfig(
            bind_address=bind_address,
            secure_port=secure_port,
            data_dir=data_dir,
            service_cidrs=service_cluster_ip_range,
        )

    def services() -> tuple[Service, ...]:
        return ()

    serve(config, services, log_level=log_level)
