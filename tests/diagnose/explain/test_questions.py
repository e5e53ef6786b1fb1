"""What an answer says besides the cause: who wrote the field, what could not be seen, how it is
printed.
"""

from __future__ import annotations

import pytest
from tests.diagnose.explain.faults.proxies import add_proxies
from tests.diagnose.explain.world import World, add_pod, add_service, ago, healthy, write_slice

from sliceplane.diagnose.explain.objects import FullPodStatus
from sliceplane.diagnose.explain.question import ExplainQuestion, Explanation
from sliceplane.diagnose.explain.text import as_list, as_text


def test_evidence_names_the_manager_that_wrote_the_field_last() -> None:
    evidence = healthy().explain(port="8080").findings[0].evidence[0]
    assert (evidence.field, evidence.value, evidence.writer) == (
        "spec.ports",
        "80/TCP (http)",
        "helm",
    )


def test_what_may_not_be_read_is_never_taken_for_missing() -> None:
    world = healthy()
    world.refuse.add("services")
    answer = world.explain()
    rights = ("list services in namespace shop",)
    assert (answer.findings, answer.is_blind, answer.missing_rights) == ((), True, rights)
    assert as_text(answer).startswith(
        "unknown  service shop/cart: too little could be read to tell"
    )


def test_an_answer_fits_a_terminal_but_for_what_is_pasted() -> None:
    lines = as_text(healthy().explain(port="80", protocol="UDP"), 80).splitlines()
    assert lines[0] == "cause    S3 certain: cart has 80 for TCP, not for UDP"
    assert [line for line in lines if len(line) > 80 and not line.startswith("remedy")] == []


def test_lint_counts_what_it_looked_at() -> None:
    answer = healthy().ask(ExplainQuestion("everything"))
    assert as_list(answer, 80) == "no error, no warning in 1 Service"
    assert as_list(answer, 80, notes=True) == "no error, no warning, no note in 1 Service"


def test_a_service_that_may_yet_get_its_slice_is_a_note() -> None:
    world = healthy()
    add_service(world, "legacy", selector=None)["metadata"]["creationTimestamp"] = ago(5)
    answer = world.explain("legacy")
    assert (answer.cause, [finding.code for finding in answer.findings]) == (None, ["B2"])


def test_lint_counts_notes_and_shows_them_when_asked() -> None:
    """Beside one error, what two Services have in common: that Pods of theirs have no readiness
    probe.
    """
    world = healthy()
    add_service(world, "cart-edge", selector={"app": "cart"})
    write_slice(world, "cart-edge")
    add_service(world, "lost", selector={"app": "nothing"})
    for pod in world.all("Pod"):
        del pod["spec"]["containers"][0]["readinessProbe"]
    answer = world.ask(ExplainQuestion("everything"))
    assert as_list(answer, 80).splitlines() == [
        "SEVERITY  CODE  SERVICE    FINDING",
        "error     B1    shop/lost  0 of 3 Pods match app=nothing; app is cart here",
        "",
        "1 error, no warning in 3 Services; 2 notes besides, which --notes shows",
        "what to do: sliceplane explain service -n shop lost",
    ]
    noted = as_list(answer, notes=True).splitlines()
    assert noted[2].split()[:6] == ["note", "D1", "shop/cart", "and", "1", "more"]
    assert noted[-2] == "1 error, no warning, 2 notes in 3 Services"


def test_node_proxies_are_well_only_if_one_has_reported() -> None:
    world = healthy()
    answer = world.explain()
    assert "node proxies" not in answer.well
    add_proxies(world)
    assert "node proxies" in world.explain().well
    assert answer.findings == ()
    assert "node proxies" not in answer.well


# Pods


def _ask_about(world: World, pod: str) -> Explanation:
    return world.ask(ExplainQuestion("pod", pod, "shop"))


