"""The policies that ``sliceplane agent grant`` makes say what our own admission says: by
Kubernetes' CEL (issue 30).
"""

from __future__ import annotations

import json
import subprocess
from copy import deepcopy
from itertools import product
from typing import Any

import pytest
from tests.peers import kubernetes
from tests.peers.programs import build

from sliceplane.agent.policies import policies
from sliceplane.consume.agents.grants import (
    AgentGrant,
    lease_misfit,
    parse_networks,
    read_slice_document,
    slice_misfit,
)
from sliceplane.consume.agents.registration import (
    ANNOTATION_REFUSED,
    LABEL_AGENT,
    AgentPort,
    Registration,
    slice_name,
)

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1200)]

SERVICES = ("web", "db")
CIDRS = ("192.0.2.0/24", "2001:db8::/64")
GRANT = AgentGrant("shop", "vm-1", SERVICES, parse_networks(CIDRS))
SERVICE = "kubernetes.io/service-name"
MANAGER = "endpointslice.kubernetes.io/managed-by"


@pytest.fixture(scope="module")
def cel(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build(kubernetes.MODULE, tmp_path_factory.mktemp("cel"), "./cel")


def evaluate(program: str, questions: list[dict[str, Any]]) -> list[list[str]]:
    done = subprocess.run(
        [program], input=json.dumps(questions), capture_output=True, text=True, check=True
    )
    answers: list[list[str]] = json.loads(done.stdout)
    assert {answer for row in answers for answer in row} <= {"true", "false"}, (
        "every expression has an answer"
    )
    return answers


def expressions(policy: dict[str, Any]) -> list[str]:
    return [validation["expression"] for validation in policy["spec"]["validations"]]


def document(service: str, address: str) -> dict[str, Any]:
    registration = Registration(
        agent="vm-1",
        namespace="shop",
        service=service,
        addresses=(address,),
        ports=(AgentPort("http", 80),),
    )
    ((_, family, _),) = registration.slices
    return registration.document(
        family, "passing", lease_uid="u", hint=False, publish_not_ready=False
    )


def slices() -> list[dict[str, Any]]:
    """Honest ones and others, each label, name, family, address and shape with each."""
    found = []
    names = [
        slice_name(service, "vm-1", family)
        for service in ("web", "bank")
        for family in ("IPv4", "IPv6")
    ]
    for name, service, manager, agent, address in product(
        [*names, "other"],
        ["web", "db", "bank", None],
        ["agent.sliceplane.dev", "me", None],
        ["vm-1", "vm-2", None],
        ["192.0.2.1", "2001:db8::1", "10.99.99.99"],
    ):
        made = document("web", address)
        labels = {SERVICE: service, MANAGER: manager, LABEL_AGENT: agent}
        made["metadata"] |= {
            "name": name,
            "labels": {key: value for key, value in labels.items() if value},
        }
        found.append(made)
    bare = document("web", "192.0.2.1")
    del bare["metadata"]["labels"]
    empty, without, two, more, ports = (document("web", "192.0.2.1") for _ in range(5))
    empty["endpoints"] = []
    del without["endpoints"]
    two["endpoints"][0]["addresses"] *= 2
    more["endpoints"] *= 2
    ports["ports"] = [{"name": f"p{number}", "port": number + 1} for number in range(65)]
    return [*found, bare, empty, without, two, more, ports]


def test_slices_are_judged_alike(cel: str) -> None:
    asked = slices()
    policy = policies("vm-1", "shop", SERVICES, CIDRS)[0]
    questions = [
        {
            "expressions": expressions(policy),
            "variables": {"object": made, "oldObject": None, "request": {}},
        }
        for made in asked
    ]
    allowed = [set(row) == {"true"} for row in evaluate(cel, questions)]
    ours = [not slice_misfit(GRANT, read_slice_document(made)) for made in asked]
    assert allowed == ours
    assert 0 < sum(allowed) < len(asked) / 10


@pytest.mark.parametrize(
    ("before", "after", "serves", "allowed"),
    [
        ("", "", True, True),
        ("no", "no", True, False),
        ("no", "no", False, True),
        ("no", "", True, False),
        ("no", "", False, False),
        ("", "no", False, False),
    ],
)
def test_a_refusal_stands(
    cel: str, before: str, after: str, *, serves: bool, allowed: bool
) -> None:
    old, new = document("web", "192.0.2.1"), document("web", "192.0.2.1")
    for made, sentence in ((old, before), (new, after)):
        if sentence:
            made["metadata"]["annotations"][ANNOTATION_REFUSED] = sentence
    new["endpoints"][0]["conditions"] = {"ready": serves, "serving": serves}
    asked = expressions(policies("vm-1", "shop", SERVICES, CIDRS)[0])
    without = deepcopy(new)
    del without["endpoints"][0]["conditions"]
    questions = [
        {"expressions": asked, "variables": {"object": new, "oldObject": old, "request": {}}}
    ]
    if after:
        questions.append(
            {
                "expressions": asked,
                "variables": {"object": without, "oldObject": old, "request": {}},
            }
        )
    answers = evaluate(cel, questions)
    assert ("false" not in answers[0]) is allowed
    assert all("false" in row for row in answers[1:]), "what is not said is true"


def test_leases_are_judged_alike(cel: str) -> None:
    asked = [
        {"metadata": {"name": name, **({"labels": labels} if labels is not None else {})}}
        for name in ("agent-vm-1", "agent-vm-2")
        for labels in ({LABEL_AGENT: "vm-1"}, {LABEL_AGENT: "vm-2"}, {}, None)
    ]
    policy = policies("vm-1", "shop", SERVICES, ())[2]
    questions = [
        {
            "expressions": expressions(policy),
            "variables": {"object": made, "oldObject": None, "request": {}},
        }
        for made in asked
    ]
    allowed = [set(row) == {"true"} for row in evaluate(cel, questions)]
    ours = [
        not lease_misfit("vm-1", made["metadata"]["name"], made["metadata"].get("labels"))
        for made in asked
    ]
    assert allowed == ours
    assert sum(allowed) == 1


def test_a_policy_is_for_its_account_alone(cel: str) -> None:
    users = (
        "system:serviceaccount:shop:agent-vm-1",
        "system:serviceaccount:shop:agent-vm-2",
        "root",
    )
    for policy in policies("vm-1", "shop", SERVICES, CIDRS)[::2]:
        (condition,) = policy["spec"]["matchConditions"]
        questions = [
            {
                "expressions": [condition["expression"]],
                "variables": {"request": {"userInfo": {"username": user}}},
            }
            for user in users
        ]
        for question in questions:
            question["variables"] |= {"object": None, "oldObject": None}
        assert evaluate(cel, questions) == [["true"], ["false"], ["false"]]
