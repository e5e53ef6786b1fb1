"""``--controllers``: which of the controllers run, in the words of kube-controller-manager's
flag.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import click

from sliceplane.cli.flags import string

if TYPE_CHECKING:
    from sliceplane.watch.io.hosting.host import ControllerEntry

#: all that are on by default
ALL = "*"

controllers_option = string(
    "--controllers chosen",
    "NAME,...",
    "Which to run: '*' those that are on by default, 'foo' foo too, '-foo' not foo.",
    ALL,
)


def choose(
    text: str,
    make_entries: Callable[[], tuple[ControllerEntry, ...]],
    defaults: Collection[str] | None = None,
) -> tuple[ControllerEntry, ...]:
    """The controllers among those of *make_entries* that *text* asks for, in their order.

    *make_entries* is called twice: controllers that are made to be asked for their names are not
    those that run. *defaults*: the names that ``*`` stands for; ``None``: all. Raises
    ``click.BadParameter`` for a name that no controller has, and if none is left.
    """
    infos = [entry.make().info for entry in make_entries()]
    known = [info.name for info in infos]
    names = {name: info.name for info in infos for name in (info.name, *info.aliases)}
    wanted: dict[str, bool] = {}
    for part in text.split(","):
        name = part.strip()
        if name == ALL:
            usual = (
                known
                if defaults is None
                else [controller for controller in known if controller in defaults]
            )
            wanted |= {controller: wanted.get(controller, True) for controller in usual}
            continue
        controller = names.get(name.removeprefix("-"))
        if controller is None:
            raise click.BadParameter(
                f"there is no controller {name.removeprefix('-')!r}, only "
                f"{', '.join(sorted(known))}",
                param_hint="'--controllers'",
            )
        wanted[controller] = not name.startswith("-")
    running = tuple(
        entry for name, entry in zip(known, make_entries(), strict=True) if wanted.get(name, False)
    )
    if not running:
        raise click.BadParameter("none is left to run", param_hint="'--controllers'")
    return running
