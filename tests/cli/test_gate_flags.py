"""``--feature-gates`` and ``--emulated-version``: what they refuse, before anything is started."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from sliceplane.api.gates import Gates
from sliceplane.cli.main import main
from sliceplane.cli.run.serving import gates_of
from sliceplane.controllers.endpointslice import EndpointSliceConfig
from sliceplane.controllers.io.catalogue import DiscoveryConfig, default_controllers

REFUSED = [
    (
        ["--feature-gates=Nonsense=true"],
        "Invalid value for '--feature-gates': unrecognized feature gate: Nonsense",
    ),
    (["--feature-gates=EndpointSlice"], "missing bool value for EndpointSlice"),
    (["--feature-gates=TopologyAwareHints=false"], "feature is locked to true"),
    (
        ["--emulated-version=1.99"],
        "Invalid value for '--emulated-version': '1.99' is not a release",
    ),
]


@pytest.mark.parametrize("command", ["up", "apiserver", "proxy"])
@pytest.mark.parametrize(("flags", "message"), REFUSED)
def test_refused(command: str, flags: list[str], message: str) -> None:
    done = CliRunner().invoke(main, [command, *flags])
    assert done.exit_code == 64
    assert message in " ".join(done.output.split())


def test_both_flags_together() -> None:
    gates = gates_of("TopologyAwareHints=false", "1.30")
    assert (gates.release, gates.enabled("TopologyAwareHints")) == ((1, 30), False)
    assert gates_of("", "") == Gates()


def test_without_its_gate_the_slice_controller_does_not_run() -> None:
    on, off = (
        default_controllers(
            DiscoveryConfig(EndpointSliceConfig(gates=Gates.parse(f"EndpointSlice={value}")))
        )
        for value in ("true", "false")
    )
    names = [[entry.make().info.name for entry in entries] for entries in (on, off)]
    assert set(names[0]) - set(names[1]) == {
        "endpointslice-controller",
        "endpointslice-mirroring-controller",
    }
    assert {"endpoints-controller", "garbage-collector-controller"} <= set(names[1])
