"""``sliceplane relay``: lists and watches of an API server from memory, for many clients."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sliceplane.cli.answers import note
from sliceplane.cli.cluster import connect
from sliceplane.cli.flags import (
    EXISTING_FILE,
    FILE,
    duration,
    option,
    string,
    switch,
    with_options,
)
from sliceplane.cli.logs import Logs, log_options
from sliceplane.cli.options import Command
from sliceplane.cli.process import begin_service, print_listening, require, run, work_until
from sliceplane.cli.run.access import front_proxies, front_proxy_options
from sliceplane.cli.values import LISTEN, ParsedType, names_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sliceplane.api.resource import Resource
    from sliceplane.relay.io.relay import RelayConfig
    from sliceplane.watch.io.connection import Connection

RESOURCES: Final = ("endpointslices", "services", "nodes", "endpoints", "pods")


def _resources(text: str) -> tuple[Resource, ...]:
    from sliceplane.api.scheme import RESOURCES as KNOWN

    names = names_in(text)
    unknown = sorted(set(names) - set(RESOURCES))
    if unknown or not names:
        raise ValueError(f"{text!r} is no list of {', '.join(RESOURCES)}")
    by_plural = {
        resource.plural: resource
        for resource in KNOWN
        if resource.plural in RESOURCES and resource.hub is None
    }
    return tuple(by_plural[name] for name in dict.fromkeys(names))


def _name(text: str) -> str:
    from sliceplane.kit.names import check_dns_label

    problems = check_dns_label(text) if text else ()
    if problems:
        raise ValueError(f"{text!r} cannot be part of a Lease's name: {problems[0]}")
    return text


@click.command(
    "relay",
    cls=Command,
    examples=[
        (
            "in front of the API server of the kubeconfig",
            "sliceplane relay --tls-cert-file tls.crt --tls-private-key-file tls.key",
        ),
        (
            "and then, as a user with a token",
            "kubectl --server https://127.0.0.1:6444 get endpointslices --watch",
        ),
    ],
)
@option(
    "--upstream",
    "Kubeconfig of the parent, an API server or a relay; given again: of another one like it, "
    "which is followed when the parent is gone.",
    (),
    type=FILE,
    multiple=True,
)
@string("--context", "NAME", "A context of it, not the current one.", None)
@string(
    "--zone",
    "ZONE",
    "Keep EndpointSlices for this zone, for a region and for all zones; questions for others, and "
    "for all slices, are passed on.",
)
@option(
    "--listen",
    "Serve there, with TLS.  [default: 127.0.0.1:6444]",
    ("127.0.0.1", 6444),
    type=LISTEN,
    show_default=False,
)
@option("--tls-cert-file", "Certificate of this relay (PEM).", type=EXISTING_FILE, required=True)
@option("--tls-private-key-file", "And its key.", type=EXISTING_FILE, required=True)
@option(
    "--client-ca-file",
    "Authorities (PEM) whose client certificates are trusted; others come with a token.",
    type=EXISTING_FILE,
)
@with_options(*front_proxy_options)
@option(
    "--proxy-client-cert-file",
    "Certificate (PEM) of a front proxy of the parent: requests with a client certificate are passed on.",
    type=EXISTING_FILE,
)
@option("--proxy-client-key-file", "And its key.", type=EXISTING_FILE)
@switch(
    "--trust-nodes",
    "Nodes (system:node:NAME in system:nodes) read without a question to the parent.",
)
@option(
    "--resources",
    f"Resources that are served from memory, of {', '.join(RESOURCES)}.",
    "endpointslices,services,nodes",
    type=ParsedType("name,...", _resources),
)
@option(
    "--aggregate-reports",
    "Report this relay in one Lease of this name, and nodes' progress Leases in it: unique, the same "
    "after a restart.",
    "",
    type=ParsedType("name", _name),
)
@duration(
    "--history-keep",
    "How long old versions are kept for watches that resume; less under a storm of events.",
    "5m",
)
@log_options
def command(*, upstream: tuple[Path, ...], context: str | None, logs: Logs, **flags: Any) -> None:
    """Serve lists and watches of an API server to many clients, with one watch of each resource.

    Versions and objects are the parent's. What is not in memory is passed on with the client's own
    token, or as a front proxy. Who may read is asked of the parent (TokenReview, SubjectAccessReview)
    and remembered for 10 s. Keeps nothing on disk. Prints one line, "ready ADDRESS:PORT", once everything is read.
    Stops on SIGINT and SIGTERM.
    """
    from sliceplane.kit.io.start_error import StartError
    from sliceplane.watch.io.connection import KubeconfigError

    require("structlog", "prometheus_client", "uvicorn", "httptools")
    logs.begin()
    try:
        first, *others = [connect(path, context) for path in upstream or (None,)]
        run(_serve(first, _config(flags), others))
    except (KubeconfigError, StartError) as error:
        note(f"Error: {error}")
        raise SystemExit(1) from error


def _config(flags: dict[str, Any]) -> RelayConfig:
    from sliceplane.relay.io.relay import RelayConfig

    address, port = flags["listen"]
    shown = flags["proxy_client_cert_file"], flags["proxy_client_key_file"]
    if (shown[0] is None) != (shown[1] is None):
        raise click.UsageError("--proxy-client-cert-file and --proxy-client-key-file go together")
    return RelayConfig(
        bind_address=address,
        port=port,
        cert_file=flags["tls_cert_file"],
        key_file=flags["tls_private_key_file"],
        client_ca_file=flags["client_ca_file"],
        front_proxies=front_proxies(flags),
        proxy_certificate=shown if shown[0] is not None else None,
        resources=flags["resources"],
        trust_nodes=flags["trust_nodes"],
        reports_name=flags["aggregate_reports"],
        history_keep_s=flags["history_keep"],
        zone=flags["zone"],
    )


async def _serve(
    connection: Connection, config: RelayConfig, siblings: Sequence[Connection]
) -> None:
    """Until a signal.  Raises ``StartError``."""
    from sliceplane.relay.io.relay import Relay

    stop = begin_service()
    async with Relay(connection, config, siblings) as relay:

        async def report() -> None:
            await relay.wait_ready()
            print_listening([(config.bind_address, relay.port)])

        await work_until(stop, relay.run(), beside=[report()])
