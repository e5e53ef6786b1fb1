"""The bootstrap of a gRPC client: what every library asks of it."""

from __future__ import annotations

import pytest

from sliceplane.xds.bootstrap import BootstrapOptions, grpc_bootstrap


@pytest.mark.parametrize(("zone", "locality"), [("eu-1a", {"zone": "eu-1a"}), ("", {})])
def test_a_node_of_grpc_has_a_locality_also_without_a_zone(
    zone: str, locality: dict[str, str]
) -> None:
    """gRPC for Node (grpc-js-xds 1.14) refuses a bootstrap without one: "locality field missing in
    node element".
    """
    assert (
        grpc_bootstrap(BootstrapOptions(host="127.0.0.1", port=18000, zone=zone))["node"][
            "locality"
        ]
        == locality
    )
