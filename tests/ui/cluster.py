"""A cluster for tests of the page: a plane in memory with emulated nodes, and the page of it in a
thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.ui.browser import Background
from tests.waiting import until

from sliceplane.api.codec import decode_document, encode
from sliceplane.api.discovery import ANNOTATION_DRAIN
from sliceplane.api.scheme import Pods, ServiceAccounts
from sliceplane.cli.query.ui_what_if import predict_service
from sliceplane.consume.progress import (
    ANNOTATION_PROGRESS,
    ANNOTATION_REVISION,
    COMPONENT,
    LABEL_COMPONENT,
    LEASE_DURATION_S,
    LEASE_NAMESPACE,
    LEASE_PREFIX,
    AppliedRevision,
    ProgressReport,
)
from sliceplane.diagnose.page.io.login_door import LoginDoor
from sliceplane.diagnose.page.io.server import PageServer, page
from sliceplane.diagnose.page.model import ClusterModel
from sliceplane.kit.times import format_micro_time
from sliceplane.lab.testing import plane as planes
from sliceplane.server.io.plane import ServerPlane
from sliceplane.testing import Plane
from sliceplane.watch.digest import digest_of_versions
from sliceplane.watch.io.connection import Connection
from sliceplane.watch.io.kubeconfig import from_file


class RunningPage:
    """``sliceplane ui`` without a process.  Use as a ``with`` block."""

    def __init__(
        self,
        plane: Plane,
        *,
        connection: Connection | None = None,
        port: int = 0,
        namespace: str = "",
    ) -> None:
        self._connection = connection or from_file(plane.kubeconfig)
        self._namespace = namespace
        self._port = port
        self.server: PageServer
        self._context: AbstractAsyncContextManager[PageServer]

    def __enter__(self) -> RunningPage:
        self._background = Background()
        self._background.call(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._background.call(self._context.__aexit__(None, None, None))
        self._background.stop()

    async def _start(self) -> None:
        self._context = page(self._connection, self._namespace, self._port, predict_service)
        self.server = await self._context.__aenter__()

    @property
    def url(self) -> str:
        return self.server.url

    def change(self, change: Callable[[ClusterModel], None]) -> None:
        """*change* what the page believes that the cluster has: a server of ours would refuse
        it.
        """

        async def do() -> None:
            change(self.server.viewer.live.model)

        self._background.call(do())


def mark(plane: Plane, pod: str, namespace: str, value: str | None) -> None:
    """As ``sliceplane drain`` does, or takes back with ``None``."""

    async def patch() -> None:
        async with plane.client() as client:
            body = encode({"metadata": {"annotations": {ANNOTATION_DRAIN: value}}})
            await client.patch(Pods, namespace, pod, body, patch_type="merge")

    asyncio.run(patch())


def deployment(
    name: str, replicas: int, *, image: str = "web:1", labels: dict[str, str] | None = None
) -> dict[str, Any]:
    labels = labels or {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": [
                        {"name": "main", "image": image, "ports": [{"containerPort": 8080}]}
                    ]
                },
            },
        },
    }


def service(name: str, *, selector: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {
            "selector": selector or {"app": name},
            "ports": [{"port": 80, "targetPort": 8080}],
            **spec,
        },
    }


def proxy_lease(
    node: str, plane: Plane, *, told: list[tuple[str, str]] | None = None, revision: int = 0
) -> dict[str, Any]:
    """What the proxy of *node* tells that holds what the server has now; or as *told* of *revision*
    (``slices``).
    """
    known, newest = (told, revision) if told is not None else slices(plane)
    held = AppliedRevision(newest, digest_of_versions(known))
    report = ProgressReport(endpointslices={"all": held})
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": f"{LEASE_PREFIX}{node}",
            "namespace": LEASE_NAMESPACE,
            "labels": {LABEL_COMPONENT: COMPONENT},
            "annotations": {
                ANNOTATION_REVISION: str(newest),
                ANNOTATION_PROGRESS: encode(report).decode(),
            },
        },
        "spec": {
            "holderIdentity": node,
            "leaseDurationSeconds": LEASE_DURATION_S,
            "renewTime": format_micro_time(plane.clock()),
        },
    }


def report_until(plane: Plane, nodes: list[str], look: Callable[[], str], text: str) -> None:
    """Reports as the proxies of *nodes* do, again and again, until *look* shows *text*.

    One report is not enough: slices may change after it, when a rollout of an earlier test ends."""

    def report_and_look() -> str:
        plane.apply([proxy_lease(node, plane) for node in nodes])
        return look()

    until(report_and_look, lambda seen: text in seen)


def slices(plane: Plane) -> tuple[list[tuple[str, str]], int]:
    """Key and version of each EndpointSlice, and the newest version."""
    metadata = [item["metadata"] for item in plane.list("endpointslices", namespace="")]
    known = [(f"{meta['namespace']}/{meta['name']}", meta["resourceVersion"]) for meta in metadata]
    return known, max(int(version) for _, version in known)


def connection_with(
    plane: Plane, token: str, folder: Path, namespace: str = "default"
) -> Connection:
    """To *plane*, with a token in the place of the administrator's certificate."""
    config = yaml.safe_load(plane.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    config["contexts"][0]["context"]["namespace"] = namespace
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return from_file(path)


def token_for(plane: Plane, account: str, namespace: str, seconds: int = 600) -> str:
    plane.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}},
        namespace=namespace,
    )

    async def ask() -> bytes:
        async with plane.client() as client:
            body = encode(
                {
                    "apiVersion": "authentication.k8s.io/v1",
                    "kind": "TokenRequest",
                    "spec": {"expirationSeconds": seconds},
                }
            )
            return await client.create(
                ServiceAccounts, namespace, body, subresource="token", name=account
            )

    token: str = decode_document(asyncio.run(ask()))["status"]["token"]
    return token


class PlaneWithPage(Plane):
    """With the page at ``/ui/`` of its server."""

    def start(self) -> None:
        door = self.door = LoginDoor(predict_service)
        made = planes._build

        def with_page(wanted: Plane) -> ServerPlane:
            server = made(wanted)
            door.plane = server
            server._services = (*server._services, door)
            inner = server._around
            server._around = lambda app: door.around(inner(app))
            return server

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(planes, "_build", with_page)
            super().start()


def reader_of(plane: Plane, namespace: str) -> str:
    """A token of an account that may read Services and slices of *namespace*, by a RoleBinding
    ``reader``.
    """
    rules = [
        {
            "apiGroups": ["", "discovery.k8s.io"],
            "resources": ["services", "endpointslices"],
            "verbs": ["list", "watch"],
        }
    ]
    version = "rbac.authorization.k8s.io/v1"
    plane.apply(
        [
            {"apiVersion": version, "kind": "Role", "metadata": {"name": "reader"}, "rules": rules},
            {
                "apiVersion": version,
                "kind": "RoleBinding",
                "metadata": {"name": "reader"},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "Role",
                    "name": "reader",
                },
                "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": namespace}],
            },
        ],
        namespace=namespace,
    )
    return token_for(plane, "reader", namespace)


def staying(plane: Plane) -> str:
    """A Pod of the cart when no rollout of an earlier test goes on; "" until then."""
    status = plane.get("deployments", "cart", namespace="shop")["status"]
    pods = [pod["metadata"] for pod in plane.list("pods", namespace="shop")]
    goes_on = status.get("updatedReplicas") != status["replicas"] or any(
        "deletionTimestamp" in pod for pod in pods
    )
    return "" if goes_on else str(pods[0]["name"])
