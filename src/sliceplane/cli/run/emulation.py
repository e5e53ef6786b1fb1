"""The flags of workload emulation, and what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sliceplane.cli.flags import (
    EXISTING_FILE,
    choice,
    duration,
    number,
    option,
    string,
    switch,
    with_options,
)
from sliceplane.cli.values import given_flags

if TYPE_CHECKING:
    from sliceplane.emulation.nodes import EmulatedNode, EmulationConfig

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
#: what says how to emulate, and so nothing without ``--emulate``
_COMPANIONS = (
    *("emulate_file", "zones", "emulate_nodes", "emulate_ready_delay"),
    *("emulate_termination", "emulate_readiness"),
)


#: ``--emulate`` and its companions; they reach the command as one dictionary, for
#: ``emulation_config``
emulation_options = with_options(
    switch("--emulate", "Emulate kubelets: workloads become Pods on Nodes."),
    number("--emulate-nodes", "How many Nodes, named node-1, node-2, ...", 1, least=1, most=250),
    string("--zones", "ZONE,ZONE", "Zones that the Nodes are spread over in turn."),
    option(
        "--emulate-file",
        "YAML list of Nodes: name, zone, region, labels, podCIDRs, address.",
        type=EXISTING_FILE,
    ),
    duration("--emulate-ready-delay", "Time from a Pod's start until it is ready.", "0s"),
    duration(
        "--emulate-termination",
        "How long a deleted Pod lives on at most; its own grace period if that is shorter.",
        "2s",
    ),
    choice(
        "--emulate-readiness",
        "external: a Pod is ready when it is annotated emulation.sliceplane.dev/ready=true.",
        ("auto", "external"),
        "auto",
    ),
)


def emulation_config(flags: dict[str, Any]) -> EmulationConfig | None:
    """What *flags* (the values of ``emulation_options``) ask for; ``None`` without ``--emulate``.

    Raises ``click.UsageError`` for flags that contradict each other or a file that cannot be used.
    """
    if not flags["emulate"]:
        for given in given_flags(_COMPANIONS):
            raise click.UsageError(f"{given} says how to emulate; add --emulate")
        return None
    if flags["emulate_file"] is not None:
        for given in given_flags(("emulate_nodes", "zones")):
            raise click.UsageError(
                f"{given} makes Nodes, and --emulate-file lists them; leave one of both out"
            )
    from sliceplane.emulation.nodes import EmulationConfig

    return EmulationConfig(
        nodes=_nodes(flags),
        ready_s=flags["emulate_ready_delay"],
        termination_s=flags["emulate_termination"],
        ready_by_default=flags["emulate_readiness"] == "auto",
    )


def _nodes(flags: dict[str, Any]) -> tuple[EmulatedNode, ...]:
    from sliceplane.emulation.nodes import make_nodes, parse_nodes
    from sliceplane.kit.io.manifests import BadDocument, config_document

    path: Path | None = flags["emulate_file"]
    try:
        if path is None:
            zones = [zone.strip() for zone in flags["zones"].split(",")] if flags["zones"] else []
            if not all(zones):
                raise ValueError(f"{flags['zones']!r} has an empty name between its commas")
            return make_nodes(flags["emulate_nodes"], zones)
        return parse_nodes(config_document(path))
    except BadDocument as error:
        raise click.UsageError(f"{path}: not YAML: {error}") from error
    except ValueError as error:
        raise click.UsageError(f"{path or '--zones'}: {error}") from error
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}") from error
