"""Agents of a cluster that is not ours: Kubernetes' own kube-apiserver and kube-proxy; of us, the
agents and the judge.

Each agent has the account that ``sliceplane agent grant`` makes, and no other rights.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.running import ROOT, kubectl_path
from tests.kernel.agents import VIP, AgentTown, MovedClock, agent_town
from tests.kernel.load import load
from tests.kernel.netns import Host
from tests.kernel.test_agent_packets import (
    BOTH,
    api_away,
    clocks_moved,
    come_back,
    kill_agent,
    kill_process,
    terminate_under_load,
    until_seen,
)
from tests.peers import kubernetes
from tests.peers.test_kube_proxy import configuration
from tests.waiting import until

pytestmark = [pytest.mark.peer, pytest.mark.kernel, pytest.mark.timeout(1200)]

NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "node-1"},
    "status": {
        "addresses": [{"type": "InternalIP", "address": "10.79.0.1"}],
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}
CIDR = "10.79.1.0/24"


class ForeignCluster:
    """etcd, kube-apiserver and kube-proxy on one machine, and our judge as ``sliceplane
    controllers``.
    """

    def __init__(self, api_server: str, kube_proxy: str, node: Host, folder: Path) -> None:
        self._api_server = api_server
        self._kube_proxy = kube_proxy
        self._node = node
        self._folder = folder
        self.kubeconfig = folder / "admin.kubeconfig"
        self.clock: MovedClock | None = None
        self._stack = ExitStack()
        self._flags = kubernetes.api_server_flags(folder, "http://127.0.0.1:2379", node.ip4, 6443)

    def start(self) -> None:
        """Again after ``stop``, too."""
        self._begin("etcd", "etcd", "--data-dir", str(self._folder / "etcd"), "--unsafe-no-fsync")
        self._begin("kube-apiserver", self._api_server, *self._flags)
        until(
            lambda: "default" in self._kubectl("get", "namespaces"),
            within_s=300,
            ignoring=(RuntimeError,),
        )
        if not self._kubectl("get", "nodes", "-o", "name"):
            self._kubectl("create", "-f", "-", document=NODE)
            # what kube-controller-manager would keep in each namespace
            authority = f"--from-file=ca.crt={self._folder / 'certs' / 'apiserver.crt'}"
            self._kubectl("create", "configmap", "kube-root-ca.crt", authority)
        self._begin(
            "kube-proxy",
            self._kube_proxy,
            "--config",
            configuration(self._folder, str(self.kubeconfig)),
        )
        clock = self.clock.environment() if self.clock is not None else ()
        command = (
            "env",
            *clock,
            f"PYTHONPATH={ROOT / 'src'}",
            sys.executable,
            "-m",
            "sliceplane",
            "controllers",
        )
        which = "--controllers=external-endpoints"
        self._begin("controllers", *command, which, "--kubeconfig", str(self.kubeconfig))

    def stop(self) -> None:
        self._stack.close()

    def _begin(self, name: str, *command: str) -> None:
        log = self._folder / f"{name}.log"
        self._stack.enter_context(kubernetes.started(log, *self._node.place.command(), *command))

    def _kubectl(self, *arguments: str, document: Any = None) -> str:
        own = ("env", f"KUBECONFIG={self.kubeconfig}", f"HOME={self._folder}", kubectl_path())
        return self._node.exec(
            [*own, *arguments], stdin=None if document is None else json.dumps(document)
        ).stdout


def test_agents_serve_a_cluster_that_is_not_ours(
    kube_apiserver: str, kube_proxy: str, tmp_path: Path
) -> None:
    def ground(node: Host, folder: Path) -> ForeignCluster:
        return ForeignCluster(kube_apiserver, kube_proxy, node, folder)

    with agent_town(tmp_path, ground, clocks=True) as town:
        for machine in town.machines:
            machine.kubeconfig = _grant(town, machine.name)
        _a_stolen_account_is_worth_little(town)
        figures = asyncio.run(_live(town))
    print(figures)


def _grant(town: AgentTown, agent: str) -> Path:
    made = town.folder / f"{agent}.kubeconfig"
    command = [
        "agent",
        "grant",
        agent,
        "--service",
        "web",
        "--cidr",
        CIDR,
        "--see-nodes",
        "--apply",
    ]
    environment = ("env", f"PYTHONPATH={ROOT / 'src'}", f"KUBECONFIG={town.ground.kubeconfig}")
    made.write_text(
        town.node.exec([*environment, sys.executable, "-m", "sliceplane", *command]).stdout
    )
    return made


def _a_stolen_account_is_worth_little(town: AgentTown) -> None:
    """kube-apiserver says no: to other names by RBAC, to other labels and addresses by the
    policies.
    """
    stolen = town.machines[0].kubeconfig

    def slice_of(name: str, address: str) -> dict[str, Any]:
        labels = {
            "kubernetes.io/service-name": "web",
            "endpointslice.kubernetes.io/managed-by": "agent.sliceplane.dev",
            "agent.sliceplane.dev/name": "vm1",
        }
        endpoint = {"addresses": [address], "conditions": {"ready": True}}
        return {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": name, "labels": labels},
            "addressType": "IPv4",
            "endpoints": [endpoint],
            "ports": [{"name": "http", "port": 8080}],
        }

    def refusal(document: dict[str, Any], *flags: str) -> str:
        try:
            town.kubectl(
                "apply", "--server-side", *flags, "-f", "-", document=document, kubeconfig=stolen
            )
        except RuntimeError as error:
            return str(error)
        return ""

    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "agent-vm2"},
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"externalIPs": ["10.1.1.1"]},
    }
    for document in (
        slice_of("web-vm2-4", "10.79.1.1"),
        slice_of("other-vm1-4", "10.79.1.1"),
        lease,
        service,
    ):
        assert "forbidden" in refusal(document).lower(), document
    # A policy counts a moment after it was made, and until then a slice would be: so nothing is
    # written at first.
    elsewhere = slice_of("web-vm1-4", "10.66.0.1")
    until(
        lambda: refusal(elsewhere, "--dry-run=server"), lambda said: "may use addresses of" in said
    )
    assert "may use addresses of" in refusal(elsewhere)
    for label, value in (
        ("kubernetes.io/service-name", "bank"),
        ("endpointslice.kubernetes.io/managed-by", "me"),
        ("agent.sliceplane.dev/name", "vm2"),
    ):
        relabelled = slice_of("web-vm1-4", "10.79.1.1")
        relabelled["metadata"]["labels"][label] = value
        assert "ValidatingAdmissionPolicy" in refusal(relabelled), label
    lease = {
        **lease,
        "metadata": {"name": "agent-vm1", "labels": {"agent.sliceplane.dev/name": "vm2"}},
    }
    until(
        lambda: refusal(lease, "--dry-run=server"),
        lambda said: "writes the Lease agent-vm1" in said,
    )
    assert town.slices() == {}


async def _live(town: AgentTown) -> dict[str, Any]:
    for machine in town.machines:
        machine.start("--drain", "3s")
    await until_seen(town.ready, BOTH)
    await until_seen(town.led_to, BOTH)
    async with load(town.node, VIP, 50) as client:
        await client.more(100)
        assert set((await client.tally()).answers) == BOTH
    # kube-proxy does not tell how far it is, so the drain takes its time
    figures: dict[str, Any] = {"SIGTERM": await terminate_under_load(town, 100, "still to follow")}
    await come_back(town)
    figures["kill -9 of the process, s"] = await kill_process(town)
    await come_back(town)
    figures["kill -9 of the agent, s"] = await kill_agent(town)
    await come_back(town)
    figures["API away"] = await api_away(town, 30.0)
    figures["clocks moved by an hour"] = await clocks_moved(town)
    return figures
