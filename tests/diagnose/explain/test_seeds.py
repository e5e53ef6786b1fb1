"""What ``explain`` once said otherwise than packets did: a test for each, with the seed of the world
that showed it (``tests/kernel/oracle``).
"""

from __future__ import annotations

from typing import Any

from tests.diagnose.explain.world import World, ago, healthy, write_slice

from sliceplane.consume.served import ClusterDestination, ServedTarget
from sliceplane.diagnose.explain.kernel import KernelFacts, RuleSet
from sliceplane.diagnose.explain.question import ClientReference, Explanation

CART_IP = ClusterDestination("10.96.0.2", "tcp", 80)
#: of ``healthy``: a Pod on each node
TARGETS = tuple(ServedTarget(f"10.244.0.{number}", 8080) for number in (3, 4, 5))


def kernel(*targets: ServedTarget, loops: tuple[ServedTarget, ...] = TARGETS) -> KernelFacts:
    """The kernel of node-1."""
    return KernelFacts(
        rule_sets=(RuleSet("Sliceplane's nftables", True, ""),),
        rules=((CART_IP, frozenset(targets)),),
        hairpins=((CART_IP, frozenset(loops)),),
        host_name="node-1",
        addresses=frozenset({"192.168.0.2"}),
    )


def spec_of(world: World) -> Any:
    return world.get("Service", "shop", "cart")["spec"]


def severities(answer: Explanation) -> dict[str, str]:
    return {finding.code: finding.severity for finding in answer.findings}


def make_unready(world: World, *names: str) -> None:
    for name in names:
        status = world.get("Pod", "shop", name)["status"]
        status["containerStatuses"][0]["ready"] = False
        for condition in status["conditions"]:
            if condition["type"] in ("Ready", "ContainersReady"):
                condition.update(status="False", lastTransitionTime=ago(900))
    world.drop("EndpointSlice", "shop", "cart-x7k2p")
    write_slice(world, "cart")


def test_seed_3_the_wrong_target_of_another_port_is_no_fault_of_the_one_that_was_asked() -> None:
    world = healthy()
    wrong = {"name": "admin", "port": 81, "protocol": "TCP", "targetPort": 7777}
    spec_of(world)["ports"].append(wrong)
    assert "T1" in world.codes()
    assert "T1" in world.codes(port="81")
    assert world.codes(port="80") == []
    spec_of(world)["ports"][1]["targetPort"] = "htpp"
    assert "T2" in world.codes(port="admin")
    assert world.codes(port="80") == []


def test_seed_5_the_kernels_rules_of_another_port_are_no_fault_of_the_one_that_was_asked() -> None:
    world = healthy()
    spec_of(world)["ports"].append({"name": "http", "port": 81, "protocol": "TCP"})
    world.kernel = kernel(*TARGETS)
    assert "N5" in world.codes()
    assert "N5" in world.codes(port="81")
    assert "N5" not in world.codes(port="80")


def test_seed_4_a_wrong_target_of_a_headless_service_refuses_no_client() -> None:
    """Its name has the addresses of its Pods, and clients dial any port there."""
    world = healthy()
    spec_of(world).update(clusterIP="None", clusterIPs=["None"])
    for target, code in ((7777, "T1"), ("htpp", "T2")):
        spec_of(world)["ports"][0].update(port=8080, targetPort=target)
        assert severities(world.explain())[code] == "warning"


def test_seed_117_an_unready_pod_is_a_warning_while_one_that_leaves_serves() -> None:
    world = healthy(2)
    make_unready(world, "cart-0")
    world.get("Pod", "shop", "cart-1")["metadata"]["deletionTimestamp"] = ago(-30)
    assert severities(world.explain())["R6"] == "warning"
    make_unready(world, "cart-1")
    assert severities(world.explain())["R6"] == "error"


