"""The inputs of ``explain --kernel`` from its machine: files of /proc and /sys, and the lists of
three programs.

A program that is missing, or not permitted, is reported as not checked; the others count without
it.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from sliceplane.consume.served import Served
from sliceplane.diagnose.explain.kernel import BridgePort, KernelFacts, RuleSet, parse_ipvs
from sliceplane.kit.ip import FAMILIES
from sliceplane.node.conntrack import UdpFlow, parse_flow
from sliceplane.node.io.observing.nft_reader import read_graphs
from sliceplane.node.nft.layout import NODE_PORT_IPS
from sliceplane.node.nft.listing import Form, listed
from sliceplane.node.nft.names import TABLE
from sliceplane.node.nft.served import KUBE_PROXY_PARTS, served
from sliceplane.node.nft.served import hairpins as hairpins_of
from sliceplane.node.observing.graph import UnreadableRules
from sliceplane.node.observing.graph import served as by_graph
from sliceplane.node.observing.nftables import TABLE as KUBE_PROXY_TABLE
from sliceplane.node.observing.saved import read_hairpins, read_served

TIMEOUT_S: Final = 20.0
#: seconds until a kernel that differs from the API is read again
RECHECK_DELAY_S: Final = 2.0
_PROC: Final = Path("/proc/sys/net")
_IPVS: Final = Path("/proc/net/ip_vs")
_ROUTES: Final = Path("/proc/net/fib_trie")
_ADDRESSES_IPV6: Final = Path("/proc/net/if_inet6")
_NETWORK: Final = Path("/sys/class/net")
_PROMISCUOUS: Final = 0x100
#: the chain that only proxies create; the kubelet has KUBE-FIREWALL and KUBE-KUBELET-CANARY
_SERVICES: Final = "KUBE-SERVICES"


_BY_KUBE_PROXY: Final = "kube-proxy's nftables"
_BY_IPTABLES: Final = "KUBE-* of iptables-nft"
_BY_LEGACY: Final = "KUBE-* of iptables-legacy"
#: the programs that list such rules, one for each of ``FAMILIES``
_SAVING: Final = {
    _BY_IPTABLES: ("iptables-nft-save", "ip6tables-nft-save"),
    _BY_LEGACY: ("iptables-legacy-save", "ip6tables-legacy-save"),
}


class _Unread(Exception):
    """A part of the kernel cannot be read; the text names it, with the reason."""


async def read_kernel() -> KernelFacts:
    unread: list[str] = []
    count, most = (
        _number(_PROC / "netfilter/nf_conntrack_count"),
        _number(_PROC / "netfilter/nf_conntrack_max"),
    )
    if count is None or most is None:
        unread.append("flows (nf_conntrack is not loaded)")
    ports, promiscuous = _bridges()
    rule_sets: tuple[RuleSet, ...] | None = None
    flows: tuple[tuple[UdpFlow, int], ...] | None = None
    connections: tuple[tuple[UdpFlow, int], ...] | None = None
    try:
        rule_sets = await _rule_sets(unread)
    except _Unread as error:
        unread.append(str(error))
    try:
        flows = await _flows("udp")
        connections = await _flows("tcp", "--state", "ESTABLISHED")
    except _Unread as error:
        unread.append(str(error))
    rules: Served | None = None
    hairpins: Served | None = None
    try:
        rules, hairpins = await _served(rule_sets)
    except _Unread as error:
        unread.append(str(error))
    return KernelFacts(
        rules=None if rules is None else tuple(sorted(rules.items())),
        hairpins=None if hairpins is None else tuple(sorted(hairpins.items())),
        host_name=os.uname().nodename,
        addresses=frozenset(_addresses()),
        flows_count=count,
        flows_max=most,
        bridge_ports=ports,
        promiscuous=promiscuous,
        bridge_calls=bool(_number(_PROC / "bridge/bridge-nf-call-iptables") or 0),
        rule_sets=rule_sets,
        flows=flows,
        connections=connections,
        ipvs=parse_ipvs(_text(_IPVS)),
        offloading=await _offloading(unread),
        release=os.uname().release,
        node_port_addresses=await _node_port_addresses(),
        unread=tuple(unread),
    )


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(), 0)
    except (OSError, ValueError):
        return None


def _text(path: Path) -> str:
    """ "": it is not there."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _addresses() -> Iterator[str]:
    """Yields the addresses of this machine: those of its namespace."""
    previous = ""
    for line in _text(_ROUTES).splitlines():
        if "host LOCAL" in line:
            yield previous
        previous = line.split()[-1] if line.strip() else ""
    for line in _text(_ADDRESSES_IPV6).splitlines():
        yield str(ip_address(bytes.fromhex(line.split()[0])))


