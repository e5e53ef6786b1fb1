"""Faults planted in a healthy cluster, and near misses, one module for each part of the catalogue.

``test_catalogue`` asks about each; ``docs/findings`` shows the answer to the first of each code.
"""

from tests.explain.faults import names, policies, ports, rollouts, services, slices, zones

__all__ = ["names", "policies", "ports", "rollouts", "services", "slices", "zones"]
