"""The xDS settings of each TCP port of a Service; annotations take values from closed lists only.

Invalid values of annotations are ignored and reported (``problems``), so that no user's text reaches
the configuration of a client. UDP, SCTP and Services of the type ExternalName are not served.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, cast

from sliceplane.api.core import Service, ServicePort
from sliceplane.api.service_rules import is_port
from sliceplane.consume.demand import REQUESTS, UID_LENGTH, demand_source, is_measured
from sliceplane.consume.model import ServiceKey, canonical_of
from sliceplane.kit.ip import FAMILIES, Family
from sliceplane.xds.names import PortKey, parse_key

#: protocols of endpoints that Envoy distinguishes
AppProtocol = Literal["tcp", "http", "websocket", "http2"]
LbPolicy = Literal["", "round-robin", "least-request", "random", "ring-hash", "maglev"]

ANNOTATION_POLICY: Final = "sliceplane.dev/xds-lb-policy"
#: "true": endpoints that terminate and serve are sent as DRAINING, for sticky sessions
ANNOTATION_DRAINING: Final = "sliceplane.dev/xds-draining"
#: maximum number of concurrent requests of each client; further ones fail
ANNOTATION_MAX_REQUESTS: Final = "sliceplane.dev/xds-max-requests"
#: "none", or ports that Envoys with listeners of the mode "port" open: "8080",
#: "http=8080,admin=8081"
ANNOTATION_LISTENER: Final = "sliceplane.dev/xds-listener"

POLICIES: Final[tuple[LbPolicy, ...]] = (
    "round-robin",
    "least-request",
    "random",
    "ring-hash",
    "maglev",
)
#: value of circuit breakers without a limit
UNLIMITED: Final = 2**32 - 1
_PROTOCOLS: Final[dict[str, AppProtocol]] = {
    "http": "http",
    "kubernetes.io/ws": "websocket",
    "kubernetes.io/h2c": "http2",
    "grpc": "http2",
}


class PortSettings(NamedTuple):
    """``slice_port``: its name in slices. ``cluster_ips``: canonical; empty for a headless Service.
    ``listens_at``: the port in the mode "port"; 0: none. ``measured``: the start of the UID of a
    Service whose requests clients report; "" for others.
    """

    key: PortKey
    number: int
    slice_port: str
    protocol: AppProtocol
    families: tuple[Family, ...]
    cluster_ips: tuple[str, ...]
    is_local: bool
    is_sticky: bool
    policy: LbPolicy
    reports_draining: bool
    requests_max: int
    has_listeners: bool
    listens_at: int
    measured: str = ""

    @property
    def hashes(self) -> bool:
        """True if the choice of an endpoint depends on the client."""
        return self.policy in ("ring-hash", "maglev") or (self.is_sticky and not self.policy)


def settings_of(service: Service) -> tuple[dict[str, PortSettings], list[str]]:
    """Returns the settings by the port's name in keys, and the problems of annotations as
    sentences.
    """
    spec = service.spec
    problems: list[str] = []
    if spec.type == "ExternalName":
        return {}, problems
    ports = [port for port in spec.ports or () if port.protocol == "TCP" and is_port(port.port)]
    annotations = service.metadata.annotations or {}
    listens_at = _listens_at(annotations.get(ANNOTATION_LISTENER, ""), ports, problems)
    policy = _one_of(annotations, ANNOTATION_POLICY, POLICIES, problems)
    cluster_ips = _cluster_ips(service)
    families = tuple(
        each for family in spec.ip_families or () for each in FAMILIES if each == family
    )
    reports = is_measured(service) and demand_source(service) == REQUESTS
    measured = service.metadata.uid[:UID_LENGTH] if reports else ""
    settings: dict[str, PortSettings] = {}
    for port in ports:
        key = PortKey(
            ServiceKey(service.metadata.namespace, service.metadata.name),
            port.name or str(port.port),
        )
        if parse_key(str(key)) != key or key.port in settings:
            problems.append(f"port {port.name or port.port}: {key} is no name of a resource")
            continue
        settings[key.port] = PortSettings(
            key=key,
            number=port.port,
            slice_port=port.name,
            protocol=_PROTOCOLS.get(port.app_protocol or "", "tcp"),
            families=families or FAMILIES,
            cluster_ips=cluster_ips,
            is_local=spec.internal_traffic_policy == "Local",
            is_sticky=spec.session_affinity == "ClientIP",
            policy=cast(LbPolicy, policy),
            reports_draining=_one_of(annotations, ANNOTATION_DRAINING, ("true", "false"), problems)
            == "true",
            requests_max=_number(annotations, ANNOTATION_MAX_REQUESTS, problems) or UNLIMITED,
            has_listeners=annotations.get(ANNOTATION_LISTENER) != "none",
            listens_at=listens_at.get(port.name or str(port.port), 0),
            measured=measured,
        )
    return settings, list(dict.fromkeys(problems))


def unserved_ports(service: Service) -> int:
    """Returns the number of ports that no xDS client can have."""
    ports = service.spec.ports or ()
    if service.spec.type == "ExternalName":
        return max(1, len(ports))
    return sum(port.protocol != "TCP" for port in ports)


def _cluster_ips(service: Service) -> tuple[str, ...]:
    spec = service.spec
    canonical = [
        canonical_of(text, family)
        for text in spec.cluster_ips or (spec.cluster_ip,)
        for family in FAMILIES
    ]
    return tuple(address for address in canonical if address is not None)


def _one_of(
    annotations: dict[str, str], name: str, values: tuple[str, ...], problems: list[str]
) -> str:
    value = annotations.get(name, "")
    if value and value not in values:
        problems.append(f"{name}: {value[:64]!r} is none of {', '.join(values)}")
        return ""
    return value


def _number(annotations: dict[str, str], name: str, problems: list[str]) -> int:
    """Returns the number in an annotation; 0 if there is none."""
    value = annotations.get(name, "")
    number = _integer(value)
    if 0 < number < UNLIMITED:
        return number
    if value:
        problems.append(f"{name}: {value[:64]!r} is no number from 1 to {UNLIMITED - 1}")
    return 0


def _listens_at(value: str, ports: list[ServicePort], problems: list[str]) -> dict[str, int]:
    """Returns the ports of listeners by the port's name in keys."""
    if not value or value == "none":
        return {}
    names = [port.name or str(port.port) for port in ports]
    listeners: dict[str, int] = {}
    for part in value[:1024].split(","):
        name, named, number = part.strip().rpartition("=")
        port = name if named else names[0] if len(names) == 1 else ""
        if port not in names or not is_port(_integer(number)):
            problems.append(
                f"{ANNOTATION_LISTENER}: {part[:64]!r} is neither none nor a TCP port's NAME=NUMBER"
            )
        else:
            listeners[port] = _integer(number)
    return listeners


def _integer(value: str) -> int:
    """Returns the number; -1 if the text is none."""
    return int(value) if value.isascii() and value.isdecimal() and len(value) <= 10 else -1