def test_seed_314_an_unready_pod_is_a_warning_if_it_is_published() -> None:
    world = healthy(1)
    make_unready(world, "cart-0")
    assert severities(world.explain())["R6"] == "error"
    spec_of(world)["publishNotReadyAddresses"] = True
    assert severities(world.explain())["R6"] == "warning"


def test_seed_2307_a_pod_without_a_node_is_a_warning_while_a_published_one_runs() -> None:
    world = healthy(2)
    make_unready(world, "cart-0", "cart-1")
    pending = world.get("Pod", "shop", "cart-1")
    pending["spec"].pop("nodeName")
    pending["status"] = {"phase": "Pending"}
    assert severities(world.explain())["R1"] == "error"
    spec_of(world)["publishNotReadyAddresses"] = True
    assert severities(world.explain())["R1"] == "warning"
    status = world.get("Pod", "shop", "cart-0")["status"]["containerStatuses"][0]
    status["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    assert severities(world.explain())["R1"] == "error"


def test_seed_210_a_node_whose_endpoint_serves_while_it_leaves_drops_nothing() -> None:
    world = healthy()
    spec_of(world)["internalTrafficPolicy"] = "Local"
    node_1 = {"client": ClientReference("node", "node-1")}
    conditions = world.get("EndpointSlice", "shop", "cart-x7k2p")["endpoints"][1]["conditions"]
    conditions.update(ready=False, serving=True, terminating=True)
    assert "X1" not in world.codes(**node_1)
    conditions.update(serving=False)
    assert "X1" in world.codes(**node_1)


def test_seed_6_a_kernel_that_lost_the_local_endpoint_is_not_well() -> None:
    world = healthy()
    spec_of(world)["internalTrafficPolicy"] = "Local"
    world.kernel = kernel(TARGETS[1])
    assert "N5" not in world.codes()
    world.kernel = kernel()
    assert "N5" in world.codes()
    world.kernel = kernel(TARGETS[0])
    assert "N5" in world.codes()


def test_seed_6_another_name_of_the_machine_does_not_hide_its_node() -> None:
    world = healthy()
    spec_of(world)["internalTrafficPolicy"] = "Local"
    facts = kernel()
    world.kernel = KernelFacts(rules=facts.rules, host_name="ip-1", addresses=facts.addresses)
    assert "N5" in world.codes()
    world.kernel = KernelFacts(rules=facts.rules, host_name="ip-1", addresses=frozenset({"::1"}))
    assert "N5" not in world.codes(), "which Node this is, is not known"


def test_seed_59_rules_of_two_proxies_are_no_fault_of_a_headless_service() -> None:
    world = healthy()
    two = (RuleSet("kube-proxy's nftables", False, ""), RuleSet("Sliceplane's nftables", True, ""))
    world.kernel = KernelFacts(rule_sets=two, bridge_calls=False)
    assert "N6" in world.codes()
    spec_of(world).update(clusterIP="None", clusterIPs=["None"])
    spec_of(world)["ports"][0]["port"] = 8080
    assert world.codes() == []


def test_seed_66_a_kernel_that_leads_to_an_unready_endpoint_is_not_well() -> None:
    world = healthy()
    world.kernel = kernel(*TARGETS)
    conditions = world.get("EndpointSlice", "shop", "cart-x7k2p")["endpoints"][1]["conditions"]
    conditions.update(ready=False, serving=False)
    answer = world.explain()
    assert f"to {TARGETS[1]}, which is not ready" in str(answer.findings)
    conditions.update(serving=True, terminating=True)
    assert "N5" not in world.codes(), "it may be used if the others go"


def test_seed_115_a_kernel_that_masquerades_nothing_is_not_well() -> None:
    world = healthy()
    world.kernel = kernel(*TARGETS)
    assert "N5" not in world.codes()
    world.kernel = kernel(*TARGETS, loops=(TARGETS[0],))
    answer = world.explain()
    assert severities(answer)["N5"] == "warning"
    assert f"what {TARGETS[1]} sends to itself" in str(answer.findings)
