"""Health of ``sliceplane proxy`` as others see it, when the real kernel refuses rules."""

from __future__ import annotations

import json

import pytest
from tests.kernel.netns import Net
from tests.kernel.proxy_process import create, page, rules_in, started
from tests.ports import free_port
from tests.waiting import eventually

from sliceplane.api.scheme import Namespaces, Services
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import load

pytestmark = pytest.mark.kernel

#: while the program that says so runs, no other may write the table (nft(8), "owner"); one line is
#: one transaction, so the table is there at every moment
TAKE_THE_TABLE = "delete table ip sliceplane; add table ip sliceplane { flags owner; }"


async def test_the_kernel_refuses_rules() -> None:
    """Red, with the kernel's words; green again when it takes them."""
    with Net("sph") as net:
        node = net.add_host("node", ip4="10.10.0.1/16", ip6="fd10::1/64")
        async with started("apiserver", "--secure-port", "0", "--data-dir", "memory:") as (_, line):
            kubeconfig = line.partition("kubeconfig=")[2]
            client = HttpClient(load(kubeconfig))
            port = free_port()
            common = (
                "proxy",
                "--kubeconfig",
                kubeconfig,
                "--hostname-override",
                "node-1",
                "--netns",
                node.netns,
            )
            try:
                await create(client, Namespaces, {"metadata": {"name": "demo"}})
                async with started(*common, "--healthz-bind-address", f"127.0.0.1:{port}"):
                    assert (await page(port, "/healthz"))[0] == 200
                    owner = node.spawn(["nft", "-i"])
                    assert owner.stdin is not None
                    print(TAKE_THE_TABLE, file=owner.stdin, flush=True)
                    # not the table by its name: it may be another one by the time that it is listed
                    await eventually(
                        lambda: node.exec(["nft", "list", "ruleset"]).stdout,
                        lambda rules: "flags owner" in rules,
                    )
                    spec = {"clusterIP": "10.96.0.100", "ports": [{"name": "http", "port": 80}]}
                    await create(
                        client, Services, {"metadata": {"name": "demo"}, "spec": spec}, "demo"
                    )
                    answer = await eventually(
                        lambda: page(port, "/livez"), lambda answer: answer[0] != 200
                    )
                    assert (await page(port, "/healthz"))[0] == 503
                    document = json.loads(answer[1])
                    assert document["status"]["IPv4"]["healthy"] is False
                    assert document["status"]["IPv6"]["healthy"] is True
                    assert document["reasons"][0].startswith("IPv4 rules are not written: ")
                    owner.kill()
                    owner.wait()
                    await eventually(
                        lambda: page(port, "/healthz"), lambda answer: answer[0] == 200
                    )
                    assert "10.96.0.100" in rules_in(node)
            finally:
                await client.close()
