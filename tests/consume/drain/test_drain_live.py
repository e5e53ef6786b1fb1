"""``sliceplane drain`` against a live plane, whose node proxies are the production ones on a kernel
of paper.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from typing import Any

import pytest
import pytest_asyncio
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from msgspec.structs import replace
from tests.consume.drain.paper import Paper, paper_node
from tests.waiting import eventually
from tests.xds.conftest import delta_client, xds_server
from tests.xds.streams.clients import Response
from tests.xds.streams.clients import node as of_node

from sliceplane.api.requests import PROGRESS_PATH
from sliceplane.client import EndpointView, HttpClient, StatusError, connect
from sliceplane.consume.drain.answer import DrainAnswer, sentence
from sliceplane.consume.drain.barrier import UnknownPolicy
from sliceplane.consume.drain.options import DrainOptions
from sliceplane.consume.io import drain_barrier
from sliceplane.consume.io.draining import drain_pods
from sliceplane.diagnose.io.drain_targets import NoTarget, find_pods
from sliceplane.kit.rng import Rng
from sliceplane.testing import Plane
from sliceplane.watch.io import kubeconfig
from sliceplane.watch.io.reflect import loop_clock
from sliceplane.xds import laggards
from sliceplane.xds.names import ASSIGNMENT
from sliceplane.xds.streams import stream

NODES = ("n-1", "n-2", "n-3")
#: The deadline of a drain that must end well, on a slow machine too; one that must not end is asked
#: again and again.
PATIENCE_S = 300.0
_numbers = count(1)


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    with Plane() as made:
        made.apply([node(name) for name in NODES])
        yield made


def node(name: str) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True"}]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "status": {"conditions": conditions},
    }


class Shop:
    """A Service of two Pods in a plane with three nodes."""

    def __init__(self, plane: Plane, client: HttpClient, papers: dict[str, Paper]) -> None:
        self.plane = plane
        self.client = client
        self.papers = papers
        self.name = f"web-{next(_numbers)}"

    async def open(self, pods: int = 2, **spec: Any) -> None:
        labels = {"app": self.name}
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": self.name},
            "spec": {"selector": labels, "ports": [{"port": 80}], **spec},
        }
        await asyncio.to_thread(
            self.plane.apply, [service, *(self.pod(number) for number in range(pods))]
        )
        await self.plane.until(lambda: self._ready() == pods)

    def pod(self, number: int, **meta: Any) -> dict[str, Any]:
        ip = f"10.{next(_numbers)}.0.{number + 1}"
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{self.name}-{number}", "labels": {"app": self.name}, **meta},
            "spec": {
                "nodeName": NODES[number % 3],
                "containers": [{"name": "web", "image": "web"}],
            },
            "status": {
                "podIPs": [{"ip": ip}],
                "podIP": ip,
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }

    def _ready(self) -> int:
        return sum(endpoint.ready for endpoint in self.plane.endpoints(self.name))

    async def drain(self, number: int = 0, **options: Any) -> DrainAnswer:
        pods = await find_pods(self.client, "pod", "default", f"{self.name}-{number}")
        settled = DrainOptions(**{"timeout_s": PATIENCE_S, "force": True, **options})
        clock = loop_clock(time.time())
        return await drain_pods(
            self.client, pods, "pod", settled, clock=clock, rng=Rng(next(_numbers))
        )


@asynccontextmanager
async def served_shop(plane: Plane, counting: Collection[str] = ()) -> AsyncIterator[Shop]:
    """A Shop, with nodes that report each 0.2 s, before it is open; those *counting* count
    connections.
    """
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect(plane.kubeconfig))
        papers = {
            name: await stack.enter_async_context(
                paper_node(client, name, beat_s=0.2, counts=name in counting)
            )
            for name in NODES
        }
        yield Shop(plane, client, papers)


@pytest_asyncio.fixture
async def shop(plane: Plane) -> AsyncIterator[Shop]:
    async with served_shop(plane) as served:
        yield served


async def test_a_pod_is_drained_when_every_node_holds_it(shop: Shop) -> None:
    await shop.open()
    answer = await shop.drain()
    (pod,) = answer.pods
    assert (answer.outcome, pod.verdict.required, answer.unreadable) == ("drained", 3, ()), (
        sentence(pod)
    )
    ready = {endpoint.pod for endpoint in shop.plane.endpoints(shop.name) if endpoint.ready}
    assert ready == {f"{shop.name}-1"}
    again = await shop.drain()
    assert again.outcome == "drained", sentence(again.pods[0])


async def test_nodes_that_are_asked_write_no_lease(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They tell at the beat of an hour, and are heard at once all the same. On a busy machine their
    answer may take longer than drains wait for it before they ask for Leases.
    """
    monkeypatch.setattr(drain_barrier, "MEMORY_S", PATIENCE_S)
    async with served_shop(plane) as shop:
        await shop.open()
        assert (await shop.drain(0)).outcome == "drained", "now each has a Lease"
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect(plane.kubeconfig))
        shop.client = client
        for name in NODES:
            await stack.enter_async_context(paper_node(client, name, beat_s=3600.0))
        before = leases(plane)
        answer = await shop.drain(1)
        assert answer.outcome == "drained", sentence(answer.pods[0])
        assert leases(plane) == before


