"""``sliceplane xds``: Envoy and proxyless gRPC, straight from a cluster's Services and
EndpointSlices.
"""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sliceplane.cli.answers import BAD, GOOD, NO_ANSWER, Output, fail, output_option
from sliceplane.cli.cluster import TargetCluster, cluster_options
from sliceplane.cli.flags import (
    EXISTING_FILE,
    boolean,
    choice,
    duration,
    number,
    option,
    port,
    string,
    strings,
    switch,
    with_options,
)
from sliceplane.cli.logs import Logs, log_options
from sliceplane.cli.options import Command, CommandGroup
from sliceplane.cli.process import begin_service, print_listening, require, run, work_until
from sliceplane.cli.run.flags.monitoring import monitoring_options, serve_monitoring
from sliceplane.cli.values import LISTEN, ParsedType, names_in

if TYPE_CHECKING:
    from sliceplane.watch.io.connection import Connection
    from sliceplane.xds.io.serving import Doors
    from sliceplane.xds.streams.status import ClientsPage

#: where it listens if nothing else is said, and where its pages are
_PLAIN: Final = ("127.0.0.1", 18000)
PAGES: Final = ("127.0.0.1", 18001)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_MODES: Final = ("none", "cluster-ip", "capture", "port")

resource_options = with_options(
    strings(
        "--cluster-domain domains",
        "NAME",
        "The zone of the cluster's names; may be given several times.",
        ("cluster.local",),
    ),
    string("--namespaces", "NAME,...", "Services of these alone.  [default: all]"),
    choice(
        "--listeners",
        "Listeners of Envoys that do not say what they want (docs/xds.md).",
        _MODES,
        "none",
    ),
    number(
        "--leds-from",
        "Send an Envoy from 1.38 the endpoints of a Service one by one if it has so many; "
        "0: never.",
        20,
        least=0,
    ),
    boolean(
        "--endpoint-names",
        "Tell clients the Pod and the node of each endpoint, in its metadata.",
        False,
    ),
    choice(
        "--trust-node-metadata",
        "What a client is believed of its place, if its credentials do not say it.",
        ("none", "zone", "node"),
        "zone",
    ),
)


@click.group(
    "xds",
    cls=CommandGroup,
    invoke_without_command=True,
    examples=[
        (
            "the Services of the kubeconfig's cluster, for programs of this machine",
            "sliceplane xds",
        ),
        (
            "what a gRPC program must be told",
            "sliceplane xds bootstrap --for grpc --insecure > xds.json",
        ),
        ("and then it calls xds:///web.default:80", "GRPC_XDS_BOOTSTRAP=xds.json ./program"),
    ],
)
@option("--bind-address", "Serve TLS there.", type=LISTEN)
@option("--tls-cert-file", "Certificate of the server, for --bind-address.", type=EXISTING_FILE)
@option("--tls-private-key-file", "And its key.", type=EXISTING_FILE)
@option(
    "--client-ca-file",
    "Authorities (PEM) whose client certificates are trusted; others come with a token.",
    type=EXISTING_FILE,
)
@option(
    "--insecure-bind-address",
    "Serve without TLS there, on loopback.  [default: 127.0.0.1:18000 without --bind-address]",
    type=LISTEN,
)
@number(
    "--streams-per-user",
    "Refuse more at a time to one user over TLS; to a token that is bound to a Pod, to that Pod.",
    200,
    least=1,
)
@resource_options
@duration("--shutdown-delay", "Send clients away one after the other within so long.", "0s")
@boolean(
    "--progress-lease",
    "Tell in a Lease of this machine which EndpointSlices clients have: drains wait for it.",
    False,
)
@cluster_options
@monitoring_options
@log_options
@click.pass_context
def command(ctx: click.Context, /, *, cluster: TargetCluster, logs: Logs, **flags: Any) -> None:
    """Serve Envoy and gRPC over xDS: endpoints by zone and node, as a node proxy would choose them.

    gRPC gets the state of the world, Envoy what differs (delta ADS), on one port. Prints one line,
    "ready ADDRESS:PORT ...", once everything is read; until then it answers nothing. A client is a
    User of the API server, and sees the namespaces whose EndpointSlices it may get. Stops on SIGINT
    and SIGTERM.
    """
    if ctx.invoked_subcommand is not None:
        return
    from sliceplane.kit.io.pages import PageError
    from sliceplane.kit.io.start_error import StartError
    from sliceplane.watch.io.connection import KubeconfigError

    doors = _doors(flags)
    require("structlog", "prometheus_client", "hpack")
    logs.begin()
    try:
        run(_serve(cluster.connect(), doors, flags))
    except (KubeconfigError, StartError, PageError) as error:
        fail(str(error))


