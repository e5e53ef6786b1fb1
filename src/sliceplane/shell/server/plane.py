"""One process of Sliceplane put together: data folder, storage, store, registry, hub, HTTPS server, services.

The order of a start is the order of what may fail without a trace: first what only looks (flags, lock, port),
then what reads (the database), and only then what writes (certificates, first objects).  The kubeconfig is written
before the server answers and the server answers before any service starts, so a service may be a plain client.
A stop runs the other way round; watches are ended before the connections that carry them.

*Services* are whatever else lives in the process: controllers, emulation, the node proxy.  See
``shell.transport.service``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Self

from sliceplane.api.errors import StatusError
from sliceplane.api.gates import Gates
from sliceplane.api.scheme import SERVED, Resource
from sliceplane.kit.rng import Rng
from sliceplane.registry.api_service import INTERVAL_S
from sliceplane.registry.authorization.types import MASTERS
from sliceplane.registry.config import RegistryConfig, TopologyStorage
from sliceplane.registry.registry import Registry
from sliceplane.registry.types import User
from sliceplane.shell.process import descriptors, interfaces, log
from sliceplane.shell.process.log import get_logger
from sliceplane.shell.process.start_error import StartError
from sliceplane.shell.process.version import declare_build
from sliceplane.shell.server import chores
from sliceplane.shell.server.audit.log import AuditConfig, AuditLog
from sliceplane.shell.server.connections.listener import App, Listener, bind
from sliceplane.shell.server.connections.tls import ServerTls
from sliceplane.shell.server.datadir import DataDir, write_private
from sliceplane.shell.server.heavy.service import Heavy
from sliceplane.shell.server.inprocess import InProcessClient
from sliceplane.shell.server.keys import pki
from sliceplane.shell.server.keys.token_keys import TokenConfig, TokenKeys
from sliceplane.shell.server.monitoring.metrics import ServerMetrics
from sliceplane.shell.server.monitoring.steps import LoopSteps
from sliceplane.shell.server.nonresource.discovery import Discovery
from sliceplane.shell.server.nonresource.health import HealthChecks
from sliceplane.shell.server.nonresource.issuer import IssuerPages
from sliceplane.shell.server.requests.app import ApiServer, Services
from sliceplane.shell.server.requests.auth import Tokens
from sliceplane.shell.server.requests.limits import Limits
from sliceplane.shell.server.requests.resources import ResourceHandlers
from sliceplane.shell.server.requests.revocation import Revocation
from sliceplane.shell.server.requests.ticker import HubTicker
from sliceplane.shell.server.requests.watch import WatchHandler
from sliceplane.shell.server.storage.committer import Committer
from sliceplane.shell.server.storage.errors import StorageError
from sliceplane.shell.server.storage.memory import MemoryBackend
from sliceplane.shell.server.storage.metrics import store_metrics
from sliceplane.shell.transport.service import PlaneService, ServiceContext
from sliceplane.store.backend import Backend
from sliceplane.store.hub import Hub
from sliceplane.store.mvcc import Store
from sliceplane.store.retention import HISTORY_KEEP_S, Retention

if TYPE_CHECKING:
    from sliceplane.shell.server.shared_storage import SharedStorage
    from sliceplane.shell.server.storage.etcd.client import EtcdConfig
    from sliceplane.shell.server.storage.replicated import ReplicatedCommitter

DEFAULT_SERVICE_CIDRS = ("10.96.0.0/16", "fd00:10:96::/112")
DEFAULT_PORT = 6443
DEFAULT_ISSUER = "https://kubernetes.default.svc.cluster.local"
#: how long responses in flight may take once a stop has begun
STOP_GRACE_SECONDS = 5.0
#: a node of a cluster may have thousands, of Services; a certificate must stay small
INTERFACE_ADDRESSES_MAX = 128

_log = get_logger("plane")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaneConfig:
    """What an operator chooses; the command line has checked the spelling of every value."""

    bind_address: str = "127.0.0.1"
    secure_port: int = DEFAULT_PORT
    #: a path, "" for the XDG default, or ``memory:``
    data_dir: str = ""
    service_cidrs: tuple[str, ...] = DEFAULT_SERVICE_CIDRS
    advertise_address: str = ""
    token_auth_file: Path | None = None
    client_ca_file: Path | None = None
    #: who shows no credentials is system:anonymous, not refused
    anonymous: bool = True
    tokens: TokenConfig = field(default_factory=lambda: TokenConfig(issuer=DEFAULT_ISSUER))
    #: where others find the keys of our tokens, if not at this server
    jwks_url: str = ""
    #: seconds that old revisions are kept for watches and paged lists (see ``Retention``)
    history_keep_s: float = HISTORY_KEEP_S
    limits: Limits = field(default_factory=Limits)
    audit: AuditConfig | None = None
    #: all that is offered (``registry.runtime_config``)
    served: tuple[Resource, ...] = SERVED
    topology_storage: TopologyStorage = "field"
    gates: Gates = field(default_factory=Gates)
    #: optional ones that are on (``registry.config``)
    admission_plugins: frozenset[str] = frozenset()
    #: storage that several servers share, in the place of the data folder's own
    etcd: EtcdConfig | None = None
    #: a stop begins with so many seconds in which everything is answered and ``/readyz`` says that it will end
    shutdown_delay_s: float = 0.0


class Plane:
    """A running process.  Made, started and stopped by one task; ``async with`` starts and stops."""

    def __init__(
        self,
        config: PlaneConfig,
        services: tuple[PlaneService, ...] = (),
        clock: Callable[[], float] = time.time,
        *,
        around: Callable[[App], App] = lambda app: app,
    ) -> None:
        """*around* puts something between the connections and the application."""
        self.config = config
        self._around = around
        self.clock = clock
        self.health = HealthChecks()
        self.metrics = ServerMetrics()
        self._services = services
        self._started: list[PlaneService] = []
        #: undone in reverse order by ``stop``
        self._cleanup = contextlib.AsyncExitStack()
        self._up = self._stopping = self._left = False
        # Set by ``start``, in this order.
        self.data_dir: DataDir
        self.url: str
        self.store: Store
        self.hub: Hub
        self._shared: SharedStorage | None = None
        self.committer: Committer | ReplicatedCommitter
        self.registry: Registry
        self.pki: pki.Pki
        self.tokens: TokenKeys
        #: whoever subscribes at the hub arms it
        self.ticker: HubTicker
        self.revocation: Revocation
        #: what takes long is done elsewhere, and what holds the loop all the same is told
        self.heavy: Heavy
        self.steps: LoopSteps
        self.listener: Listener

    @property
    def kubeconfig(self) -> Path:
        return self.data_dir.kubeconfig

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def client(self, name: str, *, field_manager: str = "sliceplane") -> InProcessClient:
        """For whoever lives in this process, in this loop: a client without sockets, as the administrator *name*.
        After ``start``."""
        user = User(name=name, groups=(MASTERS,))
        return InProcessClient(
            self.registry,
            self.committer,
            self.hub,
            arm=self.ticker.arm,
            clock=self.clock,
            user=user,
            field_manager=field_manager,
        )

    async def start(self) -> None:
        """Returns when the server answers and every service has started.  Raises ``StartError``; whatever
        had been started is stopped again by then."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        config = self.config
        self.data_dir = DataDir.open(config.data_dir)
        self._cleanup.callback(self.data_dir.close)
        sock = bind(config.bind_address, config.secure_port)
        self._cleanup.callback(sock.close)
        port = sock.getsockname()[1]
        host = _dialled(config.bind_address)
        self.url = f"https://{_bracketed(host)}:{port}"
        await self._open_storage()
        rng = Rng(int.from_bytes(os.urandom(8), "big"))
        tls = self._prepare_access()
        self.tokens = TokenKeys(config.tokens, self.pki.token_key_file, self._tokens().find)
        if self._shared is not None:
            await self._shared.check_identity(self.pki, config.tokens)
        self.registry = Registry(self.store, rng=rng, config=self._registry_config(port), tokens=self.tokens)
        self.committer.start()
        await self._bootstrap()
        app = self._application(f"{_bracketed(host)}:{port}")
        self.listener = Listener(self._around(app), connections_max=config.limits.connections_max)
        self.metrics.include(self.listener.metrics.families)
        descriptors.raise_limit()
        self.listener.start(sock, tls.context)
        self._cleanup.push_async_callback(
            self.listener.stop, grace_s=STOP_GRACE_SECONDS, end_watches=self.hub.close_all
        )
        self._cleanup.push_async_callback(self._leave)
        self._spawn(self.steps.beat(), "heartbeat")
        self._spawn(chores.keep_certificates_fresh(self, tls), "certificates")
        if config.client_ca_file is not None:
            self._spawn(chores.follow_authorities(self, tls), "authorities")
        self._spawn(chores.tell_committer_the_time(self), "retention")
        self._spawn(chores.forget_events(self), "expiry")
        self._spawn(chores.keep_up(self, self.registry.tend, chores.TEND_SECONDS), "addresses")
        self._spawn(chores.keep_up(self, self._keep_api_service, INTERVAL_S), "api-service")
        context = self._service_context()
        for service in self._services:
            self._started.append(service)
            await service.start(context)
        self._up = True

    def _service_context(self) -> ServiceContext:
        return ServiceContext(
            client=lambda name, field_manager: self.client(name, field_manager=field_manager),
            clock=self.clock,
            authority=self.pki.ca_file.read_text(),
            add_check=self.health.add,
            add_readiness=self.health.add_readiness,
            add_samples=self.metrics.include,
        )

    async def drain(self) -> None:
        """Have clients leave for another server, while each that comes is served: the time is ``shutdown_delay_s``.
        After a ``start``; ``stop`` may be called at any moment of it."""
        self._stopping = True
        ends = asyncio.get_running_loop().time() + self.config.shutdown_delay_s
        self.listener.drain()
        for service in reversed(self._started):
            await service.drain()
        await self._leave()
        await asyncio.sleep(max(0.0, ends - asyncio.get_running_loop().time()))

    async def stop(self) -> None:
        """Idempotent; errors of one part do not keep the others from stopping."""
        self._stopping = True
        while self._started:
            service = self._started.pop()
            try:
                await service.stop()
            except Exception as error:  # the rest must stop all the same
                _log.error("a service did not stop cleanly", service=service.name, exc_info=error)
        await self._cleanup.aclose()

    async def _open_storage(self) -> None:
        """The store as the back end remembers it, and the committer that keeps the two together."""
        try:
            if self.config.etcd is not None:
                from sliceplane.shell.server.shared_storage import SharedStorage

                self._shared = await SharedStorage.open(self.config.etcd)
                self._cleanup.callback(self._shared.backend.close)
                self.store, self.hub, self.committer = self._shared.attach(self)
            else:
                self._open_own_storage()
        except StorageError as error:
            raise StartError(str(error)) from error
        self._cleanup.push_async_callback(self.committer.close)

    def _open_own_storage(self) -> None:
        """Raises ``StorageError``."""
        database = self.data_dir.database
        self.data_dir.check_database()
        backend: Backend = MemoryBackend() if database is None else _sqlite(database)
        self._cleanup.callback(backend.close)
        loaded = backend.load()
        self.store = Store.restore(loaded.history, loaded.revision, loaded.compacted)
        self.hub = Hub(self.store)
        self.committer = Committer(
            self.store,
            self.hub,
            backend,
            report=report_storage,
            report_mended=report_mended_storage,
            retention=Retention(keep_s=self.config.history_keep_s),
            on_aborted=lambda: self.registry.on_aborted(),  # noqa: PLW0108  # the registry is made later
        )

    async def _bootstrap(self) -> None:
        """The objects that every cluster has; nothing is written where they are there already."""
        try:
            await self.committer.write(lambda: self.registry.bootstrap(self.clock()), int)
        except StatusError as error:
            raise StartError(f"cannot write to {self._storage_name}: {error}") from error

    @property
    def _storage_name(self) -> str:
        etcd = self.config.etcd
        return str(self.data_dir.path) if etcd is None else f"etcd at {','.join(etcd.servers)}"

    def _registry_config(self, port: int) -> RegistryConfig:
        config = self.config
        # A loopback address cannot be an endpoint: default/kubernetes then has none, but it exists.
        return RegistryConfig(
            service_cidrs=config.service_cidrs,
            advertise_address=config.advertise_address or _dialled(config.bind_address),
            advertise_port=port,
            topology_storage=config.topology_storage,
            gates=config.gates,
            admission_plugins=config.admission_plugins,
        )

    def _prepare_access(self) -> ServerTls:
        """Certificates, tokens and the kubeconfig, all on disk before the server answers."""
        self.pki = self._certificates()
        tls = ServerTls(self.pki, self.config.client_ca_file)
        write_private(self.data_dir.kubeconfig, pki.kubeconfig(self.pki, self.url))
        return tls

    def _certificates(self) -> pki.Pki:
        """What a start needs; says so if kubeconfigs that were handed out before are worth nothing now."""
        before = pki.Pki(self.data_dir.pki)
        identity = before.identity if before.ca_file.is_file() else ""
        known = bool(identity) or self.data_dir.kubeconfig.exists()
        found, _ = pki.ensure(self.data_dir.pki, self.certificate_names(), self.clock())
        if known and found.identity != identity:
            _log.warning(
                "the certificate authority was missing or damaged: there is a new one, and copies of older kubeconfigs "
                "do not work any more",
                path=str(found.ca_file),
            )
        return found

    @property
    def on_every_interface(self) -> bool:
        return ip_address(self.config.bind_address).is_unspecified

    def certificate_names(self) -> tuple[str, ...]:
        """What clients may dial: the names that the server certificate must have now."""
        addresses = [str(next(ip_network(cidr).hosts())) for cidr in self.config.service_cidrs]
        for address in (self.config.bind_address, self.config.advertise_address):
            if address and not ip_address(address).is_unspecified:
                addresses += [address]
        if self.on_every_interface:
            addresses += interfaces.addresses(ipv6=":" in self.config.bind_address)[:INTERFACE_ADDRESSES_MAX]
        return pki.server_names(tuple(addresses))

    def _tokens(self) -> Tokens:
        if self.config.token_auth_file is not None:
            return Tokens.load(self.config.token_auth_file)
        pki.ensure_tokens(self.data_dir.tokens)
        return Tokens.load(self.data_dir.tokens)

    def _audit_log(self) -> AuditLog | None:
        """Raises ``StartError``.  Closed after the listener, so that the last requests are in it."""
        if self.config.audit is None:
            return None
        log = AuditLog(self.config.audit, self.clock)
        self._cleanup.callback(log.close)
        self.metrics.include(log.metrics.families)
        return log

    def _application(self, address: str) -> ApiServer:
        self.heavy = Heavy()
        self._cleanup.push_async_callback(self.heavy.close)
        self.steps = LoopSteps(self.metrics)
        resources = ResourceHandlers(self.registry, self.store, self.committer, self.clock, self.heavy)
        self.ticker = HubTicker(self.hub)
        self._cleanup.callback(self.ticker.close)
        self.revocation = Revocation(self.registry, self.clock)
        self._cleanup.callback(self.revocation.close)
        services = Services(
            resources=resources,
            watches=WatchHandler(resources, self.registry, self.hub, self.ticker, self.revocation),
            discovery=Discovery(address, self.config.served),
            health=self.health,
            metrics=self.metrics,
            find_user=lambda token: self.registry.authenticate(token, self.clock()),
            impersonate=self.registry.impersonate,
            anonymous=self.config.anonymous,
            issuer=IssuerPages(self.tokens, f"https://{address}", self.config.jwks_url),
            decide=self.registry.decide,
            store=self.store,
            limits=self.config.limits,
            emulated=self.config.gates.release,
            audit=self._audit_log(),
            steps=self.steps,
            clock=self.clock,
        )
        app = ApiServer(services)
        # Names and order are those that monitoring of Kubernetes knows.
        self.health.add("log", lambda: "")
        self.health.add("etcd", lambda: _complaint(self.committer))
        # Whoever has informers in this process says more here.
        self.health.add_readiness("informer-sync", lambda: "" if self._up else "the process is starting")
        if self._shared is not None:
            self.health.add_readiness("etcd-readiness", self._shared.unready)
        self.health.add_readiness("shutdown", lambda: "the process is stopping" if self._stopping else "")
        for metrics in (
            *(app.in_flight.metrics, self.heavy.metrics, self.committer.metrics, self.hub.metrics, log.metrics),
            *(self.revocation.metrics, self.registry.metrics, self.health.metrics),
            store_metrics(self.store, self.data_dir.database),
        ):
            self.metrics.include(metrics.families)
        self.metrics.declare_gates(self.config.gates)
        declare_build(self.metrics, self.config.gates.release)
        return app

    def _spawn(self, coroutine: Coroutine[None, None, None], name: str) -> None:
        """A background task that ``stop`` cancels and waits for."""
        task = asyncio.create_task(coroutine, name=name)

        async def end() -> None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

        self._cleanup.push_async_callback(end)

    def _keep_api_service(self, now: float) -> int:
        return 0 if self._stopping else self.registry.keep_api_service(now)

    async def _leave(self) -> None:
        """Nobody shall be sent here any more.  Said once."""
        if self._left:
            return
        self._left = True
        try:
            async with asyncio.timeout(STOP_GRACE_SECONDS):
                await self.committer.write(lambda: self.registry.leave_api_service(self.clock()), int)
        except (StatusError, TimeoutError) as error:
            _log.error("this server is still an endpoint of default/kubernetes", error=str(error))


def report_storage(sentence: str) -> None:
    _log.error("storage", problem=sentence)


def report_mended_storage(sentence: str) -> None:
    """What was reported is over: nobody shall be called for it."""
    _log.info("storage is well again", news=sentence)


def _complaint(committer: Committer | ReplicatedCommitter) -> str:
    """What is wrong with storage, and how old memory is by that; "" if nothing is."""
    if committer.failing is None:
        return ""
    age_s = committer.staleness_s
    return f"{committer.failing}; memory was last known to be current {age_s:.0f} s ago" if age_s else committer.failing


def _sqlite(database: Path) -> Backend:
    from sliceplane.shell.server.storage.sqlite import SqliteBackend

    backend = SqliteBackend.open(database)
    if backend.told:
        report_storage(backend.told)
    return backend


def _dialled(bind_address: str) -> str:
    """The address that clients on this machine use for what is bound to *bind_address*."""
    address = ip_address(bind_address)
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "::1"
    return str(address)


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
