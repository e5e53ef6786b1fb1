"""``sliceplane dns``: a cluster's names, from its Services and EndpointSlices."""

from __future__ import annotations

import os
import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import click

from sliceplane.cli.answers import BAD, GOOD, NO_ANSWER, note, show
from sliceplane.cli.cluster import TargetCluster, cluster_command, cluster_options
from sliceplane.cli.flags import boolean, duration, string, switch
from sliceplane.cli.logs import Logs, log_options
from sliceplane.cli.options import CommandGroup
from sliceplane.cli.process import begin_service, print_listening, require, run, work_until
from sliceplane.cli.run.flags.dns import (
    answer_config,
    client_options,
    forward_flags,
    forward_options,
    listen_option,
    zone_config,
    zone_options,
)
from sliceplane.cli.run.flags.monitoring import monitoring_options, serve_monitoring

if TYPE_CHECKING:
    from sliceplane.diagnose.io.names import NameLookup
    from sliceplane.watch.io.connection import Connection
    from sliceplane.watch.io.http.client import HttpClient


@click.group(
    "dns",
    cls=CommandGroup,
    invoke_without_command=True,
    examples=[
        (
            "the names of the kubeconfig's cluster, on this machine",
            "sliceplane dns --listen 127.0.0.1:5300",
        ),
        ("and then", "dig @127.0.0.1 -p 5300 kubernetes.default.svc.cluster.local"),
    ],
)
@listen_option
@zone_options
@client_options
@forward_options
@string("--selector", "SELECTOR", "Names of Services with these labels alone.")
@string("--user", "NAME", "Who to be once the port is bound (if started as root).")
@duration("--shutdown-delay", "Answer on for so long after a signal, and be not ready.", "0s")
@switch(
    "--reuse-port",
    "Listen beside another one that was started so, which takes over or is taken over from.",
)
@boolean(
    "--progress-lease",
    "Tell in a Lease of this machine which EndpointSlices are answered: drains wait for it.",
    False,
)
@cluster_options
@monitoring_options
@log_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    listen: tuple[tuple[str, int], ...],
    user: str,
    shutdown_delay: float,
    cluster: TargetCluster,
    logs: Logs,
    **flags: Any,
) -> None:
    """Answer the names of Services and their endpoints (Kubernetes DNS specification 1.1.0).

    Prints one line, "ready ADDRESS:PORT ...", once everything is read; until then it answers
    SERVFAIL. An answer is never older than what the API server told; there is no cache in front of
    the zone. Stops on SIGINT and SIGTERM.
    """
    if ctx.invoked_subcommand is not None:
        return
    from sliceplane.dns.io.sockets import ListenError
    from sliceplane.kit.io.pages import PageError
    from sliceplane.watch.io.connection import KubeconfigError

    require("structlog", "prometheus_client")
    logs.begin()
    try:
        run(
            _serve(
                cluster.connect(),
                listen,
                flags | {"user": user, "shutdown_delay": shutdown_delay},
            )
        )
    except (KubeconfigError, ListenError, PageError) as error:
        note(f"Error: {error}")
        raise SystemExit(1) from error


async def _serve(
    connection: Connection, listen: tuple[tuple[str, int], ...], flags: dict[str, Any]
) -> None:
    """Until a signal.  Raises ``ListenError`` and ``PageError``."""
    import asyncio
    import time

    from sliceplane.dns.io.service import Resolver, watches
    from sliceplane.kit.rng import Rng
    from sliceplane.watch.io.http.client import HttpClient
    from sliceplane.watch.io.reflect import loop_clock

    stop = begin_service()
    own = tuple(address for address, _ in listen if address not in ("0.0.0.0", "::"))
    zone = zone_config(flags, addresses=own)
    clock = loop_clock(time.time())
    resolver = Resolver(zone, answer_config(flags), clock=clock, forward=forward_flags(flags))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(resolver.close)
        # Where another server answers at the port, this one comes beside it with answers, not with
        # SERVFAIL.
        takes_over = flags["reuse_port"] and not flags["user"]
        listening: tuple[tuple[str, int], ...] = ()
        if not takes_over:
            listening = await resolver.listen(listen, shared=flags["reuse_port"])
        await serve_monitoring(
            stack, flags, resolver.pages(), [resolver.metrics.families], resolver.staleness_s
        )
        become(flags["user"])
        client = await stack.enter_async_context(HttpClient(connection))
        lease_name = socket.gethostname().lower() if flags["progress_lease"] else ""
        rng = Rng(time.time_ns())
        selections = watches(zone, flags["selector"])

        async def answer() -> None:
            await resolver.wait_ready()
            print_listening(await resolver.listen(listen, shared=True) if takes_over else listening)
            await stop.wait()

        async def stop_serving() -> None:
            resolver.stopping = True
            await asyncio.sleep(flags["shutdown_delay"])

        await work_until(
            stop,
            resolver.follow(client, rng, selections, reported_as=lease_name),
            answer(),
            farewell=stop_serving,
        )


def become(user: str) -> None:
    """Lets root's rights go; "" keeps them.  Raises ``click.UsageError`` where there is no such
    user.
    """
    if not user:
        return
    import pwd

    try:
        entry = pwd.getpwnam(user)
        os.setgroups([])
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    except KeyError as error:
        raise click.UsageError(f"--user: there is no user {user!r} on this machine") from error
    except PermissionError as error:
        raise click.UsageError(f"--user: only root can become {user!r}") from error


@cluster_command(
    "query",
    parent=command,
    output=False,
    short_help="Answer one name, and tell why.",
    examples=[
        ("why a name leads where it does", "sliceplane dns query --why kubernetes.default"),
        (
            "what a client in another zone gets",
            "sliceplane dns query --client 10.1.2.3 peers.default A",
        ),
    ],
)
@click.argument("name")
@click.argument("kind", metavar="[TYPE]", default="A")
@string("--client", "ADDRESS", "Who asks.", "127.0.0.1")
@switch("--why", "Say what the answer is made of.")
@zone_options
def query(
    *, cluster: TargetCluster, name: str, kind: str, client: str, why: bool, **flags: Any
) -> None:
    """Tell what NAME leads to, from the cluster's objects as they are now: no name server is asked.

    A NAME without a dot at its end is looked up as a Pod of the kubeconfig's namespace would.

    Exit code 0: there is a record; 1: there is none; 2: it could not be found out, as where a right
    is missing.
    """
    from sliceplane.dns.wire import TYPE_NAMES

    numbers = {text: number for number, text in TYPE_NAMES.items()}
    if kind.upper() not in numbers:
        raise click.UsageError(
            f"{kind!r} is no type of records: A, AAAA, SRV, PTR, CNAME, TXT, NS or SOA"
        )

    async def work(http: HttpClient, namespace: str) -> NameLookup:
        from sliceplane.diagnose.io.names import look_up_name

        return await look_up_name(
            http,
            zone_config(flags),
            name,
            numbers[kind.upper()],
            client=client,
            namespace=namespace,
            show=show,
            why=why,
        )

    answer = cluster.query(work)
    raise SystemExit(GOOD if answer.has_record else NO_ANSWER if answer.is_unknown else BAD)
