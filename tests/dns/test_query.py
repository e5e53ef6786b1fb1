"""``sliceplane dns query --why``: what a name leads to, and the findings where that is nothing."""

from __future__ import annotations

from typing import Any

import pytest

from sliceplane.api.codec import encode
from sliceplane.api.errors import StatusError
from sliceplane.api.requests import Selection, Write
from sliceplane.api.scheme import Namespaces, Services
from sliceplane.diagnose.io.names import NameLookup, look_up_name
from sliceplane.dns.cluster_names import ZoneConfig
from sliceplane.dns.wire import PTR, A
from sliceplane.server.io.config import PlaneConfig
from sliceplane.server.io.plane import ServerPlane


async def test_a_name_that_leads_nowhere_has_a_cause() -> None:
    async with ServerPlane(PlaneConfig(data_dir="memory:", secure_port=0), ()) as plane:
        client = plane.client("system:admin")
        specs = {
            "cart": {"clusterIP": "None", "selector": {"app": "cart"}, "ports": [{"port": 80}]},
            "away": {"type": "ExternalName", "externalName": "gone.default.svc.cluster.local"},
        }
        for name, spec in specs.items():
            body = encode({"metadata": {"name": name}, "spec": spec})
            await client.perform(
                Write(verb="create", resource=Services, namespace="default", body=body)
            )

        async def said(name: str) -> list[str]:
            lines: list[str] = []
            await look_up_name(
                client,
                ZoneConfig(),
                name,
                A,
                client="127.0.0.1",
                namespace="default",
                show=lines.append,
                why=True,
            )
            return lines

        assert any(
            "kubernetes.default.svc.cluster.local. 5 IN A " in line
            for line in await said("kubernetes")
        )
        assert not [line for line in await said("kubernetes") if "cause" in line]
        for name, sentence in [
            ("cart", "Pod"),
            ("away", "there is no Service default/gone"),
            ("cat.default", "cat"),
        ]:
            causes = [line for line in await said(name) if line.startswith("; cause")]
            assert causes, (name, await said(name))
            assert any(sentence in line for line in causes), (name, causes)
        assert not [line for line in await said("example.org.") if "cause" in line]


@pytest.mark.parametrize(
    "name", ["nope.web.default.svc.cluster.local.", "_x._tcp.web.default.svc.cluster.local."]
)
async def test_what_is_wrong_with_a_service_is_no_cause_where_its_name_is_well(name: str) -> None:
    """Nothing is below a Service with a cluster IP, whether it has endpoints (B1) or not."""
    async with ServerPlane(PlaneConfig(data_dir="memory:", secure_port=0), ()) as plane:
        client = plane.client("system:admin")
        spec = {"selector": {"app": "web"}, "ports": [{"port": 80}], "sessionAffinity": "ClientIP"}
        body = encode({"metadata": {"name": "web"}, "spec": spec})
        await client.perform(
            Write(verb="create", resource=Services, namespace="default", body=body)
        )
        lines: list[str] = []
        answer = await look_up_name(
            client,
            ZoneConfig(),
            name,
            A,
            client="127.0.0.1",
            namespace="default",
            show=lines.append,
            why=True,
        )
        assert (answer.has_record, answer.is_unknown) == (False, False)
        assert any("NXDOMAIN" in line for line in lines)
        assert not [line for line in lines if line.startswith(("; cause", "; also"))]


async def test_only_the_namespaces_that_a_name_leads_to_are_listed() -> None:
    """An alias leads to another one; the name of an address may be of any."""
    async with ServerPlane(PlaneConfig(data_dir="memory:", secure_port=0), ()) as plane:
        client = plane.client("system:admin")
        specs = {
            "away": {"type": "ExternalName", "externalName": "there.second.svc.cluster.local"},
            "there": {"clusterIP": "10.96.0.77", "ports": [{"port": 80}]},
        }
        for (name, spec), namespace in zip(specs.items(), ("first", "second"), strict=True):
            body = encode({"metadata": {"name": namespace}})
            await client.perform(Write(verb="create", resource=Namespaces, body=body))
            body = encode({"metadata": {"name": name}, "spec": spec})
            await client.perform(
                Write(verb="create", resource=Services, namespace=namespace, body=body)
            )
        for name, kind, record, namespaces in [
            ("away.first.svc.cluster.local.", A, "IN A 10.96.0.77", {"first", "second"}),
            ("there.second.SVC.Cluster.Local.", A, "IN A 10.96.0.77", {"second"}),
            ("77.0.96.10.in-addr.arpa.", PTR, "IN PTR there.second.svc", {""}),
        ]:
            reader, lines = _Noted(client), list[str]()
            await look_up_name(
                reader,  # type: ignore[arg-type]  # lists are all that it asks for
                ZoneConfig(),
                name,
                kind,
                client="127.0.0.1",
                namespace="first",
                show=lines.append,
                why=False,
            )
            assert any(record in line for line in lines), lines
            assert reader.namespaces == namespaces


class _Noted:
    """Notes the namespaces of what is listed in namespaces."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.namespaces: set[str] = set()

    async def list(self, selection: Selection, **how: Any) -> Any:
        if selection.resource.namespaced:
            self.namespaces.add(selection.namespace)
        return await self._client.list(selection, **how)


class _FewRights:
    """Lists what is in namespace "shop"; all else is forbidden."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def list(self, selection: Selection, **how: Any) -> Any:
        if selection.namespace != "shop":
            raise StatusError(403, "Forbidden", f"{selection.resource.plural} is forbidden")
        return await self._client.list(selection, **how)


@pytest.mark.parametrize(
    ("name", "says", "has_record", "is_unknown"),
    [
        ("cart", "cart.shop.svc.cluster.local. 5 IN A ", True, False),
        ("card", "card.shop.svc.cluster.local. A: NXDOMAIN", False, True),
        ("cart.shop.svc.cluster.local.", "IN A ", True, False),
        ("card.shop.svc.cluster.local.", "the Service shop/card does not exist", False, False),
        (
            "kubernetes.default.svc.cluster.local.",
            "without the right to list services in namespace default",
            False,
            True,
        ),
        (
            "pay.vault.svc.cluster.local.",
            "without the right to list services in namespace vault",
            False,
            True,
        ),
    ],
)
async def test_a_namespace_that_may_not_be_read_is_not_said_to_have_no_such_name(
    name: str, says: str, *, has_record: bool, is_unknown: bool
) -> None:
    async with ServerPlane(PlaneConfig(data_dir="memory:", secure_port=0), ()) as plane:
        client = plane.client("system:admin")
        await client.perform(
            Write(verb="create", resource=Namespaces, body=encode({"metadata": {"name": "shop"}}))
        )
        body = encode({"metadata": {"name": "cart"}, "spec": {"ports": [{"port": 80}]}})
        await client.perform(Write(verb="create", resource=Services, namespace="shop", body=body))
        lines: list[str] = []
        answer: NameLookup = await look_up_name(
            _FewRights(client),  # type: ignore[arg-type]  # lists are all that it asks for
            ZoneConfig(),
            name,
            A,
            client="127.0.0.1",
            namespace="shop",
            show=lines.append,
            why=True,
        )
        assert (answer.has_record, answer.is_unknown) == (has_record, is_unknown), lines
        assert any(says in line for line in lines), lines
        assert not is_unknown or not [line for line in lines if line.startswith("; cause")]
