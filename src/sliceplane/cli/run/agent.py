"""``sliceplane agent``: a process outside of Kubernetes as an endpoint of a Service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sliceplane.cli.answers import fail
from sliceplane.cli.cluster import attempt, cluster_options, connect
from sliceplane.cli.logs import Logs, log_options
from sliceplane.cli.options import Command, CommandGroup, with_options
from sliceplane.cli.process import notify, on_stop_signal, run, saying
from sliceplane.cli.run.agent_cluster import grant, list_agents
from sliceplane.cli.run.agent_local import drain, pass_, status, undrain
from sliceplane.cli.values import DurationType

if TYPE_CHECKING:
    from sliceplane.agent.agent_file import AgentFile
    from sliceplane.consume.agents.checks import CheckSpec
    from sliceplane.consume.agents.registration import AgentPort
    from sliceplane.watch.io.kubeconfig import Connection

_NOT_SAID: Final = ""

_agent_options = with_options(
    click.option(
        "--name",
        default="",
        metavar="AGENT",
        help=(
            "One name, one host.  [default: the name that 'agent grant' gave, else SERVICE-HOST; "
            "with -f HOST]"
        ),
    ),
    click.option(
        "--address",
        "addresses",
        multiple=True,
        default=("auto",),
        show_default=True,
        metavar="IP",
        help="Where clients reach the process; once for each family. auto: where this machine's "
        "way to the server "
        "begins.",
    ),
    click.option(
        "--zone",
        default="",
        metavar="ZONE",
        help="Where it runs, for Services that prefer what is near.",
    ),
    click.option(
        "--node-name",
        default="",
        metavar="NODE",
        help="Of the node proxy that runs on this machine.",
    ),
    click.option(
        "--lease",
        "lease_s",
        type=DurationType(),
        default="15s",
        show_default=True,
        help="An agent that is silent for so long is withdrawn: 1s to 5m.",
    ),
    click.option(
        "--drain",
        "drain_s",
        type=DurationType(),
        default="10s",
        show_default=True,
        help="At the end wait so long at most until no node sends to the process any more.",
    ),
    click.option(
        "--stop-timeout",
        "stop_s",
        type=DurationType(),
        default="30s",
        show_default=True,
        help="Then kill a child that has not ended.",
    ),
    click.option("--takeover", is_flag=True, help="Take the name from another host that lives."),
)

_service_options = with_options(
    click.option(
        "-n", "--namespace", default="", metavar="NAME", help="[default: the kubeconfig's]"
    ),
    click.option(
        "--port",
        "ports",
        multiple=True,
        required=True,
        metavar="[NAME=]PORT",
        help="The process's port, under the name that the Service gives it.",
    ),
    click.option(
        "--http",
        "http_path",
        default=_NOT_SAID,
        metavar="PATH",
        help="Check: GET answers 200 to 399.",
    ),
    click.option(
        "--https",
        "https_path",
        default=_NOT_SAID,
        metavar="PATH",
        help="The same over TLS, unverified.",
    ),
    click.option(
        "--tcp",
        is_flag=True,
        help="Check: a connection opens.  [default, if no other check is named]",
    ),
    click.option(
        "--grpc",
        is_flag=False,
        flag_value="*",
        default=_NOT_SAID,
        metavar="[SERVICE]",
        help="Check: grpc.health.v1 says SERVING.",
    ),
    click.option(
        "--exec", "exec_line", default=_NOT_SAID, metavar="COMMAND", help="Check: it ends with 0."
    ),
    click.option(
        "--ttl",
        type=DurationType(),
        default=None,
        metavar="DURATION",
        help="Check: 'sliceplane agent pass' was run so recently.",
    ),
    click.option(
        "--notify",
        "notifies",
        is_flag=True,
        help="Check of 'run': the process said READY=1 (sd_notify).",
    ),
    click.option(
        "--period",
        "period_s",
        type=DurationType(),
        default="5s",
        show_default=True,
        help="Between two looks.",
    ),
    click.option(
        "--timeout",
        "timeout_s",
        type=DurationType(),
        default="2s",
        show_default=True,
        help="What takes longer has failed.",
    ),
    click.option(
        "--rise",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Passes that make it ready.",
    ),
    click.option(
        "--fall",
        type=click.IntRange(min=1),
        default=3,
        show_default=True,
        help="Failures that end that.",
    ),
    click.option(
        "--create-service",
        is_flag=True,
        help="Make the Service, without a selector, if there is none.",
    ),
    click.option(
        "--dry-run", is_flag=True, help="Print the slices that would be written, and end."
    ),
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
@click.option(
    "-f",
    "--filename",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    metavar="FILE",
    help=(
        "Run an agent for the Services of this file (agent.yaml), which is read again when it "
        "changes."
    ),
)
@_agent_options
@cluster_options
@log_options
@click.pass_context
def command(ctx: click.Context, /, *, filename: Path | None, logs: Logs, **flags: Any) -> None:
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
    _run_file(filename, flags)


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
def register(*, logs: Logs, **flags: Any) -> None:
    """Make a process that runs already an endpoint of SERVICE, as long as this command runs and its
    checks pass.

    At SIGTERM the endpoint is drained: nodes stop sending new connections, then it is deleted.
    """
    logs.begin()
    _run_flags(flags, command=())


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
@click.option(
    "--on-orphan",
    type=click.Choice(("adopt", "end")),
    default="adopt",
    show_default=True,
    help="If this command is killed, leave COMMAND running for the next start to adopt, or end it.",
)
@cluster_options
@log_options
def run_child(*, logs: Logs, command_line: tuple[str, ...], **flags: Any) -> None:
    """Start COMMAND and make it an endpoint of SERVICE while it lives and its checks pass.

    When it ends it is withdrawn at once, and this command ends with its exit code. SIGTERM drains
    first, and is passed on then. COMMAND may say READY=1 to its NOTIFY_SOCKET instead of being
    checked.
    """
    logs.begin()
    _run_flags(flags, command=command_line)


def _run_flags(flags: dict[str, Any], command: tuple[str, ...]) -> None:
    from sliceplane.agent.agent_file import AgentFile, ServiceEntry

    try:
        ports = tuple(_port(text) for text in flags["ports"])
        checks = _checks(flags, runs=bool(command))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    entry = ServiceEntry(flags["service"], flags["namespace"], ports, checks)
    wanted = AgentFile(
        flags["name"], tuple(flags["addresses"]), flags["zone"], flags["node_name"], (entry,)
    )
    _serve(flags, command, lambda: wanted, path=None)


def _run_file(path: Path, flags: dict[str, Any]) -> None:
    from sliceplane.agent.agent_file import AGENT_FILE_BYTES_MAX, AgentFileError, read_agent_file
    from sliceplane.kit.io.files import read_bytes

    def read() -> AgentFile:
        try:
            wanted = read_agent_file(read_bytes(path, AGENT_FILE_BYTES_MAX))
        except OSError as error:
            raise AgentFileError(f"cannot read {path}: {error.strerror}") from error
        except AgentFileError as error:
            raise AgentFileError(f"{path}: {error}") from error
        return wanted._replace(
            name=wanted.name or flags["name"],
            zone=wanted.zone or flags["zone"],
            node_name=wanted.node_name or flags["node_name"],
        )

    _serve(flags, (), read, path=path)


def _serve(flags: dict[str, Any], command: tuple[str, ...], read: Any, path: Path | None) -> None:
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
            connection, read, options, on_stop=on_stop_signal, notify=notify, say=say
        )

    def begin() -> int:
        return run(work(connect(flags["kubeconfig"], flags["context"])), spare=True)

    try:
        with saying() as say:
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