def leases(plane: Plane) -> dict[str, str]:
    """Their versions."""
    held = [
        plane.get("leases", f"sliceplane-proxy-{name}", namespace="kube-node-lease")
        for name in NODES
    ]
    return {lease["metadata"]["name"]: lease["metadata"]["resourceVersion"] for lease in held}


async def test_who_may_write_no_lease_may_not_tell(plane: Plane) -> None:
    """And who may not watch them may not ask."""
    connection = kubeconfig.load(plane.kubeconfig)
    stranger = replace(connection, headers=(*connection.headers, ("Impersonate-User", "mallory")))
    async with HttpClient(stranger) as client:
        for path, verb in (
            (f"{PROGRESS_PATH}/kube-node-lease/sliceplane-proxy-n-1", "patch"),
            (PROGRESS_PATH, "watch"),
        ):
            with pytest.raises(StatusError, match=f'cannot {verb} resource "leases"') as refused:
                await client.post(path, b"{}")
            assert refused.value.code == 403


async def test_a_view_that_tells_is_waited_for(shop: Shop) -> None:
    """Also in a namespace where nothing else happens: a barrier's floor is no event of its
    slices.
    """
    await shop.open()
    assert (await shop.drain(0)).outcome == "drained"
    async with EndpointView(shop.client, shop.name, tells="checkout") as view:
        lease = f"sliceplane-view-{shop.name}-checkout"
        await eventually(
            lambda: asyncio.to_thread(shop.plane.list, "leases"),
            lambda leases: lease in [made["metadata"]["name"] for made in leases],
        )
        answer = await shop.drain(1)
        assert (answer.outcome, answer.pods[0].verdict.others) == ("drained", 1), sentence(
            answer.pods[0]
        )
        assert view.usable == ()
        assert (await shop.drain(0)).pods[0].verdict.others == 1
    assert lease not in [
        made["metadata"]["name"] for made in await asyncio.to_thread(shop.plane.list, "leases")
    ]
    assert (await shop.drain(1)).pods[0].verdict.others == 0


async def test_the_clients_of_an_xds_server_are_waited_for_unless_they_are_silent(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "LATE_S", 3600.0)
    await shop.open(3)
    key = f"default/{shop.name}:80"
    async with (
        xds_server(shop.client, report_name="here") as served,
        delta_client(served.port) as client,
    ):

        async def sent(endpoints: int) -> Response:
            """What of so many endpoints is said last; what comes before is accepted."""
            while True:
                response = await client.next()
                localities = ClusterLoadAssignment.FromString(response.resources[key][1]).endpoints
                if sum(len(locality.lb_endpoints) for locality in localities) == endpoints:
                    return response
                await client.say(ASSIGNMENT, nonce=response.nonce)

        await client.say(ASSIGNMENT, subscribe=(key,), of_node=of_node())
        await client.say(ASSIGNMENT, nonce=(await sent(3)).nonce)
        await eventually(
            lambda: asyncio.to_thread(shop.plane.list, "leases", namespace="kube-node-lease"),
            lambda leases: "sliceplane-xds-here" in [made["metadata"]["name"] for made in leases],
        )
        waits = await eventually(
            partial(shop.drain, 0, timeout_s=2.0),
            lambda answer: (
                [missing.node for missing in answer.pods[0].verdict.waiting] == ["xds here"]
            ),
        )
        assert waits.outcome == "time over"
        await client.say(ASSIGNMENT, nonce=(await sent(2)).nonce)
        answer = await shop.drain(0)
        assert (answer.outcome, answer.pods[0].verdict.others) == ("drained", 1), sentence(
            answer.pods[0]
        )
        monkeypatch.setattr(stream, "LATE_S", 0.0)
        monkeypatch.setattr(laggards, "WAIT_S", 1.0)
        given_up = await shop.drain(1)
        assert given_up.outcome == "drained", sentence(given_up.pods[0])
        assert next(report for report in served.server.reports()).behind


