"""The common part of serving commands: their flags, and the life of a process from flags to exit
code.
"""

from __future__ import annotations

import asyncio
import gc
import shlex
from collections.abc import Callable, Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sliceplane.cli.answers import note
from sliceplane.cli.flags import (
    FILE,
    choice,
    duration,
    number,
    option,
    port,
    string,
    switch,
    with_options,
)
from sliceplane.cli.logs import Logs, log_options
from sliceplane.cli.process import (
    is_journal,
    on_stop_signal,
    print_line,
    print_ready,
    run,
    spare_descriptors,
)
from sliceplane.cli.query.recorder import flight_config, recorder_options
from sliceplane.cli.run.access import access_options, with_access
from sliceplane.cli.run.flags.etcd import etcd_options, with_etcd
from sliceplane.cli.values import ADDRESS, ParsedType

if TYPE_CHECKING:
    from sliceplane.api.gates import Gates
    from sliceplane.api.scheme import Resource
    from sliceplane.diagnose.page.io.login_door import LoginDoor
    from sliceplane.server.io.config import PlaneConfig
    from sliceplane.server.io.plane import ServerPlane
    from sliceplane.watch.io.service import PlaneService


def _service_ranges(text: str) -> tuple[str, ...]:
    """Returns one CIDR, or two of different families; the first is the primary family."""
    networks = [ip_network(part.strip()) for part in text.split(",")]
    if len(networks) > 2 or len({network.version for network in networks}) != len(networks):
        raise ValueError("at most one range of each IP family")
    for network in networks:
        if network.num_addresses < 8:
            raise ValueError(f"{network} is too small: at least 8 addresses are needed")
    return tuple(map(str, networks))


def _served(text: str) -> tuple[Resource, ...]:
    from sliceplane.server.registry.config import served_resources

    return served_resources(text)


def gates_of(feature_gates: str, emulated_version: str) -> Gates:
    """The gates of the two flags.  Raises ``click.BadParameter``."""
    from sliceplane.api.gates import NEWEST, Gates, parse_release

    try:
        release = parse_release(emulated_version) if emulated_version else NEWEST
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'--emulated-version'") from error
    try:
        return Gates.parse(feature_gates, release)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'--feature-gates'") from error


#: the flags that every command with an API server has
serving_options = with_options(
    option("--bind-address", "IP to listen on.", "127.0.0.1", type=ADDRESS),
    port("--secure-port", "Port to serve HTTPS on; 0 picks a free one.", 6443),
    string(
        "--data-dir",
        "PATH",
        "Folder for everything that is kept; 'memory:' keeps nothing.  [default: "
        "$XDG_DATA_HOME/sliceplane, else ~/.local/share/sliceplane]",
    ),
    option(
        "--service-cluster-ip-range",
        "Ranges for Service IPs, at most one of each family; the first is the primary family.",
        "10.96.0.0/16,fd00:10:96::/112",
        type=ParsedType("cidr[,cidr]", _service_ranges),
    ),
    duration(
        "--history-keep",
        "How long old revisions are kept for watches and paged lists; less under a storm of "
        "writes.",
        "5m",
    ),
    option(
        "--quota-backend-bytes",
        "Bytes of all objects together, which namespaces share; what would add more is refused.",
        2 * 1024**3,
        type=click.IntRange(1),
        metavar="BYTES",
    ),
    option(
        "--audit-log-path",
        "File for one JSON line per stage of every request (audit.k8s.io/v1, Metadata).  "
        "[default: none]",
        type=FILE,
    ),
    option(
        "--audit-log-maxsize",
        "Size at which the audit log is renamed and begun anew.",
        100,
        type=click.IntRange(1),
        metavar="MEGABYTES",
    ),
    number(
        "--audit-log-maxbackup", "How many renamed audit logs are kept; 0 keeps all.", 10, least=0
    ),
    option(
        "--runtime-config",
        "API versions to switch on, such as discovery.k8s.io/v1beta1=true.",
        "",
        type=ParsedType("key=bool,...", _served),
    ),
    choice(
        "--topology-storage",
        "Where slices keep the topology that clients of v1beta1 write.",
        ("field", "annotation"),
        "field",
    ),
    string(
        "--feature-gates",
        "NAME=BOOL,...",
        "Features to switch on or off, such as TopologyAwareHints=false.",
    ),
    string(
        "--emulated-version",
        "MAJOR.MINOR",
        "The Kubernetes release whose feature gates count.  [default: the newest]",
    ),
    switch(
        "--ui",
        "Show the cluster in a browser, too, at /ui/ of this server, to users who log in "
        "with the link that is printed (once, within 5 minutes), a token or a client "
        "certificate.",
    ),
    log_options,
    recorder_options(64),
    etcd_options,
    access_options,
)


