"""Production node proxies on kernels of paper that report through a relay: what reaches the server,
and drains, drift and status that read it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.consume.drain.paper import Paper, paper_node
from tests.relay.relaying import RelayServer, kubeconfig, relaying
from tests.waiting import eventually

from sliceplane.api.codec import decode
from sliceplane.api.core import Lease
from sliceplane.api.requests import Selection, Write
from sliceplane.api.scheme import Leases
from sliceplane.client import HttpClient, StatusError, connect
from sliceplane.consume.drain.answer import DrainAnswer, sentence
from sliceplane.consume.drain.relayed import flatten
from sliceplane.consume.io.accounts import request_token
from sliceplane.consume.io.draining import DrainOptions, drain_pods
from sliceplane.consume.progress import Progress
from sliceplane.diagnose.io.drain_targets import find_pods
from sliceplane.diagnose.io.drifting import read_drift
from sliceplane.diagnose.io.status import read_status
from sliceplane.kit.rng import Rng
from sliceplane.relay import reports
from sliceplane.testing import Plane
from sliceplane.watch.io.reflect import loop_clock

NODES = [f"n-{number}" for number in range(12)]
PATIENCE_S = 120.0
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


def objects() -> list[dict[str, Any]]:
    conditions = [{"type": "Ready", "status": "True"}]
    nodes: list[dict[str, Any]] = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name},
            "status": {"conditions": conditions},
        }
        for name in NODES
    ]
    subject = {"kind": "ServiceAccount", "name": "nodes", "namespace": "kube-system"}
    admin = {"kind": "ClusterRole", "name": "cluster-admin", "apiGroup": RBAC}
    return [
        *nodes,
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": dict(subject, kind=None)},
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "nodes"},
            "roleRef": admin,
            "subjects": [subject],
        },
    ]


RBAC = "rbac.authorization.k8s.io"


@pytest.fixture
def plane() -> Iterator[Plane]:
    with Plane() as made:
        made.apply(objects())
        yield made


class Story:
    """A plane, a relay or two, and nodes behind the last of them."""

    def __init__(self, plane: Plane, client: HttpClient, below: Path) -> None:
        self.plane = plane
        #: the lowest is the last
        self.relays: list[RelayServer] = []
        self.client = client
        self.below = below
        self.papers: dict[str, Paper] = {}
        self.ends: dict[str, AsyncExitStack] = {}

    async def start(self, name: str, **options: Any) -> None:
        stack = self.ends[name] = AsyncExitStack()
        client = await stack.enter_async_context(connect(self.below))
        self.papers[name] = await stack.enter_async_context(
            paper_node(client, name, **{"beat_s": 0.2, **options})
        )

    async def stop(self, name: str) -> None:
        await self.ends.pop(name).aclose()

    async def leases(self) -> list[Lease]:
        page = await self.client.list(Selection(Leases, "kube-node-lease"))
        return [decode(body, Lease) for body in page.items]

    async def reported(self) -> dict[str, Lease]:
        """The Leases of nodes, as readers have them."""
        return {
            lease.metadata.name.removeprefix("sliceplane-proxy-"): lease
            for lease in flatten(await self.leases())
        }

    async def drain(self, pod: str, **options: Any) -> DrainAnswer:
        pods = await find_pods(self.client, "pod", "default", pod)
        settled = DrainOptions(**{"timeout_s": PATIENCE_S, "force": True, **options})
        clock = loop_clock(time.time())
        return await drain_pods(self.client, pods, "pod", settled, clock=clock, rng=Rng(7))


@asynccontextmanager
async def story(
    plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, levels: int = 1, **options: Any
) -> AsyncIterator[Story]:
    """All nodes report through the lowest of the relays, quicker than in life."""
    monkeypatch.setattr(reports, "CHANGED_PERIOD_S", 0.5)
    monkeypatch.setattr(reports, "BEHIND_PERIOD_S", 0.2)
    monkeypatch.setattr(reports, "REPORT_LATE_S", 10.0)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect(plane.kubeconfig))
        token = await request_token(client, "kube-system", "nodes", 3600)
        parent: Any = SimpleNamespace(plane=plane._plane)
        below, relays = plane.kubeconfig, []
        for level in range(levels):
            relay: RelayServer = await asyncio.to_thread(
                stack.enter_context, relaying(parent, reports_name=f"r{level}")
            )
            relays.append(relay)
            authority = plane._plane.pki.ca_file
            below = kubeconfig(tmp_path, relay.relay.url, authority, token)
            parent = SimpleNamespace(plane=SimpleNamespace(pki=plane._plane.pki, kubeconfig=below))
        told = Story(plane, client, below)
        told.relays = relays
        try:
            for name in NODES:
                await told.start(name, **options)
            yield told
        finally:
            for name in list(told.ends):
                await told.stop(name)


def web() -> list[dict[str, Any]]:
    labels = {"app": "web"}
    pods: list[dict[str, Any]] = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"web-{number}", "labels": labels},
            "spec": {
                "nodeName": NODES[number],
                "containers": [{"name": "web", "image": "web"}],
            },
            "status": {
                "podIPs": [{"ip": f"10.1.0.{number + 1}"}],
                "podIP": f"10.1.0.{number + 1}",
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        for number in range(3)
    ]
    spec = {"selector": labels, "ports": [{"port": 80}]}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec}
    return [service, *pods]


def write_of(report: bytes) -> Write:
    return Write(
        verb="patch",
        resource=Leases,
        namespace="kube-node-lease",
        name="sliceplane-proxy-n-0",
        body=report,
        patch_type="apply",
        force=True,
    )


def all_report(found: dict[str, Lease]) -> bool:
    return found.keys() == set(NODES)


@pytest.mark.parametrize("levels", [1, 2])
async def test_one_lease_reports_all_nodes_and_drains_wait_for_them(
    plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, levels: int
) -> None:
    async with story(plane, tmp_path, monkeypatch, levels) as told:
        await eventually(told.reported, all_report)
        names = {lease.metadata.name for lease in await told.leases()}
        print(names)
        assert names == {"sliceplane-relay-r0"}, "no node, and no lower relay, wrote its own"
        await asyncio.to_thread(plane.apply, web())
        await plane.until(lambda: sum(each.ready for each in plane.endpoints("web")) == 3)
        answer = await told.drain("web-0")
        (pod,) = answer.pods
        assert (answer.outcome, pod.verdict.required) == ("drained", len(NODES)), sentence(pod)
        # One kernel that does not take the change holds the drain back, and is named.
        told.papers["n-5"].open.clear()
        stuck = await told.drain("web-1", timeout_s=8.0)
        assert stuck.outcome == "time over"
        assert "n-5" in [missing.node for missing in stuck.pods[0].verdict.waiting]
        told.papers["n-5"].open.set()
        assert (await told.drain("web-1")).outcome == "drained"


async def test_a_stopped_node_is_named_and_the_others_are_not(
    plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with story(plane, tmp_path, monkeypatch) as told:
        await eventually(told.reported, all_report)
        await told.stop("n-3")
        clock = loop_clock(time.time() + 40.0)  # a reader for whom it is late

        async def stopped() -> list[str]:
            drift = await read_drift(told.client, clock, port=1)
            return [row.node for row in drift.rows if row.state == "stopped"]

        await eventually(stopped, lambda names: names == ["n-3"])
        facts = await read_status(told.client, "", clock)
        from sliceplane.diagnose.explain.status_parts import status

        nodes = next(part for part in status(facts).parts if part.name == "nodes")
        assert nodes.figures["proxies"]["known"] == len(NODES)
        assert nodes.figures["proxies"]["silent"] == ["n-3"]
        await told.start("n-3")
        await eventually(stopped, lambda names: names == [])


async def test_open_connections_are_counted_through_a_relay(
    plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with story(plane, tmp_path, monkeypatch, counts=True) as told:
        await asyncio.to_thread(plane.apply, web())
        await plane.until(lambda: sum(each.ready for each in plane.endpoints("web")) == 3)
        await eventually(told.reported, all_report)
        told.papers["n-2"].connections["10.1.0.1"] = 4
        answer = await told.drain("web-0", timeout_s=15.0, until_idle=True)
        assert answer.outcome == "not idle", sentence(answer.pods[0])
        assert [tuple(each) for each in answer.pods[0].verdict.open] == [("n-2", 4)]
        told.papers["n-2"].connections.clear()
        answer = await told.drain("web-0", until_idle=True)
        assert answer.outcome == "drained", sentence(answer.pods[0])


async def test_a_relay_that_restarts_knows_who_had_stopped(
    plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with story(plane, tmp_path, monkeypatch) as told:
        await eventually(told.reported, all_report)
        await told.stop("n-3")
    # All have stopped, and so has the relay; another one begins, with one node.
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect(plane.kubeconfig))
        parent: Any = SimpleNamespace(plane=plane._plane)
        relay: RelayServer = await asyncio.to_thread(
            stack.enter_context, relaying(parent, reports_name="r0")
        )
        token = await request_token(client, "kube-system", "nodes", 3600)
        below = kubeconfig(tmp_path, relay.relay.url, plane._plane.pki.ca_file, token)
        told = Story(plane, client, below)
        await told.start("n-0")
        core = relay.relay.front.reports.core  # type: ignore[union-attr]
        await eventually(lambda: asyncio.sleep(0, len(core)), lambda count: count == len(NODES))
        await told.stop("n-0")
        assert all_report(await told.reported())


async def test_who_may_not_write_a_lease_is_refused_and_demand_is_passed_on(
    plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with story(plane, tmp_path, monkeypatch) as told:
        await eventually(told.reported, all_report)
        async with connect(told.below) as client:
            body = await client.get(Leases, "kube-node-lease", "sliceplane-proxy-n-0")
            kept = decode(body, Lease)
            assert kept.spec.holder_identity == "n-0", "read from the relay's memory"
        await asyncio.to_thread(
            plane.apply,
            [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "stranger"}}],
        )
        token = await request_token(told.client, "default", "stranger", 3600)
        url = told.below.name.rpartition("-")[2]
        (tmp_path / "stranger").mkdir()
        stranger = kubeconfig(
            tmp_path / "stranger", f"https://127.0.0.1:{url}", plane._plane.pki.ca_file, token
        )
        async with connect(stranger) as client:
            with pytest.raises(StatusError, match="cannot get"):
                await client.get(Leases, "kube-node-lease", "sliceplane-proxy-n-0")
            report = Progress("n-0", ("IPv4",)).take_report(time.time())
            with pytest.raises(StatusError, match="cannot patch"):
                await client.perform(write_of(report))
        await told.stop("n-0")
        demanding = Progress("n-0", ("IPv4",))
        demanding.on_demand("3f9a12c0:431")
        async with connect(told.below) as client:
            await client.perform(write_of(demanding.take_report(time.time())))
        own = {lease.metadata.name: lease for lease in await told.leases()}["sliceplane-proxy-n-0"]
        assert (own.metadata.annotations or {})["sliceplane.dev/demand"] == "3f9a12c0:431"
        assert (await told.reported())["n-0"] == own, "the newest of both forms counts"


async def test_a_pods_token_reports_for_its_own_node(
    plane: Plane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is about another one is the parent's to admit: it may have a policy."""
    account = {"serviceAccountName": "nodes", "containers": [{"name": "a", "image": "a"}]}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "proxy-1", "namespace": "kube-system"},
        "spec": {**account, "nodeName": "m-1"},
    }
    nodes = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"m-{n}"}} for n in (1, 2)]
    plane.apply([*nodes, pod])
    bound = {"kind": "Pod", "apiVersion": "v1", "name": "proxy-1"}
    async with story(plane, tmp_path, monkeypatch) as told:
        path = "/api/v1/namespaces/kube-system/serviceaccounts/nodes/token"
        body = json.dumps({"spec": {"boundObjectRef": bound}}).encode()
        token = json.loads(await told.client.post(path, body))["status"]["token"]
        (relay,) = told.relays
        reports_of_all = relay.relay.front.reports
        assert reports_of_all is not None
        await eventually(lambda: reports_of_all.has("sliceplane-proxy-n-0"))
        page = await asyncio.to_thread(relay.get, f"{LEASE}/sliceplane-proxy-n-0")
        report = page.json
        kept = {key: report["metadata"].get(key) for key in ("annotations", "labels")}
        for node in NODES:
            await told.stop(node)
        passed = relay.relay.front._passage.passed
        for node, is_passed in (("m-1", False), ("m-2", True)):
            before = passed.value
            name = f"sliceplane-proxy-{node}"
            spec = {**report["spec"], "holderIdentity": node}
            lease = {**report, "metadata": {"name": name, **kept}, "spec": spec}
            reply = await asyncio.to_thread(
                relay.request,
                "PATCH",
                f"{LEASE}/{name}?fieldManager=it&force=true",
                lease,
                certificate=False,
                content_type="application/apply-patch+yaml",
                authorization=f"Bearer {token}",
            )
            assert reply.code in (200, 201), reply.body
            assert passed.value - before == is_passed
            assert reports_of_all.has(name) != is_passed
