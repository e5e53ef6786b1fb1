"""``sliceplane apiserver``: the API server alone, with upstream's flag names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sliceplane.cli.access import with_access
from sliceplane.cli.etcd import with_etcd
from sliceplane.cli.logs import Logs
from sliceplane.cli.options import Command
from sliceplane.cli.serving import audit_config, gates_of, serve, serving_options

if TYPE_CHECKING:
    from sliceplane.api.scheme import Resource
    from sliceplane.registry.config import TopologyStorage
    from sliceplane.shell.server.plane import PlaneConfig


@click.command("apiserver", cls=Command)
@serving_options
def command(
    *,
    bind_address: str,
    secure_port: int,
    data_dir: str,
    service_cluster_ip_range: tuple[str, ...],
    history_keep: float,
    audit_log_path: Path | None,
    audit_log_maxsize: int,
    audit_log_maxbackup: int,
    runtime_config: tuple[Resource, ...],
    topology_storage: TopologyStorage,
    feature_gates: str,
    emulated_version: str,
    logs: Logs,
    **flags: Any,
) -> None:
    """Run the API server alone.

    Prints one line, "ready URL kubeconfig=PATH", when it answers; stops cleanly on SIGINT and SIGTERM.
    """
    gates = gates_of(feature_gates, emulated_version)

    def config() -> PlaneConfig:
        from sliceplane.shell.server.plane import PlaneConfig

        plane = PlaneConfig(
            bind_address=bind_address,
            secure_port=secure_port,
            data_dir=data_dir,
            service_cidrs=service_cluster_ip_range,
            history_keep_s=history_keep,
            audit=audit_config(audit_log_path, audit_log_maxsize, audit_log_maxbackup),
            served=runtime_config,
            topology_storage=topology_storage,
            gates=gates,
        )
        return with_etcd(with_access(plane, flags), flags)

    serve(config, lambda: (), logs=logs)
