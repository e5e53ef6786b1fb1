"""The rules of ``consume.agents.grants`` as ValidatingAdmissionPolicies for other API servers
(KEP-3488).

RBAC binds names, but not labels, addresses, or the fields that a refusal must preserve. Each agent
has two policies, one for its slices and one for its Lease. Both match only requests of the agent's
account.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from sliceplane.api.discovery import LABEL_MANAGED_BY, LABEL_SERVICE_NAME
from sliceplane.api.meta import Document
from sliceplane.consume.agents.registration import (
    ANNOTATION_REFUSED,
    LABEL_AGENT,
    MANAGED_BY,
    PORTS_MAX,
    account_name,
    lease_name,
    slice_name,
)
from sliceplane.kit.ip import FAMILIES

POLICY_GROUP: Final = "admissionregistration.k8s.io"
POLICY_KINDS: Final = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
_VERSION: Final = f"{POLICY_GROUP}/v1"
_SPLIT: Final = f"-{account_name('')}"
#: characters of the hash that distinguishes ambiguous names
_HASH_LENGTH: Final = 10


def policies(
    agent: str, namespace: str, services: tuple[str, ...], cidrs: tuple[str, ...]
) -> tuple[Document, ...]:
    """Returns the policies and their bindings in the order in which to apply them."""
    name = _policy_name(agent, namespace)
    user = f"system:serviceaccount:{namespace}:{account_name(agent)}"
    return (
        *_policy(
            name, user, ("discovery.k8s.io", "endpointslices"), _slice_rules(agent, services, cidrs)
        ),
        *_policy(f"{name}-lease", user, ("coordination.k8s.io", "leases"), _lease_rules(agent)),
    )


def _policy_name(agent: str, namespace: str) -> str:
    """Returns the policy's name. Policies have no namespace and both names may contain dashes, so a
    hash disambiguates names that could be split in two ways.
    """
    plain = f"sliceplane-{namespace}-{account_name(agent)}"
    if sum(plain.startswith(_SPLIT, at) for at in range(len(plain))) == 1:
        return plain
    return f"{plain}-{sha256(f'{namespace}/{agent}'.encode()).hexdigest()[:_HASH_LENGTH]}"


def _policy(
    name: str, user: str, group_and_resource: tuple[str, str], validations: list[Document]
) -> tuple[Document, Document]:
    group, resource = group_and_resource
    rule = {
        "apiGroups": [group],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": [resource],
    }
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [
            {"name": "its-account", "expression": f"request.userInfo.username == '{user}'"}
        ],
        "validations": validations,
    }
    head: Document = {"name": name}
    binding = {"policyName": name, "validationActions": ["Deny"]}
    return (
        {
            "apiVersion": _VERSION,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": head,
            "spec": spec,
        },
        {
            "apiVersion": _VERSION,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": head,
            "spec": binding,
        },
    )


def _slice_rules(agent: str, services: tuple[str, ...], cidrs: tuple[str, ...]) -> list[Document]:
    meanings = [
        f"(object.metadata.name == '{slice_name(service, agent, family)}' && object.addressType "
        f"== '{family}'"
        f" && {_has_label(LABEL_SERVICE_NAME, service)})"
        for service in services
        for family in FAMILIES
    ]
    rules = [
        _rule(
            " || ".join(meanings),
            f"agent {agent} may write slices of {', '.join(services)} alone, "
            f"with the name, the addressType and the label {LABEL_SERVICE_NAME} that belong "
            "together",
        ),
        _rule(
            f"{_has_label(LABEL_MANAGED_BY, MANAGED_BY)} && {_has_label(LABEL_AGENT, agent)}",
            f"a slice of agent {agent} has the labels {LABEL_MANAGED_BY}: {MANAGED_BY} and "
            f"{LABEL_AGENT}: {agent}",
        ),
        _rule(
            f"(!has(object.endpoints) || (object.endpoints.size() <= 1 && "
            f"object.endpoints.all(endpoint, endpoint.addresses.size() == 1))) && "
            f"(!has(object.ports) || object.ports.size() <= {PORTS_MAX})",
            f"a slice of an agent has one address and at most {PORTS_MAX} ports",
        ),
        _rule(
            f"{_annotation('object')} == (oldObject == null ? '' : {_annotation('oldObject')}) && "
            f"({_annotation('object')} == '' || !has(object.endpoints) || "
            "object.endpoints.all(endpoint, "
            "has(endpoint.conditions) && has(endpoint.conditions.ready) && "
            "!endpoint.conditions.ready && "
            "has(endpoint.conditions.serving) && !endpoint.conditions.serving))",
            f"the annotation {ANNOTATION_REFUSED} is the control plane's, and what is refused "
            "does not serve",
        ),
    ]
    if cidrs:
        inside = " || ".join(f"cidr('{cidr}').containsIP(ip(address))" for cidr in cidrs)
        rules.append(
            _rule(
                "!has(object.endpoints) || object.endpoints.all(endpoint, "
                f"endpoint.addresses.all(address, {inside}))",
                f"agent {agent} may use addresses of {', '.join(cidrs)} alone",
            )
        )
    return rules


def _lease_rules(agent: str) -> list[Document]:
    expression = (
        f"object.metadata.name == '{lease_name(agent)}' && {_has_label(LABEL_AGENT, agent)}"
    )
    return [
        _rule(
            expression,
            f"agent {agent} writes the Lease {lease_name(agent)}, with the label {LABEL_AGENT}: "
            f"{agent}",
        )
    ]


def _rule(expression: str, message: str) -> Document:
    return {"expression": expression, "message": message}


def _has_label(label: str, value: str) -> str:
    labels = "object.metadata.labels"
    return f"has({labels}) && '{label}' in {labels} && {labels}['{label}'] == '{value}'"


def _annotation(of: str) -> str:
    annotations = f"{of}.metadata.annotations"
    return (
        f"(has({annotations}) && '{ANNOTATION_REFUSED}' in {annotations} ? {annotations}['{ANNOTATION_REFUSED}'] : "
        "'')"
    )
