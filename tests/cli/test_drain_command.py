"""``sliceplane drain``: what it takes, what it prints and how it ends, with node proxies on a
kernel of paper.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest
import pytest_asyncio
from click.testing import CliRunner, Result
from tests.consume.drain.test_drain_live import NODES, Shop, node, served_shop
from tests.waiting import eventually

from sliceplane.api.codec import encode
from sliceplane.api.discovery import ANNOTATION_DRAIN
from sliceplane.api.scheme import Pods
from sliceplane.cli.main import main
from sliceplane.testing import Plane


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    with Plane() as made:
        made.apply([node(name) for name in NODES])
        yield made


@pytest_asyncio.fixture
async def shop(plane: Plane) -> AsyncIterator[Shop]:
    """A Service of two Pods; every node tells."""
    async with served_shop(plane) as served:
        await served.open()
        yield served


async def drain(shop: Shop, *arguments: str) -> Result:
    # By way of main: click keeps the help option that a command was first asked with.
    everything = ["drain", *arguments, "--kubeconfig", str(shop.plane.kubeconfig)]
    return await asyncio.to_thread(CliRunner().invoke, main, everything)


def deployment(name: str) -> dict[str, Any]:
    labels = {"app": name}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "web", "image": "web"}]},
    }
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


async def test_all_pods_of_a_deployment_and_one_of_them_again(shop: Shop) -> None:
    await asyncio.to_thread(shop.plane.apply, deployment(shop.name))
    refused = await drain(shop, "deployment", shop.name)
    assert (refused.exit_code, "Nothing was marked" in refused.stdout) == (1, True), refused.output
    result = await drain(shop, "deployment", shop.name, "--force", "-o", "json")
    assert result.exit_code == 0, result.output
    pods = json.loads(result.stdout)["pods"]
    assert [(pod["pod"], pod["outcome"]) for pod in pods] == [
        (f"default/{shop.name}-{number}", "drained") for number in range(2)
    ]
    assert not [endpoint for endpoint in shop.plane.endpoints(shop.name) if endpoint.ready]
    again = await drain(shop, f"deploy/{shop.name}")
    assert (again.exit_code, again.output.count("drained: 3 nodes hold")) == (0, 2), again.output


async def test_a_node_that_does_not_follow_is_named_and_the_code_is_1(shop: Shop) -> None:
    assert (await drain(shop, "pod", f"{shop.name}-0", "--delete")).exit_code == 0
    assert "deletionTimestamp" in shop.plane.get("pods", f"{shop.name}-0")["metadata"]
    shop.papers["n-2"].open.clear()
    result = await eventually(
        partial(drain, shop, f"pod/default/{shop.name}-1", "--timeout", "1s", "--force"),
        # until the controller has told that it leaves, no node is named
        lambda result: [name for name in ("n-1", "n-2", "n-3") if name in result.stdout] == ["n-2"],
    )
    assert result.exit_code == 1, result.output
    assert marked(shop) == [f"{shop.name}-0"], "it gave up, and the deleted one is not its own"
    shop.papers["n-2"].open.set()
    assert (await drain(shop, "pod", f"{shop.name}-1", "--force")).exit_code == 0
    assert (await drain(shop, "pod", f"{shop.name}-1", "--wait-only")).exit_code == 0


def marked(shop: Shop) -> list[str]:
    heads = [pod["metadata"] for pod in shop.plane.list("pods")]
    names = [head["name"] for head in heads if ANNOTATION_DRAIN in head.get("annotations", {})]
    return sorted(name for name in names if name.startswith(f"{shop.name}-"))


async def patch(shop: Shop, pod: str, change: dict[str, Any], *, subresource: str = "") -> None:
    await shop.client.patch(
        Pods, "default", pod, encode(change), patch_type="strategic", subresource=subresource
    )


async def ready_again(shop: Shop, pods: int) -> None:
    await eventually(lambda: asyncio.to_thread(shop._ready), lambda ready: ready == pods)


async def test_nodes_that_tell_nothing_are_named_first_and_the_marks_are_taken_back(
    shop: Shop,
) -> None:
    await asyncio.to_thread(shop.plane.apply, [node("foreign")])
    try:
        for unknown, code, left in (
            ("fail", 2, []),
            ("wait", 2, []),
            ("after=1s", 0, [f"{shop.name}-0"]),
        ):
            result = await drain(
                shop, "po", f"{shop.name}-0", "--unknown", unknown, "--timeout", "3s"
            )
            assert (result.exit_code, marked(shop)) == (code, left), result.output
            assert "not known foreign: it never reported" in " ".join(result.stderr.split())
            assert "foreign" in result.stdout
    finally:
        await asyncio.to_thread(shop.plane.delete, "node", "foreign")
    undone = await drain(shop, "po", f"{shop.name}-0", "--undo")
    assert (undone.exit_code, marked(shop)) == (0, []), undone.output
    await ready_again(shop, 2)


async def test_the_last_ready_endpoint_of_any_service_stays_unless_it_is_forced(shop: Shop) -> None:
    """Of three Services that have the Pod one has no other: it is headless, and no node proxy reads
    it.
    """
    name = f"{shop.name}-0"
    labels = {"only": shop.name}
    alone = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": f"{shop.name}-alone"},
        "spec": {"selector": labels, "clusterIP": "None", "ports": [{"name": "http", "port": 80}]},
    }
    beside = {
        **alone,
        "metadata": {"name": f"{shop.name}-beside"},
        "spec": {**alone["spec"], "clusterIP": None},
    }
    beside["spec"] = {"selector": {"app": shop.name}, "ports": [{"port": 81}]}
    await patch(shop, name, {"metadata": {"labels": labels}})
    await asyncio.to_thread(shop.plane.apply, [alone, beside])
    for service, pods in ((alone, 1), (beside, 2)):
        await eventually(
            lambda service=service: asyncio.to_thread(
                shop.plane.endpoints, service["metadata"]["name"]
            ),
            lambda found, pods=pods: sum(endpoint.ready for endpoint in found) == pods,
        )
    result = await drain(shop, "pod", name, "-o", "json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["outcome"], marked(shop)) == (1, "refused", []), (
        result.output
    )
    assert (
        f"last ready endpoint away from default/{shop.name}-alone http (IPv4)."
        in document["refused"]
    )
    assert [
        (row["service"], row["port"], row["ready"], row["left"]) for row in document["services"]
    ] == [
        (f"default/{shop.name}", "80/TCP", 2, 1),
        (f"default/{shop.name}-alone", "http", 1, 0),
        (f"default/{shop.name}-beside", "81/TCP", 2, 1),
    ]
    forced = await drain(shop, "pod", name, "--force")
    assert (forced.exit_code, marked(shop)) == (0, [name]), forced.output


async def test_a_drain_gives_up_when_the_others_go_meanwhile(shop: Shop) -> None:
    shop.papers["n-2"].open.clear()
    draining = asyncio.create_task(drain(shop, "pod", f"{shop.name}-0"))
    await eventually(
        lambda: asyncio.to_thread(marked, shop), lambda names: names == [f"{shop.name}-0"]
    )
    unready = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    await patch(shop, f"{shop.name}-1", unready, subresource="status")
    result = await draining
    assert (result.exit_code, marked(shop)) == (1, []), result.output
    assert f"meanwhile no other endpoint is ready of default/{shop.name} 80/TCP (IPv4)" in " ".join(
        result.stdout.split()
    )
    shop.papers["n-2"].open.set()
    await ready_again(shop, 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_takes_the_marks_back(shop: Shop, number: signal.Signals) -> None:
    shop.papers["n-2"].open.clear()
    command = [
        "-m",
        "sliceplane",
        "drain",
        "pod",
        f"{shop.name}-0",
        "--kubeconfig",
        str(shop.plane.kubeconfig),
    ]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    await eventually(
        lambda: asyncio.to_thread(marked, shop), lambda names: names == [f"{shop.name}-0"]
    )
    process.send_signal(number)
    out, err = await process.communicate()
    assert (process.returncode, out, marked(shop)) == (2, b"", []), err
    assert f"Marks taken back: default/{shop.name}-0" in err.decode()
    assert err.decode().endswith("Error: interrupted\n")
    shop.papers["n-2"].open.set()
    await ready_again(shop, 2)


async def test_what_is_not_there_or_no_question(shop: Shop) -> None:
    """The nearest name is told; what is asked wrongly is said before anything is asked of the
    cluster.
    """
    result = await drain(shop, "pod", f"{shop.name}-O")
    assert (result.exit_code, f"there is no Pod default/{shop.name}-O" in result.output) == (
        2,
        True,
    ), result.output
    for arguments, sentence in (
        (("service", "web"), "name what to drain: pod NAME, deployment NAME or node NAME"),
        (("pod", "web", "--unknown", "never"), "--unknown: "),
        (("pod", "web", "--timeout", "soon"), "'soon' is not a duration"),
    ):
        result = await drain(shop, *arguments)
        assert (result.exit_code == 64, sentence in result.output) == (True, True), result.output
