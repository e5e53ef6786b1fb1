"""The names that this package had before they were every back end's: see ``proxy.surroundings``."""

from sliceplane.proxy.surroundings import (
    PRIMARY,
    DetectLocalMode,
    NodeNetwork,
    RulesConfig,
    node_port_addresses,
    surroundings,
)

__all__ = ["PRIMARY", "DetectLocalMode", "NodeNetwork", "RulesConfig", "node_port_addresses", "surroundings"]
