"""``sliceplane dns query --why``: what a name leads to, and the findings where that is nothing."""

from __future__ import annotations

from sliceplane.api.codec import encode
from sliceplane.api.requests import Write
from sliceplane.api.scheme import Services
from sliceplane.dns.view import ZoneConfig
from sliceplane.dns.wire import A
from sliceplane.shell.server.config import PlaneConfig
from sliceplane.shell.server.plane import ServerPlane
from sliceplane.shell.tools.names import looked_up


async def test_a_name_that_leads_nowhere_has_a_cause() -> None:
    async with ServerPlane(PlaneConfig(data_dir="memory:", secure_port=0), ()) as plane:
        client = plane.client("system:admin")
        specs = {
            "cart": {"clusterIP": "None", "selector": {"app": "cart"}, "ports": [{"port": 80}]},
            "away": {"type": "ExternalName", "externalName": "gone.default.svc.cluster.local"},
        }
        for name, spec in specs.items():
            body = encode({"metadata": {"name": name}, "spec": spec})
            await client.perform(Write(verb="create", resource=Services, namespace="default", body=body))

        async def said(name: str) -> list[str]:
            lines: list[str] = []
            await looked_up(
                client, ZoneConfig(), name, A, client="127.0.0.1", namespace="default", show=lines.append, why=True
            )
            return lines

        assert any("kubernetes.default.svc.cluster.local. 5 IN A " in line for line in await said("kubernetes"))
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
