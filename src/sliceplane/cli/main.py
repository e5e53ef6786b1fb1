"""The entry point: the click group and its commands.

A command's module is imported when the command runs (or its help is asked for), never before: the start of
``sliceplane up`` must not pay for what other commands need.
"""

from __future__ import annotations

from importlib import import_module

import click

#: command -> (module, one line of help); each module has a click command named ``command``
COMMANDS: dict[str, tuple[str, str]] = {
    "apiserver": ("sliceplane.cli.apiserver", "Run the API server alone."),
    "controllers": ("sliceplane.cli.controllers", "Run the controllers against any API server."),
    "endpoints": ("sliceplane.cli.endpoints", "Leave the Endpoints API: see what still depends on it."),
    "estimate": ("sliceplane.cli.estimate", "Estimate what a Service costs in writes, events and bytes."),
    "proxy": ("sliceplane.cli.proxy", "Run the node proxy: nftables rules for Services."),
    "simulate": ("sliceplane.cli.simulate", "Run the control plane on virtual time, under faults, from one seed."),
    "snapshot": ("sliceplane.cli.snapshot", "Copy the whole state of a running server to a file, and restore it."),
    "trace": ("sliceplane.cli.trace", "Tell where a packet goes on a node, and why."),
    "up": ("sliceplane.cli.up", "Run the whole plane in one process."),
}


class LazyGroup(click.Group):
    """A group that knows its commands by name and loads them on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *COMMANDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        command: click.Command = import_module(COMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, COMMANDS[name][1]) for name in self.list_commands(ctx) if name in COMMANDS]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="sliceplane", prog_name="sliceplane")
def main() -> None:
    """A Kubernetes-compatible service-discovery plane: EndpointSlices from API to kernel."""
    from sliceplane.cli.process import open_standard_streams

    open_standard_streams()
