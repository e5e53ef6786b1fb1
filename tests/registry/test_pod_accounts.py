"""The account of a Pod: which it gets, what of it is mounted, and who is refused."""

from __future__ import annotations

from typing import Any

import pytest
from tests.registry.conftest import Api
from tests.tables import tables

from sliceplane.api.scheme import Pods, ServiceAccounts
from sliceplane.server.registry.admission.service_accounts import MOUNT_PATH

TABLES = tables(__file__)

MIRROR = {"kubernetes.io/config.mirror": "hash"}


def container(name: str = "c", **members: Any) -> dict[str, Any]:
    return {"name": name, "image": "i", **members}


def made(api: Api, annotations: dict[str, str] | None = None, name: str = "p", **spec: Any) -> Any:
    api.create(Pods, pod(annotations, name, **spec))
    return api.get(Pods, name)["spec"]


def pod(annotations: dict[str, str] | None = None, name: str = "p", **spec: Any) -> dict[str, Any]:
    head = {"name": name, **({"annotations": annotations} if annotations else {})}
    return {"metadata": head, "spec": {"containers": [container()], **spec}}


def refusal(api: Api, document: Any) -> str:
    error = api.fails("create", Pods, document)
    assert (error.code, error.reason) == (403, "Forbidden")
    return error.message.removeprefix('pods "p" is forbidden: ')


def account(
    api: Api, name: str = "robot", annotations: dict[str, str] | None = None, **members: Any
) -> None:
    api.create(
        ServiceAccounts, {"metadata": {"name": name, "annotations": annotations or {}}, **members}
    )


def test_the_token_is_mounted_into_every_container(api: Api) -> None:
    own = {"name": "mine", "mountPath": MOUNT_PATH}
    spec = made(
        api,
        initContainers=[container("first")],
        containers=[container("a"), container("b", volumeMounts=[own])],
        volumes=[{"name": "mine", "emptyDir": {}}],
    )
    assert (spec["serviceAccountName"], spec["serviceAccount"]) == ("default", "default")
    mine, token = spec["volumes"]
    assert mine == {"name": "mine", "emptyDir": {}}
    assert token["name"].startswith("kube-api-access-")
    assert len(token["name"]) == len("kube-api-access-") + 5
    assert token["projected"] == {
        "defaultMode": 420,
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {
                "configMap": {
                    "name": "kube-root-ca.crt",
                    "items": [{"key": "ca.crt", "path": "ca.crt"}],
                }
            },
            {
                "downwardAPI": {
                    "items": [
                        {
                            "path": "namespace",
                            "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
                        }
                    ]
                }
            },
        ],
    }
    mount = {"name": token["name"], "readOnly": True, "mountPath": MOUNT_PATH}
    assert spec["initContainers"][0]["volumeMounts"] == [mount]
    assert [each["volumeMounts"] for each in spec["containers"]] == [[mount], [own]]


@pytest.mark.parametrize("of_pod", [None, True, False])
@pytest.mark.parametrize("of_account", [None, True, False])
def test_who_opts_out(api: Api, of_pod: bool | None, of_account: bool | None) -> None:
    account(api, **({} if of_account is None else {"automountServiceAccountToken": of_account}))
    spec = made(
        api,
        serviceAccountName="robot",
        **({} if of_pod is None else {"automountServiceAccountToken": of_pod}),
    )
    wanted = of_pod if of_pod is not None else of_account is not False
    assert ("volumes" in spec, "volumeMounts" in spec["containers"][0]) == (wanted, wanted)


def test_a_pod_that_is_made_again_keeps_its_volume(api: Api) -> None:
    first = made(api)
    again = made(
        api, name="again", **{**first, "containers": [*first["containers"], container("new")]}
    )
    assert again["volumes"] == first["volumes"]
    assert [each["volumeMounts"] for each in again["containers"]] == [
        first["containers"][0]["volumeMounts"]
    ] * 2


def test_an_account_must_exist(api: Api) -> None:
    why = 'error looking up service account default/robot: serviceaccount "robot" not found'
    assert refusal(api, pod(serviceAccountName="robot")) == why
    account(api)
    assert made(api, serviceAccountName="robot")["serviceAccount"] == "robot"


def test_secrets_for_images_come_from_the_account(api: Api) -> None:
    account(api, "default", imagePullSecrets=[{"name": "registry"}])
    assert made(api)["imagePullSecrets"] == [{"name": "registry"}]
    assert made(api, name="q", imagePullSecrets=[{"name": "own"}])["imagePullSecrets"] == [
        {"name": "own"}
    ]


@pytest.mark.parametrize(("spec", "why"), TABLES["a_mirror_pod_has_no_account"])
def test_a_mirror_pod_has_no_account(api: Api, spec: Any, why: str) -> None:
    assert refusal(api, pod(MIRROR, nodeName="n", **spec)) == why
    bare = made(api, MIRROR, nodeName="n")
    assert not {"serviceAccountName", "volumes"} & bare.keys()


END = "is not allowed because service account strict does not reference that"


@pytest.mark.parametrize(("spec", "why"), TABLES["an_account_that_enforces_its_secrets"])
def test_an_account_that_enforces_its_secrets(api: Api, spec: Any, why: str) -> None:
    account(
        api,
        "strict",
        {"kubernetes.io/enforce-mountable-secrets": "true"},
        secrets=[{"name": "known"}],
        imagePullSecrets=[{"name": "pull"}],
    )
    assert refusal(api, pod(serviceAccountName="strict", **spec)) == why
    known = {"name": "v", "secret": {"defaultMode": 420, "secretName": "known"}}
    assert made(api, serviceAccountName="strict", volumes=[known])["volumes"][0] == known
