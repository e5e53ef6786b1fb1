"""A write by an agent's account is checked as the object will be, against the grant of that account
(issue 30).
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.registry.conftest import Api
from tests.tables import tables

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import (
    ClusterRoleBindings,
    ClusterRoles,
    EndpointSlices,
    Leases,
    Namespaces,
    Nodes,
    Resource,
    Roles,
    ServiceAccounts,
    by_kind,
)
from sliceplane.api.users import AUTHENTICATED, User
from sliceplane.consume.agents.registration import (
    ANNOTATION_REFUSED,
    LABEL_AGENT,
    AgentPort,
    Registration,
    slice_name,
)
from sliceplane.server.registry import offload
from sliceplane.server.registry.registry import Registry
from sliceplane.server.registry.types import Body, Context, WriteOptions

TABLES = tables(__file__)

SERVICE = "kubernetes.io/service-name"
MANAGER = "endpointslice.kubernetes.io/managed-by"
NAME = slice_name("web", "vm-1", "IPv4")
BETA = by_kind("discovery.k8s.io/v1beta1", "EndpointSlice")


class Agent:
    """The account of agent vm-1, which RBAC lets write any slice and Lease: so only admission
    speaks.
    """

    def __init__(self, api: Api, user: str = "system:serviceaccount:default:agent-vm-1") -> None:
        self.api = api
        self.user = User(name=user, groups=(AUTHENTICATED,))
        rules = [{"apiGroups": ["*"], "resources": ["endpointslices", "leases"], "verbs": ["*"]}]
        subject = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}
        api.create(ClusterRoles, {"metadata": {"name": "a"}, "rules": rules})
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "a"}
        api.create(
            ClusterRoleBindings,
            {"metadata": {"name": "a"}, "roleRef": reference, "subjects": [subject]},
        )

    def grant(self, **annotations: str) -> None:
        named = {f"agent.sliceplane.dev/{name}": value for name, value in annotations.items()}
        head = {"name": "agent-vm-1", "labels": {LABEL_AGENT: "vm-1"}, "annotations": named}
        self.api.create(Roles, {"metadata": head})

    def write(
        self, verb: str, resource: Resource, name: str, document: Any, namespace: str = "default"
    ) -> Any:
        api = self.api
        context, options = (
            Context(now=api.now, user=self.user),
            WriteOptions(field_manager="agent", force=verb == "apply"),
        )
        target = api.target(resource, "" if verb == "create" else name, namespace)
        if verb in ("create", "update"):
            outcome = getattr(api.registry, verb)(context, target, Body(document=document), options)
        else:
            outcome = api.registry.patch(
                context, target, verb, json.dumps(document).encode(), options
            )
        api.commit()
        return json.loads(outcome.body)

    def refusal(
        self, verb: str, resource: Resource, name: str, document: Any, namespace: str = "default"
    ) -> str:
        """The sentence of the 403, and nothing was written."""
        before = self.api.store.staged_revision
        with pytest.raises(StatusError) as caught:
            self.write(verb, resource, name, document, namespace)
        error = caught.value
        assert (error.code, error.reason, error.details and error.details["name"]) == (
            403,
            "Forbidden",
            name,
        )
        assert self.api.store.staged_revision == before
        head, _, sentence = error.message.partition(" is forbidden: ")
        group = f".{resource.group}" if resource.group else ""
        assert head == f'{resource.plural}{group} "{name}"'
        return sentence


@pytest.fixture
def agent(api: Api) -> Agent:
    agent = Agent(api)
    agent.grant(services="web,db", cidrs="192.0.2.0/24,2001:db8::/64")
    return agent


def document(of: str = "web", address: str = "192.0.2.1", **labels: str | None) -> dict[str, Any]:
    registration = Registration(
        agent="vm-1",
        namespace="default",
        service=of,
        addresses=(address,),
        ports=(AgentPort("http", 80),),
    )
    ((_, family, _),) = registration.slices
    made = registration.document(
        family, "passing", lease_uid="u", hint=False, publish_not_ready=False
    )
    del made["metadata"]["namespace"]
    names = {"service": SERVICE, "manager": MANAGER, "agent": LABEL_AGENT}
    for name, value in labels.items():
        made["metadata"]["labels"].pop(names[name])
        if value is not None:
            made["metadata"]["labels"][names[name]] = value
    return made


def lease(name: str = "agent-vm-1", label: str | None = "vm-1", **spec: Any) -> dict[str, Any]:
    head: dict[str, Any] = {"name": name, "labels": {} if label is None else {LABEL_AGENT: label}}
    kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    return {**kind, "metadata": head, "spec": {"holderIdentity": "h", **spec}}


def by_name(label: str, wanted: str, found: str) -> str:
    return f'by its name, the label {label} must be "{wanted}"; it is {found}'


MISFITS = TABLES["MISFITS"]


@pytest.mark.parametrize("verb", ["create", "apply", "update", "merge", "json", "strategic"])
@pytest.mark.parametrize(("labels", "address", "sentence"), MISFITS)
def test_a_slice_that_does_not_fit_is_refused_by_every_way_of_writing(
    agent: Agent, verb: str, labels: dict[str, Any], address: str, sentence: str
) -> None:
    wrong: Any = document(address=address)
    wrong["metadata"]["labels"] = document(**labels)["metadata"]["labels"]
    if verb in ("update", "merge", "json", "strategic"):
        agent.write("apply", EndpointSlices, NAME, document())
        stored = agent.api.get(EndpointSlices, NAME)
    if verb == "update":
        wrong = {
            **stored,
            "endpoints": wrong["endpoints"],
            "metadata": {**stored["metadata"], **wrong["metadata"]},
        }
    elif verb in ("merge", "strategic"):
        given = wrong["metadata"]["labels"]
        changed = {name: given.get(name) for name in (SERVICE, MANAGER, LABEL_AGENT)}
        wrong = {"metadata": {"labels": changed}, "endpoints": wrong["endpoints"]}
    elif verb == "json":
        wrong = [
            {"op": "replace", "path": "/metadata/labels", "value": wrong["metadata"]["labels"]},
            {"op": "replace", "path": "/endpoints", "value": wrong["endpoints"]},
        ]
    assert agent.refusal(verb, EndpointSlices, NAME, wrong) == sentence


def test_what_fits_is_let_in_and_what_was_there_may_be_taken_back(agent: Agent) -> None:
    agent.write("apply", EndpointSlices, NAME, document())
    agent.write(
        "apply", EndpointSlices, slice_name("db", "vm-1", "IPv6"), document("db", "2001:db8::1")
    )
    agent.write("apply", Leases, "agent-vm-1", lease())
    agent.write("merge", Leases, "agent-vm-1", {"spec": {"leaseTransitions": 1}})
    agent.api.delete(EndpointSlices, NAME)


def test_names_stand_for_services(agent: Agent) -> None:
    """The pairs (service, agent) of one string: the grant of one is no grant of another."""
    only = ", ".join(
        slice_name(service, "vm-1", family)
        for service in ("web", "db")
        for family in ("IPv4", "IPv6")
    )
    other = document("bank")
    sentence = f"the grant of agent default/vm-1 is for these slices alone: {only}"
    assert agent.refusal("create", EndpointSlices, other["metadata"]["name"], other) == sentence
    wrong = {
        **document(),
        "metadata": {**document()["metadata"], "name": slice_name("web", "vm-1", "IPv6")},
    }
    sentence = 'the addressType of a slice with this name is IPv6, not "IPv4"'
    assert agent.refusal("create", EndpointSlices, wrong["metadata"]["name"], wrong) == sentence


@pytest.mark.parametrize("change", [{"endpoints": 2}, {"addresses": 2}, {"ports": 65}])
def test_an_agent_has_one_address_and_few_ports(agent: Agent, change: dict[str, int]) -> None:
    wrong = document()
    if "ports" in change:
        wrong["ports"] = [{"name": f"p{number}", "port": number + 1} for number in range(65)]
    elif "endpoints" in change:
        wrong["endpoints"] += document(address="192.0.2.2")["endpoints"]
    else:
        wrong["endpoints"][0]["addresses"].append("192.0.2.2")
    said = agent.refusal("create", EndpointSlices, NAME, wrong)
    assert said.startswith("a slice of an agent has one address and at most 64 ports, not ")


@pytest.mark.parametrize("verb", ["create", "apply", "update", "merge"])
@pytest.mark.parametrize(("label", "found"), [("vm-2", '"vm-2"'), (None, "missing")])
def test_a_lease_has_the_label_of_its_agent(
    agent: Agent, verb: str, label: str | None, found: str
) -> None:
    wrong: Any = lease(label=label)
    if verb in ("update", "merge"):
        stored = agent.write("apply", Leases, "agent-vm-1", lease())
        wrong["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"]
    if verb == "merge":
        wrong = {"metadata": {"labels": {LABEL_AGENT: label}}}
    said = agent.refusal(verb, Leases, "agent-vm-1", wrong)
    assert said == by_name(LABEL_AGENT, "vm-1", found)


def test_the_lease_of_another_agent_is_not_written(agent: Agent) -> None:
    said = agent.refusal("create", Leases, "agent-vm-2", lease("agent-vm-2"))
    assert said == "the account of agent vm-1 may write the Lease agent-vm-1 alone"


def test_a_refusal_stands_until_the_control_plane_takes_it_away(agent: Agent) -> None:
    agent.write("apply", EndpointSlices, NAME, document())
    gone = [{"addresses": ["192.0.2.1"], "conditions": {"ready": False, "serving": False}}]
    refused = {"metadata": {"annotations": {ANNOTATION_REFUSED: "a Pod has it"}}, "endpoints": gone}
    agent.api.patch(EndpointSlices, NAME, refused)
    said = agent.refusal("apply", EndpointSlices, NAME, document())
    assert said == "it is refused, so its endpoint must be neither ready nor serving: a Pod has it"
    for annotation in ("", "well", None):
        change = {"metadata": {"annotations": {ANNOTATION_REFUSED: annotation}}}
        said = agent.refusal("merge", EndpointSlices, NAME, change)
        assert said == f"only the control plane may write the annotation {ANNOTATION_REFUSED}"
    agent.write(
        "merge", EndpointSlices, NAME, {"endpoints": [{**gone[0], "addresses": ["192.0.2.7"]}]}
    )
    agent.api.patch(EndpointSlices, NAME, {"metadata": {"annotations": {ANNOTATION_REFUSED: None}}})
    agent.write("apply", EndpointSlices, NAME, document())


def test_an_older_version_of_the_api_is_no_way_around(agent: Agent) -> None:
    assert BETA is not None
    body = {**document(), "apiVersion": "discovery.k8s.io/v1beta1"}
    body["metadata"]["labels"][SERVICE] = "bank"
    assert agent.refusal("create", BETA, NAME, body) == by_name(SERVICE, "web", '"bank"')


def test_another_namespace_is_bound_by_names_and_networks(agent: Agent) -> None:
    """An administrator may bind the account elsewhere, too."""
    agent.api.create(Namespaces, {"metadata": {"name": "shop"}})
    agent.write("apply", EndpointSlices, NAME, document(), "shop")
    elsewhere = document("cart")
    agent.write("create", EndpointSlices, elsewhere["metadata"]["name"], elsewhere, "shop")
    said = agent.refusal(
        "merge", EndpointSlices, NAME, {"metadata": {"labels": {SERVICE: "bank"}}}, "shop"
    )
    assert "is for these slices alone" in said
    change = {"endpoints": [{"addresses": ["10.1.1.1"]}]}
    assert "10.1.1.1 is not among" in agent.refusal("merge", EndpointSlices, NAME, change, "shop")


def test_a_grant_that_names_no_services_is_bound_by_names(api: Api) -> None:
    """As they were written before grants named Services."""
    agent = Agent(api)
    agent.grant()
    agent.write("apply", EndpointSlices, NAME, document(address="10.99.99.99"))
    said = agent.refusal("merge", EndpointSlices, NAME, {"metadata": {"labels": {SERVICE: "bank"}}})
    assert said == (
        f"the name of a slice of agent default/vm-1 and its label {SERVICE} must stand for "
        "one Service"
    )


def test_an_editor_of_the_namespace_cannot_widen_a_grant(agent: Agent) -> None:
    """Editors may write ServiceAccounts, and get tokens of them; a Role takes its rules in one's
    own hands.
    """
    api = agent.api
    rules = [
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["patch"],
            "resourceNames": [NAME],
        }
    ]
    api.patch(Roles, "agent-vm-1", {"rules": rules})
    wider = {"metadata": {"annotations": {"agent.sliceplane.dev/cidrs": "0.0.0.0/0"}}}
    account = {
        "metadata": {"name": "agent-vm-1", "labels": {LABEL_AGENT: "vm-1"}, **wider["metadata"]}
    }
    api.create(ServiceAccounts, account)
    assert "10.1.1.1 is not among" in agent.refusal(
        "create", EndpointSlices, NAME, document(address="10.1.1.1")
    )
    everything = [
        {
            "apiGroups": ["rbac.authorization.k8s.io"],
            "resources": ["roles"],
            "verbs": ["patch", "get"],
        }
    ]
    api.create(ClusterRoles, {"metadata": {"name": "edits-roles"}, "rules": everything})
    subject = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "eve"}
    reference = {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "edits-roles",
    }
    api.create(
        ClusterRoleBindings,
        {"metadata": {"name": "eve"}, "roleRef": reference, "subjects": [subject]},
    )
    agent.user = User(name="eve", groups=(AUTHENTICATED,))
    with pytest.raises(
        StatusError, match="attempting to grant RBAC permissions not currently held"
    ):
        agent.write("merge", Roles, "agent-vm-1", wider)


def test_other_accounts_write_as_before(agent: Agent) -> None:
    api = agent.api
    for name, labels in (("agent-smith", {}), ("agent-vm-3", {LABEL_AGENT: "vm-4"})):
        api.create(ServiceAccounts, {"metadata": {"name": name, "labels": labels}})
        agent.user = User(name=f"system:serviceaccount:default:{name}", groups=(AUTHENTICATED,))
        body = document()
        body["metadata"] = {"name": f"own-{name}", "labels": {SERVICE: "bank"}}
        body["endpoints"][0]["addresses"] = ["10.1.1.1"]
        agent.write("create", EndpointSlices, f"own-{name}", body)


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("198.51.100.7", "belongs to Node n1; a grant with --cidr allows it"),
        ("2001:db8::7", "belongs to Node n1"),
        ("10.96.3.4", "belongs to the network of Services"),
    ],
)
def test_a_grant_without_networks_leaves_out_the_hosts_and_services_of_the_cluster(
    api: Api, address: str, sentence: str
) -> None:
    """It was stored, and withdrawn by the controller a moment later: each time that the agent wrote
    it.
    """
    addresses = [
        {"type": "InternalIP", "address": text} for text in ("198.51.100.7", "2001:db8::7")
    ]
    api.create(Nodes, {"metadata": {"name": "n1"}, "status": {"addresses": addresses}})
    agent = Agent(api)
    agent.grant(services="web")
    family = "IPv6" if ":" in address else "IPv4"
    name = slice_name("web", "vm-1", family)
    wrong = document(address="2001:db8::7" if family == "IPv6" else address)
    wrong["endpoints"][0]["addresses"] = [address]
    assert sentence in agent.refusal("create", EndpointSlices, name, wrong)
    neighbour = "2001:db8::77" if family == "IPv6" else "198.51.100.77"
    agent.write("create", EndpointSlices, name, document(address=neighbour))


def test_a_write_that_is_worked_out_elsewhere_is_checked_as_well(agent: Agent) -> None:
    """The input for a large body has no accounts at first."""
    registry, api = agent.api.registry, agent.api
    context, target = Context(now=api.now, user=agent.user), api.target(EndpointSlices)
    wrong = document()
    wrong["metadata"]["labels"][SERVICE] = "bank"

    def run(core: Any) -> Any:
        return Registry.around(core).create(
            context, target, Body(document=json.loads(json.dumps(wrong))), WriteOptions()
        )

    basis = registry.gather_input(context, target)
    done = offload.work_out(basis, run)
    with pytest.raises(offload.StaleInput) as stale:
        registry.apply_result(context, basis, done, target, dry_run=False)
    basis = registry.gather_input(context, target, stale.value.keys, stale.value.collections)
    done = offload.work_out(basis, run)
    with pytest.raises(StatusError) as refused:
        registry.apply_result(context, basis, done, target, dry_run=False)
    assert refused.value.code == 403
