"""From inside a compromised container: what each Pod's token may do, and what its container lacks.

The tables are all of it.  ``test_rights`` shows that the programs ask for no less.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.deploy.helm import documents, rendered
from tools.make_manifests import POLICY_KIND

from sliceplane.consume.progress import LEASE_PREFIX

#: the first test may have to build helm
pytestmark = pytest.mark.timeout(900)

EVERYTHING = (
    "--set=dns.enabled=true",
    "--set=xds.enabled=true",
    "--set=relay.enabled=true",
    "--set=relay.aggregateReports=true",
    "--set=controllers.mode=work",
    "--set=proxy.enabled=true",
    "--set=proxy.apiServer.host=192.0.2.1",
)
#: it refuses to run beside the proxy
OBSERVER = ("--set=controllers.enabled=false", "--set=observer.enabled=true")
WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet")
READ = "list watch"
EVENTS = {("*", "events.events.k8s.io", ""): "create patch"}
SLICES = "endpointslices.discovery.k8s.io"
LEASES = "leases.coordination.k8s.io"
#: (namespace, resource, name) -> verbs
RIGHTS: dict[str, dict[tuple[str, str, str], str]] = {
    "controllers": EVENTS
    | {
        ("*", "services", ""): READ,
        ("*", "pods", ""): READ,
        ("*", "nodes", ""): READ,
        ("*", "namespaces", ""): "get",
        ("*", "endpoints", ""): "create delete get list update watch",
        ("*", SLICES, ""): "create delete get list update watch",
        ("*", "services/status", ""): "patch",
        ("*", "services/finalizers", ""): "update",
        ("*", "endpoints/finalizers", ""): "update",
        ("*", "endpoints/restricted", ""): "create",
        ("*", "endpointslices/restricted.discovery.k8s.io", ""): "create",
        ("kube-system", LEASES, ""): "create",
        ("kube-system", LEASES, "sliceplane-controllers"): "get update",
    },
    "dns": EVENTS
    | {
        ("*", "services", ""): READ,
        ("*", "namespaces", ""): READ,
        ("*", "nodes", ""): READ,
        ("*", SLICES, ""): READ,
        ("kube-node-lease", LEASES, ""): "create delete patch",
    },
    "xds": EVENTS
    | {
        ("*", "services", ""): READ,
        ("*", "nodes", ""): READ,
        ("*", SLICES, ""): READ,
        ("*", "tokenreviews.authentication.k8s.io", ""): "create",
        ("*", "subjectaccessreviews.authorization.k8s.io", ""): "create",
        ("kube-node-lease", LEASES, ""): "create delete patch",
    },
    "relay": {
        ("*", "services", ""): READ,
        ("*", "nodes", ""): READ,
        ("*", SLICES, ""): READ,
        ("*", "tokenreviews.authentication.k8s.io", ""): "create",
        ("*", "subjectaccessreviews.authorization.k8s.io", ""): "create",
        ("kube-node-lease", LEASES, ""): "create get patch",
    },
    "proxy": EVENTS
    | {
        ("*", "services", ""): READ,
        ("*", "nodes", ""): READ,
        ("*", SLICES, ""): READ,
        ("*", "servicecidrs.networking.k8s.io", ""): READ,
        ("kube-node-lease", LEASES, ""): "create patch",
    },
    "observer": {
        ("*", "services", ""): READ,
        ("*", "nodes", ""): READ,
        ("*", SLICES, ""): READ,
        ("kube-node-lease", LEASES, ""): "create patch",
    },
}
#: in the network namespace of the node, as root
CAPABILITIES = {"proxy": ["NET_ADMIN"], "observer": ["NET_ADMIN", "NET_RAW"]}
#: of what the Lease of a Pod has the name
OWN = {
    "dns": "pod-name",
    "xds": "pod-name",
    "relay": "pod-name",
    "proxy": "node-name",
    "observer": "node-name",
}
#: what no container of ours has, in whatever mode the chart is
SHUT = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
}


@pytest.fixture(scope="module")
def chart() -> list[dict[str, Any]]:
    return [
        document
        for values in (EVERYTHING, OBSERVER)
        for document in documents(rendered(*values, f"--api-versions={POLICY_KIND}"))
    ]


def of(chart: list[dict[str, Any]], *kinds: str) -> dict[str, dict[str, Any]]:
    """By component."""
    return {
        each["metadata"]["labels"]["app.kubernetes.io/component"]: each
        for each in chart
        if each["kind"] in kinds
    }


def rights(chart: list[dict[str, Any]], account: str) -> dict[tuple[str, str, str], str]:
    roles = {
        (each["kind"], each["metadata"]["name"], each["metadata"].get("namespace")): each
        for each in chart
    }
    found: dict[tuple[str, str, str], set[str]] = {}
    for binding in chart:
        if binding["kind"] not in ("ClusterRoleBinding", "RoleBinding"):
            continue
        if binding["subjects"] != [
            {"kind": "ServiceAccount", "name": account, "namespace": "kube-system"}
        ]:
            continue
        namespace = binding["metadata"].get("namespace")
        role = binding["roleRef"]
        rules = roles[role["kind"], role["name"], namespace if role["kind"] == "Role" else None][
            "rules"
        ]
        for rule in rules:
            assert set(rule) <= {"apiGroups", "resources", "verbs", "resourceNames"}
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    spelled = f"{resource}.{group}" if group else resource
                    for name in rule.get("resourceNames", [""]):
                        found.setdefault((namespace or "*", spelled, name), set()).update(
                            rule["verbs"]
                        )
    return {right: " ".join(sorted(verbs)) for right, verbs in found.items()}


@pytest.mark.parametrize("component", RIGHTS)
def test_an_account_may_do_what_the_table_says_and_nothing_else(
    chart: list[dict[str, Any]], component: str
) -> None:
    assert rights(chart, f"sliceplane-{component}") == RIGHTS[component]


def test_every_account_has_a_table_and_no_binding_has_other_subjects(
    chart: list[dict[str, Any]],
) -> None:
    assert set(of(chart, "ServiceAccount")) == set(RIGHTS) == set(of(chart, *WORKLOADS))
    accounts = {each["metadata"]["name"] for each in of(chart, "ServiceAccount").values()}
    for binding in chart:
        if binding["kind"].endswith("Binding") and "subjects" in binding:
            assert {subject["name"] for subject in binding["subjects"]} <= accounts
            assert {subject["kind"] for subject in binding["subjects"]} == {"ServiceAccount"}


@pytest.mark.parametrize(
    "component",
    [name for name, own in RIGHTS.items() if any(resource == LEASES for _, resource, _ in own)],
)
def test_who_may_write_leases_is_held_to_its_own(
    chart: list[dict[str, Any]], component: str
) -> None:
    """In kube-node-lease are the Leases by which Nodes live: who writes those makes Nodes look
    dead.
    """
    policy = of(chart, "ValidatingAdmissionPolicy")[component]
    spec = policy["spec"]
    assert spec["failurePolicy"] == "Fail"
    (rule,) = spec["matchConstraints"]["resourceRules"]
    assert rule == {
        "apiGroups": ["coordination.k8s.io"],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE", "DELETE"],
        "resources": ["leases"],
    }
    user = f"system:serviceaccount:kube-system:sliceplane-{component}"
    assert [each["expression"] for each in spec["matchConditions"]] == [
        f"request.userInfo.username == '{user}'"
    ]
    (validation,) = spec["validations"]
    own = OWN.get(component)
    if own is None:
        assert (
            "request.namespace == 'kube-system' && variables.name == 'sliceplane-controllers'"
            in str(validation)
        )
    else:
        variables = {each["name"]: each["expression"] for each in spec["variables"]}
        assert (
            f"request.userInfo.extra['authentication.kubernetes.io/{own}'][0]" in variables["own"]
        )
        assert "variables.name == variables.own" in validation["expression"]
        prefix = LEASE_PREFIX if own == "node-name" else f"sliceplane-{component}-"
        assert f"? '{prefix}' + request.userInfo.extra" in variables["own"]
        assert f"variables.name.startsWith('{prefix}')" in validation["expression"]
    bindings = [each for each in chart if each["kind"] == "ValidatingAdmissionPolicyBinding"]
    (binding,) = (
        each["spec"]
        for each in bindings
        if each["spec"]["policyName"] == policy["metadata"]["name"]
    )
    assert binding["validationActions"] == ["Deny"]


def test_a_server_without_policies_gets_none() -> None:
    kinds = {each["kind"] for each in documents(rendered(*EVERYTHING))}
    assert not any(kind.startswith("ValidatingAdmission") for kind in kinds)


@pytest.mark.parametrize("component", RIGHTS)
def test_a_container_has_no_more_than_it_needs(chart: list[dict[str, Any]], component: str) -> None:
    account = of(chart, "ServiceAccount")[component]
    assert account["automountServiceAccountToken"] is False, (
        "another Pod under this account has to ask for its token"
    )
    pod = of(chart, *WORKLOADS)[component]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == account["metadata"]["name"]
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostPID", "hostIPC", "shareProcessNamespace"} & set(pod)
    assert pod.get("hostNetwork", False) is (component in CAPABILITIES)
    (container,) = pod["containers"]
    assert "initContainers" not in pod
    context = container["securityContext"]
    assert context.items() >= SHUT.items()
    added = {"add": CAPABILITIES[component]} if component in CAPABILITIES else {}
    assert context["capabilities"] == {"drop": ["ALL"]} | added
    assert not context.get("privileged")
    if component not in CAPABILITIES:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
    assert [volume["name"] for volume in pod.get("volumes", ())] == (
        ["tls"] if component in ("xds", "relay") else []
    )
    assert container["resources"]["limits"]["memory"]
