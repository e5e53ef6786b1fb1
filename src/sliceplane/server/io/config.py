"""Settings of a server."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from sliceplane.api.gates import Gates
from sliceplane.api.scheme import SERVED, Resource
from sliceplane.kit.io import interfaces
from sliceplane.kit.io.tls.acceptor import FrontProxies
from sliceplane.kit.io.tls.unauthenticated import ConnectionTiming
from sliceplane.server.io.audit.log import AuditConfig
from sliceplane.server.io.keys.token_keys import TokenConfig
from sliceplane.server.io.requests.limits import Limits
from sliceplane.server.io.requests.resources import FUTURE_VERSION_S_MAX
from sliceplane.server.io.requests.watch import STALLED_S_MAX
from sliceplane.server.registry.config import RegistryConfig, TopologyStorage
from sliceplane.server.store.mvcc import OBJECT_BYTES_MAX
from sliceplane.server.store.shelf import HISTORY_KEEP_S
from sliceplane.watch.io.flight import FlightConfig

if TYPE_CHECKING:
    from sliceplane.server.io.storage.etcd.client import EtcdConfig

DEFAULT_SERVICE_CIDRS: Final = ("10.96.0.0/16", "fd00:10:96::/112")
DEFAULT_PORT: Final = 6443
DEFAULT_ISSUER: Final = "https://kubernetes.default.svc.cluster.local"


class PlaneConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The command line has checked the spelling of every value."""

    bind_address: str = "127.0.0.1"
    secure_port: int = DEFAULT_PORT
    #: a path, "" for the XDG default, or ``memory:``
    data_dir: str = ""
    service_cidrs: tuple[str, ...] = DEFAULT_SERVICE_CIDRS
    advertise_address: str = ""
    token_auth_file: Path | None = None
    client_ca_file: Path | None = None
    #: clients that say for which user a request is
    front_proxies: FrontProxies | None = None
    #: a client without credentials is system:anonymous, not refused
    anonymous: bool = True
    tokens: TokenConfig = msgspec.field(default_factory=lambda: TokenConfig(issuer=DEFAULT_ISSUER))
    #: where others find the keys of our tokens, if not at this server
    jwks_url: str = ""
    #: seconds that old revisions are kept for watches and paged lists (see ``Retention``)
    history_keep_s: float = HISTORY_KEEP_S
    limits: Limits = msgspec.field(default_factory=Limits)
    audit: AuditConfig | None = None
    #: all that is offered (``server.registry.config``)
    served: tuple[Resource, ...] = SERVED
    topology_storage: TopologyStorage = "field"
    gates: Gates = msgspec.field(default_factory=Gates)
    #: optional ones that are on (``server.registry.config``)
    admission_plugins: frozenset[str] = frozenset()
    #: bytes of all objects
    object_bytes_max: int = OBJECT_BYTES_MAX
    #: storage that several servers share, in the place of the data folder's own
    etcd: EtcdConfig | None = None
    #: a stop begins with so many seconds in which everything is answered and ``/readyz`` says that
    #: it will end
    shutdown_delay_s: float = 0.0
    flight: FlightConfig = msgspec.field(default_factory=FlightConfig)
    #: processes that serve the port in the place of this one (``relay.io.readers``); 0: none
    readers: int = 0

    @property
    def host(self) -> str:
        """The address that clients on this machine use."""
        address = ip_address(self.bind_address)
        if address.is_unspecified:
            return "127.0.0.1" if address.version == 4 else "::1"
        return str(address)

    @property
    def on_every_interface(self) -> bool:
        return ip_address(self.bind_address).is_unspecified

    @property
    def advertised(self) -> str:
        """The address at which others reach the server: the configured one, else the one it listens
        on; if that is every address, the one that this machine's packets leave with. Without any it
        is loopback, which can be no endpoint.
        """
        if self.advertise_address or not self.on_every_interface:
            return self.advertise_address or self.host
        return interfaces.outward(ip_address(self.bind_address).version) or self.host

    def registry(self, port: int) -> RegistryConfig:
        """Returns the settings of the registry of a server at *port*."""
        return RegistryConfig(
            service_cidrs=self.service_cidrs,
            advertise_address=self.advertised,
            advertise_port=port,
            topology_storage=self.topology_storage,
            gates=self.gates,
            admission_plugins=self.admission_plugins,
            object_bytes_max=self.object_bytes_max,
        )


class Periods(msgspec.Struct, frozen=True, kw_only=True):
    """Periods of a server's background work, and its patience with others."""

    #: revisions whose time is over are compacted
    retention_s: float = 5.0
    #: Events whose time is over are removed
    expiry_s: float = 5.0
    #: IPAddresses and ServiceCIDRs are compared with Services
    tend_s: float = 1.0
    #: often, although certificates live long: new addresses are to be reached soon, and a clock
    #: that is set right may leave every certificate in its future, or years behind
    certificates_s: float = 10.0
    #: what an authority signed must count no more soon after it is taken out of a file
    authorities_s: float = 5.0
    #: how long responses in flight may take once a stop has begun
    stop_grace_s: float = 5.0
    #: how long a read waits for a version from the future
    future_version_s: float = FUTURE_VERSION_S_MAX
    #: how long a client may take nothing of the end of its watch
    stalled_watch_s: float = STALLED_S_MAX
    connections: ConnectionTiming = msgspec.field(default_factory=ConnectionTiming)
