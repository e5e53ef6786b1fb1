"""The flags of controllers, shared by ``up`` and ``controllers``: which run, and how those that
make EndpointSlices and Endpoints work.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import click

from sliceplane.api.gates import TOPOLOGY_AWARE_SUBSETTING, Gates
from sliceplane.cli.flags import choice, duration, number, string, switch, with_options

if TYPE_CHECKING:
    from sliceplane.controllers.io.catalogue import DiscoveryConfig
    from sliceplane.slices.heuristics.queries import Find
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
    """Returns the controllers of *make_entries* that *text* selects, in their order.

    *make_entries* is called twice: the controllers built for their names are not those that run.
    *defaults*: the names that ``*`` stands for; ``None``: all. Raises ``click.BadParameter`` for an
    unknown name, and if no controller is selected.
    """
    infos = [entry.make().info for entry in make_entries()]
    names = [info.name for info in infos]
    canonical = {name: info.name for info in infos for name in (info.name, *info.aliases)}
    is_selected: dict[str, bool] = {}
    for part in text.split(","):
        name = part.strip()
        if name == ALL:
            usual = (
                names
                if defaults is None
                else [controller for controller in names if controller in defaults]
            )
            is_selected |= {controller: is_selected.get(controller, True) for controller in usual}
            continue
        controller = canonical.get(name.removeprefix("-"))
        if controller is None:
            raise click.BadParameter(
                f"there is no controller {name.removeprefix('-')!r}, only "
                f"{', '.join(sorted(names))}",
                param_hint="'--controllers'",
            )
        is_selected[controller] = not name.startswith("-")
    running = tuple(
        entry
        for name, entry in zip(names, make_entries(), strict=True)
        if is_selected.get(name, False)
    )
    if not running:
        raise click.BadParameter("no controller is selected", param_hint="'--controllers'")
    return running


#: upstream's flags of those controllers
discovery_options = with_options(
    number(
        "--max-endpoints-per-slice",
        "Endpoints that are put into one slice.",
        100,
        least=1,
        most=1000,
    ),
    number(
        "--concurrent-service-endpoint-syncs",
        "Services whose slices are written side by side.",
        5,
        least=1,
        most=50,
    ),
    duration(
        "--endpointslice-updates-batch-period",
        "How long changes of Pods are gathered before slices are written.",
        "0s",
    ),
    number("--concurrent-endpoint-syncs", "Endpoints that are written side by side.", 5, least=1),
    duration(
        "--endpoint-updates-batch-period",
        "How long changes of Pods are gathered before Endpoints are written.",
        "0s",
    ),
    number(
        "--mirroring-concurrent-service-endpoint-syncs",
        "Endpoints that are mirrored side by side.",
        5,
        least=1,
        most=50,
    ),
    number(
        "--mirroring-max-endpoints-per-subset",
        "Addresses of one subset that are mirrored.",
        1000,
        least=1,
        most=1000,
    ),
    number(
        "--mirroring-max-endpoints-per-slice",
        "Pack mirrored slices so; upstream cannot.  [default: all of a subset in one]",
        least=1,
        most=1000,
    ),
    duration(
        "--mirroring-endpointslice-updates-batch-period",
        "How long changes of mirrored slices are gathered before they are put right.",
        "0s",
    ),
    choice(
        "--selector-changes",
        "What becomes of slices and Endpoints when a Service gets or loses its selector.",
        ("hand-over", "upstream"),
        "hand-over",
    ),
)

#: what the EndpointSlice controller can do beyond upstream's
slice_options = with_options(
    choice(
        "--subsetting",
        "Slices for the nodes of one zone, where the Service does not say.  [default: Original]",
        ("Original", "PreferZone", "RequireZone"),
    ),
    switch(
        "--hold-mass-removals",
        "Keep endpoints for five minutes that are lost in great number although no Pod says "
        "that it goes.",
    ),
    switch(
        "--probe-held-endpoints",
        "Try a TCP connection to each endpoint that is so kept, each minute; one that is "
        "refused goes.",
    ),
    switch("--defragment", "Merge under-filled slices while their Service is quiet."),
    number(
        "--defragment-writes-per-minute",
        "How much --defragment writes at most.  [default: 10]",
        least=1,
    ),
    switch(
        "--claim-unlabelled-slices", "Take over slices of 1.16, which no label says who manages."
    ),
)


def check_slice_options(flags: dict[str, Any], gates: Gates) -> None:
    """Raises ``click.UsageError`` for flags that contradict each other."""
    if flags["subsetting"] is not None and gates.chosen.get(TOPOLOGY_AWARE_SUBSETTING) is False:
        raise click.UsageError(
            f"--subsetting contradicts --feature-gates {TOPOLOGY_AWARE_SUBSETTING}=false"
        )
    if flags["defragment_writes_per_minute"] is not None and not flags["defragment"]:
        raise click.UsageError("--defragment-writes-per-minute bounds --defragment; add it")


def discovery_config(flags: dict[str, Any], gates: Gates, find_heuristic: Find) -> DiscoveryConfig:
    """Returns the configuration from *flags*, which include the values of ``discovery_options`` and
    ``slice_options``.
    """
    from sliceplane.api.selectors.adoption import Scope
    from sliceplane.controllers.defragment import WRITES_PER_MINUTE_DEFAULT
    from sliceplane.controllers.endpoints import EndpointsConfig
    from sliceplane.controllers.endpointslice import EndpointSliceConfig
    from sliceplane.controllers.endpointslice_mirroring import MirroringConfig
    from sliceplane.controllers.io.catalogue import DiscoveryConfig
    from sliceplane.slices.subsets import APPROACHES
    from sliceplane.slices.succession import SelectorChanges

    changes = SelectorChanges(flags["selector_changes"])
    scope = Scope.ADOPTED if flags.get("adopted_only") else Scope.SELECTING
    return DiscoveryConfig(
        slices=EndpointSliceConfig(
            max_endpoints_per_slice=flags["max_endpoints_per_slice"],
            concurrent_service_endpoint_syncs=flags["concurrent_service_endpoint_syncs"],
            endpointslice_updates_batch_period_s=flags["endpointslice_updates_batch_period"],
            selector_changes=changes,
            gates=gates,
            find_heuristic=find_heuristic,
            subsetting=None if flags["subsetting"] is None else APPROACHES[flags["subsetting"]],
            claim_unlabelled_slices=flags["claim_unlabelled_slices"],
            hold_mass_removals=flags["hold_mass_removals"],
            probe_held=flags["probe_held_endpoints"],
            defragment=flags["defragment"],
            defragment_writes_per_minute=flags["defragment_writes_per_minute"]
            or WRITES_PER_MINUTE_DEFAULT,
            scope=scope,
        ),
        endpoints=EndpointsConfig(
            concurrent_endpoint_syncs=flags["concurrent_endpoint_syncs"],
            endpoint_updates_batch_period_s=flags["endpoint_updates_batch_period"],
            selector_changes=changes,
            gates=gates,
            scope=scope,
        ),
        mirroring=MirroringConfig(
            concurrent_service_endpoint_syncs=flags["mirroring_concurrent_service_endpoint_syncs"],
            max_endpoints_per_subset=flags["mirroring_max_endpoints_per_subset"],
            max_endpoints_per_slice=flags["mirroring_max_endpoints_per_slice"],
            endpointslice_updates_batch_period_s=flags[
                "mirroring_endpointslice_updates_batch_period"
            ],
            selector_changes=changes,
        ),
    )
