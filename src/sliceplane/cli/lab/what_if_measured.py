"""``sliceplane what-if measured``: reads the Service and the nodes' reports, twice if they count it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import click
from click.core import ParameterSource

from sliceplane.cli.answers import BAD, GOOD, NO_ANSWER, Output
from sliceplane.cli.cluster import TargetCluster, attempt

if TYPE_CHECKING:
    from sliceplane.api.core import Service
    from sliceplane.lab.whatif.measured import CountedDemand, MeasuredPrediction
    from sliceplane.lab.whatif.picture import Clients
    from sliceplane.lab.whatif.state import ClusterState
    from sliceplane.watch.io.http.client import HttpClient

#: the parameters of ``what-if`` that mean something here
_PARAMETERS: Final = (
    "what",
    "traffic",
    "snapshot",
    "output",
    "namespace",
    "kubeconfig",
    "context",
    "request_timeout",
)


def show_measured(
    cluster: TargetCluster, service: str, output: Output, snapshot: Path | None, clients: Clients
) -> NoReturn:
    """Shows the prediction for *service*, and ends the command."""
    from sliceplane.api.scheme import EndpointSlices, Nodes, Services
    from sliceplane.cli.lab.what_if import read_service
    from sliceplane.lab.whatif.measured import UNCOUNTED, CountedDemand, predict_measured
    from sliceplane.lab.whatif.measured_text import as_document, as_text
    from sliceplane.lab.whatif.state import WhatIfError

    _refuse_others(click.get_current_context())

    def work() -> MeasuredPrediction:
        state, subject = read_service(
            cluster, service, snapshot, resources=(Services, Nodes, EndpointSlices)
        )
        counted = UNCOUNTED
        if snapshot is not None:
            counted = CountedDemand(unknown=("What nodes report: a snapshot is of one moment.",))
        elif not clients.traffic:
            counted = cluster.query(lambda client, _: read_reports(client, state, subject))
        return predict_measured(state, subject, clients.traffic, counted)

    prediction = attempt(work, WhatIfError, exit_code=NO_ANSWER)
    output.show(lambda: as_document(prediction), lambda width: as_text(prediction, width))
    raise SystemExit(BAD if prediction.is_worse else GOOD)


def _refuse_others(ctx: click.Context) -> None:
    for parameter in ctx.command.params:
        name = parameter.name or ""
        given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and name not in _PARAMETERS:
            raise click.UsageError(
                f"what-if measured changes nothing else: leave {parameter.opts[0]} out"
            )


async def read_reports(client: HttpClient, state: ClusterState, service: Service) -> CountedDemand:
    """Reads the reports of nodes, or of xDS servers and views, and again after ``COUNTED_S``; once
    if none counts *service*.
    """
    from sliceplane.api.core import Lease
    from sliceplane.api.errors import StatusError
    from sliceplane.api.findings.wording import grant_command
    from sliceplane.api.scheme import Leases
    from sliceplane.cli.progress import ProgressLine
    from sliceplane.consume.demand import REQUESTS, demand_source
    from sliceplane.controllers.node_progress import PROXY_LEASES, REQUEST_LEASES, requests_of
    from sliceplane.diagnose.io.lists import list_objects
    from sliceplane.lab.whatif.measured import (
        COUNTED_S,
        UNCOUNTED,
        CountedDemand,
        are_counted,
        count_demand,
    )

    async def read() -> list[Lease]:
        if demand_source(service) != REQUESTS:
            return list(await list_objects(client, PROXY_LEASES, Lease))
        leases = await list_objects(client, REQUEST_LEASES, Lease)
        counted = ("", service.metadata.namespace)
        return [lease for lease in leases if requests_of(lease) in counted]

    try:
        first = await read()
        if not are_counted(first, service):
            return UNCOUNTED
        with ProgressLine() as report_progress:
            for second in range(round(COUNTED_S)):
                report_progress(f"connections are counted for {COUNTED_S:.0f} s, {second} of them")
                await asyncio.sleep(1.0)
        return count_demand(first, await read(), service, state.zone_by_node)
    except StatusError as error:
        if error.code not in (401, 403):
            raise
        command = grant_command("list", (Leases.key,))
        return CountedDemand(
            unknown=(f"What nodes report: you may not list their Leases; {command}",)
        )
