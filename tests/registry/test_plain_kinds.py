"""Rules of rules: paths, defaults, complaints in their order, and what may not change."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.registry.conftest import Api

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import (
    LISTED,
    CSINodes,
    PersistentVolumeClaims,
    PersistentVolumes,
    ResourceQuotas,
    StatefulSets,
    StorageClasses,
    VolumeAttachments,
    VolumeAttributesClasses,
)
from sliceplane.server.io.nonresource.discovery import Discovery
from sliceplane.server.io.requests.request import parse, resolve, verb_of
from sliceplane.server.registry.kinds import kind_of
from sliceplane.server.registry.validation.rules import Defaults, Field, Rules

RULES = Rules(
    Field(
        "name",
        required=True,
        bytes_max=3,
        form=lambda name: ("must be lower case",) if name != name.lower() else (),
    ),
    Field("spec.modes", choices=("A", "B"), most=3),
    Field("spec.count", minimum=2, immutable=True),
    Field("spec.share", minimum=0, maximum=9),
    Field("spec.items[].key", required=True),
    Field("spec.source?.path", required="say where"),
)
DEFAULTS = Defaults(
    {
        "+spec": {
            "modes": ["A"],
            "count?": 2,
            "source": {"type": ""},
            "+parts": [{"kind": "x"}],
            "share": 1,
        }
    }
)


def told(document: dict[str, Any]) -> list[str]:
    return [str(error) for error in RULES("", document)]


def test_complaints_come_in_the_order_of_the_rows_with_the_path_of_each_element() -> None:
    spec = {
        "modes": ["A", "C", "A", "B"],
        "count": 1,
        "share": 10,
        "items": [{"key": "a"}, {}, {"key": ""}],
    }
    assert told({"name": "ABCD", "spec": {**spec, "source": {}}}) == [
        "name: Too long: may not be more than 3 bytes",
        'name: Invalid value: "ABCD": must be lower case',
        "spec.modes: Too many: 4: must have at most 3 items",
        'spec.modes: Unsupported value: "C": supported values: "A", "B"',
        "spec.count: Invalid value: 1: must be greater than or equal to 2",
        "spec.share: Invalid value: 10: must be between 0 and 9, inclusive",
        "spec.items[1].key: Required value",
        "spec.items[2].key: Required value",
        "spec.source.path: Required value: say where",
    ]


def test_an_optional_object_that_is_absent_is_asked_nothing_and_gets_nothing() -> None:
    document: dict[str, Any] = {"name": "a"}
    DEFAULTS(document)
    assert document == {"name": "a", "spec": {"modes": ["A"], "count": 2, "parts": [], "share": 1}}
    assert told(document) == []
    document["spec"] |= {
        "source": {"path": "p"},
        "parts": [{}, {"kind": "y"}],
        "count": 0,
        "share": 0,
    }
    DEFAULTS(document)
    assert document["spec"]["source"] == {"path": "p", "type": ""}
    assert document["spec"]["parts"] == [{"kind": "x"}, {"kind": "y"}]
    assert (document["spec"]["count"], document["spec"]["share"]) == (0, 1), (
        "only the second takes zero for nothing"
    )
    document["spec"]["modes"].append("B")
    other: dict[str, Any] = {}
    DEFAULTS(other)
    assert other["spec"]["modes"] == ["A"], "objects share no default"


@pytest.mark.parametrize(
    ("row", "told_of"), [({}, ""), ({"empty": True}, "e"), ({"always": True}, "em")]
)
def test_an_empty_text_and_a_missing_one_are_checked_where_the_row_says_so(
    row: dict[str, bool], told_of: str
) -> None:
    rows = Rules(Field("name", form=lambda _name: ("is wrong",), **row))
    assert bool(rows("", {"name": ""})) is ("e" in told_of)
    assert bool(rows("", {})) is ("m" in told_of)
    assert rows("spec", {"name": "x"})[0].field == "spec.name"


def test_a_bad_list_is_told_a_thousand_times_at_most() -> None:
    assert len(told({"name": "a", "spec": {"items": [{}] * 5000}})) == 1000


def test_what_is_immutable_may_neither_change_nor_go() -> None:
    for spec in ({"count": 3}, {}):
        (error,) = RULES.changed({"spec": spec}, {"spec": {"count": 2}})
        assert (error.field, error.message.rpartition(": ")[2]) == (
            "spec.count",
            "field is immutable",
        )
    assert RULES.changed({"spec": {"count": 2, "modes": []}}, {"spec": {"count": 2}}) == []


@pytest.mark.parametrize("resource", LISTED, ids=lambda resource: resource.key)
def test_a_kind_that_is_only_listed_says_so_to_whoever_writes(resource: Any) -> None:
    for method, name in (
        ("POST", ""),
        ("PUT", "x"),
        ("PATCH", "x"),
        ("DELETE", "x"),
        ("DELETE", ""),
    ):
        path = parse(resource.path("default", name))
        assert path is not None
        with pytest.raises(Exception, match=f"does not implement {resource.kind}") as raised:
            resolve(path, verb_of(method, path, is_watch=False))
        assert raised.value.code == 405  # type: ignore[attr-defined]
        assert raised.value.allowed_methods == ("GET",)  # type: ignore[attr-defined]


def test_charts_find_no_admission_policies_in_discovery() -> None:
    """They would install a policy that is refused."""
    documents = json.dumps(Discovery("127.0.0.1:6443")._group_list())
    assert "batch" in documents
    assert "admissionregistration" not in documents


@pytest.mark.parametrize("resource", LISTED, ids=lambda resource: resource.key)
def test_a_kind_that_is_only_listed_is_an_empty_list(api: Api, resource: Any) -> None:
    assert api.list(resource).records == ()
    assert api.fails("get", resource, "x").code == 404


def claim(name: str, size: str = "1Gi", **spec: Any) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}, **spec}
    return {"metadata": {"name": name}, "spec": spec}


def test_a_claim_without_a_class_gets_the_newest_default(api: Api) -> None:
    for name in ("a-old", "b-new", "c-no"):
        mark = {"storageclass.kubernetes.io/is-default-class": str(name != "c-no").lower()}
        api.create(
            StorageClasses,
            {"metadata": {"name": name, "annotations": mark}, "provisioner": "example.com/x"},
        )
        api.now += 5
    assert (
        json.loads(api.create(PersistentVolumeClaims, claim("a")).body)["spec"]["storageClassName"]
        == "b-new"
    )
    for number, given in enumerate(("", "mine")):
        body = api.create(
            PersistentVolumeClaims, claim(f"given-{number}", storageClassName=given)
        ).body
        assert json.loads(body)["spec"]["storageClassName"] == given


def test_a_bound_claim_may_grow_and_shrinks_no_further_than_its_volume(api: Api) -> None:
    api.create(PersistentVolumeClaims, claim("a", "1Gi"))
    status = {"phase": "Bound", "capacity": {"storage": "1Gi"}}
    assert "immutable" in api.fails("patch", PersistentVolumeClaims, "a", sized("2Gi")).message
    api.patch(PersistentVolumeClaims, "a", {"status": status}, subresource="status")
    api.patch(PersistentVolumeClaims, "a", sized("4Gi"))
    api.patch(PersistentVolumeClaims, "a", sized("2Gi"))
    error = api.fails("patch", PersistentVolumeClaims, "a", sized("1Gi"))
    assert "field can not be less than status.capacity" in error.message


def sized(size: str) -> dict[str, Any]:
    return {"spec": {"resources": {"requests": {"storage": size}}}}


def test_a_quota_counts_claims_and_their_storage_by_class(api: Api) -> None:
    hard = {
        "requests.storage": "3Gi",
        "gold.storageclass.storage.k8s.io/persistentvolumeclaims": "1",
    }
    api.create(ResourceQuotas, {"metadata": {"name": "q"}, "spec": {"hard": hard}})
    used = dict.fromkeys(hard, "0")
    api.patch(ResourceQuotas, "q", {"status": {"hard": hard, "used": used}}, subresource="status")
    api.create(PersistentVolumeClaims, claim("a", "1Gi", storageClassName="gold"))
    assert api.get(ResourceQuotas, "q")["status"]["used"] == {
        "requests.storage": "1Gi",
        "gold.storageclass.storage.k8s.io/persistentvolumeclaims": "1",
    }
    second = api.fails("create", PersistentVolumeClaims, claim("b", "1Gi", storageClassName="gold"))
    assert "gold.storageclass.storage.k8s.io/persistentvolumeclaims=1" in second.message
    large = api.fails("create", PersistentVolumeClaims, claim("c", "4Gi", storageClassName="tin"))
    assert "requests.storage=4Gi" in large.message


def test_a_stateful_set_of_an_older_server_may_still_be_updated(api: Api) -> None:
    """It was stored without the defaults of its claim templates, which may not change."""
    template = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i:1"}]},
    }
    spec = {"serviceName": "s", "selector": {"matchLabels": {"a": "b"}}, "template": template}
    spec["volumeClaimTemplates"] = [claim("data")]
    made = json.loads(api.create(StatefulSets, {"metadata": {"name": "db"}, "spec": spec}).body)
    stored = made["spec"]["volumeClaimTemplates"]
    assert (stored[0]["spec"]["volumeMode"], stored[0]["status"]) == (
        "Filesystem",
        {"phase": "Pending"},
    )
    old = {**made, "spec": {**made["spec"], "volumeClaimTemplates": [claim("data")]}}
    kind = kind_of(StatefulSets)
    assert kind.validate_update(made, old) == []
    other = {**made, "spec": {**made["spec"], "volumeClaimTemplates": [claim("logs")]}}
    assert [error.field for error in kind.validate_update(other, old)] == ["spec"]


def test_texts_of_classes_and_attachments_are_bounded(api: Api) -> None:
    large = "x" * (256 * 1024)
    with pytest.raises(
        StatusError, match="parameters: Too long: may not be more than 262144 bytes"
    ):
        api.create(
            StorageClasses,
            {"metadata": {"name": "a"}, "provisioner": "example.com/x", "parameters": {"a": large}},
        )
    spec = {"attacher": "example.com", "nodeName": "n", "source": {"persistentVolumeName": "pv"}}
    api.create(VolumeAttachments, {"metadata": {"name": "a"}, "spec": spec})
    attachment = api.get(VolumeAttachments, "a", namespace="")
    for status, path in (
        ({"attached": True, "attachmentMetadata": {"a": large}}, "status.attachmentMetadata"),
        (
            {"attached": False, "attachError": {"message": large + large}},
            "status.attachError.message",
        ),
    ):
        with pytest.raises(StatusError, match=f"{path}: Too long"):
            api.update(
                VolumeAttachments,
                "a",
                {**attachment, "status": status},
                namespace="",
                subresource="status",
            )


def test_what_kinds_of_storage_refuse_at_their_bounds(api: Api) -> None:
    many = {f"k{number}": "v" for number in range(513)}
    with pytest.raises(StatusError, match="parameters: Too long"):
        api.create(
            StorageClasses,
            {"metadata": {"name": "many"}, "provisioner": "example.com/x", "parameters": many},
        )
    quick = {"metadata": {"name": "quick"}, "driverName": "example.com", "parameters": {"": "v"}}
    with pytest.raises(StatusError, match="field can not be empty"):
        api.create(VolumeAttributesClasses, quick)
    source = {
        "persistentVolumeName": "pv",
        "inlineVolumeSpec": {"csi": {"driver": "d", "volumeHandle": "h"}},
    }
    spec = {"attacher": "example.com", "nodeName": "n", "source": source}
    with pytest.raises(StatusError, match="must specify exactly one of"):
        api.create(VolumeAttachments, {"metadata": {"name": "both"}, "spec": spec})


def test_what_kinds_of_storage_keep_for_ever(api: Api) -> None:
    def drivers(node: str) -> dict[str, Any]:
        return {
            "metadata": {"name": "n"},
            "spec": {"drivers": [{"name": "example.com", "nodeID": node}]},
        }

    api.create(CSINodes, drivers("a"))
    with pytest.raises(StatusError, match=r"spec\.drivers: Invalid value"):
        api.update(
            CSINodes,
            "n",
            {**api.get(CSINodes, "n", namespace=""), "spec": drivers("b")["spec"]},
            namespace="",
        )

    def volume(path: str) -> dict[str, Any]:
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": path},
        }
        return {"metadata": {"name": "v"}, "spec": spec}

    api.create(PersistentVolumes, volume("/a"))
    with pytest.raises(StatusError, match="is immutable after creation"):
        api.update(PersistentVolumes, "v", volume("/b"), namespace="")
