"""The command lines of ``adopt``, ``release`` and ``controllers --adopted-only``."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from sliceplane.cli.main import USAGE, main
from sliceplane.cli.moves.adopt import service_names


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["service", "web"], ("web",)),
        (["svc/web"], ("web",)),
        (["services", "web", "api", "web"], ("web", "api")),
        (["service", "service"], ("service",)),
        (["web"], None),
        (["pod", "web"], None),
        (["service", "shop/web"], None),
        (["svc/"], None),
    ],
)
def test_services_are_named_as_kubectl_names_them(
    words: list[str], names: tuple[str, ...] | None
) -> None:
    if names is not None:
        assert service_names(words) == names
        return
    with pytest.raises(click.UsageError):
        service_names(words)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["release"], "name what moves: service NAME..., or --all"),
        (["release", "service", "web", "--all"], "name what moves: service NAME..., or --all"),
        (["controllers", "--adopted-only", "--shadow"], "--adopted-only contradicts --shadow"),
        (
            ["controllers", "--adopted-only", "--claim-unlabelled-slices"],
            "--adopted-only contradicts --claim-unlabelled-slices",
        ),
        (
            ["controllers", "--adopted-only", "--controllers=endpointslice-mirroring-controller"],
            "there is no controller 'endpointslice-mirroring-controller'",
        ),
    ],
)
def test_contradictions_are_named(arguments: list[str], told: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == USAGE
    assert told in result.output
