"""Processes beside a plane: what their accounts may do, exactly, and that their tokens are renewed
and removed.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.helm import MANIFESTS
from tests.waiting import eventually

from sliceplane.api.codec import encode
from sliceplane.api.errors import StatusError
from sliceplane.api.requests import Selection, Write
from sliceplane.api.scheme import SERVED, Leases, Resource, Secrets, ServiceAccounts, by_kind
from sliceplane.consume.io import accounts
from sliceplane.consume.io.accounts import Rule
from sliceplane.consume.io.child import ChildService
from sliceplane.dns.io.embedded import RULES as DNS_RULES
from sliceplane.dns.io.embedded import DnsService
from sliceplane.server.io.config import PlaneConfig
from sliceplane.server.io.plane import ServerPlane
from sliceplane.watch.io.base import Client
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import from_file
from sliceplane.xds.io.serving import RULES as XDS_RULES
from sliceplane.xds.io.serving import XdsService

HOST = socket.gethostname().lower()
VERBS = (
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
    "impersonate",
    "bind",
)
#: verbs on resources of any name, and on a Lease of kube-node-lease by name
DNS = {
    *(
        (verb, resource)
        for verb in ("list", "watch")
        for resource in ("services", "namespaces", "nodes")
    ),
    *((verb, "endpointslices.discovery.k8s.io") for verb in ("list", "watch")),
    *((verb, "events.k8s.io") for verb in ("create", "patch")),
}
XDS = (DNS - {("list", "namespaces"), ("watch", "namespaces")}) | {
    ("create", "tokenreviews"),
    ("create", "subjectaccessreviews"),
}
#: what every account may create: questions about itself (system:basic-user)
ANYBODY = {"selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"}
EVENTS = "events.k8s.io"
_REVIEW = by_kind("authorization.k8s.io/v1", "SubjectAccessReview")


async def _may(
    client: Client, user: str, resource: Resource, verb: str, namespace: str, name: str = ""
) -> bool:
    assert _REVIEW is not None
    attributes = {"verb": verb, "group": resource.group, "resource": resource.plural}
    attributes |= {"namespace": namespace if resource.namespaced else "", "name": name}
    groups = [
        "system:authenticated",
        "system:serviceaccounts",
        "system:serviceaccounts:kube-system",
    ]
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "groups": groups, "resourceAttributes": attributes},
    }
    answer = json.loads(await client.create(_REVIEW, "", json.dumps(body).encode()))
    return bool(answer["status"]["allowed"])


async def test_what_children_hold_is_what_they_need_and_no_more() -> None:
    services: tuple[ChildService, ...] = (
        DnsService(("127.0.0.1", 0), ("10.96.0.0/16",)),
        XdsService(("127.0.0.1", 0)),
    )
    async with ServerPlane(PlaneConfig(data_dir="memory:", secure_port=0), services) as plane:
        admin = plane.client("system:admin")
        for service, table in zip(services, (DNS, XDS), strict=True):
            account = service._account
            assert account is not None
            user = f"system:serviceaccount:kube-system:{account.name}"
            own = f"sliceplane-{service.name}-{HOST}"
            allowed = {
                (
                    verb,
                    EVENTS
                    if (resource.group, resource.plural) == (EVENTS, "events")
                    else _spelled(resource),
                )
                for resource in SERVED
                for verb in VERBS
                for namespace in ("default", "kube-system", "kube-node-lease")
                if await _may(admin, user, resource, verb, namespace)
            }
            assert {right for right in allowed if right[1] not in ANYBODY} == table
            for verb in VERBS:
                may = await _may(admin, user, Leases, verb, "kube-node-lease", own)
                assert may is (verb in ("create", "patch", "delete")), verb
                assert not await _may(
                    admin, user, Leases, verb, "kube-node-lease", "sliceplane-proxy-n1"
                ), verb
                assert not await _may(admin, user, Leases, verb, "kube-system", own), verb
            await _tries_what_it_must_not(account.kubeconfig, own)


def _spelled(resource: Resource) -> str:
    group = resource.group if resource.group == "discovery.k8s.io" else ""
    return f"{resource.plural}.{group}" if group else resource.plural


async def _tries_what_it_must_not(kubeconfig: Path, own: str) -> None:
    """By requests, with what the process itself holds."""
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "sliceplane-proxy-n1"},
    }
    async with HttpClient(from_file(kubeconfig)) as client:
        writes = (
            Write(verb="create", resource=Leases, namespace="kube-node-lease", body=encode(lease)),
            Write(
                verb="patch",
                resource=Leases,
                namespace="kube-node-lease",
                name="sliceplane-proxy-n1",
                body=encode(lease),
                patch_type="apply",
                force=True,
            ),
            Write(
                verb="create",
                resource=ServiceAccounts,
                namespace="kube-system",
                name="default",
                subresource="token",
                body=b'{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}',
            ),
        )
        for write in writes:
            with pytest.raises(StatusError) as refused:
                await client.perform(write)
            assert refused.value.code == 403
        with pytest.raises(StatusError) as refused:
            await client.list(Selection(Secrets))
        assert refused.value.code == 403
        lease["metadata"]["name"] = own
        await client.perform(
            Write(
                verb="patch",
                resource=Leases,
                namespace="kube-node-lease",
                name=own,
                body=encode(lease),
                patch_type="apply",
                force=True,
            )
        )


@pytest.mark.parametrize(("name", "rules"), [("dns", DNS_RULES), ("xds", XDS_RULES)])
def test_the_rules_are_those_of_the_chart(name: str, rules: tuple[Rule, ...]) -> None:
    documents: Iterable[Any] = yaml.safe_load_all((MANIFESTS / f"{name}.yaml").read_text())
    (role,) = (each for each in documents if each["kind"] == "ClusterRole")
    assert [accounts._rule(rule) for rule in rules] == role["rules"]


async def test_tokens_are_renewed_and_rights_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "RENEW_S", 0.2)
    service = DnsService(("127.0.0.1", 0), ("10.96.0.0/16",))
    async with ServerPlane(PlaneConfig(data_dir="memory:", secure_port=0), (service,)) as plane:
        account = service._account
        assert account is not None
        token = account.kubeconfig.with_suffix(".token")
        first = token.read_text()
        admin = plane.client("system:admin")
        await admin.perform(
            Write(
                verb="delete", resource=ServiceAccounts, namespace="kube-system", name=account.name
            )
        )
        await eventually(lambda: token.read_text() != first)

        async def works() -> bool:
            async with HttpClient(from_file(account.kubeconfig)) as client:
                await client.list(Selection(_kind("Service")))
            return True

        assert await eventually(works, ignoring=(StatusError,))
        assert token.stat().st_mode & 0o777 == 0o600
        folder = account.kubeconfig.parent
        await asyncio.sleep(0)
    assert not folder.exists()


def _kind(kind: str) -> Resource:
    resource = by_kind("v1", kind)
    assert resource is not None
    return resource