def test_a_pod_that_is_well_is_told_with_its_services_and_since_when() -> None:
    world = healthy()
    add_service(world, "cart-edge", selector={"app": "cart"}, type="NodePort")
    write_slice(world, "cart-edge")
    answer = _ask_about(world, "cart-1")
    assert answer.findings == ()
    assert (
        answer.summary
        == "cart-1 on node-1 is ready for 58 min; selected by cart (ready), cart-edge (ready)"
    )
    assert as_text(answer).splitlines()[0] == "verdict  pod shop/cart-1: nothing is wrong"


def test_a_pod_that_was_asked_about_comes_before_its_services() -> None:
    """The Service has a fault of its own, and other Pods serve: for who asks, the Pod is the
    matter.
    """
    world = healthy()
    world.get("Service", "shop", "cart")["spec"].update(externalIPs=["203.0.113.9"])
    add_service(world, "bets", externalIPs=["203.0.113.9"])
    status = world.get("Pod", "shop", "cart-1")["status"]
    status["containerStatuses"][0].update(
        ready=False, state={"waiting": {"reason": "ImagePullBackOff", "message": "Back-off"}}
    )
    status["conditions"] = [
        {"type": "Ready", "status": "False"},
        {"type": "ContainersReady", "status": "False"},
    ]
    answer = _ask_about(world, "cart-1")
    assert [
        (finding.code, finding.severity, finding.subject.kind) for finding in answer.findings
    ] == [
        ("R4", "error", "Pod"),
        ("S7", "error", "Service"),
    ]
    assert [finding.code for finding in world.explain().findings] == ["S7", "R4"]


def test_a_pod_that_no_service_selects_is_judged_all_the_same() -> None:
    world = healthy()
    pod = add_pod(world, "tool", "shop", "node-1", {"app": "tool"})
    pod["status"]["containerStatuses"][0].update(
        ready=False, restartCount=9, state={"waiting": {"reason": "CrashLoopBackOff"}}
    )
    answer = _ask_about(world, "tool")
    assert [(finding.code, finding.severity) for finding in answer.findings] == [
        ("R5", "error"),
        ("B9", "note"),
    ]
    assert answer.summary.endswith("no Service selects it")


def test_of_what_does_not_exist_nothing_is_well() -> None:
    answer = _ask_about(healthy(), "cart-7")
    assert (
        answer.findings[0].sentence
        == "no Pod shop/cart-7; there are shop/cart-0, shop/cart-1, shop/cart-2"
    )
    assert answer.well == ()
    assert healthy().explain("crat").well == ()


def test_a_namespace_that_does_not_exist_is_said() -> None:
    finding = healthy().explain("cart", "shpo").findings[0]
    assert (
        finding.sentence == "no Service shpo/cart: there is no namespace shpo; there is shop/cart"
    )


def test_a_pod_that_several_services_nearly_select_names_them() -> None:
    world = healthy()
    add_service(world, "cart-edge", selector={"app": "cart"}, type="NodePort")
    world.get("Pod", "shop", "cart-1")["metadata"]["labels"]["app"] = "catr"
    finding = _ask_about(world, "cart-1").findings[0]
    assert (
        finding.sentence
        == "no Service of shop selects it; cart, cart-edge want app=cart, it has app=catr"
    )


@pytest.mark.parametrize("is_marked", [False, True])
def test_pods_of_a_node_that_says_that_it_is_not_ready_stay_unless_they_are_marked(
    is_marked: bool,
) -> None:
    """kubernetes/kubernetes#125618."""
    world = healthy()
    ready = {
        "type": "Ready",
        "status": "False",
        "reason": "KubeletNotReady",
        "message": "no network",
    }
    world.get("Node", "", "node-1")["status"]["conditions"] = [
        {**ready, "lastTransitionTime": ago(200)}
    ]
    if is_marked:
        for pod in world.all("Pod"):
            unready = {"type": "Ready", "status": "False", "lastTransitionTime": ago(190)}
            pod["status"]["conditions"] = [unready]
    answer = world.ask(ExplainQuestion("node", "node-1"))
    effects = [finding.effect for finding in answer.findings if finding.code == "R8"]
    assert ["stay ready endpoints" in effect for effect in effects] == [not is_marked]


