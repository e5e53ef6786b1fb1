"""``sliceplane proxy``: the node proxy alone, beside any API server, with upstream's flag names."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from sliceplane.cli.answers import note
from sliceplane.cli.cluster import TargetCluster, cluster_options
from sliceplane.cli.flags import FILE, boolean, duration, option, string, switch
from sliceplane.cli.logs import Logs, log_options
from sliceplane.cli.options import CommandGroup
from sliceplane.cli.process import begin_service, print_ready, require, work_until
from sliceplane.cli.query.recorder import flight_config, recorder_options
from sliceplane.cli.run.flags.dns import DOMAIN
from sliceplane.cli.run.flags.proxy import (
    drain_port_option,
    flag,
    proxy_options,
    used,
    values_of_flags,
)
from sliceplane.cli.run.proxy_render import command as render
from sliceplane.cli.run.serving import gates_of
from sliceplane.cli.values import LISTEN

if TYPE_CHECKING:
    from sliceplane.api.gates import Gates
    from sliceplane.dns.io.service import Resolver
    from sliceplane.node.configuration.fields import Mode
    from sliceplane.node.configuration.settings import FieldValues, ProxySettings
    from sliceplane.node.io.config import ConfigFile
    from sliceplane.node.io.node_proxy import NodeProxy
    from sliceplane.watch.io.connection import Connection
    from sliceplane.watch.io.flight import FlightConfig

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group(
    "proxy",
    cls=CommandGroup,
    invoke_without_command=True,
    examples=[
        ("rules for this node of a cluster", "sudo sliceplane proxy --kubeconfig node.kubeconfig"),
        ("take them away again", "sudo sliceplane proxy --cleanup"),
    ],
)
@option(
    "--config",
    "A KubeProxyConfiguration; flags that it has fields for are not used then.",
    type=FILE,
)
@option(
    "--write-config-to", "Write the configuration there, with all that it does not say.", type=FILE
)
@cluster_options
@string("--master", "URL", "The API server, if not the one of the kubeconfig.")
@string("--hostname-override", "NODE", "This node's name.  [default: the host name]")
@switch("--register-node", "Create this machine's Node, where no kubelet does, and keep it Ready.")
@string("--netns", "NAME", "Write the rules into this network namespace.")
@switch("--cleanup", "Take our rules away and exit.")
@switch("--init-only", "Look whether rules can be written, set up conntrack, and exit.")
@boolean(
    "--progress-lease", "Tell in a Lease of this node which EndpointSlices the kernel holds.", True
)
@drain_port_option
@option(
    "--dns",
    "Answer the names of Services there, for the clients of this node.  [default: off]",
    type=LISTEN,
)
@option(
    "--cluster-domain",
    "Of --dns: the zone of the cluster's names.",
    ("cluster.local",),
    type=DOMAIN,
    multiple=True,
)
@duration(
    "--healthz-api-timeout",
    "Not healthy if the API server takes longer to answer; 0: it is not asked.",
    "600ms",
)
@proxy_options
@string("--emulated-version", "RELEASE", "The Kubernetes release whose feature gates count.")
@recorder_options(4)
@log_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    cluster: TargetCluster,
    write_config_to: Path | None,
    master: str,
    hostname_override: str,
    register_node: bool,
    netns: str,
    cleanup: bool,
    init_only: bool,
    progress_lease: bool,
    drain_port: int,
    dns: tuple[str, int] | None,
    cluster_domain: tuple[str, ...],
    healthz_api_timeout: float,
    recorder_size: int,
    recordings: Path | None,
    logs: Logs,
    **flags: Any,
) -> None:
    """Run the node proxy: rules in the kernel that lead Services to their endpoints.

    Prints one line, "ready node=NODE ...", after the first rules are written and its watches are
    open. Stops on SIGINT and SIGTERM and leaves the rules, so that traffic goes on; --cleanup takes
    them away.
    """
    if ctx.invoked_subcommand is not None:
        return
    from sliceplane.dns.io.sockets import ListenError
    from sliceplane.kit.io.pages import PageError
    from sliceplane.node.io.config import ConfigError, written
    from sliceplane.node.io.kernel.backend import KernelError
    from sliceplane.node.io.kernel.modes import backend_of
    from sliceplane.node.io.kernel.sysctls import SysctlError
    from sliceplane.node.io.setup import prepare
    from sliceplane.watch.io.connection import KubeconfigError
    from sliceplane.watch.io.kubeconfig import load_for

    require("structlog", "prometheus_client")
    logs.begin()
    if hostname_override and not hostname_override.strip():
        raise click.UsageError("--hostname-override: must not be empty")
    try:
        chosen = _chosen(flags | {"kubeconfig": cluster.kubeconfig})
        if write_config_to is not None:
            written(write_config_to, chosen.values)
            return
        settings = chosen.settings
        if cleanup:
            asyncio.run(_cleanup(settings, netns))
            return
        if init_only:
            asyncio.run(prepare(backend_of(settings.mode, netns), settings, netns))
            return
        cluster = cluster._replace(
            kubeconfig=Path(settings.kubeconfig) if settings.kubeconfig else None
        )
        process = _Process(
            node_name=(hostname_override or settings.hostname_override or socket.gethostname())
            .strip()
            .lower(),
            netns=netns,
            chosen=chosen,
            writes_lease=progress_lease,
            registers=register_node,
            drain_port=drain_port,
            dns=dns,
            domains=cluster_domain,
            api_timeout_s=healthz_api_timeout,
            flight=flight_config({"recorder_size": recorder_size, "recordings": recordings}),
        )
        connection = (
            load_for(master, cluster.kubeconfig, context=cluster.context)
            if master
            else cluster.connect()
        )
        asyncio.run(_serve(connection, process))
    except (
        KernelError,
        KubeconfigError,
        PageError,
        ConfigError,
        SysctlError,
        ListenError,
    ) as error:
        for line in str(error).splitlines():
            note(f"Error: {line}")
        raise SystemExit(1) from error


command.add_command(render)


class _Chosen(msgspec.Struct, frozen=True):
    """The settings from file and flags."""

    values: FieldValues
    settings: ProxySettings
    gates: Gates
    file: ConfigFile | None


class _Process(msgspec.Struct, frozen=True):
    node_name: str
    netns: str
    chosen: _Chosen
    #: True if the proxy writes the progress Lease of its node
    writes_lease: bool
    registers: bool
    drain_port: int
    #: where names are answered
    dns: tuple[str, int] | None
    domains: tuple[str, ...]
    api_timeout_s: float
    flight: FlightConfig


def _chosen(flags: dict[str, Any]) -> _Chosen:
    """Raises ``click.UsageError`` and ``ConfigError``."""
    from sliceplane.kit.io.log import get_logger
    from sliceplane.node.configuration.settings import settings_of
    from sliceplane.node.io.config import load_config

    path = flags.pop("config")
    emulated = flags.pop("emulated_version")
    gates = gates_of(flags["feature_gates"], emulated)
    if path is None:
        values = values_of_flags(flags, gates)
        return _Chosen(values, settings_of(values, listen_by_default=False), gates, None)
    file = load_config(path, release=gates.release)
    log = get_logger("node-proxy")
    for remark in file.notes:
        log.warning("about the configuration file", note=remark)
    for name in used(flags):
        log.warning("a flag is not used: with --config the file decides", flag=flag(name))
    settings = settings_of(file.values, listen_by_default=True)
    return _Chosen(file.values, settings, gates_of(settings.feature_gates, emulated), file)


async def _cleanup(settings: ProxySettings, netns: str) -> None:
    from sliceplane.node.io.demand import remove_counters
    from sliceplane.node.io.kernel import own_interface
    from sliceplane.node.io.kernel.backend import KernelError
    from sliceplane.node.io.kernel.modes import clean_up
    from sliceplane.node.io.kernel.netns import within
    from sliceplane.node.io.node_proxy import available_families

    await clean_up(settings.mode, available_families(), netns)
    await remove_counters(available_families(), netns)
    try:
        await within(netns, own_interface.remove)
    except OSError as error:
        raise KernelError("rejected", str(error)) from error


async def _serve(connection: Connection, process: _Process) -> None:
    """Until a signal. Raises ``KernelError`` and ``SysctlError``, before any write, if the kernel
    cannot do it; ``ConfigError`` when the file has changed.
    """
    from sliceplane.api.requests import Selection
    from sliceplane.api.scheme import Namespaces
    from sliceplane.kit.rng import Rng
    from sliceplane.node.io.own_node import OwnNode
    from sliceplane.node.io.setup import running_proxy
    from sliceplane.watch.io.http.client import HttpClient
    from sliceplane.watch.io.reflect import loop_clock

    stop = begin_service()
    settings = process.chosen.settings
    client = HttpClient(connection)
    own_node = OwnNode(process.node_name, client, time.time, process.netns)
    async with (
        client,
        _listening(process) as names,
        own_node.registered() if process.registers else nullcontext(),
        running_proxy(
            process.node_name,
            settings,
            client,
            netns=process.netns,
            gates=process.chosen.gates,
            clock=loop_clock(time.time()),
            rng=Rng(time.time_ns()),
            api_timeout_s=process.api_timeout_s,
            reports_progress=process.writes_lease,
            drain_port=process.drain_port,
            flight=process.flight,
            consumer=names,
        ) as (proxy, following),
    ):
        work = [following]
        if process.chosen.file is not None:
            work.append(asyncio.create_task(_changed(process.chosen.file, process.chosen.gates)))
        if names is not None:
            selections = (Selection(Namespaces),)
            work.append(asyncio.create_task(names.follow(client, Rng(time.time_ns()), selections)))
        beside = [
            _print_ready(proxy, process.node_name),
            _tidy(proxy, settings.mode, process.netns),
        ]
        await work_until(stop, *work, beside=beside)


async def _changed(file: ConfigFile, gates: Gates) -> None:
    """Ends, with an error, when the file is another one; SIGHUP makes it look at once."""
    from sliceplane.node.io.config import ConfigError, changed

    recheck_now = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, recheck_now.set)
    await changed(file, recheck_now, release=gates.release)
    raise ConfigError(f"{file.path} has changed: start again to use it")


@asynccontextmanager
async def _listening(process: _Process) -> AsyncIterator[Resolver | None]:
    """The node's name server, if it is to have one. Every client is one of this node, so it is
    known where it is. Raises ``ListenError``.
    """
    if process.dns is None:
        yield None
        return
    from sliceplane.dns.clients import AnswerConfig
    from sliceplane.dns.cluster_names import ZoneConfig
    from sliceplane.dns.io.service import Resolver
    from sliceplane.dns.io.sockets import ListenError
    from sliceplane.dns.io.upstream import ForwardFlags
    from sliceplane.node.io.kernel import own_interface
    from sliceplane.node.io.kernel.netns import within
    from sliceplane.watch.io.reflect import loop_clock

    zone = ZoneConfig(
        domains=process.domains, addresses=(process.dns[0],), own_node=process.node_name
    )
    forward = ForwardFlags(forward=("/etc/resolv.conf",))
    resolver = Resolver(
        zone, AnswerConfig(forwards=True), clock=loop_clock(time.time()), forward=forward
    )
    try:
        try:
            await within(process.netns, partial(own_interface.ensure, process.dns[0]))
            await resolver.listen((process.dns,), partial(within, process.netns))
        except OSError as error:
            raise ListenError(f"--dns: {error}") from error
        yield resolver
    finally:
        await resolver.close()


async def _tidy(proxy: NodeProxy, mode: Mode, netns: str) -> None:
    from sliceplane.node.io.kernel.modes import remove_leftovers
    from sliceplane.node.io.node_proxy import available_families

    await proxy.wait_ready()
    await remove_leftovers(mode, available_families(), netns)


async def _print_ready(proxy: NodeProxy, node_name: str) -> None:
    await proxy.wait_ready(following=True)
    counts = " ".join(
        f"{family.lower()}-services={services}" for family, (services, _) in proxy.counts().items()
    )
    print_ready(f"node={node_name} {counts}")
