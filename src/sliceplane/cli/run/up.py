"""``sliceplane up``: the whole plane in one process."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from sliceplane.cli.flags import (
    EXISTING_FILE,
    FILE,
    boolean,
    choice,
    duration,
    number,
    option,
    string,
    switch,
    with_options,
)
from sliceplane.cli.logs import Logs
from sliceplane.cli.options import Command
from sliceplane.cli.run.flags.controllers import (
    ALL,
    check_slice_options,
    choose,
    controllers_option,
    discovery_config,
    discovery_options,
    slice_options,
)
from sliceplane.cli.run.flags.proxy import drain_port_option
from sliceplane.cli.run.serving import gates_of, plane_config, serve, serving_options
from sliceplane.cli.values import LISTEN, flags_used

if TYPE_CHECKING:
    from sliceplane.api.gates import Gates
    from sliceplane.emulation.nodes import EmulatedNode, EmulationConfig
    from sliceplane.node.configuration.settings import ProxySettings
    from sliceplane.watch.io.hosting.host import ControllerEntry
    from sliceplane.watch.io.service import PlaneService

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
#: what says how to emulate, and so nothing without ``--emulate``
_COMPANIONS = (
    *("emulate_file", "zones", "emulate_nodes", "emulate_ready_delay"),
    *("emulate_termination", "emulate_readiness"),
)


#: ``--emulate`` and its companions; they reach the command as one dictionary, for
#: ``emulation_config``
emulation_options = with_options(
    switch("--emulate", "Emulate kubelets: workloads become Pods on Nodes."),
    number("--emulate-nodes", "How many Nodes, named node-1, node-2, ...", 1, least=1, most=250),
    string("--zones", "ZONE,ZONE", "Zones that the Nodes are spread over in turn."),
    option(
        "--emulate-file",
        "YAML list of Nodes: name, zone, region, labels, podCIDRs, address.",
        type=EXISTING_FILE,
    ),
    duration("--emulate-ready-delay", "Time from a Pod's start until it is ready.", "0s"),
    duration(
        "--emulate-termination",
        "How long a deleted Pod lives on at most; its own grace period if that is shorter.",
        "2s",
    ),
    choice(
        "--emulate-readiness",
        "external: a Pod is ready when it is annotated emulation.sliceplane.dev/ready=true.",
        ("auto", "external"),
        "auto",
    ),
)


def emulation_config(flags: dict[str, Any]) -> EmulationConfig | None:
    """Returns the emulation from *flags* (the values of ``emulation_options``); ``None`` without
    ``--emulate``.

    Raises ``click.UsageError`` for flags that contradict each other or a file that cannot be used.
    """
    if not flags["emulate"]:
        for flag in flags_used(_COMPANIONS):
            raise click.UsageError(f"{flag} says how to emulate; add --emulate")
        return None
    if flags["emulate_file"] is not None:
        for flag in flags_used(("emulate_nodes", "zones")):
            raise click.UsageError(
                f"{flag} makes Nodes, and --emulate-file lists them; leave one of both out"
            )
    from sliceplane.emulation.nodes import EmulationConfig

    return EmulationConfig(
        nodes=_nodes(flags),
        ready_s=flags["emulate_ready_delay"],
        termination_s=flags["emulate_termination"],
        ready_by_default=flags["emulate_readiness"] == "auto",
    )


def _nodes(flags: dict[str, Any]) -> tuple[EmulatedNode, ...]:
    from sliceplane.emulation.nodes import make_nodes, parse_nodes
    from sliceplane.kit.io.manifests import BadDocument, config_document

    path: Path | None = flags["emulate_file"]
    try:
        if path is None:
            zones = [zone.strip() for zone in flags["zones"].split(",")] if flags["zones"] else []
            if not all(zones):
                raise ValueError(f"{flags['zones']!r} has an empty name between its commas")
            return make_nodes(flags["emulate_nodes"], zones)
        return parse_nodes(config_document(path))
    except BadDocument as error:
        raise click.UsageError(f"{path}: not YAML: {error}") from error
    except ValueError as error:
        raise click.UsageError(f"{path or '--zones'}: {error}") from error
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}") from error


@click.command(
    "up",
    cls=Command,
    examples=[
        (
            "a plane that forgets, with three emulated nodes in two zones",
            "sliceplane up --data-dir memory: --emulate --emulate-nodes 3 --zones a,b",
        ),
        ("a plane that stays, and the rules of this machine (root)", "sliceplane up --proxy"),
    ],
)
@serving_options
@controllers_option
@discovery_options
@slice_options
@boolean(
    "--traffic-distribution-conditions",
    "Tell in a Service's status what became of its trafficDistribution.",
    True,
)
@switch("--proxy", "Write nftables rules for a node too (needs root and nft).")
@string(
    "--hostname-override",
    "NODE",
    "The Node that --proxy is for; registered without --emulate.  [default: the host name]",
)
@string("--netns", "NAME", "Write the rules into this network namespace.")
@option("--proxy-config", "A KubeProxyConfiguration for --proxy.", type=FILE)
@drain_port_option
@option(
    "--dns",
    "Answer the names of Services there, too, and write the Service kube-dns.",
    type=LISTEN,
)
@option("--xds", "Serve Envoy and gRPC there, too (TLS; docs/xds.md).", type=LISTEN)
@option(
    "--xds-metrics-bind-address xds_pages",
    "Pages of --xds, for 'sliceplane xds status'.  [default: 127.0.0.1:18001, if it is free]",
    type=LISTEN,
)
@switch("--reverse-mirror", "Keep Endpoints for old readers, made from EndpointSlices.")
@boolean(
    "--leader-elect",
    "Controllers work only while this server leads among those of one etcd.  [default: "
    "with --etcd]",
    None,
)
@emulation_options
def command(
    *,
    logs: Logs,
    chosen: str,
    traffic_distribution_conditions: bool,
    proxy: bool,
    hostname_override: str,
    netns: str,
    proxy_config: Path | None,
    drain_port: int,
    dns: tuple[str, int] | None,
    xds: tuple[str, int] | None,
    xds_pages: tuple[str, int] | None,
    reverse_mirror: bool,
    leader_elect: bool | None,
    **flags: Any,
) -> None:
    """Run the whole plane in one process: API server, controllers, with --emulate workloads, with
    --proxy rules.

    Prints one line, "ready URL kubeconfig=PATH", when it answers; stops cleanly on SIGINT and
    SIGTERM.
    """
    if (hostname_override or netns) and not proxy:
        raise click.UsageError(
            "--hostname-override and --netns say where to write rules; add --proxy"
        )
    if proxy_config is not None and not proxy:
        raise click.UsageError("--proxy-config says how to write rules; add --proxy")
    if drain_port and not proxy:
        raise click.UsageError("--drain-port is for the hooks of this node's Pods; add --proxy")
    if xds_pages is not None and xds is None:
        raise click.UsageError(
            "--xds-metrics-bind-address is for the pages of the xDS server; add --xds"
        )
    emulated = emulation_config(flags)
    elect = bool(flags["etcd_servers"]) if leader_elect is None else leader_elect
    gates = gates_of(flags["feature_gates"], flags["emulated_version"])
    check_slice_options(flags, gates)

    def entries() -> tuple[ControllerEntry, ...]:
        from sliceplane.controllers.io.catalogue import default_controllers, emulation_controllers
        from sliceplane.controllers.io.heuristics import InstalledHeuristics

        config = discovery_config(flags, gates, InstalledHeuristics().find)
        usual = default_controllers(
            config, conditions=traffic_distribution_conditions, reverse=reverse_mirror
        )
        return usual if emulated is None else usual + emulation_controllers(emulated)

    from sliceplane.server.io.datadir import MEMORY

    is_kept = flags["data_dir"] != MEMORY
    chosen_entries = None if chosen.strip() == ALL else choose(chosen, entries)

    def services() -> tuple[PlaneService, ...]:
        from sliceplane.controllers.io.embedded import ControllerService
        from sliceplane.controllers.io.heuristics import InstalledHeuristics
        from sliceplane.controllers.io.settings import settings_of

        controllers = entries() if chosen_entries is None else chosen_entries
        recorded = settings_of(
            discovery_config(flags, gates, InstalledHeuristics().find),
            conditions=traffic_distribution_conditions,
            reverse=reverse_mirror,
            emulation=emulated,
        )
        parts: list[PlaneService] = [ControllerService(controllers, elect=elect, settings=recorded)]
        if proxy:
            from sliceplane.node.io.setup import ProxyService

            settings = None if proxy_config is None else _proxy_settings(proxy_config, gates)
            named = settings.hostname_override if settings is not None else ""
            node_name = (hostname_override.strip() or named.strip() or socket.gethostname()).lower()
            # Where Nodes are emulated the machine plays one of them; another Node without a zone
            # would void hints.
            registers = emulated is None
            parts.append(
                ProxyService(
                    node_name, netns, gates, settings, drain_port=drain_port, registers=registers
                )
            )
        if xds is not None:
            from sliceplane.xds.io.serving import XdsService

            parts.append(XdsService(xds, xds_pages))
        if dns is not None:  # last: a start that fails leaves none behind
            from sliceplane.dns.io.embedded import DnsService

            parts.append(DnsService(dns, flags["service_cluster_ip_range"], outlives=is_kept))
        return tuple(parts)

    stays: list[str] = []
    notes: tuple[str, ...] = ()
    if proxy:
        cleanup = f"sliceplane proxy --cleanup{f' --netns {netns}' if netns else ''}"
        stays.append(f"the rules of --proxy stay, too: {cleanup} removes them")
    if dns is not None:
        outlives, notes = _of_names(
            dns, flags["service_cluster_ip_range"], proxied=proxy and not netns
        )
        stays += [outlives] if is_kept else []
    serve(
        lambda: plane_config(flags, gates),
        services,
        logs=logs,
        ui=flags["ui"],
        notes=notes,
        stays=stays,
    )


def _of_names(
    listen: tuple[str, int], cidrs: tuple[str, ...], *, proxied: bool
) -> tuple[str, tuple[str, ...]]:
    """Returns a clause on how long --dns outlives the plane, and lines on a resolv.conf, for a
    person.
    """
    from sliceplane.dns.io.embedded import GRACE_S, resolv_conf

    lines = resolv_conf(listen, cidrs, proxied=proxied)
    notes = ("  names, in /etc/resolv.conf:", *(f"    {line}" for line in lines)) if lines else ()
    return f"names are answered for {GRACE_S} s more", notes


def _proxy_settings(path: Path, gates: Gates) -> ProxySettings:
    """Returns the settings from the file. Raises ``StartError``. Fields that the plane itself
    controls are logged.
    """
    from sliceplane.kit.io.log import get_logger
    from sliceplane.kit.io.start_error import StartError
    from sliceplane.node.configuration.settings import settings_of
    from sliceplane.node.io.config import ConfigError, load_config

    try:
        file = load_config(path, release=gates.release)
    except ConfigError as error:
        raise StartError(str(error)) from error
    log = get_logger("node-proxy")
    for note in file.notes:
        log.warning("about the configuration file", note=note)
    for field in ("clientConnection.kubeconfig", "featureGates", "oomScoreAdj"):
        if field in file.values:
            log.warning(
                "about the configuration file",
                note=f"{path}: {field}: has no effect: it is the plane's own matter",
            )
    return replace(settings_of(file.values, listen_by_default=False), oom_score_adj=None)
