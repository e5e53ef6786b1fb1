"""``sliceplane apiserver``: the API server alone, with upstream's flag names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sliceplane.cli.serving import AddressType, audit_config, gates_of, serve, serving_options

if TYPE_CHECKING:
    from sliceplane.api.scheme import Resource
    from sliceplane.registry.config import TopologyStorage
    from sliceplane.shell.plane import PlaneConfig

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("apiserver")
@serving_options
@click.option("--advertise-address", type=AddressType(), default=None, help="IP that default/kubernetes leads to.")
@click.option("--token-auth-file", type=_FILE, help="Static tokens (CSV: token,user,uid,groups) instead of our own.")
@click.option("--client-ca-file", type=_FILE, help="Further authorities (PEM) whose client certificates are trusted.")
@click.option("--max-requests-inflight", type=click.IntRange(1), default=400, show_default=True)
@click.option("--max-mutating-requests-inflight", type=click.IntRange(1), default=200, show_default=True)
def command(
    *,
    bind_address: str,
    secure_port: int,
    data_dir: str,
    service_cluster_ip_range: tuple[str, ...],
    audit_log_path: Path | None,
    audit_log_maxsize: int,
    audit_log_maxbackup: int,
    runtime_config: tuple[Resource, ...],
    topology_storage: TopologyStorage,
    feature_gates: str,
    emulated_version: str,
    log_level: str,
    advertise_address: str | None,
    token_auth_file: Path | None,
    client_ca_file: Path | None,
    max_requests_inflight: int,
    max_mutating_requests_inflight: int,
) -> None:
    """Run the API server alone.

    Prints one line, "ready URL kubeconfig=PATH", when it answers; stops cleanly on SIGINT and SIGTERM.
    """
    gates = gates_of(feature_gates, emulated_version)

    def config() -> PlaneConfig:
        from sliceplane.shell.apiserver.limits import Limits
        from sliceplane.shell.plane import PlaneConfig

        return PlaneConfig(
            bind_address=bind_address,
            secure_port=secure_port,
            data_dir=data_dir,
            service_cidrs=service_cluster_ip_range,
            audit=audit_config(audit_log_path, audit_log_maxsize, audit_log_maxbackup),
            served=runtime_config,
            topology_storage=topology_storage,
            gates=gates,
            advertise_address=advertise_address or "",
            token_auth_file=token_auth_file,
            client_ca_file=client_ca_file,
            limits=Limits(reads_max=max_requests_inflight, writes_max=max_mutating_requests_inflight),
        )

    serve(config, lambda: (), log_level=log_level)
