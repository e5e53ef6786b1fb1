"""In a cluster in which nothing is wrong nothing is found: no error and no warning, in lint and for
each Service.
"""

from __future__ import annotations

import pytest
from tests.diagnose.explain.clusters import healthy_cluster
from tests.effort import scaled

from sliceplane.diagnose.explain.question import ExplainQuestion
from sliceplane.kit.rng import Rng

SERVICES = 50
CLUSTERS = 200


@pytest.mark.hypothesis
def test_nothing_is_found_in_healthy_clusters() -> None:
    for seed in range(scaled(CLUSTERS // 10)):
        world = healthy_cluster(Rng(seed), SERVICES)
        answer = world.ask(ExplainQuestion("everything"))
        wrong = [
            f"{finding.code} {finding.subject}: {finding.sentence}" for finding in answer.findings
        ]
        assert answer.cause is None, f"seed {seed}: {wrong[:5]}"
        assert answer.services == SERVICES


def test_each_service_alone_is_judged_as_in_lint() -> None:
    world = healthy_cluster(Rng(7), SERVICES)
    for service in world.all("Service"):
        answer = world.explain(service["metadata"]["name"], service["metadata"]["namespace"])
        assert answer.cause is None, f"{service['metadata']['name']}: {answer.findings[0].sentence}"
