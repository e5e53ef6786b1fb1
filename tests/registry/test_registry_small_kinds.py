"""Kinds with few rules, through the registry: Secret, ServiceAccount, IPAddress, ServiceCIDR."""

from __future__ import annotations

import base64
from typing import Any

from tests.registry.conftest import Api

from sliceplane.api.scheme import IPAddresses, Secrets, ServiceAccounts, ServiceCIDRs

JSON = base64.b64encode(b"{}").decode()
TLS = "kubernetes.io/tls"


def named(name: str, **members: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, **members}


def test_string_data_is_written_only(api: Api) -> None:
    api.create(Secrets, named("s", data={"b": "Yg=="}, stringData={"a": "x", "b": "y"}))
    found = api.get(Secrets, "s")
    assert (found["type"], found["data"]) == ("Opaque", {"a": "eA==", "b": "eQ=="})
    assert "stringData" not in found
    api.patch(Secrets, "s", {"stringData": {"c": "z"}})
    assert api.get(Secrets, "s")["data"] == {"a": "eA==", "b": "eQ==", "c": "eg=="}
    assert api.names(Secrets, field_selector="type=Opaque") == ["default/s"]
    assert api.names(Secrets, field_selector="type!=Opaque") == []


def test_good_secrets_of_each_type(api: Api) -> None:
    api.create(Secrets, named("a", type=TLS, data={"tls.crt": "", "tls.key": ""}))
    api.create(Secrets, named("b", type="kubernetes.io/dockercfg", data={".dockercfg": JSON}))
    api.create(Secrets, named("c", type="kubernetes.io/basic-auth", data={"username": "eA=="}))
    api.create(Secrets, named("d", type="example.com/own"))
    assert api.fails("patch", Secrets, "d", {"type": "Opaque"}).message == (
        'Secret "d" is invalid: type: Invalid value: "Opaque": field is immutable'
    )
    api.patch(Secrets, "d", {"immutable": True})
    assert api.fails("patch", Secrets, "d", {"data": {"a": "eA=="}}).message == (
        'Secret "d" is invalid: data: Forbidden: field is immutable when `immutable` is set'
    )


def test_deleting_a_service_account_answers_with_it(api: Api) -> None:
    api.create(ServiceAccounts, named("robot", imagePullSecrets=[{"name": "pull"}]))
    assert b'"kind":"ServiceAccount"' in api.delete(ServiceAccounts, "robot").body


def test_a_range_may_only_become_dual_stack(api: Api) -> None:
    api.create(ServiceCIDRs, named("c", spec={"cidrs": ["10.0.0.0/8"]}, status={"conditions": []}))
    assert "status" in api.get(ServiceCIDRs, "c")
    assert api.fails(
        "patch", ServiceCIDRs, "c", {"spec": {"cidrs": ["10.0.0.0/9"]}}
    ).message.endswith('spec.cidrs[0]: Invalid value: "10.0.0.0/9": field is immutable')
    api.patch(ServiceCIDRs, "c", {"spec": {"cidrs": ["10.0.0.0/8", "fd00::/112"]}})
    assert api.fails(
        "patch", ServiceCIDRs, "c", {"spec": {"cidrs": ["10.0.0.0/8"]}}
    ).message.endswith('spec.cidrs: Invalid value: ["10.0.0.0/8"]: field is immutable')


def test_an_address_keeps_its_holder(api: Api) -> None:
    parent = {"resource": "services", "namespace": "default", "name": "s"}
    api.create(IPAddresses, named("10.1.2.3", spec={"parentRef": parent}))
    error = api.fails("patch", IPAddresses, "10.1.2.3", {"spec": {"parentRef": {"name": "other"}}})
    assert error.code == 422
    assert error.message.endswith("field is immutable")
