"""Who a client is decides where it may be and what it includes: over TLS, with a plane's own
certificates, accounts and roles.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from queue import SimpleQueue
from typing import Any

import grpc
import pytest
import pytest_asyncio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from envoy.config.core.v3 import base_pb2
from envoy.service.discovery.v3 import discovery_pb2
from tests.server.serving import Server
from tests.waiting import eventually
from tests.xds.conftest import DELTA, Served, Shop, endpoint, new_shop, xds_server

from sliceplane.api import codec
from sliceplane.api.scheme import Pods, RoleBindings, Roles, ServiceAccounts
from sliceplane.client import HttpClient
from sliceplane.server.io.keys.pki import Pki
from sliceplane.xds import names
from sliceplane.xds.io import admission, server
from sliceplane.xds.io.serving import Doors

Answer = tuple[grpc.StatusCode | None, str, Any]


@pytest_asyncio.fixture
async def secured(live: Server, client: HttpClient) -> AsyncIterator[Served]:
    pki = live.plane.pki
    doors = Doors(
        tls=("127.0.0.1", 0),
        cert_file=pki.server_file,
        key_file=pki.server_key_file,
        client_ca_file=pki.ca_file,
    )
    async with xds_server(client, doors=doors) as made:
        yield made


def certificate(pki: Pki, user: str, group: str) -> tuple[bytes, bytes]:
    """Key and certificate of *user*, signed by the plane's authority."""
    authority = x509.load_pem_x509_certificate(pki.ca_file.read_bytes())
    signer = serialization.load_pem_private_key((pki.folder / "ca.key").read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = [
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, group),
        x509.NameAttribute(NameOID.COMMON_NAME, user),
    ]
    now = datetime.fromtimestamp(time.time(), UTC)
    made = x509.CertificateBuilder(
        authority.subject,
        x509.Name(subject),
        key.public_key(),
        x509.random_serial_number(),
        now - timedelta(hours=1),
        now + timedelta(days=1),
    ).sign(signer, hashes.SHA256())
    encoding, no = serialization.Encoding.PEM, serialization.NoEncryption()
    return key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, no), made.public_bytes(
        encoding
    )


class Client:
    """Asks by incremental xDS, with a token or a certificate."""

    def __init__(
        self, live: Server, port: int, *, token: str = "", key: bytes = b"", cert: bytes = b""
    ) -> None:
        authority = live.plane.pki.ca_file.read_bytes()
        secure = grpc.ssl_channel_credentials(authority, key or None, cert or None)
        if token:
            secure = grpc.composite_channel_credentials(
                secure, grpc.access_token_call_credentials(token)
            )
        self._credentials = secure
        self._target = f"localhost:{port}"

    async def ask(self, type_url: str, *subscribe: str, **metadata: str) -> Answer:
        """The first answer; or the status of the call and its text."""
        return await asyncio.to_thread(self._ask, type_url, subscribe, metadata)

    def _ask(self, type_url: str, subscribe: tuple[str, ...], metadata: dict[str, str]) -> Answer:
        node = base_pb2.Node(id="test", user_agent_name="envoy")
        node.metadata.update(metadata)
        request = discovery_pb2.DeltaDiscoveryRequest(
            node=node, type_url=type_url, resource_names_subscribe=list(subscribe)
        )
        said: SimpleQueue[bytes | None] = SimpleQueue()
        said.put(request.SerializeToString())
        with grpc.secure_channel(self._target, self._credentials) as channel:
            made = channel.stream_stream(DELTA)(
                iter(said.get, None), timeout=100, wait_for_ready=True
            )
            try:
                return None, "", discovery_pb2.DeltaDiscoveryResponse.FromString(next(made))
            except grpc.RpcError:
                return made.code(), made.details(), None
            finally:
                made.cancel()
                said.put(None)


async def account(shop: Shop, node: str = "") -> str:
    """The token of a new account of the shop's; *node*: bound to a Pod there."""
    await shop.put(ServiceAccounts, "reader", {})
    bound = {}
    if node:
        container = {"name": "c", "image": "i"}
        await shop.put(
            Pods,
            "pod",
            {"spec": {"nodeName": node, "serviceAccountName": "reader", "containers": [container]}},
        )
        bound = {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "pod"}}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": bound}
    made = await shop.client.create(
        ServiceAccounts, shop.namespace, codec.encode(body), subresource="token", name="reader"
    )
    return str(json.loads(made)["status"]["token"])


async def permit(shop: Shop, reader: Shop) -> None:
    """The account of *reader* may get the EndpointSlices of *shop*."""
    rule = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get"]}
    await shop.put(Roles, "reads", {"rules": [rule]})
    subject = {"kind": "ServiceAccount", "name": "reader", "namespace": reader.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reads"}
    await shop.put(RoleBindings, "reads", {"subjects": [subject], "roleRef": role})


async def test_a_node_may_not_claim_to_be_another(live: Server, secured: Served) -> None:
    key, cert = certificate(live.plane.pki, "system:node:a", "system:nodes")
    client = Client(live, secured.port, key=key, cert=cert)
    code, text, _ = await client.ask(names.CLUSTER, node_name="b")
    assert (code, text) == (
        grpc.StatusCode.PERMISSION_DENIED,
        "system:node:a is bound to the node a and may not claim the node b",
    )


async def test_a_token_that_is_bound_to_a_pod_says_where_it_is(
    live: Server, secured: Served, shop: Shop
) -> None:
    client = Client(live, secured.port, token=await account(shop, node="a"))
    user = f"system:serviceaccount:{shop.namespace}:reader"
    code, text, _ = await client.ask(names.CLUSTER, node_name="b")
    assert (code, text) == (
        grpc.StatusCode.PERMISSION_DENIED,
        f"{user} is bound to the node a and may not claim the node b",
    )
    code, text, _ = await client.ask(names.CLUSTER, namespace="bank")
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert (
        text
        == f"{user} belongs to the namespace {shop.namespace} and may not claim the namespace bank"
    )


async def test_who_is_unknown_gets_nothing(live: Server, secured: Served) -> None:
    code, _, _ = await Client(live, secured.port).ask(names.CLUSTER)
    assert code is grpc.StatusCode.UNAUTHENTICATED


async def test_a_client_sees_the_namespaces_that_it_may_read(
    live: Server, secured: Served, client: HttpClient, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await new_shop(client)
    monkeypatch.setattr(admission, "CACHED_S", 0.0)
    monkeypatch.setattr(server, "_REVIEW_S", 0.01)
    for where in (shop, other):
        await where.service("web", clusterIP="None")
        await where.slice("web-1", 9000, endpoint("10.1.2.3", "pod"))
    own, forbidden = (f"{where.namespace}/web:http" for where in (shop, other))
    reader = Client(live, secured.port, token=await account(shop))
    await permit(shop, shop)

    async def seen() -> set[str]:
        _, _, answer = await reader.ask(names.CLUSTER)
        return {resource.name for resource in answer.resources} & {own, forbidden}

    await eventually(seen, lambda found: own in found)
    assert await seen() == {own}
    _, _, answer = await reader.ask(names.CLUSTER, forbidden)
    assert list(answer.removed_resources) == [forbidden]
    assert [error.error_detail.code for error in answer.resource_errors] == [
        grpc.StatusCode.PERMISSION_DENIED.value[0]
    ]
    await permit(other, shop)
    assert await eventually(seen, lambda found: forbidden in found) == {own, forbidden}
