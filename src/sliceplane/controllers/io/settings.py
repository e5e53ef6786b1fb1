"""The settings of controllers as plain values in a recording, and controllers from such values for
a replay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from sliceplane.controllers.io.catalogue import (
    DiscoveryConfig,
    default_controllers,
    emulation_controllers,
    reverse_mirror,
)
from sliceplane.controllers.io.heuristics import InstalledHeuristics
from sliceplane.controllers.objects.per_namespace import RootCaPublisher
from sliceplane.emulation.nodes import EmulationConfig
from sliceplane.watch.controller.base import Controller

#: fields that are code: a replay uses the installed one
_CODE: Final = "find_heuristic"


def settings_of(
    config: DiscoveryConfig,
    *,
    conditions: bool = True,
    reverse: bool = False,
    emulation: EmulationConfig | None = None,
) -> dict[str, Any]:
    discovery = msgspec.to_builtins(config, enc_hook=lambda _: None)
    del discovery["slices"][_CODE]
    return {
        "discovery": discovery,
        "conditions": conditions,
        "reverse": reverse,
        "emulation": None if emulation is None else msgspec.to_builtins(emulation),
    }


def makers_of(settings: dict[str, Any]) -> dict[str, Callable[[], Controller]]:
    """Returns factories of the controllers of a recording with these *settings*, by their names.

    Raises ``ValueError`` (``msgspec.ValidationError`` is one) for settings of another program.
    """
    config = msgspec.convert(settings.get("discovery", {}), DiscoveryConfig)
    config = replace(
        config, slices=replace(config.slices, find_heuristic=InstalledHeuristics().find)
    )
    emulation = settings.get("emulation")
    reverse = bool(settings.get("reverse"))
    entries = default_controllers(
        config, conditions=bool(settings.get("conditions", True)), reverse=reverse
    )
    if not reverse:
        entries += (reverse_mirror(),)
    if emulation is not None:
        entries += emulation_controllers(msgspec.convert(emulation, EmulationConfig))
    names = [entry.make().info.name for entry in entries]
    makers = {name: entry.make for name, entry in zip(names, entries, strict=True)}
    authority = str(settings.get("authority", ""))
    publisher = RootCaPublisher(authority)
    return {**makers, publisher.info.name: lambda: RootCaPublisher(authority)}
