"""The entry point: the click group and its commands.

A command's module is imported when the command runs (or its help is asked for), never before: the start of
``sliceplane up`` must not pay for what other commands need.
"""

from __future__ import annotations

from importlib import import_module

import click

#: command -> (module, one line of help), in the order of the help: what runs, what looks, what reckons.  Each module
#: has a click command named ``command``
COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("sliceplane.cli.up", "Run the whole plane in one process."),
    "apiserver": ("sliceplane.cli.apiserver", "Run the API server alone."),
    "controllers": ("sliceplane.cli.controllers", "Run the controllers against any API server, or as a shadow."),
    "proxy": ("sliceplane.cli.proxy", "Run the node proxy: the kernel's rules for Services."),
    "trace": ("sliceplane.cli.trace", "Tell where a packet goes on a node, and why."),
    "snapshot": ("sliceplane.cli.snapshot", "Copy a running server's state to a file; restore it."),
    "endpoints": ("sliceplane.cli.endpoints", "Leave the Endpoints API: what still depends on it."),
    "estimate": ("sliceplane.cli.estimate", "Estimate what a Service costs in writes, events and bytes."),
    "simulate": ("sliceplane.cli.simulate", "Run the plane on virtual time, under faults, from seeds."),
}


class LazyGroup(click.Group):
    """A group that knows its commands by name and loads them on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *(name for name in super().list_commands(ctx) if name not in COMMANDS)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        command: click.Command = import_module(COMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, COMMANDS[name][1]) for name in self.list_commands(ctx) if name in COMMANDS]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _print_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"sliceplane, version {version()}")
        ctx.exit()


def version() -> str:
    """Of the package that is installed; of a source tree that runs without being installed, what its project says."""
    import tomllib
    from importlib import metadata
    from pathlib import Path

    try:
        return metadata.version("sliceplane")
    except metadata.PackageNotFoundError:
        project = Path(__file__).parents[3] / "pyproject.toml"
    try:
        return f"{tomllib.loads(project.read_text())['project']['version']} (a source tree, not installed)"
    except (OSError, KeyError, ValueError):
        return "unknown (not installed)"


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
    help="Show the version and exit.")  # fmt: skip
def main() -> None:
    """A Kubernetes-compatible service-discovery plane: EndpointSlices from API to kernel."""
    from sliceplane.cli.process import open_standard_streams

    open_standard_streams()
