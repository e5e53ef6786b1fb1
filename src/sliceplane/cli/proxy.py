"""``sliceplane proxy``: the node proxy alone, beside any API server, with upstream's flag names."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sliceplane.cli.cluster import cluster_options
from sliceplane.cli.process import on_stop_signal, say
from sliceplane.cli.serving import LOG_LEVELS, gates_of
from sliceplane.cli.values import DurationType, ListenType, NetworksType, NodePortAddressesType

if TYPE_CHECKING:
    from sliceplane.api.gates import Gates
    from sliceplane.nft.surroundings import RulesConfig
    from sliceplane.shell.client.kubeconfig import Connection
    from sliceplane.shell.nft_runner import NftRunner
    from sliceplane.shell.node_proxy import NodeProxy

#: what nft takes between quotes; the kernel's own bound is 15 bytes
_INTERFACE = re.compile(r"[A-Za-z0-9_.:@-]{1,15}")


@click.command("proxy")
@cluster_options
@click.option("--hostname-override", default="", metavar="NODE", help="This node's name.  [default: the host name]")
@click.option("--netns", default="", metavar="NAME", help="Write the rules into this network namespace.")
@click.option("--cleanup", is_flag=True, help="Take our rules away and exit.")
@click.option(
    "--min-sync-period", type=DurationType(), default="0", show_default=True, help="Pause between two writes."
)
@click.option("--progress-lease", type=bool, is_flag=False, flag_value=True, default=True, show_default=True,
    help="Tell in a Lease of this node which EndpointSlices the kernel holds.")  # fmt: skip
@click.option("--healthz-bind-address", type=ListenType(), default=None, help="Serve /healthz there.  [default: off]")
@click.option(
    "--metrics-bind-address",
    type=ListenType(),
    default=None,
    help="Serve /metrics and /proxyMode there.  [default: off]",
)
@click.option(
    "--cluster-cidr",
    type=NetworksType(),
    default="",
    metavar="CIDR[,CIDR]",
    help="Ranges of Pod IPs, for --detect-local-mode ClusterCIDR.",
)
@click.option(
    "--detect-local-mode",
    type=click.Choice(("ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix")),
    default="ClusterCIDR",
    show_default=True,
    help="How traffic of this node's Pods is told from others'.",
)
@click.option("--pod-bridge-interface", default="", metavar="NAME", help="For --detect-local-mode BridgeInterface.")
@click.option(
    "--pod-interface-name-prefix", default="", metavar="PREFIX", help="For --detect-local-mode InterfaceNamePrefix."
)
@click.option("--masquerade-all", is_flag=True, help="Masquerade whatever goes to a cluster IP.")
@click.option(
    "--nodeport-addresses",
    type=NodePortAddressesType(),
    default="primary",
    show_default=True,
    metavar="CIDR,...",
    help="Where node ports are served: addresses within these ranges, or 'primary', the Node's own.",
)
@click.option("--feature-gates", default="", metavar="NAME=BOOL,...", help="Features to switch on or off.")
@click.option(
    "--emulated-version", default="", metavar="RELEASE", help="The Kubernetes release whose feature gates count."
)
@click.option("--log-level", type=click.Choice(LOG_LEVELS), default="info", show_default=True)
def command(
    *,
    kubeconfig: Path | None,
    context: str | None,
    hostname_override: str,
    netns: str,
    cleanup: bool,
    min_sync_period: float,
    log_level: str,
    **flags: Any,
) -> None:
    """Run the node proxy: nftables rules that lead Services to their endpoints.

    Prints one line, "ready node=NODE ...", after the first rules are written.  Stops on SIGINT and SIGTERM and leaves
    the rules, so that traffic goes on; --cleanup takes them away.
    """
    from sliceplane.shell.client.kubeconfig import KubeconfigError, load
    from sliceplane.shell.log import configure
    from sliceplane.shell.nft_runner import NftError, NftRunner
    from sliceplane.shell.pages import PageError

    configure(log_level)
    options = _options(netns, min_sync_period, flags)
    runner = NftRunner(netns=netns)
    node_name = (hostname_override.strip() or socket.gethostname()).lower()
    try:
        if cleanup:
            asyncio.run(_cleanup(runner))
            return
        connection = load(kubeconfig, context=context)
        asyncio.run(_serve(runner, connection, node_name, options))
    except (NftError, KubeconfigError, PageError) as error:
        click.echo(f"Error: {error}", err=True)
        raise SystemExit(1) from error


@dataclass(frozen=True, slots=True)
class _Options:
    min_period_s: float
    netns: str
    rules: RulesConfig
    gates: Gates
    healthz: tuple[str, int] | None
    metrics: tuple[str, int] | None
    #: the Lease of this node is kept
    tells: bool


def _options(netns: str, min_period_s: float, flags: dict[str, Any]) -> _Options:
    """Raises ``click.UsageError`` where flags contradict each other."""
    from sliceplane.nft.surroundings import RulesConfig

    mode = flags["detect_local_mode"]
    for wanted, flag in (
        ("BridgeInterface", "pod_bridge_interface"),
        ("InterfaceNamePrefix", "pod_interface_name_prefix"),
    ):
        if mode == wanted and not flags[flag]:
            raise click.UsageError(f"--detect-local-mode {mode} needs --{flag.replace('_', '-')}")
        if flags[flag] and not _INTERFACE.fullmatch(flags[flag]):
            raise click.UsageError(f"--{flag.replace('_', '-')}: {flags[flag]!r} is not the name of an interface")
    rules = RulesConfig(
        masquerade_all=flags["masquerade_all"],
        detect_local_mode=mode,
        cluster_cidrs=flags["cluster_cidr"],
        pod_bridge_interface=flags["pod_bridge_interface"],
        pod_interface_name_prefix=flags["pod_interface_name_prefix"],
        node_port_addresses=flags["nodeport_addresses"],
    )
    return _Options(
        min_period_s=min_period_s,
        netns=netns,
        rules=rules,
        gates=gates_of(flags["feature_gates"], flags["emulated_version"]),
        healthz=flags["healthz_bind_address"],
        metrics=flags["metrics_bind_address"],
        tells=flags["progress_lease"],
    )


async def _cleanup(runner: NftRunner) -> None:
    from sliceplane.shell.node_proxy import available_families, cleanup

    await cleanup(runner, families=available_families())


async def _serve(runner: NftRunner, connection: Connection, node_name: str, options: _Options) -> None:
    """Until a signal.  Raises ``NftError`` if nft or the kernel cannot do it, before anything is written."""
    from contextlib import AsyncExitStack

    from sliceplane.kit.rng import Rng
    from sliceplane.shell.client.http import HttpClient
    from sliceplane.shell.conntrack import Conntrack
    from sliceplane.shell.interfaces import addresses_of
    from sliceplane.shell.node_proxy import NodeProxy, available_families
    from sliceplane.shell.pages import serve_pages
    from sliceplane.shell.proxy_healthz import health_pages, metrics_pages
    from sliceplane.shell.proxy_report import report_progress
    from sliceplane.shell.reflect import loop_clock

    await runner.probe()
    clock = loop_clock(time.time())
    proxy = NodeProxy(
        node_name,
        runner,
        families=available_families(),
        min_period_s=options.min_period_s,
        rules=options.rules,
        gates=options.gates,
        flows=Conntrack(netns=options.netns),
        host_addresses=partial(addresses_of, options.netns),
        clock=clock,
    )
    stop = asyncio.Event()
    on_stop_signal(stop.set)
    async with AsyncExitStack() as stack:
        client = HttpClient(connection)
        stack.push_async_callback(client.close)
        for listen, pages in ((options.healthz, health_pages(proxy)), (options.metrics, metrics_pages(proxy))):
            if listen is not None:
                await stack.enter_async_context(serve_pages(pages, *listen))
        following = asyncio.create_task(proxy.follow(client, Rng(time.time_ns())))
        saying = asyncio.create_task(_say_ready(proxy, node_name))
        telling = []
        if options.tells and proxy.reads_slices:
            telling.append(asyncio.create_task(report_progress(client, proxy, Rng(time.time_ns()), clock)))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({following, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                await following  # it ends only by a fault of ours, which shall be seen
        finally:
            tasks = (following, saying, stopping, *telling)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _say_ready(proxy: NodeProxy, node_name: str) -> None:
    await proxy.wait_ready()
    counts = " ".join(f"{family.lower()}-services={services}" for family, (services, _) in proxy.counts().items())
    say(f"ready node={node_name} {counts}")
