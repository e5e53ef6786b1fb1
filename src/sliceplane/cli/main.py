"""The entry point: the click group and its commands.

A command's module is imported when the command runs (or its help is asked for), never before: the
start of ``sliceplane up`` must not pay for what other commands need.
"""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import Any, Final

import click

from sliceplane import __version__
from sliceplane.cli.options import CommandGroup
from sliceplane.kit.terminal_text import printable_lines

#: family -> command -> (module, one line of help), in the order of the help. Each module has a
#: click command named ``command``
FAMILIES: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "Run a part of the plane": {
        "up": ("sliceplane.cli.run.up", "Run the whole plane in one process."),
        "apiserver": ("sliceplane.cli.run.apiserver", "Run the API server alone."),
        "relay": (
            "sliceplane.cli.run.relay",
            "Serve reads of any API server from memory, to many clients.",
        ),
        "controllers": (
            "sliceplane.cli.run.controllers",
            "Run the controllers against any API server, or as a shadow.",
        ),
        "proxy": (
            "sliceplane.cli.run.proxy",
            "Run the node proxy: the kernel's rules for Services.",
        ),
        "observe": (
            "sliceplane.cli.run.observe",
            "Report what this node's kube-proxy has applied.",
        ),
        "dns": ("sliceplane.cli.run.dns", "Answer the names of Services and endpoints (DNS)."),
        "xds": (
            "sliceplane.cli.run.xds",
            "Serve Envoy and proxyless gRPC from Services and slices (xDS).",
        ),
        "agent": ("sliceplane.cli.run.agent", "Make a process outside of the cluster an endpoint."),
    },
    "Understand a cluster": {
        "check": (
            "sliceplane.cli.query.check",
            "Report what is wrong, risky or unknown, on one screen.",
        ),
        "status": (
            "sliceplane.cli.query.status",
            "Show the cluster on one screen, and what needs attention.",
        ),
        "ui": ("sliceplane.cli.query.ui", "Show the cluster in a browser, live."),
        "explain": (
            "sliceplane.cli.query.explain",
            "Explain why a Service, Pod, Node or zone does not work.",
        ),
        "lint": ("sliceplane.cli.query.lint", "Check every Service, and report what is wrong."),
        "drift": (
            "sliceplane.cli.query.drift",
            "List the nodes that have not applied what the API server has.",
        ),
        "guard": (
            "sliceplane.cli.query.guard",
            "Show or release removals of endpoints that are suspended.",
        ),
        "trace": ("sliceplane.cli.query.trace", "Show where a packet goes on a node, and why."),
        "timeline": (
            "sliceplane.cli.query.timeline",
            "Show what happened to a Service, who did it, and what followed.",
        ),
        "recorder": (
            "sliceplane.cli.query.recorder",
            "Save, show and replay the events that controllers received.",
        ),
        "endpoints": (
            "sliceplane.cli.query.endpoints",
            "Find what still depends on the Endpoints API.",
        ),
    },
    "Predict and test": {
        "what-if": (
            "sliceplane.cli.lab.what_if",
            "Predict what a change would do, by running it on virtual time.",
        ),
        "estimate": (
            "sliceplane.cli.lab.estimate",
            "Estimate what a Service costs in writes, events and bytes.",
        ),
        "simulate": (
            "sliceplane.cli.lab.simulate",
            "Run the plane on virtual time, under faults, from seeds.",
        ),
        "conformance": (
            "sliceplane.cli.lab.conformance",
            "Test software that follows EndpointSlices with hostile histories.",
        ),
    },
    "Operate it": {
        "adopt": (
            "sliceplane.cli.moves.adopt",
            "Move Services from a cluster's own controllers to ours.",
        ),
        "release": (
            "sliceplane.cli.moves.release",
            "Move adopted Services back to a cluster's own controllers.",
        ),
        "drain": (
            "sliceplane.cli.query.drain",
            "Take Pods out of Services, and wait until no node sends to them.",
        ),
        "snapshot": (
            "sliceplane.cli.query.snapshot",
            "Copy a running server's state to a file; restore it.",
        ),
        "help": ("sliceplane.cli.help", "Show the help of a command."),
        "completion": (
            "sliceplane.cli.completion",
            "Print a script that completes commands and options in a shell.",
        ),
        "version": (
            "sliceplane.cli.version",
            "Print the versions of this program and of the API it serves.",
        ),
    },
}
COMMANDS: Final = {
    name: command for family in FAMILIES.values() for name, command in family.items()
}
#: an option of ``up`` is also SLICEPLANE_UP_OPTION in the environment
ENVIRONMENT: Final = "SLICEPLANE"


#: exit code for a command line that cannot be understood; below it are the answers of commands
USAGE: Final = 64
click.UsageError.exit_code = USAGE


class LazyGroup(CommandGroup):
    """A group that knows its commands by name and loads them on use."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            ctx.fail(
                f"No such command {args[0]!r}." + (f" Did you mean {near[0]!r}?" if near else "")
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; what it says of a file or a server reaches the terminal as plain
        text.
        """
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            text = printable_lines(error.format_message())
            error.format_message = lambda: text  # type: ignore[method-assign]  # the class has one for each kind
            raise

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *(name for name in super().list_commands(ctx) if name not in COMMANDS)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        command: click.Command = import_module(COMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(len(name) for name in COMMANDS)
        for family, commands in FAMILIES.items():
            with formatter.section(family):
                formatter.write_dl(
                    [(name.ljust(widest), summary) for name, (_, summary) in commands.items()]
                )


def _print_version(ctx: click.Context, _param: click.Parameter, requested: bool) -> None:
    if requested:
        click.echo(f"sliceplane, version {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "auto_envvar_prefix": ENVIRONMENT,
    },
    epilog="An option of a command can be set in the environment, too: "
    "SLICEPLANE_UP_SECURE_PORT=7443 is "
    "'sliceplane up --secure-port 7443'.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def main() -> None:
    """A Kubernetes-compatible service-discovery plane: EndpointSlices from API to kernel."""
    from sliceplane.cli.process import open_standard_streams

    open_standard_streams()
