"""An agent's account is held to its grant and to the names that RBAC binds, whatever labels it
writes (issue 30).

The server of these stories has no admission for agents: their writes are an administrator's.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.agent.farm import Farm

from sliceplane.agent.judge import LeaseJudge
from sliceplane.agent.refusals import PROBES_MAX, AgentRefusals
from sliceplane.api.discovery import EndpointPort, EndpointSlice, SliceEndpoint
from sliceplane.api.meta import ObjectMeta
from sliceplane.api.scheme import EndpointSlices, Leases, Namespaces, Nodes, Roles
from sliceplane.consume.agents.grants import AgentGrant, Marks, parse_networks, read_grant
from sliceplane.consume.agents.registration import (
    ANNOTATION_REFUSED,
    ANNOTATION_STATE,
    LABEL_AGENT,
    LEASE_MAX_S,
    MANAGED_BY,
    lease_duration_s,
)

_A = "192.0.2.10"
_CIDR = "192.0.2.0/24"
_SERVICE = "kubernetes.io/service-name"
_MANAGER = "endpointslice.kubernetes.io/managed-by"


def _slice(labels: dict[str, str], address: str = _A, name: str = "web-vm1-4") -> dict[str, Any]:
    everything = {_SERVICE: "web", _MANAGER: MANAGED_BY, LABEL_AGENT: "vm1", **labels}
    return {
        "metadata": {
            "name": name,
            "labels": {key: value for key, value in everything.items() if value},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True, "serving": True}}],
        "ports": [{"name": "http", "port": 8080}],
    }


def _lease(name: str = "vm1", label: str = "vm1", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": f"agent-{name}", "labels": {LABEL_AGENT: label}},
        "spec": {"holderIdentity": "h", "leaseDurationSeconds": 15, **spec},
    }


@pytest.mark.parametrize(
    ("labels", "address", "sentence"),
    [
        (
            {_SERVICE: "bank"},
            _A,
            'by its name, the label kubernetes.io/service-name must be "web"; it is "bank"',
        ),
        (
            {_SERVICE: ""},
            _A,
            'by its name, the label kubernetes.io/service-name must be "web"; it is missing',
        ),
        (
            {_MANAGER: "me"},
            _A,
            f'by its name, the label {_MANAGER} must be "{MANAGED_BY}"; it is "me"',
        ),
        (
            {_MANAGER: ""},
            "10.99.99.99",
            f'by its name, the label {_MANAGER} must be "{MANAGED_BY}"; it is missing',
        ),
        (
            {LABEL_AGENT: "vm2"},
            _A,
            f'by its name, the label {LABEL_AGENT} must be "vm1"; it is "vm2"',
        ),
        (
            {},
            "10.9.9.9",
            (
                "10.9.9.9 is not among the addresses that the account of agent default/vm1 may "
                "use: "
                f"{_CIDR}"
            ),
        ),
    ],
)
def test_a_slice_that_does_not_fit_its_grant_is_emptied(
    labels: dict[str, str], address: str, sentence: str
) -> None:
    farm = Farm()
    farm.grant("vm1", "web", cidrs=_CIDR)
    farm.stage.must("create", Leases, "default", _lease())
    farm.stage.must("create", EndpointSlices, "default", _slice(labels, address))
    farm.wait(1)
    (stored,) = farm.slices()
    assert stored["endpoints"] == []
    assert stored["metadata"]["annotations"][ANNOTATION_REFUSED] == sentence
    version = stored["metadata"]["resourceVersion"]
    farm.wait(10)
    assert farm.slices()[0]["metadata"]["resourceVersion"] == version, "and stays as it is"


def test_a_slice_of_a_service_that_the_grant_lost_is_emptied() -> None:
    farm = Farm()
    farm.agent("vm1", _A)
    farm.wait_until(lambda: farm.is_ready(_A), 10)
    farm.grant("vm1", "db", cidrs=_CIDR)
    farm.wait(1)
    sentence = "the grant of agent default/vm1 is for these slices alone: db-vm1-4, db-vm1-6"
    (stored,) = farm.slices()
    assert (stored["endpoints"], stored["metadata"]["annotations"][ANNOTATION_REFUSED]) == (
        [],
        sentence,
    )


def test_an_honest_agent_whose_address_is_not_granted_says_so_and_does_not_alternate() -> None:
    farm = Farm()
    farm.grant("vm1", "web", cidrs="198.51.100.0/24")
    agent = farm.agent("vm1", _A)
    farm.wait(20)
    (view,) = agent.controller.view(farm.sim.scheduler.now).registrations
    assert view.problem.startswith(f"{_A} is not among the addresses")
    writes: list[Any] = []
    farm.sim.server.listeners.append(
        lambda event: (
            writes.append(event) if event.record.key.resource.startswith("endpointslices") else None
        )
    )
    farm.wait(110)
    assert 0 < len(writes) <= 4, "it is offered, and taken out, once a minute"
    assert farm.slices()[0]["endpoints"] == []
    annotations = {"agent.sliceplane.dev/cidrs": _CIDR}
    farm.stage.must(
        "patch", Roles, "default", {"metadata": {"annotations": annotations}}, "agent-vm1"
    )
    farm.wait_until(lambda: farm.is_ready(_A), 70)


def test_a_lease_with_the_label_of_another_agent_is_nothing_to_that_agent() -> None:
    farm = Farm()
    for name in ("vm1", "vm2"):
        farm.grant(name, "web", cidrs=_CIDR)
    farm.agent("vm2", "192.0.2.2")
    farm.wait_until(lambda: farm.is_ready("192.0.2.2"), 10)
    version = farm.slices()[0]["metadata"]["resourceVersion"]
    farm.stage.must("create", Leases, "default", _lease())
    farm.stage.must("create", EndpointSlices, "default", _slice({}))
    for which in range(20):  # renewed as vm2's, and at last no more
        body = {
            "metadata": {"labels": {LABEL_AGENT: "vm2" if which % 2 else "vm1"}},
            "spec": {"leaseTransitions": which},
        }
        farm.stage.must("patch", Leases, "default", body, "agent-vm1")
        farm.wait(2)
    farm.wait(30)
    assert farm.is_ready("192.0.2.2")
    stored = {slice_["metadata"]["name"]: slice_ for slice_ in farm.slices()}
    assert stored["web-vm2-4"]["metadata"]["resourceVersion"] == version
    assert stored["web-vm1-4"]["metadata"]["annotations"][ANNOTATION_STATE] == "lost"


def test_a_relabelled_lease_keeps_no_dead_agent_alive() -> None:
    farm = Farm()
    for name in ("vm1", "vm2"):
        farm.grant(name, "web", cidrs=_CIDR)
    dead = farm.agent("vm2", "192.0.2.2")
    farm.wait_until(lambda: farm.is_ready("192.0.2.2"), 10)
    dead.kill()
    farm.stage.must("create", Leases, "default", _lease(label="vm2"))
    for which in range(8):
        farm.stage.must(
            "patch", Leases, "default", {"spec": {"leaseTransitions": which}}, "agent-vm1"
        )
        farm.wait(2.5)
    assert not farm.is_ready("192.0.2.2")


@pytest.mark.parametrize("label", ["vm2", None])
def test_an_agent_that_hides_its_lease_is_withdrawn(label: str | None) -> None:
    farm = Farm()
    farm.grant("vm1", "web", cidrs=_CIDR)
    agent = farm.agent("vm1", _A)
    farm.wait_until(lambda: farm.is_ready(_A), 10)
    agent.kill()
    farm.stage.must(
        "patch", Leases, "default", {"metadata": {"labels": {LABEL_AGENT: label}}}, "agent-vm1"
    )
    assert farm.wait_until(lambda: not farm.is_ready(_A), 25) > 10


@pytest.mark.parametrize(
    "spec", [{"leaseDurationSeconds": 2**31 - 1}, {"renewTime": "2999-01-01T00:00:00.000000Z"}]
)
def test_no_duration_and_no_time_that_an_agent_writes_keeps_it_for_ever(
    spec: dict[str, Any],
) -> None:
    farm = Farm()
    agent = farm.agent("vm1", _A)
    farm.wait_until(lambda: farm.is_ready(_A), 10)
    agent.kill()
    farm.stage.must("patch", Leases, "default", {"spec": spec}, "agent-vm1")
    farm.wait_until(lambda: not farm.is_ready(_A), LEASE_MAX_S + 10)


def test_durations_are_bounded() -> None:
    assert [lease_duration_s(written) for written in (None, 0, -7, 1, 30, 2**60)] == [
        15,
        15,
        1,
        1,
        30,
        300,
    ]


def _strangers(farm: Farm, count: int, namespace: str = "evil") -> None:
    """Leases with the label of agents: an editor of a namespace may write them."""
    farm.stage.must("create", Namespaces, "", {"metadata": {"name": namespace}})
    for number in range(count):
        farm.stage.must("create", Leases, namespace, _lease(f"e{number}", f"e{number}"))


def test_leases_of_another_namespace_make_no_hold() -> None:
    farm = Farm()
    agent = farm.agent("vm1", _A)
    farm.wait_until(lambda: farm.is_ready(_A), 10)
    _strangers(farm, 8)
    agent.link.up = False
    assert farm.wait_until(lambda: not farm.is_ready(_A), 60) < 20


def test_leases_without_endpoints_make_no_hold_in_their_own_namespace() -> None:
    farm = Farm()
    agent = farm.agent("vm1", _A)
    farm.wait_until(lambda: farm.is_ready(_A), 10)
    for number in range(8):
        farm.stage.must("create", Leases, "default", _lease(f"e{number}", f"e{number}"))
    agent.link.up = False
    assert farm.wait_until(lambda: not farm.is_ready(_A), 60) < 20


def _judged(agents: dict[str, int], silent: dict[str, int]) -> set[str]:
    """Namespaces that have a hold: each has so many agents, of which so many fall silent."""
    judge = LeaseJudge()
    keys = {
        (space, number): f"{space}/a{number}"
        for space, count in agents.items()
        for number in range(count)
    }
    for (space, number), key in keys.items():
        judge.on_lease(key, "1", 15.0, 0.0)
        judge.on_services(key, {f"{space}/s{number}"})
        if number >= silent.get(space, 0):
            judge.on_lease(key, "2", 15.0, 10.0)
    for (space, number), key in keys.items():
        if number < silent.get(space, 0):
            judge.on_confirmed(key, "1", 17.0)
            judge.judge(key, 17.0)
    judge.check()
    return {space for space in agents if judge.get_retention(space) is not None}


@pytest.mark.parametrize(
    ("agents", "silent", "held"),
    [
        ({"a": 10, "b": 10}, {"a": 6}, {"a"}),
        ({"a": 50, "b": 1, "c": 1}, {"a": 50, "b": 1}, {"a"}),
        # one tenant with two namespaces of five
        ({"a": 9, "a2": 9, "b": 1, "c": 1, "d": 1, "e": 1}, {"a": 9, "a2": 9, "b": 1}, {"a", "a2"}),
        # a partition of the whole cluster, one or two agents in each namespace
        (dict.fromkeys("abcde", 2), dict.fromkeys("abcd", 2), {*"abcd"}),
        ({"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 1, "c": 1}, set()),
    ],
)
def test_holds_are_by_namespace(
    agents: dict[str, int], silent: dict[str, int], held: set[str]
) -> None:
    assert _judged(agents, silent) == held


def test_a_release_is_for_one_namespace() -> None:
    judge = LeaseJudge()
    for space in ("a", "b"):
        for number in range(6):
            judge.on_lease(f"{space}/{number}", "1", 15.0, 0.0)
            judge.on_services(f"{space}/{number}", {f"{space}/s"})
    for space in ("a", "b"):
        for number in range(6):
            judge.on_confirmed(f"{space}/{number}", "1", 17.0)
            judge.judge(f"{space}/{number}", 17.0)
    judge.release("a", 18.0)
    assert (len(judge.retained_in("a")), len(judge.retained_in("b"))) == (0, 6)
    judge.check()


def _endpoint_slice(
    address: str, *ports: int, name: str = "web-vm1-4", protocol: str = "TCP"
) -> EndpointSlice:
    labels = {_SERVICE: "web", _MANAGER: MANAGED_BY, LABEL_AGENT: "vm1"}
    return EndpointSlice(
        metadata=ObjectMeta(name=name, namespace="default", labels=labels),
        address_type="IPv6" if ":" in address else "IPv4",
        endpoints=(SliceEndpoint(addresses=(address,)),),
        ports=tuple(EndpointPort(name=f"p{port}", port=port, protocol=protocol) for port in ports),
    )


def _probed(cidrs: str | None, stored: EndpointSlice) -> int:
    refusals = AgentRefusals()
    if cidrs != "no grant":
        networks = None if cidrs is None else parse_networks(cidrs.split(","))
        refusals.on_grant("default/vm1", AgentGrant("default", "vm1", ("web",), networks))
    refusals.on_host("Node n1", ("192.0.2.99",))
    refusals.on_pod("default/p", (), ("192.0.2.98",))
    refusals.on_range("the cluster IPs of ServiceCIDR s", ("192.0.2.64/30",))
    refusals.on_slice(f"default/{stored.metadata.name}", "default/vm1", stored)
    return len(refusals.list_probe_ports("default/vm1"))


@pytest.mark.parametrize(
    ("cidrs", "address", "ports", "count"),
    [
        (_CIDR, _A, (80, 81), 2),
        (_CIDR, _A, tuple(range(1, PROBES_MAX + 2)), 0),
        (None, _A, (80,), 0),
        ("no grant", _A, (80,), 0),
        (_CIDR, "10.0.0.1", (22,), 0),
        ("0.0.0.0/0", "192.0.2.99", (10250,), 0),
        ("0.0.0.0/0", "192.0.2.98", (80,), 0),
        ("0.0.0.0/0", "192.0.2.65", (80,), 0),
        ("0.0.0.0/0", "127.0.0.1", (6443,), 0),
        ("0.0.0.0/0", "169.254.169.254", (80,), 0),
        ("0.0.0.0/0", "100.100.100.200", (80,), 0),
    ],
)
def test_only_ports_that_a_grant_allows_are_probed(
    cidrs: str | None, address: str, ports: tuple[int, ...], count: int
) -> None:
    assert _probed(cidrs, _endpoint_slice(address, *ports)) == count


def test_a_port_that_is_not_tcp_is_not_probed() -> None:
    assert _probed(_CIDR, _endpoint_slice(_A, 53, protocol="UDP")) == 0


def test_a_refused_slice_takes_no_address_from_another_agent() -> None:
    refusals = AgentRefusals()
    for name, cidr in (("vm1", "198.51.100.0/24"), ("vm2", _CIDR)):
        refusals.on_grant(
            f"default/{name}", AgentGrant("default", name, ("web",), parse_networks([cidr]))
        )
        refusals.on_lease(f"default/{name}", ("2026-01-01T00:00:00Z", name))
    refusals.on_lease("default/vm1", ("2026-02-01T00:00:00Z", "later"))
    refusals.on_slice("default/web-vm1-4", "default/vm1", _endpoint_slice(_A, 80))
    theirs = _endpoint_slice(_A, 80, name="web-vm2-4")
    labels = {**(theirs.metadata.labels or {}), LABEL_AGENT: "vm2"}
    meta = ObjectMeta(name="web-vm2-4", namespace="default", labels=labels)
    theirs = EndpointSlice(
        metadata=meta,
        address_type=theirs.address_type,
        endpoints=theirs.endpoints,
        ports=theirs.ports,
    )
    refusals.on_slice("default/web-vm2-4", "default/vm2", theirs)
    assert refusals.find_reason("default/web-vm1-4").startswith(f"{_A} is not among")
    assert refusals.find_reason("default/web-vm2-4") == ""
    refusals.check()


@pytest.mark.parametrize("kind", ["InternalIP", "ExternalIP"])
def test_an_agent_without_networks_cannot_be_a_node(kind: str) -> None:
    farm = Farm()
    farm.grant("vm1", "web")
    farm.agent("vm1", _A)
    farm.agent("vm2", "192.0.2.11")
    farm.wait_until(lambda: farm.ready() == 2, 10)
    node = {"metadata": {"name": "n1"}, "status": {"addresses": [{"type": kind, "address": _A}]}}
    farm.stage.must("create", Nodes, "", node)
    farm.wait_until(lambda: not farm.is_ready(_A), 10)
    assert farm.annotations(_A)[ANNOTATION_REFUSED] == f"{_A} belongs to Node n1"
    assert farm.is_ready("192.0.2.11")


def test_an_agent_without_networks_cannot_be_the_api_server() -> None:
    farm = Farm()
    farm.grant("vm1", "web")
    farm.agent("vm1", _A)
    farm.wait_until(lambda: farm.is_ready(_A), 10)
    farm.stage.must(
        "create",
        EndpointSlices,
        "default",
        _slice({_SERVICE: "kubernetes", _MANAGER: ""}, name="kubernetes"),
    )
    farm.wait_until(lambda: not farm.conditions_of("web-vm1-4")["ready"], 10)


@pytest.mark.parametrize(("ports", "addresses"), [(65, 1), (1, 2)])
def test_a_slice_of_many_places_is_emptied_before_it_is_indexed(ports: int, addresses: int) -> None:
    farm = Farm()
    document = _slice({})
    document["ports"] = [{"name": f"p{number}", "port": number + 1} for number in range(ports)]
    document["endpoints"] *= addresses
    farm.stage.must("create", Leases, "default", _lease())
    farm.stage.must("create", EndpointSlices, "default", document)
    farm.wait(1)
    assert farm.slices()[0]["endpoints"] == []


def _marks(agent: str, **annotations: str) -> Marks:
    return Marks(
        {LABEL_AGENT: agent},
        {f"agent.sliceplane.dev/{name}": value for name, value in annotations.items()},
    )


def test_a_grant_is_bounded_whatever_its_annotations_say() -> None:
    services = ",".join(f"s{number}" for number in range(10_000))
    role = _marks(
        "vm1", services=f"Bad Name,{'x' * 99},{services}", cidrs=",".join(["192.0.2.0/24"] * 1000)
    )
    grant = read_grant("default", "agent-vm1", role, None)
    assert grant is not None
    assert 60 <= len(grant.services or ()) <= 64
    assert len(grant.networks or ()) <= 64


def test_a_grant_is_the_role_which_an_editor_cannot_write() -> None:
    role = _marks("vm1", services="web", cidrs="192.0.2.0/24")
    wider = _marks("vm1", services="web,bank", cidrs="0.0.0.0/0")
    grant = read_grant("default", "agent-vm1", role, None)
    assert read_grant("default", "agent-vm1", role, wider) == grant
    assert read_grant("default", "agent-vm1", role, Marks({}, {})) == grant, (
        "an account that was made anew"
    )
    assert read_grant("default", "agent-vm1", _marks("vm1", services="web"), wider) == AgentGrant(
        "default", "vm1", ("web",), None
    )


def test_a_grant_of_an_earlier_version_has_its_networks_on_the_account() -> None:
    grant = read_grant("default", "agent-vm1", _marks("vm1"), _marks("vm1", cidrs="192.0.2.0/24"))
    assert grant == AgentGrant("default", "vm1", None, parse_networks(["192.0.2.0/24"]))
    for label, name in (("vm2", "agent-vm1"), ("vm1", "other"), ("", "agent-")):
        assert read_grant("default", name, _marks(label, services="web"), _marks(label)) is None, (
            "it is not its Role"
        )
