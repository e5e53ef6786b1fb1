"""The account of a new Pod, and the volume with its token (kubernetes.io, Configure Service
Accounts for Pods; ``plugin/pkg/admission/serviceaccount/admission.go``).

A Pod without an account gets ``default``; a named account must exist. Unless the Pod or else the
account has ``automountServiceAccountToken: false``, each container gets token, CA certificate and
namespace under ``MOUNT_PATH``. A mirror Pod, which a kubelet creates from a file, gets none of
these and must not reference any.

Until its controller has created ``default``, an empty account is assumed: a server without
controllers has Pods, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sliceplane.api.meta import Document
from sliceplane.api.scheme import Pods, ServiceAccounts
from sliceplane.kit.rng import Rng
from sliceplane.server.registry.documents import document_of, refused
from sliceplane.server.registry.metadata import generated_name
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.types import Key

DEFAULT_ACCOUNT: Final = "default"
MOUNT_PATH: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
VOLUME_PREFIX: Final = "kube-api-access-"
#: slightly more than an hour, by which a kubelet recognizes that the token may be renewed early
TOKEN_EXPIRATION_S: Final = 3607
_FILE_MODE: Final = 0o644
_MIRROR: Final = "kubernetes.io/config.mirror"
_ENFORCE: Final = "kubernetes.io/enforce-mountable-secrets"
_TRUE: Final = ("1", "t", "T", "TRUE", "true", "True")
_CONTAINERS: Final = (("initContainers", "init container"), ("containers", "container"))


def admit_pod(store: Store, rng: Rng, document: Document) -> None:
    """Completes a new Pod, in place.  Raises a 403 ``StatusError`` for a missing account or a
    reference that is not allowed.
    """
    spec = document["spec"]
    if _MIRROR in document["metadata"].get("annotations", {}):
        why = _mirror_problem(spec)
        if why:
            raise refused(Pods, document, why)
        return
    name = spec.get("serviceAccountName") or DEFAULT_ACCOUNT
    spec["serviceAccountName"] = spec["serviceAccount"] = name
    account = _account(store, document, name)
    if account["metadata"].get("annotations", {}).get(_ENFORCE) in _TRUE:
        for why in _secret_problems(spec, account):
            raise refused(Pods, document, why)
    if spec.get("automountServiceAccountToken", account.get("automountServiceAccountToken", True)):
        _mount_token(rng, spec)
    if account.get("imagePullSecrets") and not spec.get("imagePullSecrets"):
        spec["imagePullSecrets"] = list(account["imagePullSecrets"])


def _account(store: Store, document: Document, name: str) -> Document:
    namespace = document["metadata"]["namespace"]
    record = store.latest(Key(ServiceAccounts.storage_key, namespace, name))
    if record is not None:
        return document_of(record)
    if name == DEFAULT_ACCOUNT:
        return {"metadata": {"name": name}}
    why = f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found'
    raise refused(Pods, document, why)


def _mirror_problem(spec: Document) -> str:
    if spec.get("serviceAccountName"):
        return "a mirror pod may not reference service accounts"
    volumes = spec.get("volumes", ())
    projected = [
        source for volume in volumes for source in volume.get("projected", {}).get("sources", ())
    ]
    has_secrets = (
        spec.get("imagePullSecrets")
        or any("secret" in source for source in (*volumes, *projected))
        or any(_secrets_read(spec, member) for member, _ in _CONTAINERS)
    )
    if has_secrets:
        return "a mirror pod may not reference secrets"
    if any("serviceAccountToken" in source for source in projected):
        return "a mirror pod may not use ServiceAccountToken volume projections"
    return ""


def _secrets_read(spec: Document, member: str) -> list[tuple[str, str, str]]:
    """Returns the Secrets in the environment of containers: (container, member, Secret)."""
    read: list[tuple[str, str, str]] = []
    for container in spec.get(member, ()):
        name = container.get("name", "")
        references = [
            (
                f"envVar {variable.get('name', '')}",
                variable.get("valueFrom", {}).get("secretKeyRef"),
            )
            for variable in container.get("env", ())
        ]
        references += [
            ("envFrom", source.get("secretRef")) for source in container.get("envFrom", ())
        ]
        read += [
            (name, how, reference.get("name", ""))
            for how, reference in references
            if reference is not None
        ]
    return read


def _secret_problems(spec: Document, account: Document) -> Iterator[str]:
    """Yields the problems of Secrets that an account with an enforced list does not list."""
    allowed = {secret.get("name", "") for secret in account.get("secrets", ())}
    name = account["metadata"]["name"]
    end = f"is not allowed because service account {name} does not reference that"
    for volume in spec.get("volumes", ()):
        secret = volume.get("secret", {}).get("secretName", "")
        if "secret" in volume and secret not in allowed:
            yield f'volume with secret.secretName="{secret}" {end} secret'
    for member, noun in _CONTAINERS:
        for container, how, secret in _secrets_read(spec, member):
            if secret not in allowed:
                yield (
                    f'{noun} {container} with {how} referencing secret.secretName="{secret}" '
                    f"{end} secret"
                )
    pulled = {secret.get("name", "") for secret in account.get("imagePullSecrets", ())}
    for index, secret in enumerate(spec.get("imagePullSecrets", ())):
        if secret.get("name", "") not in pulled:
            yield f'imagePullSecrets[{index}].name="{secret.get("name", "")}" {end} imagePullSecret'


def _mount_token(rng: Rng, spec: Document) -> None:
    """Mounts the token into containers without a mount at the path.  An existing volume with the
    name prefix is used.
    """
    bare = [
        container
        for member, _ in _CONTAINERS
        for container in spec.get(member, ())
        if all(mount.get("mountPath") != MOUNT_PATH for mount in container.get("volumeMounts", ()))
    ]
    if not bare:
        return
    volumes = spec.get("volumes", [])
    names = [volume.get("name", "") for volume in volumes]
    name = next((name for name in names if name.startswith(VOLUME_PREFIX)), "")
    if not name:
        name = generated_name(VOLUME_PREFIX, rng)
        spec["volumes"] = [*volumes, _token_volume(name)]
    for container in bare:
        mount = {"name": name, "readOnly": True, "mountPath": MOUNT_PATH}
        container["volumeMounts"] = [*container.get("volumeMounts", ()), mount]


def _token_volume(name: str) -> Document:
    sources: list[Document] = [
        {"serviceAccountToken": {"expirationSeconds": TOKEN_EXPIRATION_S, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
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
    ]
    return {"name": name, "projected": {"defaultMode": _FILE_MODE, "sources": sources}}
