"""The bootstrap of a gRPC client: what every library asks of it."""

from __future__ import annotations

import pytest

from sliceplane.xds.bootstrap import CLUSTER, BootstrapOptions, envoy_bootstrap, grpc_bootstrap


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


def test_an_envoy_reports_its_load_where_it_is_configured_if_it_is_asked_to() -> None:
    options = BootstrapOptions(host="127.0.0.1", port=18000, insecure=True, load_reports=True)
    config = envoy_bootstrap(options)["cluster_manager"]["load_stats_config"]
    assert config["grpc_services"] == [{"envoy_grpc": {"cluster_name": CLUSTER}}]
    plain = envoy_bootstrap(BootstrapOptions(host="127.0.0.1", port=18000, insecure=True))
    assert "cluster_manager" not in plain
