"""``sliceplane observe``: reports which revisions the rules of this node's kube-proxy have."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import click

from sliceplane.cli.answers import note
from sliceplane.cli.cluster import TargetCluster, cluster_options
from sliceplane.cli.flags import string, switch
from sliceplane.cli.logs import Logs, log_options
from sliceplane.cli.options import Command
from sliceplane.cli.process import begin_service, print_ready, require, run, work_until
from sliceplane.cli.run.flags.monitoring import monitoring_options, serve_monitoring

if TYPE_CHECKING:
    from sliceplane.node.io.observing.observer import Observer
    from sliceplane.watch.io.connection import Connection


@click.command(
    "observe",
    cls=Command,
    examples=[
        ("this node, which kube-proxy serves", "sudo sliceplane observe"),
        ("count connections for sliceplane.dev/Measured", "sudo sliceplane observe --demand"),
        ("with health pages", "sudo sliceplane observe --healthz-bind-address 127.0.0.1:10262"),
    ],
)
@cluster_options
@string("--node", "NAME", "This node's name.  [default: the host name]")
@string("--netns", "NAME", "Read the rules of this network namespace.")
@switch("--conntrack", "Count open connections to draining Pods, for drain --until-idle.")
@switch("--demand", "Count connections to Services with sliceplane.dev/Measured, in an own table.")
@monitoring_options
@log_options
def command(
    *, cluster: TargetCluster, node: str, netns: str, demand: bool, logs: Logs, **flags: Any
) -> None:
    """Report which EndpointSlices the rules of this node's kube-proxy have; changes no rule.

    Reads the kernel's rules (kube-proxy's modes nftables and iptables) and compares them with the
    API. The result is in the same Lease as that of `sliceplane proxy`, so `drain`, `drift`, `status`
    and `explain` know nodes with kube-proxy too. Prints one line, "ready node=NODE ...", after the
    first comparison. Stops on SIGINT and SIGTERM.
    """
    from sliceplane.kit.io.pages import PageError
    from sliceplane.watch.io.connection import KubeconfigError

    require("structlog", "prometheus_client")
    logs.begin()
    name = (node or socket.gethostname()).strip().lower()
    try:
        run(_serve(cluster.connect(), name, netns, flags, counts=demand))
    except (KubeconfigError, PageError) as error:
        note(f"Error: {error}")
        raise SystemExit(1) from error


async def _serve(
    connection: Connection, node: str, netns: str, flags: dict[str, Any], *, counts: bool
) -> None:
    """Until a signal.  Raises ``PageError``."""
    import time

    from sliceplane.consume.io.reporting import report_progress
    from sliceplane.kit.io.pages import follower_pages
    from sliceplane.kit.rng import Rng
    from sliceplane.node.io.kernel.conntrack import Conntrack
    from sliceplane.node.io.node_proxy import available_families
    from sliceplane.node.io.observing.observer import Observer
    from sliceplane.watch.io.http.client import HttpClient
    from sliceplane.watch.io.reflect import loop_clock

    stop = begin_service()
    clock = loop_clock(time.time())
    count_flows = Conntrack(netns=netns).count_translated if flags["conntrack"] else None
    observer = Observer(
        node, available_families(), clock=clock, netns=netns, count_flows=count_flows
    )
    rng = Rng(time.time_ns())
    async with AsyncExitStack() as stack:
        pages = follower_pages(
            stop.is_set, lambda: observer.is_ready, "no rules of kube-proxy were compared yet"
        )
        await serve_monitoring(
            stack, flags, pages, [observer.metrics.families], observer.staleness_s
        )
        client = await stack.enter_async_context(HttpClient(connection))
        following = asyncio.create_task(observer.follow(client, rng), name="observer")
        reporting = asyncio.create_task(
            report_progress(client, observer, rng.fork(), clock), name="observer's reports"
        )
        beside = [_print_ready(observer), _count_demand(observer, netns, counts=counts)]
        await work_until(stop, following, reporting, beside=beside)


async def _count_demand(observer: Observer, netns: str, *, counts: bool) -> None:
    """Counts connections; or removes the table of an earlier process that did."""
    from sliceplane.node.io.demand import count_connections, remove_counters

    if counts:
        await count_connections(observer.demand, observer.progress, netns)
    else:
        await remove_counters(observer.demand.families, netns)


async def _print_ready(observer: Observer) -> None:
    await observer.wait_ready()
    counts = " ".join(
        f"{family.lower()}-services={services}" for family, services in observer.counts.items()
    )
    print_ready(f"node={observer.node_name} rules={observer.source} {counts}")
