"""``sliceplane completion``: what a shell must read to complete our commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from sliceplane.cli.answers import show
from sliceplane.cli.options import Command

#: shell -> what to put into which file so that every new shell completes
_FOR_GOOD = {
    "bash": ("a line for ~/.bashrc", "source <(sliceplane completion bash)"),
    "zsh": ("a line for ~/.zshrc", "source <(sliceplane completion zsh)"),
    "fish": (
        "fish reads a folder",
        "sliceplane completion fish > ~/.config/fish/completions/sliceplane.fish",
    ),
}


@click.command("completion", cls=Command, examples=tuple(_FOR_GOOD.values()))
@click.argument("shell", type=click.Choice(tuple(_FOR_GOOD)))
@click.pass_context
def command(ctx: click.Context, /, *, shell: str) -> None:
    """Print what makes SHELL complete commands and options."""
    completion = get_completion_class(shell)
    assert completion is not None, "click completes for these three"
    root = ctx.find_root()
    name = root.info_name or "sliceplane"
    show(completion(root.command, {}, name, f"_{name.upper().replace('-', '_')}_COMPLETE").source())
