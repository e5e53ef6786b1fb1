"""Listeners and routes: the first resource that a gRPC client requests, and the sockets of Envoy.

gRPC: a Listener has the requested name, and contains its routes, which saves a round trip and a
moment at which the two disagree. For a name that does not exist, the Listener has no virtual hosts:
the client fails immediately instead of after 15 s, and recovers when the Service appears.

Envoy, by mode: ``cluster-ip`` binds the Service's addresses, even before they are on an interface;
``capture`` accepts connections that the kernel redirects to one port, and resolves the Service by
the original destination; ``port`` binds the port that an annotation names. Listeners use HTTP if
appProtocol requires it, connections otherwise. Timeouts of routes are off: a node proxy has none.
"""

from __future__ import annotations

from typing import Final

from sliceplane.xds.endpoints import ADS
from sliceplane.xds.resource import ListenerMode
from sliceplane.xds.settings import PortSettings
from sliceplane.xds.wire import any_field, integer, message, text, wrapped

#: the name of the one Listener of the mode "capture" that has a port, and that port
CAPTURE: Final = "capture"
CAPTURE_PORT: Final = 15001
#: a Cluster that does not exist: connections to it are closed
_NOWHERE: Final = "sliceplane/nowhere"
#: gRFC A42: requests of one channel stay together
_BY_CHANNEL: Final = "io.grpc.channel_id"
_EXTENSIONS: Final = "type.googleapis.com/envoy.extensions."
_MANAGER: Final = f"{_EXTENSIONS}filters.network.http_connection_manager.v3.HttpConnectionManager"
_TCP_PROXY: Final = f"{_EXTENSIONS}filters.network.tcp_proxy.v3.TcpProxy"
_ROUTER: Final = message(
    5,
    text(1, "envoy.filters.http.router"),
    any_field(4, f"{_EXTENSIONS}filters.http.router.v3.Router"),
)
_ORIGINAL_DST: Final = any_field(3, f"{_EXTENSIONS}filters.listener.original_dst.v3.OriginalDst")


def grpc_listener(name: str, settings: PortSettings | None) -> bytes:
    """Returns the Listener of the requested *name*; *settings* ``None``: there is no such Service or
    port.
    """
    if settings is None:
        routes = text(1, name)
        prefix = "none"
    else:
        hashed = message(15, message(6, text(1, _BY_CHANNEL))) if settings.hashes else b""
        routes = _routes(settings, hashed)
        prefix = str(settings.key)
    manager = text(2, prefix) + message(4, routes) + _ROUTER
    return text(1, name) + message(19, any_field(1, _MANAGER, manager))


def envoy_listener(settings: PortSettings, mode: ListenerMode) -> bytes | None:
    """Returns the Listener of a port; ``None``: it has none in this mode."""
    addresses = settings.cluster_ips
    number = settings.number
    if mode == "port":
        addresses = ("0.0.0.0",) if settings.listens_at else ()
        number = settings.listens_at
    if mode == "none" or not settings.has_listeners or not addresses:
        return None
    name = text(1, str(settings.key))
    first, *others = (_address(address, number) for address in addresses)
    binding = wrapped(11, 1) if mode == "cluster-ip" else b""
    hidden = wrapped(26, 0) if mode == "capture" else b""
    more = b"".join(message(33, message(1, other)) for other in others)
    return name + message(2, first) + message(3, _filter(settings)) + binding + hidden + more


def capture_listener() -> bytes:
    """Returns the Listener of redirected connections; it closes those to no Service."""
    closes = any_field(4, _TCP_PROXY, text(1, CAPTURE), text(2, _NOWHERE))
    chain = message(3, text(1, "envoy.filters.network.tcp_proxy"), closes)
    resolves = message(9, text(1, "envoy.filters.listener.original_dst"), _ORIGINAL_DST)
    address = _address("0.0.0.0", CAPTURE_PORT)
    return text(1, CAPTURE) + message(2, address) + message(3, chain) + wrapped(4, 1) + resolves


def envoy_routes(settings: PortSettings) -> bytes | None:
    """Returns the ``RouteConfiguration`` of an HTTP port; ``None`` for others."""
    if settings.protocol == "tcp":
        return None
    return _routes(
        settings, message(15, message(3, integer(1, 1))) if settings.hashes else b"", message(8)
    )


def _routes(settings: PortSettings, hashed: bytes, timeout: bytes = b"") -> bytes:
    key = str(settings.key)
    # The empty prefix is encoded, since it defines the kind of the match.
    route = message(3, message(1, message(1)), message(2, text(1, key), timeout, hashed))
    return text(1, key) + message(2, text(1, key), text(2, "*"), route)


def _filter(settings: PortSettings) -> bytes:
    """Returns the only filter of a filter chain."""
    key = str(settings.key)
    if settings.protocol == "tcp":
        hashed = message(11, message(1)) if settings.hashes else b""
        proxy = any_field(4, _TCP_PROXY, text(1, key), text(2, key), hashed)
        return message(3, text(1, "envoy.filters.network.tcp_proxy"), proxy)
    upgrade = message(23, text(1, "websocket")) if settings.protocol == "websocket" else b""
    manager = (
        text(2, key) + message(3, message(1, ADS), text(2, key)) + _ROUTER + upgrade + message(24)
    )
    return message(
        3, text(1, "envoy.filters.network.http_connection_manager"), any_field(4, _MANAGER, manager)
    )


def _address(address: str, port: int) -> bytes:
    return message(1, text(2, address) + integer(3, port))
