"""``sliceplane proxy``: the node proxy alone, beside any API server, with upstream's flag names."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sliceplane.cli.process import on_stop_signal, say
from sliceplane.cli.serving import LOG_LEVELS
from sliceplane.cli.values import DurationType, ListenType

if TYPE_CHECKING:
    from sliceplane.shell.client.kubeconfig import Connection
    from sliceplane.shell.nft_runner import NftRunner
    from sliceplane.shell.node_proxy import NodeProxy


@click.command("proxy")
@click.option("--kubeconfig", type=click.Path(dir_okay=False, path_type=Path), help="How to reach the API server.")
@click.option("--hostname-override", default="", metavar="NODE", help="This node's name.  [default: the host name]")
@click.option("--netns", default="", metavar="NAME", help="Write the rules into this network namespace.")
@click.option("--cleanup", is_flag=True, help="Take our rules away and exit.")
@click.option(
    "--min-sync-period", type=DurationType(), default="0", show_default=True, help="Pause between two writes."
)
@click.option("--progress-lease", type=bool, is_flag=False, flag_value=True, default=True, show_default=True,
    help="Tell in a Lease of this node which EndpointSlices the kernel holds.")  # fmt: skip
@click.option("--healthz-bind-address", type=ListenType(), default=None, help="Serve /healthz there.  [default: off]")
@click.option("--log-level", type=click.Choice(LOG_LEVELS), default="info", show_default=True)
def command(
    *,
    kubeconfig: Path | None,
    hostname_override: str,
    netns: str,
    cleanup: bool,
    min_sync_period: float,
    progress_lease: bool,
    healthz_bind_address: tuple[str, int] | None,
    log_level: str,
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
    runner = NftRunner(netns=netns)
    node_name = (hostname_override.strip() or socket.gethostname()).lower()
    try:
        if cleanup:
            asyncio.run(_cleanup(runner))
            return
        connection = load(kubeconfig)
        asyncio.run(
            _serve(
                runner,
                connection,
                node_name,
                min_period_s=min_sync_period,
                tells=progress_lease,
                listen=healthz_bind_address,
            )
        )
    except (NftError, KubeconfigError, PageError) as error:
        click.echo(f"Error: {error}", err=True)
        raise SystemExit(1) from error


async def _cleanup(runner: NftRunner) -> None:
    from sliceplane.shell.node_proxy import available_families, cleanup

    await cleanup(runner, families=available_families())


async def _serve(
    runner: NftRunner,
    connection: Connection,
    node_name: str,
    *,
    min_period_s: float,
    tells: bool,
    listen: tuple[str, int] | None,
) -> None:
    """Until a signal.  Raises ``NftError`` if nft or the kernel cannot do it, before anything is written."""
    from contextlib import AsyncExitStack

    from sliceplane.kit.rng import Rng
    from sliceplane.shell.client.http import HttpClient
    from sliceplane.shell.node_proxy import NodeProxy, available_families
    from sliceplane.shell.pages import serve_pages
    from sliceplane.shell.proxy_healthz import health_pages
    from sliceplane.shell.proxy_report import report_progress
    from sliceplane.shell.reflect import loop_clock

    await runner.probe()
    clock = loop_clock(time.time())
    proxy = NodeProxy(node_name, runner, families=available_families(), min_period_s=min_period_s, clock=clock)
    stop = asyncio.Event()
    on_stop_signal(stop.set)
    async with AsyncExitStack() as stack:
        client = HttpClient(connection)
        stack.push_async_callback(client.close)
        if listen is not None:
            await stack.enter_async_context(serve_pages(health_pages(proxy.health), *listen))
        following = asyncio.create_task(proxy.follow(client, Rng(time.time_ns())))
        saying = asyncio.create_task(_say_ready(proxy, node_name))
        telling = [asyncio.create_task(report_progress(client, proxy, Rng(time.time_ns()), clock))] if tells else []
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
