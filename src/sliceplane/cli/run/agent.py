"""``sliceplane agent``: a process outside of Kubernetes as an endpoint of a Service."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sliceplane.cli.answers import fail
from sliceplane.cli.cluster import TargetCluster, attempt, cluster_options
from sliceplane.cli.flags import (
    FILE,
    choice,
    duration,
    number,
    option,
    string,
    strings,
    switch,
    with_options,
)
from sliceplane.cli.logs import Logs, log_options
from sliceplane.cli.options import Command, CommandGroup
from sliceplane.cli.process import line_printer, notify, on_stop_signal, run
from sliceplane.cli.run.agent_commands import drain, grant, list_agents, pass_, status, undrain

if TYPE_CHECKING:
    from sliceplane.agent.agent_file import AgentFile
    from sliceplane.consume.agents.checks import CheckSpec
    from sliceplane.consume.agents.registration import AgentPort
    from sliceplane.watch.io.connection import Connection

_NO_CHECK: Final = ""

_agent_options = with_options(
    string(
        "--name",
        "AGENT",
        "One name, one host.  [default: the name that 'agent grant' gave, else "
        "SERVICE-HOST; with -f HOST]",
    ),
    strings(
        "--address addresses",
        "IP",
        "Where clients reach the process; once for each family. auto: where this machine's "
        "way to the server begins.",
        ("auto",),
    ),
    string("--zone", "ZONE", "Where it runs, for Services that prefer what is near."),
    string("--node-name", "NODE", "Of the node proxy that runs on this machine."),
    duration(
        "--lease lease_s", "An agent that is silent for so long is withdrawn: 1s to 5m.", "15s"
    ),
    duration(
        "--drain drain_s",
        "At the end wait so long at most until no node sends to the process any more.",
        "10s",
    ),
    duration("--stop-timeout stop_s", "Then kill a child that has not ended.", "30s"),
    switch("--takeover", "Take the name from another host that lives."),
)

_service_options = with_options(
    string("-n --namespace", "NAME", "[default: the kubeconfig's]"),
    strings(
        "--port ports",
        "[NAME=]PORT",
        "The process's port, under the name that the Service gives it.",
        required=True,
    ),
    string("--http http_path", "PATH", "Check: GET answers 200 to 399.", _NO_CHECK),
    string("--https https_path", "PATH", "The same over TLS, unverified.", _NO_CHECK),
    switch("--tcp", "Check: a connection opens.  [default, if no other check is named]"),
    string(
        "--grpc",
        "[SERVICE]",
        "Check: grpc.health.v1 says SERVING.",
        _NO_CHECK,
        is_flag=False,
        flag_value="*",
    ),
    string("--exec exec_line", "COMMAND", "Check: it ends with 0.", _NO_CHECK),
    duration("--ttl", "Check: 'sliceplane agent pass' was run so recently."),
    switch("--notify notifies", "Check of 'run': the process said READY=1 (sd_notify)."),
    duration("--period period_s", "Between two looks.", "5s"),
    duration("--timeout timeout_s", "What takes longer has failed.", "2s"),
    number("--rise", "Passes that make it ready.", 1, least=1),
    number("--fall", "Failures that end that.", 3, least=1),
    switch("--create-service", "Make the Service, without a selector, if there is none."),
    switch("--dry-run", "Print the slices that would be written, and end."),
)


@click.group(
    "agent",
    cls=CommandGroup,
    invoke_without_command=True,
    examples=[
        (
            "a process as an endpoint of web",
            "sliceplane agent run web --port 8080 -- python3 -m http.server 8080",
        ),
        (
            "an account for it, with no other rights",
            "sliceplane agent grant vm-1 --service web --cidr 192.0.2.0/24",
        ),
    ],
)
@option(
    "-f --filename",
    "Run an agent for the Services of this file (agent.yaml), which is read again when it changes.",
    type=FILE,
)
@_agent_options
@cluster_options
@log_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    cluster: TargetCluster,
    filename: Path | None,
    logs: Logs,
    **flags: Any,
) -> None:
    """Make a process of a VM, a laptop or bare metal an endpoint of a Service, in any Kubernetes
    cluster.

    The agent checks the process, keeps a Lease and an EndpointSlice of its own, and takes both back
    at the end. An agent that falls silent is withdrawn by the plane's controllers.

    Exit code of a running agent: the child's; 3: another host has its name; 1: it could not start,
    stderr says why.
    """
    if ctx.invoked_subcommand is not None:
        if filename is not None:
            raise click.UsageError("-f runs an agent by itself, without a subcommand")
        return
    if filename is None:
        click.echo(ctx.get_help())
        ctx.exit(0)
    logs.begin()
    _run_file(cluster, filename, flags)


for _subcommand in (status, drain, undrain, pass_, grant, list_agents):
    command.add_command(_subcommand)


@command.command(
    "register",
    cls=Command,
    short_help="Register a process that runs already.",
    examples=[
        (
            "a web server on port 8080",
            "sliceplane agent register web --port http=8080 --http /healthz",
        ),
        (
            "a database, of which a script knows whether it is the primary",
            "sliceplane agent register db --port 5432 --exec /usr/local/bin/is-primary",
        ),
    ],
)
@click.argument("service", metavar="SERVICE")
@_service_options
@_agent_options
@cluster_options
@log_options
def register(*, cluster: TargetCluster, logs: Logs, **flags: Any) -> None:
    """Make a process that runs already an endpoint of SERVICE, as long as this command runs and its
    checks pass.

    At SIGTERM the endpoint is drained: nodes stop sending new connections, then it is deleted.
    """
    logs.begin()
    _run_flags(cluster, flags, command=())


@command.command(
    "run",
    cls=Command,
    short_help="Start a process, and register it while it lives.",
    examples=[
        (
            "a server for this folder",
            "sliceplane agent run web --port http=8000 -- python3 -m http.server 8000",
        ),
    ],
)
@click.argument("service", metavar="SERVICE")
@click.argument(
    "command_line", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND..."
)
@_service_options
@_agent_options
@choice(
    "--on-orphan",
    "If this command is killed, leave COMMAND running for the next start to adopt, or end it.",
    ("adopt", "end"),
    "adopt",
)
@cluster_options
@log_options
def run_child(
    *, cluster: TargetCluster, logs: Logs, command_line: tuple[str, ...], **flags: Any
) -> None:
    """Start COMMAND and make it an endpoint of SERVICE while it lives and its checks pass.

    When it ends it is withdrawn at once, and this command ends with its exit code. SIGTERM drains
    first, and is passed on then. COMMAND may say READY=1 to its NOTIFY_SOCKET instead of being
    checked.
    """
    logs.begin()
    _run_flags(cluster, flags, command=command_line)


def _run_flags(cluster: TargetCluster, flags: dict[str, Any], command: tuple[str, ...]) -> None:
    from sliceplane.agent.agent_file import AgentFile, ServiceEntry

    try:
        ports = tuple(_port(text) for text in flags["ports"])
        checks = _checks(flags, runs=bool(command))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    entry = ServiceEntry(flags["service"], flags["namespace"], ports, checks)
    agent_file = AgentFile(
        flags["name"], tuple(flags["addresses"]), flags["zone"], flags["node_name"], (entry,)
    )
    _serve(cluster, flags, command, lambda: agent_file)


def _run_file(cluster: TargetCluster, path: Path, flags: dict[str, Any]) -> None:
    from sliceplane.agent.agent_file import AGENT_FILE_BYTES_MAX, AgentFileError, read_agent_file
    from sliceplane.kit.io.files import read_bytes

    def read() -> AgentFile:
        try:
            agent_file = read_agent_file(read_bytes(path, AGENT_FILE_BYTES_MAX))
        except OSError as error:
            raise AgentFileError(f"cannot read {path}: {error.strerror}") from error
        except AgentFileError as error:
            raise AgentFileError(f"{path}: {error}") from error
        return agent_file._replace(
            name=agent_file.name or flags["name"],
            zone=agent_file.zone or flags["zone"],
            node_name=agent_file.node_name or flags["node_name"],
        )

    _serve(cluster, flags, (), read, path)


def _serve(
    cluster: TargetCluster,
    flags: dict[str, Any],
    command: tuple[str, ...],
    read: Callable[[], AgentFile],
    path: Path | None = None,
) -> None:
    from sliceplane.agent.agent_file import AgentFileError
    from sliceplane.agent.io.control import NoAgent
    from sliceplane.agent.io.machine import MachineError
    from sliceplane.agent.io.program import AgentOptions
    from sliceplane.agent.io.start import serve
    from sliceplane.agent.tenure import LeaseTerms

    try:
        terms = LeaseTerms(lease_s=flags["lease_s"], takeover=flags["takeover"])
    except ValueError as error:
        raise click.UsageError(f"--lease: {error}") from error
    options = AgentOptions(
        command=command,
        terms=terms,
        drain_s=flags["drain_s"],
        stop_s=flags["stop_s"],
        create_service=flags.get("create_service", False),
        dry_run=flags.get("dry_run", False),
        path=path,
        on_orphan=flags.get("on_orphan", "adopt"),
    )

    async def work(connection: Connection) -> int:
        return await serve(
            connection, read, options, on_stop=on_stop_signal, notify=notify, print_line=print_line
        )

    def begin() -> int:
        return run(work(cluster.connect()), spare=True)

    try:
        with line_printer() as print_line:
            code = attempt(begin, AgentFileError, MachineError, NoAgent, ValueError)
    except OSError as error:
        fail(f"cannot run {' '.join(command)}: {error.strerror or error}")
    raise SystemExit(code)


def _port(text: str) -> AgentPort:
    from sliceplane.consume.agents.registration import AgentPort

    name, equals, number = text.rpartition("=")
    if not number.isascii() or not number.isdecimal():
        raise ValueError(f"--port: {text!r} is no port: NAME=NUMBER, as http=8080, or a number")
    return AgentPort(name if equals else "", int(number))


def _checks(flags: dict[str, Any], *, runs: bool) -> tuple[CheckSpec, ...]:
    from sliceplane.consume.agents.checks import CheckSpec

    common = {name: flags[name] for name in ("period_s", "timeout_s", "rise", "fall")}
    checks = []
    for kind, target in (
        ("http", flags["http_path"]),
        ("https", flags["https_path"]),
        ("exec", flags["exec_line"]),
    ):
        if target:
            if kind != "exec" and not target.startswith("/"):
                raise ValueError(f"--{kind}: {target!r} is no path: it begins with a slash")
            checks.append(CheckSpec(kind=kind, target=target, **common))  # type: ignore[arg-type]
    if flags["grpc"]:
        checks.append(
            CheckSpec(kind="grpc", target="" if flags["grpc"] == "*" else flags["grpc"], **common)
        )
    if flags["ttl"] is not None:
        checks.append(CheckSpec(kind="ttl", period_s=flags["ttl"]))
    if flags["notifies"]:
        if not runs:
            raise ValueError(
                "--notify is for 'run': a process that is registered has its own service manager"
            )
        checks.append(CheckSpec(kind="notify"))
    if flags["tcp"] or not checks:
        checks.append(CheckSpec(kind="tcp", **common))
    if runs:
        checks.append(CheckSpec(kind="process"))
    return tuple(checks)