async def test_a_client_of_another_service_holds_up_no_drain(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepts nothing of its own Service, which is in another namespace; a drain there
    names it.
    """
    monkeypatch.setattr(laggards, "WAIT_S", 3600.0)
    monkeypatch.setattr(stream, "LATE_S", 3600.0)
    await shop.open()
    namespace = f"evil-{next(_numbers)}"
    document = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "mine", "namespace": namespace},
        "spec": {"ports": [{"name": "http", "port": 80}]},
    }
    await asyncio.to_thread(shop.plane.apply, [document, service, _evil_slice(namespace, 1)])
    async with (
        xds_server(shop.client, report_name="here") as served,
        delta_client(served.port) as client,
    ):
        await client.say(ASSIGNMENT, subscribe=(f"{namespace}/mine:http",), of_node=of_node())
        await client.say(ASSIGNMENT, nonce=(await client.next()).nonce)
        await eventually(
            lambda: asyncio.to_thread(shop.plane.list, "leases", namespace="kube-node-lease"),
            lambda leases: "sliceplane-xds-here" in [made["metadata"]["name"] for made in leases],
        )
        await asyncio.to_thread(shop.plane.apply, [_evil_slice(namespace, 2)])
        await client.next()  # and it accepts nothing any more
        answer = await shop.drain(0)
        assert answer.outcome == "drained", sentence(answer.pods[0])
        report = served.server._laggards.report()
        assert list(report.behind) == [f"service/{namespace}/mine"]
        assert served.server._reporter is not None
        assert served.server._reporter.progress.report().behind == report.behind


def _evil_slice(namespace: str, number: int) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "addressType": "IPv4",
        "metadata": {
            "name": "mine",
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": "mine"},
        },
        "ports": [{"name": "http", "port": 9000, "protocol": "TCP"}],
        "endpoints": [{"addresses": [f"192.0.2.{number}"], "conditions": {"ready": True}}],
    }


async def test_a_node_whose_kernel_does_not_follow_is_named(shop: Shop) -> None:
    await shop.open()
    first = await shop.drain(0)
    assert first.outcome == "drained"
    shop.papers["n-2"].open.clear()
    answer = await eventually(
        partial(shop.drain, 1, timeout_s=2.0),
        lambda answer: [missing.node for missing in answer.pods[0].verdict.waiting] == ["n-2"],
    )
    assert answer.outcome == "time over"
    shop.papers["n-2"].open.set()
    assert (await shop.drain(1)).outcome == "drained"


async def test_a_node_that_never_told_is_unknown(shop: Shop) -> None:
    await shop.open()
    await asyncio.to_thread(shop.plane.apply, [node("foreign")])
    try:
        answer = await shop.drain(unknown=UnknownPolicy("fail"))
        assert answer.outcome == "cannot know"
        assert "nothing is known of foreign" in sentence(answer.pods[0])
        let_go = await shop.drain(unknown=UnknownPolicy("after", 0.1))
        assert let_go.outcome == "drained"
        assert "not known of foreign" in sentence(let_go.pods[0])
    finally:
        await asyncio.to_thread(shop.plane.delete, "node", "foreign")


async def test_the_last_one_that_serves_is_used_until_it_goes(shop: Shop) -> None:
    await shop.open(1)
    name = f"{shop.name}-0"
    held = shop.pod(0, finalizers=["example.com/held"])
    await asyncio.to_thread(shop.plane.apply, [held])
    await asyncio.to_thread(shop.plane.delete, "pod", name)
    answer = await eventually(
        partial(shop.drain, timeout_s=1.0),
        lambda answer: (
            "no other Pod is ready, so it is used as long as it serves" in sentence(answer.pods[0])
        ),
    )
    assert answer.outcome == "time over"
    waiting = asyncio.create_task(shop.drain())
    await asyncio.sleep(0.1)
    await asyncio.to_thread(shop.plane.set_ready, name, False)
    assert (await waiting).outcome == "drained"


async def test_a_proxy_that_is_killed_meanwhile_is_named_and_the_next_one_ends_the_drain(
    plane: Plane,
) -> None:
    """What SIGKILL leaves: rules as they were, a Lease that lasts, and nobody who tells."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect(plane.kubeconfig))
        for name in NODES[1:]:
            await stack.enter_async_context(paper_node(client, name, beat_s=0.2))
        shop = Shop(plane, client, {})
        async with paper_node(client, "n-1", beat_s=0.2) as killed:
            await shop.open()
            assert (await shop.drain(0)).outcome == "drained"
            killed.open.clear()
            draining = asyncio.create_task(shop.drain(1, timeout_s=1.0, take_back=False))
            await eventually(lambda: asyncio.to_thread(shop._ready), lambda ready: ready == 0)
        assert (await draining).outcome == "time over"
        await eventually(
            partial(shop.drain, 1, timeout_s=1.0),
            lambda answer: [missing.node for missing in answer.pods[0].verdict.waiting] == ["n-1"],
        )
        async with paper_node(client, "n-1", beat_s=0.2):
            answer = await shop.drain(1)
            assert answer.outcome == "drained", sentence(answer.pods[0])


async def test_two_who_drain_one_pod_at_once_are_told_the_same(shop: Shop) -> None:
    await shop.open()
    assert [answer.outcome for answer in await asyncio.gather(shop.drain(), shop.drain())] == [
        "drained"
    ] * 2


async def test_rights_that_are_missing_are_named_as_the_verbs_that_one_needs(
    plane: Plane, shop: Shop
) -> None:
    await shop.open()
    assert (await shop.drain(0)).outcome == "drained", "now each node has a Lease"
    connection = kubeconfig.load(plane.kubeconfig)
    rules: list[dict[str, Any]] = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "patch"]},
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["list", "watch"],
        },
    ]
    leases_here = {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": ["list", "watch"],
    }
    listing = {"apiGroups": [""], "resources": ["nodes", "services"], "verbs": ["list"]}
    given_to = {
        "seeing": [*rules, leases_here],
        "listing": [*rules, leases_here, listing],
        "blind": rules,
    }
    for name, given in given_to.items():
        verbs = "watch" if name == "listing" else "list and watch"
        needs = (
            f"Services: any may have a policy Local (no right to {verbs} services)",
            f"Nodes: those that never reported are not known (no right to {verbs} nodes)",
        )
        await asyncio.to_thread(plane.apply, role(name, given))
        as_user = replace(connection, headers=(*connection.headers, ("Impersonate-User", name)))
        async with HttpClient(as_user) as client:
            other = Shop(plane, client, {})
            other.name = shop.name
            drain = partial(other.drain, 1, unknown=UnknownPolicy("fail"))
            if name == "blind":
                answer = await eventually(
                    partial(drain, timeout_s=2.0),
                    lambda answer: (
                        "no right to list and watch leases in kube-node-lease"
                        in sentence(answer.pods[0])
                    ),
                )
            else:
                answer = await drain()
                assert answer.outcome == "drained", sentence(answer.pods[0])
        unread = {text.partition("; to grant it: ")[0] + ")" for text in answer.unreadable}
        assert set(needs) <= unread, answer.unreadable