def _bridges() -> tuple[tuple[BridgePort, ...], frozenset[str]]:
    """Returns the ports of bridges, and the promiscuous bridges."""
    ports = []
    for interface in sorted(_NETWORK.iterdir()):
        hairpin = _number(interface / "brport/hairpin_mode")
        if hairpin is not None:
            ports.append(
                BridgePort(
                    interface.name, (interface / "brport/bridge").resolve().name, bool(hairpin)
                )
            )
    bridges = {port.bridge for port in ports}
    flags = {bridge: _number(_NETWORK / bridge / "flags") or 0 for bridge in bridges}
    return tuple(ports), frozenset(
        bridge for bridge, value in flags.items() if value & _PROMISCUOUS
    )


async def _rule_sets(unread: list[str]) -> tuple[RuleSet, ...]:
    """Returns the rule sets by author. Raises ``_Unread`` if nftables cannot be listed."""
    listed = json.loads(await _output("nft", "--json", "list", "chains"))
    chains = {_chain(entry["chain"]) for entry in listed.get("nftables", ()) if "chain" in entry}
    tables = {table for table, _ in chains}
    sets = []
    if TABLE in tables:
        sets.append(RuleSet("Sliceplane's nftables", True, "sliceplane proxy --cleanup"))
    if "kube-proxy" in tables:
        sets.append(RuleSet(_BY_KUBE_PROXY, False, "kube-proxy --cleanup"))
    if ("nat", _SERVICES) in chains:
        sets.append(RuleSet(_BY_IPTABLES, False, "kube-proxy --cleanup"))
    try:
        if f":{_SERVICES} " in await _output("iptables-legacy-save", "-t", "nat"):
            sets.append(RuleSet(_BY_LEGACY, False, _LEGACY_REMOVAL))
    except _Unread as error:
        unread.append(str(error))
    return tuple(sets)


async def _served(rule_sets: tuple[RuleSet, ...] | None) -> tuple[Served, Served | None]:
    """Returns the targets of the cluster IPs, and those that reach themselves (``None``: unknown),
    by any proxy's nftables or iptables.  Raises ``_Unread``.
    """
    if rule_sets is None:
        raise _Unread("rules of Services (nftables cannot be listed)")
    destinations: Served = {}
    hairpins: Served = {}
    if not any(entry.ours for entry in rule_sets):
        others = ", ".join(entry.title for entry in rule_sets)
        if others == _BY_KUBE_PROXY:
            destinations = await _served_by_kube_proxy()
            return destinations, await _hairpins_by_kube_proxy(destinations)
        programs = _SAVING.get(others)
        if programs is None:
            why = f"{others} are not compared" if others else "no proxy wrote any here"
            raise _Unread(f"rules of Services ({why})")
        for program, family in zip(programs, FAMILIES, strict=True):
            saved = (await _output(program)).splitlines()
            try:
                destinations |= read_served(saved, family)
                hairpins |= read_hairpins(saved, family)
            except UnreadableRules as error:
                raise _Unread(f"rules of Services ({error})") from error
        return destinations, hairpins
    for nft_family in ("ip", "ip6"):
        try:
            form = listed(await _output("nft", "--json", "list", "table", nft_family, TABLE))
            by_family = served(form)
            destinations |= by_family
            hairpins |= hairpins_of(form, by_family)
        except _Unread as error:
            if "No such file" not in str(error):  # a kernel without that family
                raise
    return destinations, hairpins


