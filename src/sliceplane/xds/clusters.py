"""Clusters: load balancing and connections to a Service's port; one for gRPC, one for Envoy.

Without an annotation the enum sets the policy, which every client supports. With an annotation there
is a list of policies with round robin last, of which each client uses the first that it supports
(gRFC A52): gRPC's C core rejects the enum for least request. Limits are off unless the user sets
them: by default both clients fail from 1,024 requests on. Envoy's panic mode is off, since endpoints
that are not ready are not listed.
"""

from __future__ import annotations

from typing import Final

from sliceplane.xds.endpoints import ADS, filter_metadata, struct
from sliceplane.xds.resource import ClientKind
from sliceplane.xds.settings import UNLIMITED, AppProtocol, PortSettings
from sliceplane.xds.wire import any_field, integer, message, text, wrapped

_EDS: Final = 3
_RING_HASH: Final = 2
_MAGLEV: Final = 5
_CONNECT_TIMEOUT_S: Final = 5
_POLICY_PREFIX: Final = "type.googleapis.com/envoy.extensions.load_balancing_policies."
_HTTP_OPTIONS: Final = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
#: message and fields of each policy; a ring uses XX_HASH, the only hash that gRPC supports
_POLICIES: Final = {
    "round-robin": ("round_robin.v3.RoundRobin", b""),
    "least-request": ("least_request.v3.LeastRequest", b""),
    "random": ("random.v3.Random", b""),
    "ring-hash": ("ring_hash.v3.RingHash", integer(1, 1)),
    "maglev": ("maglev.v3.Maglev", b""),
}
#: fields of ``HttpProtocolOptions.ExplicitHttpConfig``
_HTTP_VERSION: Final[dict[AppProtocol, int]] = {"http": 1, "websocket": 1, "http2": 2}


def cluster(settings: PortSettings, kind: ClientKind) -> bytes:
    """Encodes a ``Cluster``."""
    common = text(1, str(settings.key)) + integer(2, _EDS) + message(3, message(1, ADS))
    by_enum = (
        0
        if settings.policy or not settings.is_sticky
        else _MAGLEV
        if kind == "envoy"
        else _RING_HASH
    )
    policies = _policies(settings, kind)
    if kind == "grpc":
        service = settings.key.service
        # The library encodes the longer of two names first, if the other is its prefix.
        labels = struct(service_namespace=service.namespace, service_name=service.name)
        limits = message(10, message(1, wrapped(4, settings.requests_max)))
        metadata = filter_metadata(25, "com.google.csm.telemetry_labels", labels)
        # Envoys are told where to report by their bootstrap.
        load_server = message(42, message(5)) if settings.measured else b""
        return common + integer(6, by_enum) + limits + metadata + policies + load_server
    timeout = message(4, integer(1, _CONNECT_TIMEOUT_S))
    limits = message(
        10, *(message(1, _thresholds(priority, settings.requests_max)) for priority in (0, 1))
    )
    no_panic = message(27, message(1))
    return (
        common
        + timeout
        + integer(6, by_enum)
        + limits
        + no_panic
        + integer(32, 1)
        + _protocol(settings)
        + policies
    )


def _thresholds(priority: int, requests_max: int) -> bytes:
    return (
        integer(1, priority)
        + wrapped(2, UNLIMITED)
        + wrapped(3, UNLIMITED)
        + wrapped(4, requests_max)
    )


def _protocol(settings: PortSettings) -> bytes:
    version = _HTTP_VERSION.get(settings.protocol)
    if version is None:
        return b""
    options = any_field(2, f"type.googleapis.com/{_HTTP_OPTIONS}", message(3, message(version)))
    return message(36, text(1, _HTTP_OPTIONS), options)


def _policies(settings: PortSettings, kind: ClientKind) -> bytes:
    if not settings.policy:
        return b""
    preferred = [settings.policy] if settings.policy != "round-robin" else []
    encoded = [_policy(name) for name in preferred]
    last = _policy("round-robin")
    if kind == "grpc":
        # gRPC selects localities by weight only with this policy.
        nested = any_field(2, f"{_POLICY_PREFIX}wrr_locality.v3.WrrLocality", message(1, last))
        last = message(1, message(4, text(1, "envoy.load_balancing_policies.wrr_locality"), nested))
    return message(41, *encoded, last)


def _policy(name: str) -> bytes:
    """Encodes a ``LoadBalancingPolicy.Policy`` as an item of the list."""
    of, body = _POLICIES[name]
    extension = text(1, f"envoy.load_balancing_policies.{of.partition('.')[0]}")
    return message(1, message(4, extension, any_field(2, _POLICY_PREFIX + of, body)))
