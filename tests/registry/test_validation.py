"""Rules of validation: a row of ``cases/*.yaml`` for each, with the complaints as upstream words
them (``pkg/apis/*/validation``, 1.36), and what no row can hold.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.growth.measure import assert_linear
from tests.registry.rows import Case, cases, complaints, judge, texts, valid

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import (
    ConfigMaps,
    Deployments,
    EndpointSlices,
    Pods,
    Resource,
    Secrets,
    Services,
)
from sliceplane.server.registry.kinds import kind_of
from sliceplane.server.registry.validation.resources import AMOUNTS_MAX
from sliceplane.server.registry.validation.volumes import check_volumes
from sliceplane.server.registry.verbs.answers import refuse, validate_update

CREATED, CHANGED = cases("cases"), cases("changes")
SPECS = [case for case in CREATED if case.resource is Pods]
KIB, MIB = "a" * 1024, "a" * (1 << 20)
CONTEXT = "spec.securityContext"
ADDRESSES = [f"10.0.0.{number}" for number in range(100)]


@pytest.mark.parametrize("case", CREATED, ids=str)
def test_a_new_object_gets_the_complaints_of_its_row(case: Case) -> None:
    judge(complaints(case.resource, case.new), case.expected)


@pytest.mark.parametrize("case", CHANGED, ids=str)
def test_a_change_gets_the_complaints_of_its_row(case: Case) -> None:
    judge(complaints(case.resource, case.new, case.old, case.part), case.expected)


@pytest.mark.parametrize("case", cases("warnings"), ids=str)
def test_an_accepted_object_earns_the_warnings_of_its_row(case: Case) -> None:
    assert list(kind_of(case.resource).warnings(case.new, None)) == case.expected


@pytest.mark.parametrize("case", SPECS, ids=str)
def test_a_template_is_judged_as_a_pod(case: Case) -> None:
    spec = {"containers": None, **case.new["spec"]}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": spec}
    errors = complaints(Deployments, valid(Deployments, {"spec": {"template": template}}))
    # As upstream: white space around an image is a matter of Pods.
    expected = [text for text in case.expected if "or trailing whitespace" not in text]
    judge(
        [text.replace("spec.template.spec", "spec") for text in errors[: len(expected)]], expected
    )


# Sizes


def ports(count: int, name: str = "p{}") -> Any:
    return {"ports": [{"name": name.format(i), "protocol": "TCP"} for i in range(count)]}


def endpoints(count: int, *addresses: str) -> Any:
    return {"endpoints": [{"addresses": list(addresses)}] * count}


def security(**members: Any) -> Any:
    return {"spec": {"securityContext": members}}


SIZES: list[tuple[Resource, Any, list[str]]] = [
    (
        ConfigMaps,
        {"metadata": {"annotations": {"a": KIB * 256}}},
        ["metadata.annotations: Too long: may not be more than 262144 bytes"],
    ),
    (
        ConfigMaps,
        {"data": {"a": MIB, "b": "y"}},
        ["[]: Too long: may not be more than 1048576 bytes"],
    ),
    (ConfigMaps, {"data": {"a" * 254: ""}}, [f"data[{'a' * 254}]: Invalid value..."]),
    # As upstream: a bound that is exceeded ends the checks of what is inside.
    (
        EndpointSlices,
        ports(20001, "Bad"),
        ["ports: Too many: 20001: must have at most 20000 items"],
    ),
    (EndpointSlices, ports(20000), []),
    (
        EndpointSlices,
        endpoints(1001),
        ["endpoints: Too many: 1001: must have at most 1000 items"],
    ),
    (EndpointSlices, endpoints(1000, "10.0.0.1"), []),
    (EndpointSlices, endpoints(1, *ADDRESSES), []),
    (
        EndpointSlices,
        endpoints(1, *ADDRESSES, "x"),
        [
            "endpoints[0].addresses: Too many: 101: must have at most 100 items",
            f'endpoints[0].addresses[100]: Invalid value: "x": {texts()["an IP"]}',
        ],
    ),
    (
        Pods,
        security(appArmorProfile={"type": "Localhost", "localhostProfile": KIB * 4}),
        [f"{CONTEXT}.appArmorProfile.localhostProfile: Too long..."],
    ),
    (
        Pods,
        security(windowsOptions={"gmsaCredentialSpec": KIB * 64 + "a"}),
        [f"{CONTEXT}.windowsOptions.gmsaCredentialSpec: Invalid value..."],
    ),
    (
        Secrets,
        {"data": {"k": base64.b64encode(bytes(1048577)).decode()}},
        ["data: Too long: may not be more than 1048576 bytes"],
    ),
]


@pytest.mark.parametrize(("resource", "patch", "expected"), SIZES)
def test_sizes_are_bounded(resource: Resource, patch: Any, expected: list[str]) -> None:
    new = valid(resource, patch, defaults=resource is not EndpointSlices)
    judge(complaints(resource, new), expected)


def test_a_pod_has_a_bounded_number_of_amounts() -> None:
    """120,000 limits of one Pod held the loop for seconds with each change: quotas add
    amounts up.
    """
    limits = {f"example.com/{number}": "1" for number in range(AMOUNTS_MAX // 2 + 1)}
    detail = f"must not have more than {AMOUNTS_MAX} amounts of resources in all containers"
    assert container(resources={"limits": limits}) == [
        f"spec.containers: Forbidden: {detail} together"
    ]


def container(spec: Any = None, **members: Any) -> list[str]:
    """The complaints about a Pod with that container."""
    containers = [{"name": "c", "image": "i:1", **members}]
    return complaints(Pods, valid(Pods, {"spec": {"containers": containers, **(spec or {})}}))


def test_messages_of_missing_claims_do_not_grow_with_all_claims() -> None:
    """Each complaint lists the Pod's claims: 2,000 of them in 2,000 messages were hundreds of
    megabytes.
    """

    def make(count: int) -> Callable[[], list[str]]:
        resources = {"claims": [{"name": f"missing-{number}"} for number in range(count)]}
        claims = [{"name": f"claim-{number:040}"} for number in range(count)]
        return partial(container, {"resourceClaims": claims}, resources=resources)

    assert sum(map(len, make(2000)())) < 1000 * 5000
    assert_linear(make, 2000)


def test_repeated_spread_constraints_are_found_in_one_pass() -> None:
    plain = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}

    def make(count: int) -> Callable[[], list[str]]:
        constraints = [{**plain, "topologyKey": f"zone-{number}"} for number in range(count)]
        return partial(container, {"topologySpreadConstraints": constraints})

    assert make(10)() == []
    assert_linear(make, 4000)


# Beside the rows


def test_complaints_about_metadata_are_two_causes_and_one_text() -> None:
    old, new = (valid(ConfigMaps, {"metadata": {"uid": uid}}) for uid in "12")
    with pytest.raises(StatusError) as caught:
        refuse(ConfigMaps, new["metadata"], validate_update(ConfigMaps, new, old))
    assert (
        caught.value.message
        == 'ConfigMap "x" is invalid: metadata.uid: Invalid value: "2": field is immutable'
    )
    assert len((caught.value.details or {})["causes"]) == 2


def test_an_address_of_a_load_balancer_is_a_vip_by_default() -> None:
    for ingress, mode in (({"ip": "10.0.0.1"}, "VIP"), ({"hostname": "a.example"}, None)):
        patch = {
            "spec": {"type": "LoadBalancer"},
            "status": {"loadBalancer": {"ingress": [ingress]}},
        }
        (seen,) = valid(Services, patch)["status"]["loadBalancer"]["ingress"]
        assert seen.get("ipMode") == mode


def test_a_volume_has_a_type_and_its_claim_a_name() -> None:
    errors = check_volumes("spec.volumes", [{"name": "v"}], None)[1]
    judge(
        [str(error) for error in errors],
        ["spec.volumes[0]: Required value: must specify a volume type..."],
    )
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    ephemeral = [{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": claim}}}]
    errors = check_volumes("v", ephemeral, "p" * 253)[1]
    judge([str(error) for error in errors], ["v[0].name: Invalid value..."])


def test_only_a_new_slice_of_names_earns_a_warning() -> None:
    document = valid(EndpointSlices, {"addressType": "FQDN"})
    assert tuple(kind_of(EndpointSlices).warnings(document, document)) == ()


@pytest.mark.parametrize(
    ("ranges", "spec", "sentence"),
    [
        ("10.96.0.0/16", {"ipFamilyPolicy": "RequireDualStack"}, "for dual-stack services"),
        ("10.96.0.0/16", {"ipFamilies": ["IPv6"]}, "not configured on this cluster"),
        (
            "10.96.0.0/16 fd00::/112",
            {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4", "IPv6"]},
            "must be RequireDualStack or PreferDualStack when multiple ipFamilies are specified",
        ),
    ],
)
def test_families_are_those_of_the_cluster(
    make_api: Any, ranges: str, spec: Any, sentence: str
) -> None:
    api = make_api(service_cidrs=tuple(ranges.split()))
    with pytest.raises(StatusError, match=sentence):
        api.create(Services, {"metadata": {"name": "a"}, "spec": {"ports": [{"port": 1}], **spec}})


@pytest.mark.parametrize("number", [1, 30_080])
def test_a_node_port_is_free_and_within_its_range(api: Any, number: int) -> None:
    spec = {"type": "NodePort", "ports": [{"port": 1, "nodePort": 30_080}]}
    api.create(Services, {"metadata": {"name": "a"}, "spec": spec})
    spec["ports"] = [{"port": 1, "nodePort": number}]
    with pytest.raises(
        StatusError, match=rf"spec.ports\[0\].nodePort: Invalid value: {number}: provided port is"
    ):
        api.create(Services, {"metadata": {"name": "b"}, "spec": spec})
