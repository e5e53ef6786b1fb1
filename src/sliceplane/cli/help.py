"""``sliceplane help``: what ``--help`` shows, with the words in the order in which people type
them.
"""

from __future__ import annotations

import click

from sliceplane.cli.answers import show
from sliceplane.cli.options import Command


@click.command(
    "help",
    cls=Command,
    examples=[
        ("all commands", "sliceplane help"),
        ("one of them", "sliceplane help agent run"),
    ],
)
@click.argument("names", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def command(ctx: click.Context, /, *, names: tuple[str, ...]) -> None:
    """Show the help of a command, or the list of all commands."""
    current = ctx.find_root()
    for name in names:
        group = current.command
        # An unknown name is answered as it would be without "help".
        resolved, subcommand, _ = (
            group.resolve_command(current, [name])
            if isinstance(group, click.Group)
            else ("", None, [])
        )
        if subcommand is None:
            current.fail(f"'{current.command_path}' has no commands of its own.")
        current = click.Context(subcommand, info_name=resolved, parent=current)
    show(current.get_help())