def _doors(flags: dict[str, Any]) -> Doors:
    """Raises ``click.UsageError``."""
    from sliceplane.xds.io.serving import Doors

    tls, plain = flags["bind_address"], flags["insecure_bind_address"]
    if tls is not None and (
        flags["tls_cert_file"] is None or flags["tls_private_key_file"] is None
    ):
        raise click.UsageError(
            "--bind-address serves TLS: add --tls-cert-file and --tls-private-key-file"
        )
    return Doors(
        tls=tls,
        cert_file=flags["tls_cert_file"],
        key_file=flags["tls_private_key_file"],
        client_ca_file=flags["client_ca_file"],
        plain=_PLAIN if plain is None and tls is None else plain,
        calls_per_user_max=flags["streams_per_user"],
    )


async def _serve(connection: Connection, doors: Doors, flags: dict[str, Any]) -> None:
    """Until a signal.  Raises ``StartError`` and ``PageError``."""
    import os
    import time

    from sliceplane.kit.rng import Rng
    from sliceplane.watch.io.http.client import HttpClient
    from sliceplane.watch.io.reflect import loop_clock
    from sliceplane.xds.catalog import XdsCatalog, XdsConfig
    from sliceplane.xds.io.admission import AdmissionConfig
    from sliceplane.xds.io.server import XdsServer
    from sliceplane.xds.io.serving import XdsDoors

    stop = begin_service()
    config = XdsConfig(
        domains=tuple(flags["domains"]),
        namespaces=names_in(flags["namespaces"]),
        collected_from=flags["leds_from"],
        with_names=flags["endpoint_names"],
    )
    admission = AdmissionConfig(
        trust=flags["trust_node_metadata"],
        listeners=flags["listeners"],
        leds=flags["leds_from"] > 0,
    )
    clock = loop_clock(time.time())
    # Epochs of collections carry it: no other process, before or beside this one, has the same.
    catalog = XdsCatalog(config, os.urandom(4).hex())
    server = XdsServer(catalog, admission, clock=clock)
    rng = Rng(time.time_ns())
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(HttpClient(connection))
        opened = XdsDoors(doors, server, client, rng.fork(), clock)
        listening = await opened.open()
        sources = [server.metrics.families, opened.listener.metrics.families]
        await _serve_pages(stack, flags, server.pages(), sources, server.staleness_s)
        lease_name = socket.gethostname().lower() if flags["progress_lease"] else ""

        async def print_ready() -> None:
            await server.wait_ready()
            print_listening(listening)

        async def stop_serving() -> None:
            server.stopping = True
            await opened.close(flags["shutdown_delay"])

        try:
            await work_until(
                stop,
                server.follow(client, rng, report_name=lease_name),
                beside=[opened.follow(), print_ready()],
                farewell=stop_serving,
            )
        except Exception:
            await opened.close(0.0)
            raise


async def _serve_pages(
    stack: AsyncExitStack, flags: dict[str, Any], pages: Any, sources: Any, stale: Any
) -> None:
    """``status`` finds them on loopback where nothing else is said, unless another server of this
    machine is there.
    """
    from sliceplane.kit.io.log import get_logger
    from sliceplane.kit.io.pages import PageError

    if flags["metrics_bind_address"] is not None:
        await serve_monitoring(stack, flags, pages, sources, stale)
        return
    try:
        await serve_monitoring(
            stack, flags | {"metrics_bind_address": PAGES}, pages, sources, stale
        )
    except PageError as error:
        remedy = (
            "name another port with --metrics-bind-address, of 'up' with --xds-metrics-bind-address"
        )
        get_logger("xds").warning(
            "no pages for 'sliceplane xds status'", problem=str(error), remedy=remedy
        )
        await serve_monitoring(stack, flags, pages, sources, stale)


def _parse_host_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is not a host and a port (xds.example:18000)")
    return host, int(port)


_HOST_PORT: Final = ParsedType("host:port", _parse_host_port)