def role(user: str, rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    api = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": user}}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    return [
        {**api, "kind": "ClusterRole", "rules": rules},
        {**api, "kind": "ClusterRoleBinding", "roleRef": reference, "subjects": [subject]},
    ]


async def test_a_pod_that_vanishes_meanwhile(shop: Shop) -> None:
    await shop.open()
    shop.papers["n-3"].open.clear()
    draining = asyncio.create_task(shop.drain())
    await eventually(shop._ready, lambda ready: ready == 1)
    body = b'{"gracePeriodSeconds":0}'
    from sliceplane.client import Pods

    await shop.client.delete(Pods, "default", f"{shop.name}-0", body)
    shop.papers["n-3"].open.set()
    answer = await draining
    assert answer.outcome == "drained", sentence(answer.pods[0])


async def test_a_pod_that_does_not_exist_and_the_nearest(shop: Shop) -> None:
    await shop.open()
    with pytest.raises(
        NoTarget, match=f"there is no Pod default/{shop.name}-O; is default/{shop.name}-"
    ):
        await find_pods(shop.client, "pod", "default", f"{shop.name}-O")


async def test_a_whole_node(shop: Shop) -> None:
    await shop.open(3)
    pods = await find_pods(shop.client, "node", "", "n-3")
    mine = [pod for pod in pods if pod.metadata.name.startswith(f"{shop.name}-")]
    clock = loop_clock(time.time())
    answer = await drain_pods(
        shop.client,
        mine,
        "node n-3",
        DrainOptions(timeout_s=PATIENCE_S, removal="delete"),
        clock=clock,
        rng=Rng(1),
    )
    assert [(pod.pod, pod.outcome, pod.gone) for pod in answer.pods] == [
        (f"default/{shop.name}-2", "drained", True)
    ]


async def test_a_drain_is_unknown_while_the_api_server_is_away() -> None:
    """Nodes that report nothing would be let go after two seconds; by then the server has ended."""
    with Plane() as plane:
        await asyncio.to_thread(plane.apply, [node(name) for name in NODES])
        async with connect(plane.kubeconfig) as client:
            shop = Shop(plane, client, {})
            await shop.open()
            draining = asyncio.create_task(
                shop.drain(
                    timeout_s=6.0,
                    unknown=UnknownPolicy("after", 2.0),
                    digests=False,
                    take_back=False,
                )
            )
            await eventually(lambda: asyncio.to_thread(shop._ready), lambda ready: ready == 1)
            await asyncio.to_thread(plane.stop)
            answer = await draining
    assert answer.outcome == "cannot know", sentence(answer.pods[0])
    assert "no changes from the API server" in sentence(answer.pods[0])
