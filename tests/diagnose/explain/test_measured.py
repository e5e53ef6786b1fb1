"""Sentences about Services with measured zones: shares, condition, endpoints that serve others."""

from __future__ import annotations

from tests.diagnose.explain.faults.zones import CAPPED, IS_MEASURED, hint, measured
from tests.diagnose.explain.world import World, add_service, healthy

from sliceplane.diagnose.explain.question import ExplainQuestion


def hot_zone_a() -> World:
    """The endpoint in zone-b also serves zone-a, where half of the connections start."""
    world = healthy()
    IS_MEASURED(world)
    hint(world)
    (slice_,) = world.all("EndpointSlice")
    slice_["endpoints"][1]["hints"]["forZones"].append({"name": "zone-a"})
    return world


def test_a_service() -> None:
    answer = hot_zone_a().explain()
    assert not answer.findings
    assert answer.summary == (
        "cart is ClusterIP 10.96.0.2; 3 of 3 Pods ready, 3 of 3 endpoints ready in 1 slice; its "
        "hints follow measured zones: zone-a 50%, zone-b 25%, zone-c 25%; "
        "TrafficDistributionMeasured is True (Measured); 1 endpoint serves zone-a from zone-b, "
        "since 50% of the connections start there and 1 of 3 endpoints is there"
    )


def test_a_service_that_is_not_measured() -> None:
    world = healthy()
    measured("NotMeasured")(world)
    assert world.explain().summary.endswith(
        "its hints follow the zones' CPU, for no zone is measured; TrafficDistributionMeasured is "
        "False (NotMeasured)"
    )
    assert "zone" not in healthy().explain().summary, "other Services have no such words"


def test_a_zone() -> None:
    world = hot_zone_a()
    assert world.ask(ExplainQuestion("zone", "zone-a")).summary == (
        "zone-a: 50% of the connections to shop/cart start in it, 1 endpoint of zone-b serves it"
    )
    assert world.ask(ExplainQuestion("zone", "zone-b")).summary == (
        "zone-b: 25% of the connections to shop/cart start in it, its endpoints also serve zone-a"
    )
    assert not healthy().ask(ExplainQuestion("zone", "zone-b")).summary


def test_lint_names_a_capped_node_once_for_all_services() -> None:
    world = healthy()
    CAPPED(world)
    add_service(world, "search")
    search, cart = (world.get("Service", "shop", name) for name in ("search", "cart"))
    for part in ("annotations", "conditions"):
        where = "metadata" if part == "annotations" else "status"
        search.setdefault(where, {})[part] = cart[where][part]
    for question in (ExplainQuestion("everything"), ExplainQuestion("everything", "", "shop")):
        findings = world.ask(question).findings
        (finding,) = [finding for finding in findings if finding.code == "Z18"]
        assert (finding.subject.kind, finding.subject.name) == ("Node", "node-1")
        assert not [name for name in ("cart", "search") if name in finding.sentence]
