"""Ports and address families: a slice has ports of its own, and not every slice is meant for
everybody.
"""

from __future__ import annotations

from typing import Any, Final

from sliceplane.lab.conformance.objects import HTTP, ip, pod, pods, service, slice_
from sliceplane.lab.conformance.story import CHECK, AskedPort, Case, Document, Put


def _port(name: str, number: int, protocol: str = "TCP") -> Document:
    return {"name": name, "port": number, "protocol": protocol}


def _six(number: int, **keywords: Any) -> Document:
    return pod(number, family="IPv6", **keywords)


def _machine(number: int) -> Document:
    """An endpoint that is no Pod."""
    return {"addresses": [ip(number)], "conditions": {"ready": True}}


def _names(name: str, *hosts: str) -> Put:
    """A slice of host names, which the API has deprecated and still takes."""
    return slice_(
        name,
        *({"addresses": [host], "conditions": {"ready": True}} for host in hosts),
        family="FQDN",
    )


CASES: Final = (
    Case(
        "port-number-changes",
        "The number of a named port changes under all endpoints",
        ("cloudnativelabs/kube-router#842", "haproxytech/kubernetes-ingress#334"),
        given=(slice_("a", *pods((1, 2))),),
        story=(CHECK, slice_("a", *pods((1, 2)), ports=[_port("http", 9090)]), CHECK),
    ),
    Case(
        "numbers-differ-by-slice",
        "During a rollout the same port name has two numbers, in two slices",
        ("KEP-0752, Mapping",),
        given=(slice_("a", *pods((1, 2))), slice_("b", pod(3), ports=[_port("http", 9090)])),
        story=(
            CHECK,
            slice_("a", pod(1)),
            slice_("b", pod(3), pod(2), ports=[_port("http", 9090)]),
            CHECK,
        ),
    ),
    Case(
        "two-processes-on-one-machine",
        "Endpoints that no object stands for may share an address: the port tells them apart",
        ("kubernetes/kubernetes#101935", "cilium/cilium#22446"),
        given=(slice_("a", _machine(1)), slice_("b", _machine(1), ports=[_port("http", 9090)])),
        story=(
            CHECK,
            slice_("a", _machine(2)),
            CHECK,
            slice_("b", ports=[_port("http", 9090)]),
            CHECK,
        ),
    ),
    Case(
        "slice-lacks-the-port",
        "A slice that lacks the port has nothing for it",
        ("cilium/cilium#15142",),
        given=(slice_("a", pod(1)), slice_("b", pod(2), ports=[_port("metrics", 9100)])),
        story=(CHECK, slice_("b", pod(2), ports=[_port("metrics", 9100), *HTTP]), CHECK),
    ),
    Case(
        "port-goes-away",
        "A port is removed from a slice whose endpoints stay",
        ("kubernetes-sigs/gateway-api-inference-extension#2306", "cilium/cilium#15142"),
        given=(slice_("a", pod(1)), slice_("b", pod(2))),
        story=(CHECK, slice_("b", pod(2), ports=[_port("metrics", 9100)]), CHECK),
    ),
    Case(
        "one-of-several-ports",
        "Of several ports the one that is asked for counts",
        ("cilium/cilium#15142",),
        given=(
            slice_("a", *pods((1, 2)), ports=[_port("admin", 9000), *HTTP, _port("metrics", 9100)]),
        ),
        story=(CHECK, slice_("a", *pods((1, 2)), ports=[_port("metrics", 9100), *HTTP]), CHECK),
    ),
    Case(
        "ports-change-places",
        "Ports are known by name: their order says nothing",
        ("openshift/ovn-kubernetes#515",),
        given=(slice_("a", pod(1), ports=[_port("http", 8080), _port("admin", 9000)]),),
        story=(
            CHECK,
            slice_("a", pod(1), ports=[_port("admin", 8080), _port("http", 9000)]),
            CHECK,
        ),
    ),
    Case(
        "same-number-other-protocol",
        "TCP and UDP may share a number; a UDP port is none for TCP",
        ("kubernetes/ingress-nginx#984", "istio/istio#12742"),
        given=(slice_("a", pod(1), ports=[_port("dns-udp", 8080, "UDP"), *HTTP]),),
        story=(CHECK, slice_("a", pod(1), ports=[_port("dns-udp", 8080, "UDP")]), CHECK),
    ),
    Case(
        "no-ports-at-all",
        "A slice with an empty list of ports has none for anybody",
        ("discovery.k8s.io/v1 EndpointSlice",),
        given=(slice_("a", pod(1)), slice_("b", pod(2), ports=[])),
        story=(CHECK, slice_("b", pod(2)), CHECK),
    ),
    Case(
        "port-without-a-name",
        "The one port of a Service may have no name",
        ("discovery.k8s.io/v1 EndpointPort",),
        given=(slice_("a", *pods((1, 2)), ports=[_port("", 8080)]),),
        story=(
            service({"port": 80, "protocol": "TCP"}),
            CHECK,
            slice_("a", pod(1), ports=[_port("", 8081)]),
            CHECK,
        ),
        asked_port=AskedPort(port=""),
        needs=frozenset({"unnamed-port"}),
    ),
    Case(
        "hundred-ports",
        "A slice may have 100 ports, and the asked one may be the last",
        ("kubernetes/kubernetes#99382",),
        given=(
            slice_(
                "a",
                pod(1),
                ports=[*(_port(f"p-{number}", 9000 + number) for number in range(99)), *HTTP],
            ),
        ),
        story=(CHECK,),
    ),
    Case(
        "other-family-stays-apart",
        "The IPv6 slices of a Service are not for a client of IPv4",
        ("linkerd/linkerd2#12428", "KEP-0563"),
        given=(slice_("a", *pods((1, 2))), slice_("b", _six(1), _six(2), family="IPv6")),
        story=(CHECK, slice_("b", _six(1), family="IPv6"), CHECK, slice_("a", pod(2)), CHECK),
        needs=frozenset({"families"}),
    ),
    Case(
        "six-beside-four",
        "A client of IPv6 follows the IPv6 slices",
        ("KEP-0563", "cilium/cilium#20697"),
        given=(slice_("a", *pods((1, 2))), slice_("b", _six(1), _six(2), family="IPv6")),
        story=(CHECK, slice_("b", _six(2), _six(3), family="IPv6"), CHECK),
        asked_port=AskedPort(family="IPv6"),
        needs=frozenset({"families"}),
    ),
    Case(
        "names-are-no-addresses",
        "Slices of host names are left alone by those who want addresses",
        ("kubernetes/ingress-nginx#10080", "kubernetes/kubernetes#114210", "istio/istio#34995"),
        given=(slice_("a", pod(1)), _names("b", "db.example.com")),
        story=(
            CHECK,
            _names("b", "db.example.com", "db2.example.com"),
            CHECK,
            slice_("a", pod(1), pod(2)),
            CHECK,
        ),
        needs=frozenset({"families"}),
    ),
)
