"""``--runtime-config``: what is on, what is off, and what is no version at all."""

from __future__ import annotations

import pytest
from tests.tables import tables

from sliceplane.api.scheme import SERVED, EndpointSlicesV1beta1
from sliceplane.server.registry.config import served_resources

TABLES = tables(__file__)


@pytest.mark.parametrize(("text", "on"), TABLES["switches"])
def test_switches(text: str, on: bool) -> None:
    assert served_resources(text) == (*SERVED, *([EndpointSlicesV1beta1] if on else []))


@pytest.mark.parametrize(("text", "error"), TABLES["refusals"])
def test_refusals(text: str, error: str) -> None:
    with pytest.raises(ValueError) as caught:
        served_resources(text)
    assert str(caught.value) == error
