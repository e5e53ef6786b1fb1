"""The histories of the conformance kit, told to a consumer behind one and two relays.

The writes and faults are those of the server; the relays must make up for them, or pass them on.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from tests.figures import tell
from tests.relay.relaying import RelayServer, kubeconfig, relaying
from tests.server.serving import Server
from tests.waiting import eventually

from sliceplane.lab.conformance.cases import BY_NAME
from sliceplane.lab.conformance.consumers.node_proxy import NodeProxyConsumer
from sliceplane.lab.conformance.consumers.view import ViewConsumer
from sliceplane.lab.conformance.stage import Stage
from sliceplane.lab.conformance.steps import NODE, NODE_ADDRESS, ZONE
from sliceplane.lab.conformance.verdict import CaseVerdict
from sliceplane.lab.testing.plane import Plane
from sliceplane.watch.io.kubeconfig import from_file

pytestmark = pytest.mark.timeout(600)

ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
ADMINISTRATOR: list[dict[str, Any]] = [
    {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "relay"}},
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "relay"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "cluster-admin",
        },
        "subjects": [{"kind": "ServiceAccount", "name": "relay", "namespace": "default"}],
    },
]
#: what a relay must make up for, and what it passes on: writes, a new list, 410, an outage
SOME = (
    "moves-and-is-never-missing",
    "numbers-differ-by-slice",
    "slice-made-anew-in-a-gap",
    "two-gaps",
    "list-refused-after-a-gap",
)
PROXY = (
    f"{sys.executable} -m sliceplane proxy --hostname-override {{node}} --conntrack-max-per-core 0"
)
#: a relay gives a silent stream up after 90 s, this consumer after 5
SILENT_PATIENCE_S = 200.0


class PlaneBehindRelays:
    """A plane whose clients are given the kubeconfig of a relay."""

    def __init__(self, plane: Plane, way: Path) -> None:
        self._plane = plane
        self.kubeconfig = way

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plane, name)


@contextlib.asynccontextmanager
async def behind_relays(
    levels: int, folder: Path, *, controllers: bool = False
) -> AsyncIterator[tuple[Plane, RelayServer]]:
    """A plane whose clients are behind *levels* relays, and the last of them."""
    async with Plane(controllers=controllers) as plane:
        plane.apply(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": NODE, "labels": {"topology.kubernetes.io/zone": ZONE}},
                "status": {"addresses": [{"type": "InternalIP", "address": NODE_ADDRESS}]},
            }
        )
        for document in ADMINISTRATOR:
            plane.apply(document)
        root = Server(plane._plane)
        reply = root.request("POST", f"{ACCOUNTS}/relay/token", {"spec": {}})
        token = reply.json["status"]["token"]
        way, relay = plane.kubeconfig, root
        with contextlib.ExitStack() as relays:
            for _ in range(levels):
                relay = relays.enter_context(relaying(root, connection=from_file(way)))
                way = kubeconfig(
                    folder, f"https://127.0.0.1:{relay.port}", root.plane.pki.ca_file, token
                )
            assert isinstance(relay, RelayServer)
            yield cast("Plane", PlaneBehindRelays(plane, way)), relay


def outcome(verdict: CaseVerdict) -> tuple[str, str, str]:
    return verdict.case.name, verdict.outcome, verdict.why


async def test_a_view_is_right_behind_two_relays(tmp_path: Path) -> None:
    async with behind_relays(2, tmp_path) as (plane, relay):
        stage = Stage(plane, ViewConsumer())
        for name in SOME:
            verdict = await stage.judge(BY_NAME[name], shrink=False)
            assert outcome(verdict) == (name, "passed", "")
        await eventually(lambda: relay.get("/readyz").code == 200)


@pytest.mark.slow
@pytest.mark.kernel
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("levels", [1, 2])
async def test_every_case_is_passed_behind_relays(levels: int, tmp_path: Path) -> None:
    """By our view, and by our node proxy where a case is about its Service's policies."""
    async with behind_relays(levels, tmp_path) as (plane, _):
        view, proxy = ViewConsumer(), NodeProxyConsumer(PROXY, patience_s=120.0)
        stages = Stage(plane, view), Stage(plane, proxy)
        verdicts = []
        for case in BY_NAME.values():
            view.patience_s = SILENT_PATIENCE_S if "silence" in case.needs else 20.0
            verdict = await stages[0].judge(case, shrink=False)
            if verdict.outcome == "not asked":
                verdict = await stages[1].judge(case, shrink=False)
            verdicts.append(outcome(verdict))
    passed = [verdict for verdict in verdicts if verdict[1] == "passed"]
    assert verdicts == passed
    assert len(passed) == len(BY_NAME)
    tell(f"{len(passed)} cases behind {levels} relays")
