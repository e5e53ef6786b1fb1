"""The options of a drain, as a command, a program or a controller chooses them."""

from __future__ import annotations

from typing import Literal

import msgspec

from sliceplane.consume.drain.barrier import FORGET_S, UnknownPolicy

#: "": the Pod stays; ``evict``: through the Eviction API, which honours PodDisruptionBudgets
Removal = Literal["", "delete", "evict"]


class DrainOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``removal``: how a Pod ends once it is drained. ``dry_run``: only the plan. ``force``: start
    also if the last ready endpoint of a port goes, or a node is unknown. ``take_back``: marks go
    when the drain gives up. ``digests``: look for caches that lost an event, which takes the slices
    of all namespaces. ``ignores_marks``: an earlier drain saw that the controller does.
    ``until_idle``: wait until established connections have ended, too.
    """

    timeout_s: float = 60.0
    unknown: UnknownPolicy = UnknownPolicy()  # it is frozen
    removal: Removal = ""
    dry_run: bool = False
    mark: bool = True
    force: bool = False
    take_back: bool = True
    forget_s: float = FORGET_S
    digests: bool = True
    ignores_marks: bool = False
    until_idle: bool = False
