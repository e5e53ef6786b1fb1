"""iptables on the real kernel: it holds what the fake one holds, of both flavours; nobody notices
changes, restarts or a change of mode; what somebody else takes away comes back. Packets of every
kind of Service are in ``test_service_packets``.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.iptables.fake import BUILT_IN
from tests.iptables.restorer import Machine
from tests.iptables.test_restore_plane import SORTS, unordered
from tests.kernel.cluster import VIP, Mode, make_slice, running, service
from tests.kernel.netns import Host, Net, run
from tests.kernel.test_proxy_command import create, page, started
from tests.nft.machine import DYING, NODE, NODE_IP, ep, node
from tests.nft.machine import make_slice as any_slice
from tests.nft.machine import service as any_service
from tests.ports import free_port
from tests.waiting import eventually

from sliceplane.api.scheme import EndpointSlices, Namespaces, Services
from sliceplane.kit.ip import FAMILIES, Family
from sliceplane.node.context import RulesConfig
from sliceplane.node.io.kernel.iptables_backend import Flavour, Iptables
from sliceplane.node.io.options import ProxyTiming
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.io.kubeconfig import load

pytestmark = pytest.mark.kernel

PROGRAM = {"IPv4": "iptables", "IPv6": "ip6tables"}


@pytest.fixture(scope="module")
def client(net: Net, backends: list[Host]) -> Host:
    host = net.add_host("client", ip4="10.10.0.1/16", ip6="fd10::1/64")
    for address in ("172.30.0.0/16", "203.0.113.0/24"):
        host.exec(["ip", "route", "add", address, "dev", "eth0"])
    return host


def saved(host: Host, flavour: str, family: Family) -> dict[str, dict[str, list[str]]]:
    """``iptables-save``, as the fake kernel keeps it."""
    tables: dict[str, dict[str, list[str]]] = {}
    for table in BUILT_IN:
        chains: dict[str, list[str]] = {}
        for line in host.exec(
            [f"{PROGRAM[family]}-{flavour}-save", "-t", table]
        ).stdout.splitlines():
            if line.startswith(":"):
                chains[line[1:].split()[0]] = []
            elif line.startswith("-A "):
                _, chain, rule = line.split(" ", 2)
                chains[chain].append(
                    re.sub(r"(?<=--probability )\S+", lambda found: f"{float(found[0]):.6f}", rule)
                )
        tables[table] = chains
    return tables


def kept(machine: Machine) -> dict[str, dict[str, list[str]]]:
    return {
        table: {
            chain: [
                re.sub(r"(?<=--probability )\S+", lambda found: f"{float(found[0]):.6f}", rule)
                for rule in rules
            ]
            for chain, rules in chains.items()
        }
        for table, chains in machine.kernel.tables.items()
    }


def disturb(machine: Machine, family: Family, rng: random.Random, version: int) -> None:
    """Something happens to one of three Services."""
    pod = "10.0.0." if family == "IPv4" else "fd00::"
    number = rng.randrange(1, 4)
    if rng.random() < 0.4:
        machine.put(any_service(f"s{number}", number, **SORTS[rng.choice(sorted(SORTS))]))
        return
    states: list[dict[str, Any]] = [{}, {"nodeName": NODE}, DYING]
    found = [
        ep(f"{pod}{at}", **rng.choice(states)) for at in rng.sample(range(1, 6), rng.randrange(5))
    ]
    machine.put(any_slice(found, f"s{number}", version=version, kind=family))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("flavour", ["nft", "legacy"])
async def test_the_kernel_holds_what_the_fake_one_holds(
    net: Net, flavour: Flavour, family: Family
) -> None:
    host = net.add_host(f"p{flavour}{family[-1]}", ip4="10.10.9.1/16", ip6="fd10::9:1/64")
    kernel = Iptables(netns=host.netns, flavour=flavour)
    await kernel.probe()
    detect = RulesConfig(detect_local_mode="InterfaceNamePrefix", pod_interface_name_prefix="cali")
    for rules, seed in ((RulesConfig(cluster_cidrs=("10.0.0.0/8", "fd00::/8")), 1), (detect, 2)):
        machine, rng = Machine(family, rules), random.Random(seed)
        machine.put(node("a", NODE_IP, "fd99::1"))
        told = 0
        for version in range(1, 25):
            disturb(machine, family, rng, version)
            if version == 12:
                machine.plane.request_full_write(0.0)
            machine.sync()
            while told < len(machine.texts):
                host.exec(
                    [f"{PROGRAM[family]}-{flavour}-restore", "--noflush"], stdin=machine.texts[told]
                )
                told += 1
        assert unordered(saved(host, flavour, family)) == unordered(kept(machine))
        assert await kernel.differences(machine.plane) == ()
        await _each_damage_is_named(host, kernel, machine, f"{PROGRAM[family]}-{flavour}")
        await kernel.remove_leftovers((family,))  # these are ours, so they go
        assert all(
            chains == {name: [] for name in BUILT_IN[t]}
            for t, chains in saved(host, flavour, family).items()
        )
    assert not (await kernel.list_rules(family)).chains


async def _each_damage_is_named(
    host: Host, kernel: Iptables, machine: Machine, program: str
) -> None:
    """What others may do to a rule, and that it is as before when it is undone."""
    (chain, rules) = next(
        (name, rules) for name, rules in kept(machine)["nat"].items() if "-SEP-" in name and rules
    )
    damages = (
        (
            f"-I {chain} -j ACCEPT",
            f"-D {chain} -j ACCEPT",
            f"chain {chain} of nat has the rule -j ACCEPT, which is not ours",
        ),
        (
            "-I KUBE-SERVICES -j RETURN",
            "-D KUBE-SERVICES -j RETURN",
            "of nat has the rule -j RETURN",
        ),
        (f"-D {chain} 1", f"-I {chain} 1 {rules[0]}", f"chain {chain} of nat lacks the rule "),
        (f"-N {chain}2", f"-X {chain}2", f"chain {chain}2 of nat is of another"),
    )
    for harm, mend, phrase in damages:
        host.exec(["sh", "-c", f"{program} -t nat {harm}"])
        found = await kernel.differences(machine.plane)
        assert len(found) == 1, harm
        assert phrase in found[0], found
        host.exec(["sh", "-c", f"{program} -t nat {mend}"])
        assert await kernel.differences(machine.plane) == (), mend


MODES: tuple[Mode, ...] = ("iptables-nft", "iptables-legacy")


@pytest.mark.parametrize("mode", MODES)
async def test_no_connection_fails_while_iptables_change_hands(
    client: Host, backends: list[Host], mode: Mode
) -> None:
    """New connections all the time while endpoints come and go and one process after the other
    takes over.
    """
    async with running(client, mode) as cluster:
        cluster.put(service(), make_slice("IPv4", backends))
        cluster.synced()
        await cluster.written()
        asking = asyncio.create_task(cluster.ask(VIP["IPv4"], count=600))
        answers: set[str] = set()
        version, heirs = 1, 0
        while not asking.done() or heirs < 2:
            if asking.done():  # a busy machine: one has taken over so far
                answers |= set(await asking)
                asking = asyncio.create_task(cluster.ask(VIP["IPv4"], count=600))
            heirs += 1
            async with running(client, mode) as heir:
                heir.clean = False
                heir.put(service(), make_slice("IPv4", backends))
                heir.synced()
                await heir.written()
                for _ in range(5):
                    version += 1
                    heir.put(
                        make_slice(
                            "IPv4",
                            backends[version % 3 :] + backends[: version % 2],
                            version=version,
                        )
                    )
                    await heir.written()
        answers |= set(await asking)
        assert answers == {"b1", "b2", "b3"}


@pytest.mark.parametrize("mode", MODES)
async def test_flushed_rules_come_back_by_themselves(
    client: Host, backends: list[Host], mode: Mode
) -> None:
    """As a firewall does that is loaded again: its own way of loading takes everybody's rules
    away.
    """
    async with running(client, mode, timing=ProxyTiming(check_period_s=0.1)) as cluster:
        cluster.put(service(), make_slice("IPv4", backends[:1]))
        cluster.synced()
        await cluster.written()
        for flush in (["-F"], ["-t", "nat", "-F"], ["-t", "nat", "-X"]):
            client.exec([mode, *flush])
        await eventually(lambda: cluster.ask(VIP["IPv4"]), lambda answers: set(answers) == {"b1"})
        cluster.put(make_slice("IPv4", backends[1:2], version=2))
        await cluster.written()
        assert set(await cluster.ask(VIP["IPv4"], count=4)) == {"b2"}


async def cleaned_up(*arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sliceplane", "proxy", *arguments, "--cleanup"),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert await process.wait() == 0


async def test_the_command_changes_its_mode_under_traffic(
    client: Host, backends: list[Host], tmp_path: Path
) -> None:
    def nft_tables() -> str:
        return client.exec(["nft", "list", "tables"]).stdout

    def chains() -> str:
        return client.exec(["iptables-save", "-t", "nat"]).stdout

    async with started("apiserver", "--secure-port", "0", "--data-dir", str(tmp_path)) as (_, line):
        kubeconfig = line.partition("kubeconfig=")[2]
        api = HttpClient(load(kubeconfig))
        try:
            await create(api, Namespaces, {"metadata": {"name": "ns"}})
            await create(api, Namespaces, {"metadata": {"name": "ns2"}})
            spec = {"clusterIP": "10.96.0.99", "ports": [{"name": "http", "port": 80}]}
            await create(
                api, Services, {"metadata": {"name": "svc", "namespace": "ns"}, "spec": spec}, "ns"
            )
            endpoints = {
                "metadata": {
                    "name": "svc-1",
                    "namespace": "ns",
                    "labels": {"kubernetes.io/service-name": "svc"},
                },
                "addressType": "IPv4",
                "endpoints": [{"addresses": [host.ip4]} for host in backends],
                "ports": [{"name": "http", "port": 8080}],
            }
            await create(api, EndpointSlices, endpoints, "ns")
        finally:
            await api.close()
        client.exec(["ip", "route", "replace", "10.96.0.0/16", "dev", "eth0"])
        common = (
            "--kubeconfig",
            kubeconfig,
            "--hostname-override",
            "node-1",
            "--netns",
            client.netns,
        )
        for mode in ("iptables", "nftables", "iptables"):
            port = free_port()
            listen = ("--metrics-bind-address", f"127.0.0.1:{port}")
            async with started("proxy", *common, "--proxy-mode", mode, *listen):
                await eventually(
                    lambda: ("table ip sliceplane" in nft_tables(), "KUBE-SVC-" in chains()),
                    lambda there, mode=mode: there == (mode == "nftables", mode == "iptables"),
                )
                assert (await page(port, "/proxyMode"))[1] == mode
                found = await asyncio.to_thread(_answers, client)
                assert found <= {"b1", "b2", "b3"}, (mode, found)
        await cleaned_up("--netns", client.netns)  # whatever mode it is asked for
        assert "KUBE-" not in chains()
        assert "table ip sliceplane" not in nft_tables()


def _answers(host: Host) -> set[str]:
    program = (
        "import socket\n"
        "for _ in range(6):\n"
        "    with socket.create_connection(('10.96.0.99', 80), timeout=20) as s:\n"
        "        s.sendall(b'?'); print(s.recv(100).decode().split()[0])\n"
    )
    return set(host.python(program).stdout.split())


def test_modes_that_are_renders_only() -> None:
    for mode in ("ipvs", "kernelspace"):
        with pytest.raises(
            RuntimeError, match=f"renders only: sliceplane proxy render --proxy-mode {mode}"
        ):
            run(
                [
                    "env",
                    f"PYTHONPATH={os.pathsep.join(sys.path)}",
                    sys.executable,
                    "-m",
                    "sliceplane",
                    "proxy",
                    "--proxy-mode",
                    mode,
                ]
            )
