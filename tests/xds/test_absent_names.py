"""A name that leads nowhere: the client, the status page and the log say which part of it is
wrong.
"""

from __future__ import annotations

import pytest
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryResponse, DiscoveryResponse
from tests.xds.streams.clients import delta_request, node, whole_request
from tests.xds.worlds import ENVOY, GRPC, World, service

from sliceplane.api.core import ServicePort
from sliceplane.xds.catalog import XdsCatalog, XdsConfig
from sliceplane.xds.names import ASSIGNMENT, CLUSTER, LISTENER
from sliceplane.xds.resource import XdsClient
from sliceplane.xds.streams.actions import VisibleNamespaces, XdsAbsent, XdsSend
from sliceplane.xds.streams.channel import ABSENT_MAX
from sliceplane.xds.streams.delta import DeltaStream
from sliceplane.xds.streams.messages import NOT_FOUND, PERMISSION_DENIED, ResponseEncoder
from sliceplane.xds.streams.stream import AdsStream
from sliceplane.xds.streams.whole import WholeStream

HTTP = ServicePort(name="http", port=80)
ADMIN = ServicePort(name="admin", port=9090)
UDP = ServicePort(name="dns", port=53, protocol="UDP")
NO_SERVICE = "there is no Service default/wbe"


def world() -> World:
    return World(
        service("web", ports=(HTTP,)),
        service("two", ports=(HTTP, ADMIN)),
        service("udp", ports=(UDP,)),
    )


class Asked:
    """A stream of a client of *world*, which asks for names."""

    def __init__(
        self, world: World, client: XdsClient, visible: VisibleNamespaces | None = None
    ) -> None:
        self.world = world
        self.is_delta = client.kind == "envoy"
        self.stream: AdsStream = (DeltaStream if self.is_delta else WholeStream)(ResponseEncoder())
        self.view = world.view(client)
        self.visible = visible or VisibleNamespaces()
        #: of ``resource_errors``: name -> status of gRPC, and its text
        self.errors: dict[str, tuple[int, str]] = {}
        self.noted: list[XdsAbsent] = []

    def ask(self, type_url: str, *names: str) -> None:
        if self.is_delta:
            message = delta_request(type_url, subscribe=names, of_node=node())
        else:
            message = whole_request(type_url, *names, of_node=node())
        self.stream.on_request(message, 0.0)
        if self.stream.view is None:
            self.stream.on_admitted(self.view, self.visible, self.world.catalog.revision, 0.0)
        self.take()

    def take(self) -> None:
        while self.stream.has_work:
            self.stream.work(0.0)
        for action in self.stream.take_actions():
            if isinstance(action, XdsAbsent):
                self.noted.append(action)
            if isinstance(action, XdsSend):
                response = (
                    DeltaDiscoveryResponse if self.is_delta else DiscoveryResponse
                ).FromString(action.message)
                for error in response.resource_errors:
                    self.errors[error.resource_name.name] = (
                        error.error_detail.code,
                        error.error_detail.message,
                    )

    @property
    def absent(self) -> dict[str, str]:
        return {name: why for channel in self.stream.status() for name, why in channel.absent}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("web.default:80", ""),
        ("web:http", ""),
        ("wbe.default:80", NO_SERVICE),
        ("web.defualt:80", "there is no Service in the namespace defualt"),
        ("web.default:81", "Service default/web has no port 81: it has http (80)"),
        (
            "two.default",
            "Service default/two has several ports, so the name needs one: http (80), admin (9090)",
        ),
        (
            "udp.default:53",
            (
                "Service default/udp has no port that xDS serves (TCP, and not of the type "
                "ExternalName)"
            ),
        ),
        (
            "web.default.svc.other.domain",
            "it is neither SERVICE.NAMESPACE nor SERVICE.NAMESPACE.svc.cluster.local",
        ),
        ("web_1.default", "it is not spelled like SERVICE.NAMESPACE or SERVICE.NAMESPACE:PORT"),
    ],
)
def test_a_grpc_client_is_told_which_part_of_a_name_is_wrong(name: str, why: str) -> None:
    asked = Asked(world(), GRPC)
    asked.ask(LISTENER, name)
    assert asked.absent == ({name: why} if why else {})
    assert asked.errors == ({name: (NOT_FOUND, f"{name}: {why}")} if why else {})
    assert [(action.type_url, action.name, action.why) for action in asked.noted] == (
        [(LISTENER, name, why)] if why else []
    )


def test_a_client_without_a_namespace_is_told_that_the_name_needs_one() -> None:
    asked = Asked(world(), XdsClient(kind="grpc"))
    asked.ask(LISTENER, "web:80")
    assert asked.absent == {
        "web:80": "it has no namespace, and neither has the client: write SERVICE.NAMESPACE"
    }


@pytest.mark.parametrize("type_url", [CLUSTER, ASSIGNMENT])
def test_an_envoy_that_names_a_port_by_number_is_told_its_key(type_url: str) -> None:
    asked = Asked(world(), ENVOY)
    asked.ask(type_url, "default/web:80", "default/web:http", "default/wbe:http")
    assert asked.absent == {
        "default/web:80": "Service default/web has no port 80: it has http (80)",
        "default/wbe:http": NO_SERVICE,
    }


@pytest.mark.parametrize(("client", "type_url"), [(GRPC, LISTENER), (ENVOY, CLUSTER)])
def test_missing_rights_are_no_typo_and_do_not_tell_what_is_there(
    client: XdsClient, type_url: str
) -> None:
    there, missing = (
        ("web.default:80", "no.default:80")
        if client is GRPC
        else ("default/web:http", "default/no:http")
    )
    asked = Asked(world(), client, VisibleNamespaces(everything=False))
    asked.ask(type_url, there, missing)
    why = "this client may not get EndpointSlices in the namespace default, or it has no Service"
    assert asked.absent == {there: why, missing: why}
    assert {code for code, _ in asked.errors.values()} == {PERMISSION_DENIED}


def test_a_server_of_few_namespaces_names_them() -> None:
    catalog = XdsCatalog(XdsConfig(namespaces=("shop", "cart")), "p")
    catalog.on_synced()
    view = catalog.view(GRPC)
    assert (
        view.absence(LISTENER, "web.default")
        == "this server serves other namespaces alone: shop, cart"
    )


def test_what_is_absent_is_forgotten_when_it_comes_and_its_reason_follows() -> None:
    world_ = world()
    asked = Asked(world_, GRPC)
    asked.ask(LISTENER, "new.default:81")
    assert asked.absent == {"new.default:81": "there is no Service default/new"}
    for ports, expected in (
        ((HTTP,), {"new.default:81": "Service default/new has no port 81: it has http (80)"}),
        ((HTTP, ServicePort(name="late", port=81)), {}),
    ):
        world_.put(service("new", ports=ports))
        changes = world_.catalog.take_changes()
        nonce = asked.stream._channels[LISTENER].nonce
        asked.stream.on_request(whole_request(LISTENER, "new.default:81", nonce=nonce), 0.0)
        asked.stream.on_changes(changes, world_.catalog.revision, 0.0)
        asked.take()
        assert asked.absent == expected


def test_a_client_that_makes_names_up_fills_neither_the_log_nor_the_memory() -> None:
    asked = Asked(world(), GRPC)
    asked.ask(LISTENER, *[f"none-{number}.default" for number in range(500)])
    assert len(asked.noted) == ABSENT_MAX
    assert len(asked.absent) == ABSENT_MAX
