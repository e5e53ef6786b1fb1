"""``sliceplane controllers``: the controllers alone, against any API server, with upstream's flag
names.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING, Any

import click

from sliceplane.cli.answers import NO_ANSWER, note
from sliceplane.cli.cluster import TargetCluster, cluster_options, limited_client, rate_options
from sliceplane.cli.flags import boolean, duration, string, switch
from sliceplane.cli.logs import Logs, log_options
from sliceplane.cli.options import Command
from sliceplane.cli.process import begin_service, print_line, print_ready, run, work_until
from sliceplane.cli.query.recorder import flight_config, recorder_options
from sliceplane.cli.run.flags.controllers import (
    check_slice_options,
    choose,
    controllers_option,
    discovery_config,
    discovery_options,
    slice_options,
)
from sliceplane.cli.run.flags.monitoring import monitoring_options, serve_monitoring
from sliceplane.cli.run.serving import gates_of
from sliceplane.cli.run.shadow import check_shadow_flags, run_shadow, shadow_options

if TYPE_CHECKING:
    from sliceplane.controllers.endpointslice import EndpointSliceConfig
    from sliceplane.controllers.io.standalone import ReconcileSummary, RecordingHere
    from sliceplane.watch.controller.election import ElectionConfig
    from sliceplane.watch.io.connection import Connection
    from sliceplane.watch.io.hosting.host import ControllerEntry

#: what KEP-0752 describes; the others are for an API server that runs without controllers
DEFAULT_CONTROLLERS = (
    "endpointslice-controller",
    "endpoints-controller",
    "endpointslice-mirroring-controller",
)
LEASE_NAME = "sliceplane-controllers"


@click.command(
    "controllers",
    cls=Command,
    examples=[
        (
            "compare with what a cluster's own controller wrote",
            "sliceplane controllers --shadow --once",
        ),
        (
            "put EndpointSlices and Endpoints right, once",
            "sliceplane controllers --once --kubeconfig admin.kubeconfig",
        ),
    ],
)
@cluster_options
@controllers_option
@shadow_options
@switch(
    "--adopted-only",
    "Work for adopted Services alone (sliceplane adopt), beside upstream's controllers.",
)
@switch("--once", "Reconcile (or compare) everything, print a summary, exit.")
@duration("--once-timeout", "When --once gives up.", "5m")
@switch("--cleanup", "Take away what reverse-mirror-controller made, and exit; as --once.")
@boolean("--leader-elect", "Work only while leading; false: work at once.", True)
@duration(
    "--leader-elect-lease-duration",
    "How long others look at an unchanged Lease before they take it.",
    "15s",
)
@duration(
    "--leader-elect-renew-deadline", "How long the leader works on without having renewed.", "10s"
)
@duration("--leader-elect-retry-period", "Between two looks at the Lease.", "2s")
@string("--leader-elect-resource-namespace", "NAMESPACE", "Where the Lease is.", "kube-system")
@string("--leader-elect-resource-name", "NAME", "The Lease's name.", LEASE_NAME)
@discovery_options
@slice_options
@string("--feature-gates", "NAME=BOOL,...", "Features to switch on or off.")
@rate_options
@monitoring_options
@recorder_options(64)
@log_options
def command(
    *,
    cluster: TargetCluster,
    chosen: str,
    once: bool,
    once_timeout: float,
    cleanup: bool,
    logs: Logs,
    **flags: Any,
) -> None:
    """Run the controllers against any API server.

    Beside a cluster's own kube-controller-manager, switch its controllers off first
    (--controllers=*,-endpointslice-controller,-endpoints-controller,-endpointslice-mirroring-controller):
    two writers of one set of objects undo each other's work. If that is impossible (EKS, GKE, AKS),
    --adopted-only works for the Services that "sliceplane adopt" moved. With --shadow nothing is written: what
    a cluster's own controller wrote is compared with what this one would, and the exit code of
    --once is 0 (the same), 1 (different) or 2 (trouble).

    Prints one line, "ready leading" or "ready standby leader=ID"; with --once a summary. Stops on
    SIGINT and SIGTERM, and gives the Lease back.
    """
    from sliceplane.kit.io.pages import PageError
    from sliceplane.watch.io.base import Unreachable
    from sliceplane.watch.io.connection import KubeconfigError
    from sliceplane.watch.io.hosting.informers import CannotRead

    logs.begin()
    if cleanup and chosen not in ("reverse-mirror-controller", "reverse-mirror"):
        raise click.UsageError("--cleanup is for --controllers=reverse-mirror-controller alone")
    check_shadow_flags(chosen, flags, cleanup=cleanup)
    _check_adopted_only(flags, cleanup=cleanup)
    entries = _entries(chosen, flags, cleanup=cleanup)
    election = _election(flags)
    try:
        connection = cluster.connect()
        if flags["shadow"]:
            raise SystemExit(
                run_shadow(connection, _slice_config(flags), flags, once_timeout if once else None)
            )
        if once or cleanup:
            raise SystemExit(run(_reconcile_and_exit(connection, entries, flags, once_timeout)))
        run(_serve(connection, entries, election, flags))
    except (KubeconfigError, PageError, CannotRead, Unreachable) as error:
        note(f"Error: {error}")
        raise SystemExit(NO_ANSWER if flags["shadow"] else 1) from error


def _check_adopted_only(flags: dict[str, Any], *, cleanup: bool) -> None:
    """Raises ``click.UsageError`` for flags that contradict ``--adopted-only``."""
    contradictions = {
        "--shadow": flags["shadow"],
        "--cleanup": cleanup,
        "--claim-unlabelled-slices": flags["claim_unlabelled_slices"],
    }
    for name, is_set in contradictions.items():
        if flags["adopted_only"] and is_set:
            raise click.UsageError(f"--adopted-only contradicts {name}")


def _slice_config(flags: dict[str, Any]) -> EndpointSliceConfig:
    from sliceplane.controllers.io.heuristics import InstalledHeuristics

    return discovery_config(
        flags, gates_of(flags["feature_gates"], ""), InstalledHeuristics().find
    ).slices


def _election(flags: dict[str, Any]) -> ElectionConfig | None:
    """Raises ``click.UsageError`` for times that cannot work."""
    if not flags["leader_elect"]:
        return None
    from sliceplane.watch.controller.election import ElectionConfig

    try:
        return ElectionConfig(
            identity=f"{socket.gethostname()}_{os.urandom(8).hex()}",
            name=flags["leader_elect_resource_name"],
            namespace=flags["leader_elect_resource_namespace"],
            lease_duration_s=flags["leader_elect_lease_duration"],
            renew_deadline_s=flags["leader_elect_renew_deadline"],
            retry_period_s=flags["leader_elect_retry_period"],
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _entries(chosen: str, flags: dict[str, Any], *, cleanup: bool) -> tuple[ControllerEntry, ...]:
    """The controllers of the flags.  Raises ``click.BadParameter`` for a name that none has."""
    from sliceplane.controllers.io.catalogue import (
        adopting_controllers,
        default_controllers,
        reverse_mirror,
    )
    from sliceplane.controllers.io.heuristics import InstalledHeuristics

    gates = gates_of(flags["feature_gates"], "")
    check_slice_options(flags, gates)
    config = discovery_config(flags, gates, InstalledHeuristics().find)
    if flags["adopted_only"]:
        return choose(chosen, lambda: adopting_controllers(config), defaults=DEFAULT_CONTROLLERS)
    # The reverse mirror runs for who asks for it by name, never by ``*``.
    return choose(
        chosen,
        lambda: (*default_controllers(config), reverse_mirror(cleanup=cleanup)),
        defaults=DEFAULT_CONTROLLERS,
    )


async def _serve(
    connection: Connection,
    entries: tuple[ControllerEntry, ...],
    election: ElectionConfig | None,
    flags: dict[str, Any],
) -> None:
    """Until a signal."""
    from contextlib import AsyncExitStack

    from sliceplane.controllers.io.standalone import Standalone
    from sliceplane.watch.io.http.client import HttpClient

    stop = begin_service()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(limited_client(connection, flags))
        elector = await stack.enter_async_context(
            HttpClient(connection, field_manager="sliceplane-controllers")
        )
        controllers = Standalone(
            client, entries, election, election_client=elector, recording=_recording(flags)
        )
        sources = (controllers.samples, client.metrics.families)
        await serve_monitoring(stack, flags, controllers.pages(), sources, controllers.staleness_s)
        await work_until(stop, controllers.run(), beside=[_print_ready(controllers.wait_ready())])


def _recording(flags: dict[str, Any]) -> RecordingHere | None:
    from sliceplane.controllers.io.heuristics import InstalledHeuristics
    from sliceplane.controllers.io.settings import settings_of
    from sliceplane.controllers.io.standalone import RecordingHere

    flight = flight_config(flags)
    config = discovery_config(
        flags, gates_of(flags["feature_gates"], ""), InstalledHeuristics().find
    )
    return RecordingHere(flight, settings_of(config)) if flight.size_bytes else None


async def _print_ready(waiting: Any) -> None:
    print_ready(await waiting)


async def _reconcile_and_exit(
    connection: Connection,
    entries: tuple[ControllerEntry, ...],
    flags: dict[str, Any],
    timeout_s: float,
) -> int:
    """Reconciles everything and returns the exit code: 0 if the cluster has the desired state."""
    from sliceplane.controllers.io.standalone import reconcile_until_idle

    stop = begin_service()
    async with limited_client(connection, flags) as client:
        reconciling = asyncio.create_task(
            reconcile_until_idle(client, entries, timeout_s=timeout_s)
        )
        await work_until(stop, reconciling)
    if reconciling.cancelled():
        note("Error: interrupted before everything was reconciled")
        return 1
    summary = reconciling.result()
    print_line(summary_text(summary))
    return 1 if summary.unfinished else 0


def summary_text(summary: ReconcileSummary) -> str:
    """Returns the output of ``--once``."""
    informers = summary.status.informers
    read = ", ".join(
        f"{informer.objects} {informer.watched.resource.plural}"
        for informer in informers
        if informer.synced
    )
    lines = [f"read {read or 'nothing'}"]
    for informer in informers:
        if not informer.synced:
            # That no object was read does not mean that there is none.
            why = f": {informer.error[0]}" if informer.error is not None else ""
            lines.append(f"NOT read {informer.watched.resource.plural}{why}")
    for controller in summary.status.controllers:
        tally = controller.tally
        lines.append(
            f"{controller.name}: {tally.jobs} jobs, {tally.writes} writes, {tally.failed_jobs} "
            "failed"
        )
    writes = sum(controller.tally.writes for controller in summary.status.controllers)
    if summary.unfinished:
        lines.append(
            f"NOT reconciled after {summary.seconds:.1f} s: {', '.join(summary.unfinished)} would "
            "go on"
        )
    else:
        lines.append(f"reconciled in {summary.seconds:.1f} s with {writes} writes")
    return "\n".join(lines)
