"""Bodies that were made to cost the square of their length, each as an attacker would send it, and
what is answered.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any, Final

import pytest
from tests.growth.measure import Run, assert_linear
from tests.registry.conftest import Api

from sliceplane.api.errors import ERRORS_CHARACTERS_MAX, ERRORS_MAX, StatusError
from sliceplane.api.scheme import (
    ConfigMaps,
    Deployments,
    EndpointsObjects,
    LimitRanges,
    Pods,
    Services,
)
from sliceplane.emulation.deployments.rollout import resolve
from sliceplane.kit.protobuf import framed
from sliceplane.kit.yaml_documents import YamlError, parse_yaml
from sliceplane.server.documents import protobuf, strict
from sliceplane.server.documents.fields import sets
from sliceplane.server.documents.table import build
from sliceplane.server.registry.kinds.network.endpoints import ENDPOINTS
from sliceplane.server.registry.kinds.pods.pod import POD

_CONTAINER: Final = {"name": "c", "image": "i"}


def refused(run: Callable[[], object]) -> Callable[[], None]:
    """A run that may end with an answer of any kind, and with nothing else."""

    def quiet() -> None:
        with contextlib.suppress(StatusError, strict.MalformedBody, YamlError):
            run()

    return quiet


def pod(name: str = "p", **spec: Any) -> Any:
    return {"metadata": {"name": name}, "spec": {"containers": [_CONTAINER], **spec}}


def service(**spec: Any) -> Any:
    return {"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}], **spec}}


def test_a_service_with_very_many_ip_families() -> None:
    def make(count: int) -> Run:
        api, families = Api(), ["IPv4", "IPv6"] * (count // 2)
        return refused(
            lambda: api.create(
                Services, service(ipFamilies=families, ipFamilyPolicy="PreferDualStack")
            )
        )

    assert_linear(make, 100_000)


def test_a_small_patch_of_a_pod_with_very_many_tolerations() -> None:
    def make(count: int) -> Run:
        api = Api()
        api.create(
            Pods, pod(tolerations=[{"key": f"k{n}", "operator": "Exists"} for n in range(count)])
        )
        return lambda: api.patch(Pods, "p", {"spec": {"activeDeadlineSeconds": 5}})

    assert_linear(make, 6000)


def test_other_finalizers_for_a_deleted_object_with_very_many() -> None:
    def make(count: int) -> Run:
        api = Api()
        api.create(
            ConfigMaps,
            {"metadata": {"name": "c", "finalizers": [f"a.b/{n}" for n in range(count)]}},
        )
        api.delete(ConfigMaps, "c")
        others = {"metadata": {"name": "c", "finalizers": [f"a.c/{n}" for n in range(count)]}}
        return refused(lambda: api.update(ConfigMaps, "c", others))

    assert_linear(make, 8000)


def test_many_ports_of_one_number_look_for_node_ports() -> None:
    def make(count: int) -> Run:
        api = Api()
        ports = [{"name": f"p{n}", "port": n + 1} for n in range(count)]
        return refused(
            lambda: api.create(Services, service(type="NodePort", ports=ports), dry_run=True)
        )

    assert_linear(make, 8000)


def test_endpoints_are_shown_as_a_row_without_multiplying_addresses_and_ports() -> None:
    def make(count: int) -> Run:
        subset = {"addresses": [{"ip": "10.0.0.1"}] * count, "ports": [{"port": 80}] * count}
        return lambda: build(
            EndpointsObjects,
            ENDPOINTS.columns,
            [{"metadata": {"name": "e"}, "subsets": [subset]}],
            0.0,
        )

    assert_linear(make, 40_000)
    shown = {
        "metadata": {"name": "e"},
        "subsets": [{"addresses": [{"ip": "10.0.0.1"}] * 9, "ports": [{"port": 8}] * 7}],
    }
    assert (
        build(EndpointsObjects, ENDPOINTS.columns, [shown], 0.0)["rows"][0]["cells"][1]
        == ",".join(["10.0.0.1:8"] * 3) + " + 60 more..."
    )


def test_a_pod_is_shown_as_a_row_without_looking_for_each_gate_in_all_conditions() -> None:
    def make(count: int) -> Run:
        gates = [{"conditionType": f"a/{n}"} for n in range(count)]
        conditions = [{"type": f"b/{n}", "status": "True"} for n in range(count)]
        shown = {
            "metadata": {"name": "p"},
            "spec": {"readinessGates": gates},
            "status": {"conditions": conditions},
        }
        return lambda: build(Pods, POD.columns, [shown], 0.0)

    # looking for each in all would take seconds; many more names than these do not fit a cache of
    # the processor
    assert_linear(make, 8_000)


def test_a_repeated_member_beside_a_long_name_over_many_elements() -> None:
    def make(count: int) -> Run:
        raw = b'{"a":1,"a":2,"' + b"x" * (10 * count) + b'":[' + b"0," * count + b"0]}"
        return lambda: strict.decode_json(raw)

    assert_linear(make, 40_000)


def test_members_that_are_repeated_under_a_long_name_are_told_within_bounds() -> None:
    inner = ",".join(f'"k{n}":1,"k{n}":1' for n in range(2000))
    problems = strict.decode_json(f'{{"{"x" * 500_000}":{{{inner}}}}}'.encode()).problems
    assert problems[0].endswith('.k0"')
    assert len(problems) < 10
    few = strict.decode_json(b'{"a":{"b":1,"b":2,"c":[{"d":1,"d":1}]}}').problems
    assert few == ('duplicate field "a.b"', 'duplicate field "a.c[0].d"')


def test_an_applied_configuration_with_a_long_key_over_many_elements() -> None:
    def make(count: int) -> Run:
        api = Api()
        container = {"name": "x" * (10 * count), "env": [{"name": f"E{n}"} for n in range(count)]}
        config = {"apiVersion": "v1", "kind": "Pod", **pod(containers=[container])}
        return refused(lambda: api.patch(Pods, "p", config, "apply", field_manager="m"))

    assert_linear(make, 8000)


def test_conflicts_over_many_fields_are_told_within_bounds() -> None:
    api = Api()
    head = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    api.create(ConfigMaps, {**head, "data": {f"k{n}": "a" for n in range(3000)}})
    wanted = {**head, "data": {f"k{n}": "b" for n in range(3000)}}
    error = api.fails("patch", ConfigMaps, "c", wanted, "apply", field_manager="m")
    assert error.message.startswith("Apply failed with 3000 conflicts: conflicts with ")
    assert error.message.endswith("too many errors")
    assert len((error.details or {})["causes"]) == ERRORS_MAX


def test_very_many_managers_that_updated() -> None:
    def make(count: int) -> Run:
        api = Api()
        api.create(ConfigMaps, {"metadata": {"name": "c"}})
        entries = [
            {
                "manager": f"m{n}",
                "operation": "Update",
                "apiVersion": "v1",
                "fieldsType": "FieldsV1",
                "fieldsV1": {"f:data": {f"f:k{n}": {}}},
            }
            for n in range(count)
        ]
        sent = {"metadata": {"name": "c", "managedFields": entries}, "data": {"a": "b"}}
        return lambda: api.update(ConfigMaps, "c", sent)

    assert_linear(make, 8000)


def test_one_element_of_a_set_of_fields_in_very_many_spellings() -> None:
    blanks = [
        "".join(each) for size in range(1, 9) for each in itertools.product(" \t\n\r", repeat=size)
    ]

    def make(count: int) -> Run:
        value = {f'k:{{{blanks[n]}"a":1}}': {f"f:{n}": {}} for n in range(count)}
        return lambda: sets.from_wire(value)

    # More than are remembered, at both sizes.
    assert_linear(make, 40_000)


def test_a_strategic_patch_that_merges_into_one_element_again_and_again() -> None:
    api = Api()
    api.create(
        Pods, pod(containers=[{**_CONTAINER, "env": [{"name": f"E{n}"} for n in range(2000)]}])
    )
    again = [{"name": "c", "env": [{"name": f"F{n}"}]} for n in range(3000)]
    error = api.fails("patch", Pods, "p", {"spec": {"containers": again}}, "strategic")
    assert (error.code, error.reason) == (413, "RequestEntityTooLarge")
    # Three times is not again and again.
    api.patch(Pods, "p", {"spec": {"containers": [{"name": "c", "image": "j"}] * 3}}, "strategic")


def test_elements_with_one_merge_key_and_a_patch_with_as_many() -> None:
    def make(count: int) -> Run:
        api = Api()
        api.create(
            Pods,
            pod(
                containers=[{**_CONTAINER, "ports": [{"containerPort": 8, "hostIP": "a"}] * count}]
            ),
        )
        ports = [{"containerPort": 8, "protocol": "UDP"}] * count
        return refused(
            lambda: api.patch(
                Pods, "p", {"spec": {"containers": [{"name": "c", "ports": ports}]}}, "strategic"
            )
        )

    assert_linear(make, 2000)


def test_a_json_patch_that_inserts_before_very_many_elements() -> None:
    api = Api()
    api.create(Pods, pod(initContainers=[{"name": "x", "image": "i", "args": ["a"] * 100_000}]))
    insert = {"op": "add", "path": "/spec/initContainers/0/args/0", "value": "b"}
    error = api.fails("patch", Pods, "p", [insert] * 5000, "json")
    assert (error.code, error.reason) == (413, "RequestEntityTooLarge")
    append = {**insert, "path": "/spec/initContainers/0/args/-"}
    assert api.fails("patch", Pods, "p", [append] * 5000, "json").code == 422, (
        "it is done, and not for a Pod"
    )


def test_an_envelope_of_protobuf_with_very_many_types() -> None:
    def make(count: int) -> Run:
        raw = b"k8s\0" + b"\x0a\x02\x0a\x00" * count
        return refused(lambda: protobuf.decode(raw))

    assert_linear(make, 200_000)


@pytest.mark.parametrize("text", ["long", "key"])
def test_yaml_that_repeats_a_long_text_by_aliases(text: str) -> None:
    head = b"a: &a " + b"x" * 65_536
    body = (
        b"\nb: [" + b"*a," * 20_000 + b"]"
        if text == "long"
        else b"\nb: [" + b"{*a : 1}," * 20_000 + b"]"
    )
    with pytest.raises(strict.MalformedBody, match="excessive aliasing"):
        strict.decode_yaml(head + body)
    short = b"a: &a x\nb: [" + b"*a," * 1000 + b"]"
    assert strict.decode_yaml(short).document["b"] == ["x"] * 1000


def test_yaml_with_very_many_directives() -> None:
    def stream(count: int) -> bytes:
        return b"".join(b"%%TAG !a%d! tag:x\n" % n for n in range(count)) + b"---\na: b\n%c: d\n"

    with pytest.raises(YamlError, match="too many directives"):
        parse_yaml(stream(40_000), depth_max=200)
    many_lines = b"---\na: |\n" + b" %\n" * 500
    assert parse_yaml(many_lines, depth_max=200).value == {"a": "%\n" * 500}


def test_a_bad_key_of_a_selector_is_not_told_again_for_each_value() -> None:
    api = Api()
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [_CONTAINER]}}
    expression = {"key": "!" * 100_000, "operator": "In", "values": [f"!{n}" for n in range(2000)]}
    spec = {"selector": {"matchExpressions": [expression]}, "template": template}
    error = api.fails("create", Deployments, {"metadata": {"name": "d"}, "spec": spec})
    assert (error.code, len(error.message) < 3_000_000) == (422, True)


def test_complaints_are_told_within_bounds_and_few_are_told_as_ever() -> None:
    api = Api()
    error = api.fails(
        "create",
        ConfigMaps,
        {"metadata": {"name": "c", "labels": {f"!{n}": "" for n in range(5000)}}},
    )
    assert len((error.details or {})["causes"]) == ERRORS_MAX
    assert error.message.endswith(", too many errors]")
    assert len(error.message) <= ERRORS_CHARACTERS_MAX
    error = api.fails(
        "create",
        ConfigMaps,
        {"metadata": {"name": "c", "labels": {f"!{n}": "" for n in range(50)}}},
    )
    assert len((error.details or {})["causes"]) == 50
    assert "too many errors" not in error.message


def test_defaults_of_a_limit_range_do_not_multiply_with_containers() -> None:
    api = Api()
    limit = {"type": "Container", "default": {f"a.b/{n}": "1" for n in range(1000)}}
    api.create(LimitRanges, {"metadata": {"name": "l"}, "spec": {"limits": [limit]}})
    many = [{"name": f"c{n}", "image": "i"} for n in range(1000)]
    error = api.fails("create", Pods, pod(containers=many))
    assert error.code == 403
    assert "the defaults of its LimitRanges" in error.message


def test_a_percentage_and_a_prefix_of_thousands_of_digits_are_bad_values() -> None:
    api = Api()
    many = "9" * 5000
    ranges = service(type="LoadBalancer", loadBalancerSourceRanges=[f"10.0.0.0/{many}"])
    assert api.fails("create", Services, ranges).code == 422
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [_CONTAINER]}}
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": f"{many}%"}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template, "strategy": rolling}
    assert (
        "must not be greater than 100%"
        in api.fails("create", Deployments, {"metadata": {"name": "d"}, "spec": spec}).message
    )


@pytest.mark.parametrize("depth", [200, 600, 900, 100_000])
def test_a_set_of_fields_in_protobuf_is_no_deeper_than_one_in_json(depth: int) -> None:
    deep = b'{"f:a":' * depth + b"{}" + b"}" * depth
    entry = (
        framed(b"\x0a", b"m")
        + framed(b"\x12", b"Update")
        + framed(b"\x1a", b"v1")
        + framed(b"\x3a", framed(b"\x0a", deep))
    )
    meta = framed(b"\x0a", b"c") + framed(b"\x8a\x01", entry)
    with pytest.raises(StatusError) as caught:
        protobuf.decode(
            b"k8s\0" + framed(b"\x12", framed(b"\x0a", meta)), api_version="v1", kind="ConfigMap"
        )
    assert caught.value.code == 400


@pytest.mark.parametrize("opening", [b'{"a":', b"["])
@pytest.mark.parametrize("kind", ["merge", "strategic", "json", "apply"])
def test_a_patch_of_any_depth_gets_a_400(opening: bytes, kind: Any) -> None:
    api = Api()
    api.create(ConfigMaps, {"metadata": {"name": "c"}})
    closing = b"}" if opening.startswith(b"{") else b"]"
    raw = opening * 100_000 + b"1" + closing * 100_000
    error = api.fails("patch", ConfigMaps, "c", raw, kind, field_manager="m")
    assert error.code == 400
    assert "exceeded max depth" in error.message


def test_a_surge_of_hundreds_of_digits_is_a_number() -> None:
    many = 10**400
    assert resolve(f"{many}%", "25%", 10, up=True) == many // 10
    assert [resolve("25%", "", 10, up=up) for up in (True, False)] == [3, 2]