async def _served_by_kube_proxy() -> Served:
    """Raises ``_Unread``."""
    try:
        graphs = await asyncio.to_thread(read_graphs, FAMILIES)
    except (OSError, UnreadableRules) as error:
        raise _Unread(f"rules of Services ({error})") from error
    return {key: targets for graph in graphs.values() for key, targets in by_graph(graph).items()}


async def _hairpins_by_kube_proxy(destinations: Served) -> Served | None:
    """Returns ``None`` for a kube-proxy that has no set of them.  Raises ``_Unread``."""
    hairpins: Served = {}
    for nft_family, is_6 in (("ip", False), ("ip6", True)):
        of_family = {
            key: value for key, value in destinations.items() if (":" in key.address) == is_6
        }
        if not of_family:
            continue
        form: Form = {}
        for kind, name in KUBE_PROXY_PARTS:
            command = ("nft", "--json", "list", kind, nft_family, KUBE_PROXY_TABLE, name)
            try:
                form |= listed(await _output(*command))
            except _Unread as error:
                if "No such file" in str(error):
                    return None
                raise
        hairpins |= hairpins_of(form, of_family)
    return hairpins


async def _offloading(unread: list[str]) -> tuple[str, ...]:
    """Returns the VXLAN interfaces that leave checksums to the device."""
    interfaces = []
    for interface in sorted(_NETWORK.iterdir()):
        if "DEVTYPE=vxlan" not in _text(interface / "uevent").split():
            continue
        try:
            features = await _output("ethtool", "-k", interface.name)
        except _Unread as error:
            unread.append(str(error))
            break
        if "tx-checksum-ip-generic: on" in features:
            interfaces.append(interface.name)
    return tuple(interfaces)


async def _node_port_addresses() -> tuple[str, ...]:
    """Returns the addresses at which our nftables serve node ports; empty for all addresses, or
    without rules of ours.
    """
    try:
        listed = json.loads(
            await _output("nft", "--json", "list", "set", "ip", TABLE, NODE_PORT_IPS.name)
        )
    except _Unread:
        return ()
    sets = [entry["set"].get("elem", []) for entry in listed.get("nftables", ()) if "set" in entry]
    return tuple(sorted(str(address) for elements in sets for address in elements))


_LEGACY_REMOVAL: Final = "iptables-legacy-save | grep -v KUBE | iptables-legacy-restore"


def _chain(entry: dict[str, Any]) -> tuple[str, str]:
    return entry["table"], entry["name"]


async def _flows(protocol: str, *more: str) -> tuple[tuple[UdpFlow, int], ...]:
    counts: Counter[UdpFlow] = Counter()
    for family in FAMILIES:
        listed = await _output("conntrack", "-L", "-p", protocol, "-f", family.lower(), *more)
        flows = (parse_flow(line, family, protocol) for line in listed.splitlines())
        counts.update(flow for flow in flows if flow is not None)
    return tuple(sorted(counts.items()))


async def _output(*command: str) -> str:
    """Returns the output of *command*. Raises ``_Unread``."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise _Unread(f"what {command[0]} lists ({error.strerror})") from error
    try:
        async with asyncio.timeout(TIMEOUT_S):
            stdout, stderr = await process.communicate()
    except TimeoutError as error:
        process.kill()
        await process.communicate()
        raise _Unread(f"what {command[0]} lists (no answer within {TIMEOUT_S:g} s)") from error
    if process.returncode != 0:
        lines = stderr.decode(errors="replace").strip().splitlines()
        raise _Unread(
            f"what {command[0]} lists ({lines[0] if lines else f'exit code {process.returncode}'})"
        )
    return stdout.decode(errors="replace")