def plane_config(flags: dict[str, Any], gates: Gates) -> PlaneConfig:
    """Returns the configuration from *flags*, which include the values of ``serving_options``."""
    from sliceplane.server.io.audit.log import AuditConfig
    from sliceplane.server.io.config import PlaneConfig

    audit = None
    if flags["audit_log_path"] is not None:
        audit = AuditConfig(
            path=flags["audit_log_path"],
            size_max=flags["audit_log_maxsize"] * 1024 * 1024,
            backups_max=flags["audit_log_maxbackup"],
        )
    config = PlaneConfig(
        bind_address=flags["bind_address"],
        secure_port=flags["secure_port"],
        data_dir=flags["data_dir"],
        service_cidrs=flags["service_cluster_ip_range"],
        history_keep_s=flags["history_keep"],
        object_bytes_max=flags["quota_backend_bytes"],
        audit=audit,
        served=flags["runtime_config"],
        topology_storage=flags["topology_storage"],
        flight=flight_config(flags),
        gates=gates,
    )
    return with_etcd(with_access(config, flags), flags)


def serve(
    config: Callable[[], PlaneConfig],
    services: Callable[[], tuple[PlaneService, ...]],
    *,
    logs: Logs,
    ui: bool,
    notes: tuple[str, ...] = (),
    stays: Sequence[str] = (),
) -> None:
    """Run a plane until a signal asks it to stop; exits with code 1 and one sentence if it cannot
    start.

    *config* and *services* are called after the flags are known to be good, so that what they
    import is not paid for by ``--help`` and usage errors. *notes*: further lines for a person, when
    it is ready. *stays*: what else the plane leaves behind, told with what it keeps.
    """
    from sliceplane.kit.io.process.free_memory import bound_heap
    from sliceplane.kit.io.start_error import StartError

    bound_heap()
    logs.begin()
    try:
        plane, door = _plane(config(), services(), ui=ui)
        run(_run(plane, door, notes=notes, stays=stays))
    except StartError as error:
        note(f"Error: {error}")
        raise SystemExit(1) from error


def _plane(
    config: PlaneConfig, services: tuple[PlaneService, ...], *, ui: bool
) -> tuple[ServerPlane, LoginDoor | None]:
    """Returns the plane, and the door of its page if *ui*."""
    from sliceplane.server.io.plane import ServerPlane

    if not ui:
        return ServerPlane(config, services), None
    from sliceplane.cli.query.ui_what_if import predict_service
    from sliceplane.diagnose.page.io.login_door import LoginDoor

    door = LoginDoor(predict_service)
    door.plane = ServerPlane(config, (*services, door), around=door.around)
    return door.plane, door


def _browser_lines(door: LoginDoor) -> tuple[str, ...]:
    """Returns the URL of the page, with a link that logs in unless the line would be kept in
    a log.
    """
    from sliceplane.server.io.keys.pki import ADMIN_NAME

    if is_journal():
        return (f"  in a browser:         {door.plane.url}/ui/",)
    return (
        f"  in a browser:         {door.sessions.link()}",
        f"{'':24}logs in once, as {ADMIN_NAME}, within 5 minutes",
    )


def next_steps(kubeconfig: Path, kept: Sequence[str]) -> tuple[str, ...]:
    """Returns commands for a person; they follow the line that programs wait for.  *kept*:
    ``_kept``.
    """
    return (
        f"  in another terminal:  export KUBECONFIG={shlex.quote(str(kubeconfig))}",
        "  and then:             kubectl get services,endpointslices --all-namespaces",
        f"  to stop:              Ctrl-C; {kept[0]}",
        *(f"{'':24}{sentence}" for sentence in kept[1:]),
    )


def _kept(plane: ServerPlane, stays: Sequence[str]) -> tuple[str, ...]:
    """Clauses that tell what is left when the plane has stopped."""
    from sliceplane.server.io.datadir import MEMORY

    is_gone = plane.config.data_dir == MEMORY
    of_data = (
        "all that was written is gone"
        if is_gone
        else f"what was written stays in {plane.kubeconfig.parent}"
    )
    return (of_data, *stays)


async def _drain(plane: ServerPlane, second_signal: asyncio.Event) -> None:
    """Until clients had their time to leave, or a second signal."""
    if not plane.config.shutdown_delay_s:
        return
    tasks = {asyncio.ensure_future(plane.drain()), asyncio.ensure_future(second_signal.wait())}
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _run(
    plane: ServerPlane, door: LoginDoor | None, *, notes: tuple[str, ...], stays: Sequence[str]
) -> None:
    stop_requested = asyncio.Event()
    on_stop_signal(stop_requested.set)
    spare_descriptors()
    starting = asyncio.ensure_future(plane.start())
    stopping = asyncio.ensure_future(stop_requested.wait())
    kept: tuple[str, ...] = ()
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting})
        if not starting.cancelled():
            await starting
            print_ready(f"{plane.url} kubeconfig={plane.kubeconfig}")
            kept = _kept(plane, stays)
            for line in (*next_steps(plane.kubeconfig, kept), *notes):
                print_line(line)
            for line in _browser_lines(door) if door is not None else ():
                print_line(line, is_secret=True)
            # What is there now stays, so the garbage collector need not look at it again.
            gc.freeze()
            await stopping
            stop_requested.clear()
            await _drain(plane, stop_requested)
    finally:
        stopping.cancel()
        await plane.stop()
        for line in (
            (f"stopped; {kept[0]}", *(f"  {sentence}" for sentence in kept[1:])) if kept else ()
        ):
            print_line(line)
