"""What an agent keeps for a Service, and what it refuses to keep."""

from __future__ import annotations

from itertools import product

import pytest

from sliceplane.agent.agent_file import AgentFileError, read_agent_file
from sliceplane.agent.rights import grants
from sliceplane.consume.agents.checks import CheckSpec
from sliceplane.consume.agents.registration import AgentPort, Registration, conditions, slice_name
from sliceplane.kit.ip import FAMILIES


def _made(**more: object) -> Registration:
    wanted: dict[str, object] = {
        "agent": "vm1",
        "namespace": "default",
        "service": "web",
        "addresses": ("192.0.2.1",),
        "ports": (AgentPort("http", 8080),),
        **more,
    }
    return Registration(**wanted)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"addresses": ("127.0.0.1",)}, "loopback"),
        ({"addresses": ("fe80::1",)}, "link-local"),
        ({"addresses": ("224.0.0.1",)}, "multicast"),
        ({"addresses": ("0.0.0.0",)}, "unspecified"),
        ({"addresses": ("::1",)}, "loopback"),
        ({"addresses": ("2001:DB8::1",)}, "is to be written '2001:db8::1'"),
        ({"addresses": ("web.example",)}, "no IP address"),
        ({"addresses": ()}, "an address is needed"),
        ({"addresses": ("192.0.2.1", "192.0.2.2")}, "one address of each family"),
        ({"ports": ()}, "a port is needed"),
        ({"ports": (AgentPort("http", 0),)}, "not between 1 and 65535"),
        ({"ports": (AgentPort("a", 1), AgentPort("a", 2))}, "two ports are called 'a'"),
        ({"agent": "Vm_1"}, "the name 'Vm_1' of the agent"),
        ({"service": "a.b"}, "must not contain dots"),
        ({"node_name": "-"}, "the node name '-'"),
    ],
)
def test_what_cannot_be_an_endpoint_is_refused_with_a_sentence(
    wrong: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        _made(**wrong)


def test_two_families_are_two_slices() -> None:
    made = _made(addresses=("2001:db8::1", "192.0.2.1"))
    assert [entry[0] for entry in made.slices] == ["web-vm1-4", "web-vm1-6"]
    document = made.document("IPv6", "passing", lease_uid="u", hint=False, publish_not_ready=False)
    assert document["addressType"] == "IPv6"
    assert document["endpoints"][0]["addresses"] == ["2001:db8::1"]


def test_a_zone_is_a_hint_where_the_service_prefers_what_is_near() -> None:
    made = _made(zone="eu-1a")
    for hint in (True, False):
        endpoint = made.document(
            "IPv4", "passing", lease_uid="u", hint=hint, publish_not_ready=False
        )["endpoints"][0]
        assert ("hints" in endpoint) is hint
        assert endpoint["zone"] == "eu-1a"


@pytest.mark.parametrize(
    ("state", "publish", "expected"),
    [
        ("unknown", False, (False, False, False)),
        ("passing", False, (True, True, False)),
        ("failing", False, (False, False, False)),
        ("failing", True, (True, False, False)),
        ("unknown", True, (True, False, False)),
        ("draining", False, (False, True, True)),
        ("draining", True, (False, True, True)),
        ("lost", True, (False, False, False)),
    ],
)
def test_conditions(state: str, publish: bool, expected: tuple[bool, bool, bool]) -> None:
    made = conditions(state, publish_not_ready=publish)  # type: ignore[arg-type]
    assert (made["ready"], made["serving"], made["terminating"]) == expected


def test_names_of_slices_are_told_apart() -> None:
    names = {
        slice_name(service, agent, "IPv4")
        for service, agent in (("a-b", "c"), ("a", "b-c"), ("a-b-c", "d"))
    }
    assert len(names) == 3
    # the hash in a name could be the name of another agent
    hashed = slice_name("a", "b-c", "IPv4").split("-")[3]
    assert slice_name("a-b-c", hashed, "IPv4") != slice_name("a", "b-c", "IPv4")
    words = [*"abc", *("-".join(pair) for pair in product("abc", repeat=2)), hashed]
    every = [
        slice_name(service, agent, family)
        for service, agent, family in product(words, words, FAMILIES)
    ]
    assert len(set(every)) == len(every)
    assert len(slice_name("s" * 63, "a-" + "b" * 61, "IPv6")) <= 253


def test_rights_end_at_names() -> None:
    documents = grants("vm1", "shop", ("web",), cidrs=("192.0.2.0/24",))
    (role,) = (document for document in documents if document["kind"] == "Role")
    assert all(rule["resourceNames"] for rule in role["rules"])
    assert role["rules"][0]["resourceNames"] == ["agent-vm1"]
    assert role["rules"][1]["resourceNames"] == ["web-vm1-4", "web-vm1-6"]
    assert documents[0]["metadata"]["annotations"] == {
        "agent.sliceplane.dev/services": "web",
        "agent.sliceplane.dev/cidrs": "192.0.2.0/24",
    }
    slices, lease = (
        document for document in documents if document["kind"] == "ValidatingAdmissionPolicy"
    )
    assert (
        "cidr('192.0.2.0/24').containsIP(ip(address))"
        in slices["spec"]["validations"][-1]["expression"]
    )
    assert "object.metadata.name == 'agent-vm1'" in lease["spec"]["validations"][0]["expression"]
    unbound = grants("vm1", "shop", ("web",))
    assert sum(document["kind"] == "ValidatingAdmissionPolicy" for document in unbound) == 2, (
        "labels are checked, too"
    )
    assert not any(
        "Policy" in document["kind"]
        for document in grants("vm1", "shop", ("web",), with_policies=False)
    )


def test_names_of_policies_are_told_apart() -> None:
    """Policies have no namespace: two agents must never share one."""
    agents = [
        ("x", "y-agent-z"),
        ("x-agent-y", "z"),
        ("x", "agent-y"),
        ("x-agent", "y"),
        ("x", "y"),
    ]
    names = [
        document["metadata"]["name"]
        for namespace, agent in agents
        for document in grants(agent, namespace, ("web",))
        if document["kind"] == "ValidatingAdmissionPolicy"
    ]
    assert len(set(names)) == 2 * len(agents)


_FILE = b"""
name: vm-1
address: [192.0.2.1, "2001:db8::1"]
zone: eu-1a
services:
  - service: web
    ports: {http: 8080}
    checks:
      - http: /healthz
        period: 2s
        fall: 5
      - grpc:
        port: 9000
      - ttl: 1m
"""


def test_a_file_of_services() -> None:
    read = read_agent_file(_FILE)
    assert read.addresses == ("192.0.2.1", "2001:db8::1")
    (service,) = read.services
    assert service.checks == (
        CheckSpec(kind="http", target="/healthz", period_s=2.0, fall=5),
        CheckSpec(kind="grpc", port=9000),
        CheckSpec(kind="ttl", period_s=60.0),
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [", "no YAML"),
        ("", "names and values are needed"),
        ("services: []", "at least one Service"),
        ("servces: []", "'servces' is not known"),
        ("services: [{ports: {a: 1}}]", r"services\[0\]: service: a name is needed"),
        ("services: [{service: a}]", r"services\[0\]: ports"),
        ("services: [{service: a, ports: {h: x}}]", "each is NAME: NUMBER"),
        ("services: [{service: a, ports: {h: 1}, checks: [{}]}]", r"checks\[0\]: exactly one of"),
        (
            "services: [{service: a, ports: {h: 1}, checks: [{tcp: , period: x}]}]",
            "'x' is no duration",
        ),
        (
            "services: [{service: a, ports: {h: 1}, checks: [{tcp: , fall: 0}]}]",
            "fall of a check must be at least 1",
        ),
        (
            "services: [{service: a, ports: {h: 1}}, {service: a, ports: {h: 1}}]",
            "stands there twice",
        ),
        ("name: 3\nservices: [{service: a, ports: {h: 1}}]", "name: a text is needed"),
        ("name: a\nname: b\nservices: [{service: a, ports: {h: 1}}]", "already set in map"),
    ],
)
def test_a_mistake_in_a_file_is_named(text: str, sentence: str) -> None:
    with pytest.raises(AgentFileError, match=sentence):
        read_agent_file(text.encode())
