"""Two nodes, each with pods behind veth links of its own, and somebody outside: as a small cluster
is wired.

```
 outside ---- switch ---- node-1 ==(pod-a1, pod-a2, pod-ac: a link and a host route each)== a1, a2,
 ac
                   `----- node-2 ==(cni0, a bridge)========================================= b1, b2,
                   bc
```

``a1``, ``a2``, ``b1`` and ``b2`` serve; ``ac`` and ``bc`` are clients. Nodes know each other's pod
networks. Nobody but the nodes has a route to anything that is not of its own link.
"""

from __future__ import annotations

import os

import demo.net
from tests.kernel.cluster import SERVER
from tests.kernel.netns import Host, Net

from sliceplane.kit.ip import Family

POD_NETWORKS: dict[Family, str] = {"IPv4": "10.244.0.0/16", "IPv6": "fd44::/16"}
#: the gateway of a pod behind a link of its own
LINK_GATEWAY: dict[Family, str] = {"IPv4": "169.254.1.1", "IPv6": "fe80::1"}
#: that of pods on the bridge
BRIDGE_GATEWAY: dict[Family, str] = {"IPv4": "10.244.2.254", "IPv6": "fd44:2::fe"}
#: reaches everybody, however often it has to try
GREET = """
import socket, sys, time
deadline = time.monotonic() + 60
for address in sys.argv[1:]:
    while True:
        try:
            socket.create_connection((address, 8080), timeout=0.2).close()
            break
        except OSError as error:
            if time.monotonic() > deadline:
                sys.exit(f"{address} cannot be reached: {error}")
            time.sleep(0.01)
"""
LINK_PREFIX, BRIDGE = "pod-", "cni0"


class Fabric:
    """See the module.  Use as a context manager."""

    def __init__(self, label: str) -> None:
        self._net = Net(label)
        self._prefix = f"sp-{label}-{os.getpid()}"
        self._pods: list[Host] = []

    def __enter__(self) -> Fabric:
        self._net.__enter__()
        try:
            self._build()
        except Exception:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for pod in self._pods:
            pod.close()
            demo.net.run_ip("netns", "del", pod.netns)
        self._net.__exit__()

    def _build(self) -> None:
        net = self._net
        self.nodes = [
            net.add_host(f"node{n}", ip4=f"192.168.50.{n}/24", ip6=f"fd50::{n}/64") for n in (1, 2)
        ]
        for number, node in enumerate(self.nodes, 1):
            net.make_router(node)
            other = 3 - number
            for flag, network, gateway in (
                ("-4", f"10.244.{other}.0/24", f"192.168.50.{other}"),
                ("-6", f"fd44:{other}::/64", f"fd50::{other}"),
            ):
                node.exec(["ip", flag, "route", "add", network, "via", gateway])
        first, second = self.nodes
        second.exec(
            [
                "ip",
                "link",
                "add",
                BRIDGE,
                "type",
                "bridge",
                "forward_delay",
                "0",
                "mcast_snooping",
                "0",
            ]
        )
        second.exec(["ip", "addr", "add", f"{BRIDGE_GATEWAY['IPv4']}/24", "dev", BRIDGE])
        second.exec(
            ["ip", "-6", "addr", "add", f"{BRIDGE_GATEWAY['IPv6']}/64", "dev", BRIDGE, "nodad"]
        )
        second.exec(["ip", "link", "set", BRIDGE, "up"])
        self.a1, self.a2, self.ac = (
            self._linked(first, name, n) for name, n in (("a1", 1), ("a2", 2), ("ac", 9))
        )
        self.b1, self.b2, self.bc = (
            self._bridged(second, name, n) for name, n in (("b1", 1), ("b2", 2), ("bc", 9))
        )
        self.outside = net.add_host(
            "outside",
            ip4="192.168.50.9/24",
            ip6="fd50::9/64",
            gateway4="192.168.50.1",
            gateway6="fd50::1",
        )
        for each in (*self._pods, self.outside):
            each.place.set_kernel(
                "ipv6/conf/eth0/accept_redirects=0"
            )  # the short way round a node is no way here
        self.servers = {"a1": self.a1, "a2": self.a2, "b1": self.b1, "b2": self.b2}
        for name, host in self.servers.items():
            host.serve(SERVER, name, "8080")
        # The first IPv6 packet between two nodes may be lost while they look for each other; not
        # one of a test's.
        places = [place for host in self.servers.values() for place in (host.ip4, host.ip6)]
        for each in (self.ac, self.bc):
            each.python(GREET, *places)

    def _linked(self, node: Host, name: str, number: int) -> Host:
        """A pod of node-1: a link of its own, host routes on both ends."""
        pod, end = (
            self._pod(node, name, f"10.244.1.{number}/32", f"fd44:1::{number}/128"),
            f"{LINK_PREFIX}{name}",
        )
        for flag, family, address in (("-4", "IPv4", pod.ip4), ("-6", "IPv6", pod.ip6)):
            gateway = LINK_GATEWAY[family]  # type: ignore[index]  # both are families
            more = ("nodad",) if flag == "-6" else ()
            node.exec(
                [
                    "ip",
                    flag,
                    "addr",
                    "add",
                    f"{gateway}/{'32' if flag == '-4' else '64'}",
                    "dev",
                    end,
                    *more,
                ]
            )
            node.exec(["ip", flag, "route", "add", address, "dev", end])
            pod.exec(
                ["ip", flag, "route", "add", "default", "via", gateway, "dev", "eth0", "onlink"]
            )
        return pod

    def _bridged(self, node: Host, name: str, number: int) -> Host:
        """A pod of node-2."""
        pod = self._pod(node, name, f"10.244.2.{number}/24", f"fd44:2::{number}/64")
        node.exec(["ip", "link", "set", f"{LINK_PREFIX}{name}", "master", BRIDGE])
        for flag, family in (("-4", "IPv4"), ("-6", "IPv6")):
            pod.exec(["ip", flag, "route", "add", "default", "via", BRIDGE_GATEWAY[family]])  # type: ignore[index]  # both are families
        return pod

    def _pod(self, node: Host, name: str, ip4: str, ip6: str) -> Host:
        namespace, end = f"{self._prefix}-{name}", f"{LINK_PREFIX}{name}"
        demo.net.run_ip("netns", "add", namespace)
        pod = Host(demo.net.Host(namespace), ip4, ip6)
        self._pods.append(pod)
        pod.place.set_kernel("ipv6/conf/all/accept_dad=0", "ipv6/conf/default/accept_dad=0")
        node.exec(
            ["ip", "link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", namespace]
        )
        pod.exec(["ip", "link", "set", "lo", "up"])
        pod.exec(["ip", "addr", "add", ip4, "dev", "eth0"])
        pod.exec(["ip", "-6", "addr", "add", ip6, "dev", "eth0", "nodad"])
        pod.exec(["ip", "link", "set", "eth0", "up"])
        node.exec(["ip", "link", "set", end, "up"])
        return pod