@command.command(
    "bootstrap",
    cls=Command,
    short_help="Print what a client must be told.",
    examples=[
        (
            "an Envoy of this machine",
            "sliceplane xds bootstrap --for envoy --insecure > envoy.yaml",
        ),
        (
            "a gRPC program elsewhere",
            "sliceplane xds bootstrap --for grpc --server xds:18000 --ca-file ca.crt",
        ),
    ],
)
@choice("--for kind", "The program.", ("envoy", "grpc"), required=True)
@option(
    "--server",
    "Where we serve.  [default: 127.0.0.1:18000]",
    _PLAIN,
    type=_HOST_PORT,
    show_default=False,
)
@switch("--insecure", "Without TLS, on this machine.")
@string("--ca-file", "PATH", "Authority of the server's certificate.")
@string("--cert-file", "PATH", "The client's certificate.")
@string("--key-file", "PATH", "And its key.")
@string("--token-file", "PATH", "A token of the client, instead of a certificate.")
@string("--node-id", "TEXT", "What the client calls itself.  [default: the host name]")
@string("--node-name", "NAME", "The Node on which it runs.")
@string("--zone", "ZONE", "Its zone.")
@string("--client-namespace", "NAME", "Of names without a namespace.")
@choice("--listeners", "Of an Envoy: which listeners it gets.", _MODES)
@port("--admin-port", "Of an Envoy: its own pages, on loopback; 0: none.", 19000)
@switch("--load-reports", "Of an Envoy: it reports its requests (measured zones).")
def bootstrap(*, kind: str, server: tuple[str, int], insecure: bool, **flags: Any) -> None:
    """Print the bootstrap of a client: YAML for 'envoy -c', JSON for a file that GRPC_XDS_BOOTSTRAP
    names.

    Paths are those of the client's machine; they are not looked at.
    """
    from sliceplane.xds.bootstrap import BootstrapOptions, envoy_bootstrap, grpc_bootstrap

    if not insecure and not flags["ca_file"]:
        raise click.UsageError(
            "--ca-file is needed for TLS; --insecure is for a server on this machine"
        )
    if bool(flags["cert_file"]) != bool(flags["key_file"]):
        raise click.UsageError("--cert-file and --key-file belong together")
    named = (
        ("node_name", flags["node_name"]),
        ("namespace", flags["client_namespace"]),
        ("listeners", flags["listeners"]),
    )
    options = BootstrapOptions(
        host=server[0],
        port=server[1],
        insecure=insecure,
        ca_file=flags["ca_file"],
        cert_file=flags["cert_file"],
        key_file=flags["key_file"],
        token_file=flags["token_file"],
        node_id=flags["node_id"] or socket.gethostname(),
        zone=flags["zone"],
        metadata={name: text for name, text in named if text},
        admin_port=flags["admin_port"],
        load_reports=flags["load_reports"],
    )
    output = Output("yaml" if kind == "envoy" else "json")
    make = envoy_bootstrap if kind == "envoy" else grpc_bootstrap
    output.show(lambda: make(options), str)


@command.command(
    "status",
    cls=Command,
    short_help="Tell how far each client is.",
    examples=[
        ("the clients of the server on this machine", "sliceplane xds status"),
    ],
)
@option(
    "--server servers",
    "The --metrics-bind-address of a server; may be given several times.  "
    "[default: 127.0.0.1:18001]",
    (PAGES,),
    type=_HOST_PORT,
    multiple=True,
    show_default=False,
)
@output_option
def status(*, servers: tuple[tuple[str, int], ...], output: Output) -> None:
    """Tell of each client and type what it was sent, what it has accepted, what it refused last,
    and which names that it requests lead nowhere, and why.

    Exit code 0: all clients are current; 1: one is behind for more than a second, refuses
    something, or requests a name that resolves to nothing; 2: a server does not answer.
    """
    from msgspec import DecodeError, to_builtins

    from sliceplane.xds.streams.status import is_bad, render_clients

    try:
        pages = [_page(host, port) for host, port in servers]
    except (OSError, DecodeError, ValueError) as error:
        fail(f"a server does not say how its clients are: {error}", NO_ANSWER)

    def text(width: int | None) -> str:
        return "\n\n".join("\n".join(render_clients(page, width)) for page in pages)

    output.show(lambda: [to_builtins(page) for page in pages], text)
    raise SystemExit(
        BAD if any(is_bad(client) for page in pages for client in page.clients) else GOOD
    )


def _page(host: str, port: int) -> ClientsPage:
    import http.client

    from sliceplane.xds.streams.status import pages

    connection = http.client.HTTPConnection(host, port, timeout=5.0)
    try:
        connection.request("GET", "/xds/clients")
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise ValueError(f"{host}:{port} answers {answer.status}")
        return pages.decode(body)
    finally:
        connection.close()