def test_the_state_of_a_node_counts_its_pods() -> None:
    answer = healthy().ask(ExplainQuestion("node", "node-1"))
    assert (answer.findings, answer.summary) == (
        (),
        "node-1 is ready for 116 min, in zone zone-b; 1 of 1 Pod ready",
    )


# Kinds of Services


def test_an_external_name_has_no_ports_and_no_endpoints_to_look_at() -> None:
    world = healthy()
    spec = {
        "type": "ExternalName",
        "externalName": "db.example.org",
        "clusterIP": "",
        "clusterIPs": None,
    }
    add_service(world, "db", selector={"app": "db"}, ports=None, **spec)
    answer = world.explain("db", port="5432")
    assert answer.findings == ()
    assert (
        answer.summary
        == "db is a name for db.example.org: DNS answers with it, without a proxy or a Pod"
    )
    assert not {"selection", "Pods", "ports", "slices"} & set(answer.well)


@pytest.mark.parametrize(
    ("spec", "state"),
    [
        (
            {"clusterIP": "None", "clusterIPs": ["None"]},
            (
                "cart is headless, DNS gives its endpoints' addresses; 3 of 3 Pods ready, 3 of 3 "
                "endpoints ready in 1 slice"
            ),
        ),
        (
            {"selector": None},
            (
                "cart is ClusterIP 10.96.0.2; no selector, 1 slice kept by "
                "endpointslice-controller.k8s.io, "
                "3 of 3 endpoints ready"
            ),
        ),
    ],
    ids=["headless", "without a selector"],
)
def test_the_state_says_what_kind_of_service_it_is(spec: dict[str, object], state: str) -> None:
    world = healthy()
    world.get("Service", "shop", "cart")["spec"].update(spec)
    answer = world.explain(port="8080" if "clusterIP" in spec else "")
    assert (answer.summary, answer.cause) == (state, None)


# Rights


def test_what_was_refused_whole_is_not_asked_for_in_parts() -> None:
    world = healthy()
    for number in range(20):
        add_service(world, f"s-{number}")
    world.refuse.update({"pods", "events", "leases"})
    answer = world.ask(ExplainQuestion("everything"))
    assert answer.missing_rights == (
        "list pods in all namespaces",
        "list events in all namespaces",
        "list leases.coordination.k8s.io in namespace kube-system",
        "list leases.coordination.k8s.io in namespace kube-node-lease",
        "list leases.coordination.k8s.io in all namespaces",
    )
    assert {finding.code for finding in answer.findings} == {"E18"}, (
        "no slice has an endpoint, whatever Pods say"
    )
    assert "Pods" not in answer.well


def test_an_address_of_another_manager_is_not_looked_for_in_every_pod(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At 1,000 such addresses and 100,000 Pods ``lint`` took a minute of a processor for it."""
    looked_at: list[FullPodStatus] = []
    addresses = FullPodStatus.ips.fget
    assert addresses is not None

    def noted(status: FullPodStatus) -> tuple[str, ...]:
        looked_at.append(status)
        return addresses(status)

    monkeypatch.setattr(FullPodStatus, "ips", property(noted))
    looked: list[int] = []
    for others in (0, 200):
        world = healthy()
        for number in range(10):
            add_service(world, f"legacy-{number}", selector={"app": "cart"})
            endpoint = {"addresses": [f"172.16.0.{number}"], "conditions": {"ready": True}}
            world.add(
                "EndpointSlice",
                "shop",
                f"legacy-{number}",
                labels={
                    "kubernetes.io/service-name": f"legacy-{number}",
                    "endpointslice.kubernetes.io/managed-by": "mesh.example.org",
                },
                addressType="IPv4",
                endpoints=[endpoint],
                ports=[{"name": "http", "port": 8080, "protocol": "TCP"}],
            )
        for number in range(others):
            add_pod(world, f"other-{number}", "shop", "node-1", {"app": "other"})
        looked_at.clear()
        answer = world.ask(ExplainQuestion("everything"))
        assert sum(finding.code == "E3" for finding in answer.findings) == 10
        looked.append(len(looked_at))
    assert looked[1] - looked[0] <= 3 * 200, looked
