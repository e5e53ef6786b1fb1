"""What kube-apiserver says to our policies and to large objects: the CEL of ``agent grant`` and of
the chart's Leases.

The accounts are impersonated and may do everything by RBAC, so that a refusal is the policy's.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import yaml
from tests.attack.agents import LEASES, SLICES, endpoint_slice, lease
from tests.peers import kubernetes
from tests.peers.test_why_at_size import answers, running_etcd
from tests.ports import free_port
from tests.registry.test_object_bytes import TOO_LARGE
from tests.waiting import until

from sliceplane.agent.policies import POLICY_GROUP, POLICY_KINDS, policies

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1200)]

AGENT = "system:serviceaccount:default:agent-vm-1"
MANIFEST = Path(__file__).parents[2] / "deploy" / "manifests" / "lease-policy.yaml"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_POD = "Impersonate-Extra-authentication.kubernetes.io%2Fpod-name"
_NODE = "Impersonate-Extra-authentication.kubernetes.io%2Fnode-name"


class Cluster(NamedTuple):
    url: str

    def ask(self, method: str, path: str, document: Any = None, **headers: str) -> tuple[int, Any]:
        """As the administrator, who may impersonate."""
        sent = {"Authorization": "Bearer secret", "Content-Type": "application/json", **headers}
        body = None if document is None else json.dumps(document).encode()
        unverified = ssl.create_default_context()
        unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
        try:
            with urlopen(
                Request(self.url + path, body, sent, method=method), timeout=60, context=unverified
            ) as got:
                return got.status, json.loads(got.read())
        except HTTPError as error:
            return error.code, json.loads(error.read())

    def make(self, path: str, document: Any) -> None:
        code, body = self.ask("POST", path, document)
        assert code == 201, body

    def apply(self, documents: Any) -> None:
        """Policies and their bindings; each with a rule that proves, by what it refuses, that it
        counts.
        """
        for document in documents:
            self.make(f"/apis/{POLICY_GROUP}/v1/{POLICY_KINDS[document['kind']]}", document)

    def refusal(self, user: str, path: str, document: Any, **headers: str) -> str:
        """The message of a dry run by *user*; "" if it is allowed."""
        asked = f"{path}?dryRun=All"
        code, body = self.ask("POST", asked, document, **{"Impersonate-User": user, **headers})
        assert code in (201, 422, 403), body
        assert code == 201 or "ValidatingAdmissionPolicy" in body["message"], body
        return "" if code == 201 else str(body["message"])


@pytest.fixture(scope="module")
def cluster(kube_apiserver: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    port = free_port()
    with running_etcd(folder) as etcd:
        flags = kubernetes.api_server_flags(folder, etcd.url, "127.0.0.1", port)
        with kubernetes.started(folder / "kube-apiserver.log", kube_apiserver, *flags):
            until(lambda: answers(folder / "admin.kubeconfig"), within_s=300, ignoring=(Exception,))
            made = Cluster(f"https://127.0.0.1:{port}")
            users = [AGENT, *(account(name) for name in ("controllers", "dns", "proxy", "xds"))]
            made.make(
                f"{_RBAC}/clusterrolebindings",
                {
                    "metadata": {"name": "everything"},
                    "roleRef": {
                        "apiGroup": "rbac.authorization.k8s.io",
                        "kind": "ClusterRole",
                        "name": "cluster-admin",
                    },
                    "subjects": [
                        {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
                        for user in users
                    ],
                },
            )
            until(
                lambda: made.ask("GET", "/api/v1/namespaces/kube-node-lease")[0] == 200, within_s=60
            )
            yield made


def account(component: str) -> str:
    return f"system:serviceaccount:kube-system:sliceplane-{component}"


def test_an_agent_writes_what_its_grant_has_and_nothing_else(cluster: Cluster) -> None:
    cluster.apply(policies("vm-1", "default", ("web",), ("192.0.2.0/24", "2001:db8::/64")))
    slices, leases = SLICES.format("default"), LEASES.format("default")
    elsewhere = endpoint_slice("vm-1", "10.99.99.99")
    until(
        lambda: cluster.refusal(AGENT, slices, elsewhere),
        lambda said: "may use addresses of 192.0.2.0/24" in said,
    )
    until(
        lambda: cluster.refusal(AGENT, leases, lease("vm-1", "vm-2")),
        lambda said: "writes the Lease" in said,
    )

    assert not cluster.refusal(AGENT, slices, endpoint_slice("vm-1", "192.0.2.1"))
    assert not cluster.refusal(AGENT, leases, lease("vm-1"))
    two = endpoint_slice("vm-1")
    two["endpoints"] *= 2
    many = endpoint_slice("vm-1", "192.0.2.1", *range(1, 66))
    v6 = {**endpoint_slice("vm-1", "2001:db8::1"), "addressType": "IPv6"}
    other_name = endpoint_slice("vm-1")
    other_name["metadata"]["name"] = "web-1"
    refused = endpoint_slice("vm-1")
    refused["metadata"]["annotations"]["agent.sliceplane.dev/refused"] = ""
    wrong = {
        "another Service": endpoint_slice("vm-1", service="bank"),
        "no Service": endpoint_slice("vm-1", service=""),
        "another manager": endpoint_slice("vm-1", manager="endpointslice-controller.k8s.io"),
        "another agent": endpoint_slice("vm-1", label="vm-2"),
        "two endpoints": two,
        "65 ports": many,
        "the family of the other slice": v6,
        "another name": other_name,
    }
    allowed = [
        what for what, document in wrong.items() if not cluster.refusal(AGENT, slices, document)
    ]
    assert not allowed
    assert cluster.refusal(AGENT, leases, lease("vm-2"))
    # Others are none of the policy's business.
    assert not cluster.refusal(account("dns"), slices, elsewhere)


def test_a_pod_writes_its_own_lease_and_no_other(cluster: Cluster) -> None:
    cluster.apply(document for document in yaml.safe_load_all(MANIFEST.read_text()) if document)
    nodes, system = LEASES.format("kube-node-lease"), LEASES.format("kube-system")

    def named(name: str) -> dict[str, Any]:
        return {"metadata": {"name": name}, "spec": {"holderIdentity": "h"}}

    for component in ("controllers", "dns", "proxy", "xds"):
        until(
            lambda: cluster.refusal(account(component), nodes, named("node-1")),  # noqa: B023
            lambda said: "lease" in said.lower(),
        )
    cases = [
        ("controllers", system, "sliceplane-controllers", {}, True),
        ("controllers", system, "kube-controller-manager", {}, False),
        ("controllers", nodes, "sliceplane-controllers", {}, False),
        *(
            (component, nodes, f"sliceplane-{component}-web-1", {header: "web-1"}, True)
            for component, header in (("dns", _POD), ("xds", _POD), ("proxy", _NODE))
        ),
        *(
            (component, nodes, f"sliceplane-{component}-web-2", {header: "web-1"}, False)
            for component, header in (("dns", _POD), ("xds", _POD), ("proxy", _NODE))
        ),
        ("dns", nodes, "sliceplane-dns-any", {}, True),
        ("dns", nodes, "sliceplane-proxy-web-1", {_POD: "web-1"}, False),
        ("dns", system, "sliceplane-dns-web-1", {_POD: "web-1"}, False),
        # A host name ends after 63 characters, less its last dashes and dots, and the Lease with
        # it.
        ("dns", nodes, "sliceplane-dns-" + "p" * 63, {_POD: "p" * 70}, True),
        ("dns", nodes, "sliceplane-dns-" + "p" * 60, {_POD: "p" * 70}, False),
    ]
    for component, path, name, headers, is_allowed in cases:
        said = cluster.refusal(account(component), path, named(name), **headers)
        assert (not said) is is_allowed, f"{component} {name} {headers}: {said or 'allowed'}"
    cluster.make(nodes, named("node-1"))
    code, body = cluster.ask("DELETE", f"{nodes}/node-1", **{"Impersonate-User": account("dns")})
    assert (code, "ValidatingAdmissionPolicy" in body["message"]) == (422, True), body


def test_an_object_that_is_too_large_gets_the_status_that_ours_gives(cluster: Cluster) -> None:
    rule = {
        "apiGroups": [""],
        "resources": ["pods"],
        "verbs": ["get"],
        "resourceNames": ["x" * 1_700_000],
    }
    document = {"metadata": {"name": "large"}, "rules": [rule]}
    code, body = cluster.ask("POST", f"{_RBAC}/namespaces/default/roles", document)
    assert (code, body) == (500, TOO_LARGE)
