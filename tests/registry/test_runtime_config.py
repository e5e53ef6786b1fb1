"""``--runtime-config``: what is on, what is off, and what is no version at all."""

from __future__ import annotations

import pytest

from sliceplane.api.scheme import SERVED, EndpointSlicesV1beta1
from sliceplane.server.registry.config import served_resources


@pytest.mark.parametrize(
    ("text", "on"),
    [
        ("", False),
        ("discovery.k8s.io/v1beta1=true", True),
        ("discovery.k8s.io/v1beta1", True),
        (" discovery.k8s.io/v1beta1 = 1 ,", True),
        ("discovery.k8s.io/v1beta1=false", False),
        ("api/all=true", True),
        ("api/beta=true", True),
        ("api/ga=true,v1=true", False),
        ("api/all=true,api/beta=false", False),
        ("api/all=false,discovery.k8s.io/v1beta1=true", True),
        ("discovery.k8s.io/v1beta1=true,discovery.k8s.io/v1beta1/endpointslices=false", False),
        ("discovery.k8s.io/v1beta1/endpointslices=true", True),
    ],
)
def test_switches(text: str, on: bool) -> None:
    assert served_resources(text) == (*SERVED, *([EndpointSlicesV1beta1] if on else []))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("discovery.k8s.io/v1alpha1=true", "unknown api 'discovery.k8s.io/v1alpha1'"),
        (
            "discovery.k8s.io/v1beta1=yes",
            "invalid value 'discovery.k8s.io/v1beta1=yes': 'yes' is neither true nor false",
        ),
        ("discovery.k8s.io/v1=false", "'discovery.k8s.io/v1' cannot be switched off"),
        ("api/ga=false", "'api/ga' cannot be switched off"),
        ("v1/pods=false", "'v1/pods' cannot be switched off"),
    ],
)
def test_refusals(text: str, error: str) -> None:
    with pytest.raises(ValueError) as caught:
        served_resources(text)
    assert str(caught.value) == error
