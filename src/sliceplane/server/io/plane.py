"""One process of Sliceplane put together: data folder, storage, store, registry, hub, HTTPS server,
services.

The order of a start is the order of what may fail without a trace: first what only looks (flags,
lock, port), then what reads (the database), and only then what writes (certificates, first
objects). The kubeconfig is written before the server answers and the server answers before any
service starts, so a service may be a plain client. A stop runs the other way round; watches are
ended before the connections that carry them.

*Services* are whatever else lives in the process: controllers, emulation, the node proxy.  See
``watch.io.service``.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Self

from sliceplane.api.discovery import LABEL_SERVICE_NAME
from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import EndpointSlices
from sliceplane.api.users import MASTERS, User
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.io.logs import output as log_output
from sliceplane.kit.io.start_error import StartError
from sliceplane.kit.io.tasks import ends_within
from sliceplane.kit.ip import join_host_port
from sliceplane.kit.rng import Rng
from sliceplane.server.io import background_tasks
from sliceplane.server.io.access import Access
from sliceplane.server.io.config import Periods, PlaneConfig
from sliceplane.server.io.connections.listener import App, Listener, bind, bind_shared
from sliceplane.server.io.connections.local import Readers
from sliceplane.server.io.datadir import DataDir
from sliceplane.server.io.inprocess import InProcessClient
from sliceplane.server.io.keys.pki import Pki
from sliceplane.server.io.metrics import LoopSteps
from sliceplane.server.io.nonresource.discovery import Discovery
from sliceplane.server.io.nonresource.pages import IssuerPages
from sliceplane.server.io.process import ServingProcess
from sliceplane.server.io.requests.app import ApiServer, Services
from sliceplane.server.io.requests.reports import ReportService
from sliceplane.server.io.requests.resources import ResourceHandlers
from sliceplane.server.io.requests.timers import HubTicker, Revocation
from sliceplane.server.io.requests.watch import WatchHandler
from sliceplane.server.io.storage.committing import (
    AnyCommitter,
    StorageError,
    health_of,
    store_metrics,
)
from sliceplane.server.io.storage.own import OwnStorage
from sliceplane.server.registry.api_service import INTERVAL_S
from sliceplane.server.registry.registry import Registry
from sliceplane.server.store.hub import Hub
from sliceplane.server.store.mvcc import Store
from sliceplane.server.store.types import StoreEvent
from sliceplane.watch.io.flight import FlightRecorder
from sliceplane.watch.io.reflect import loop_clock
from sliceplane.watch.io.service import PlaneService, ServiceContext
from sliceplane.watch.io.version import declare_build
from sliceplane.watch.recorder.entries import SentVersion, quantized

if TYPE_CHECKING:
    from sliceplane.server.io.storage.shared import SharedStorage

_log = get_logger("plane")


class ServerPlane(ServingProcess):
    """A running process.  Made, started and stopped by one task; ``async with`` starts and
    stops.
    """

    def __init__(
        self,
        config: PlaneConfig,
        services: tuple[PlaneService, ...] = (),
        clock: Callable[[], float] = time.time,
        *,
        around: Callable[[App], App] = lambda app: app,
        periods: Periods | None = None,
        readers: Callable[[ServerPlane], Readers] | None = None,
    ) -> None:
        """*around* puts something between the connections and the application. *readers* makes the
        processes that serve the port if the configuration asks for some.
        """
        super().__init__(clock)
        self.config = config
        self._periods = periods or Periods()
        self._around = around
        self._readers = readers(self) if readers is not None and config.readers else None
        self._services = services
        self._started: list[PlaneService] = []
        self._up = self._is_withdrawn = self._are_drained = False
        # Set by ``start``, in this order.
        self.data_dir: DataDir
        self.url: str
        self._storage: OwnStorage | SharedStorage
        self.store: Store
        self.hub: Hub
        self._access: Access
        self.registry: Registry
        self.committer: AnyCommitter
        self.ticker: HubTicker
        self.reports: ReportService
        #: ``None``: nothing is recorded
        self.flight: FlightRecorder | None

    @property
    def kubeconfig(self) -> Path:
        return self.data_dir.kubeconfig

    @property
    def pki(self) -> Pki:
        return self._access.pki

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def authorities(self) -> str:
        """The authorities whose client certificates are trusted (PEM)."""
        return self._access.tls.authorities

    def client(self, name: str, *, field_manager: str = "sliceplane") -> InProcessClient:
        """A client without sockets, for this process and its loop, as the administrator *name*.
        After ``start``.
        """
        user = User(name=name, groups=(MASTERS,))
        return InProcessClient(
            self.registry,
            self.committer,
            self.ticker,
            self.reports,
            clock=self.clock,
            user=user,
            field_manager=field_manager,
        )

    async def start(self) -> None:
        """Returns when the server answers and every service has started. Raises ``StartError``;
        whatever had been started is stopped again by then.
        """
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        config = self.config
        periods = self._periods
        self.data_dir = DataDir.open(config.data_dir)
        self._cleanup.callback(self.data_dir.close)
        where = config.bind_address, config.secure_port
        sockets = [bind(*where)] if self._readers is None else bind_shared(*where, config.readers)
        for sock in sockets:
            self._cleanup.callback(sock.close)
        port = sockets[0].getsockname()[1]
        address = join_host_port(config.host, port)
        self.url = f"https://{address}"
        self._storage = await self._open_storage()
        self.store = self._storage.store
        self.hub = self._storage.hub
        self._access = access = Access(config, self.data_dir, self.url, self.clock)
        await self._storage.check_identity(access.pki, config.tokens)
        rng = Rng(int.from_bytes(os.urandom(8), "big"))
        self.registry = Registry(
            self.store, rng=rng, config=config.registry(port), tokens=access.tokens
        )
        self.committer = self._storage.committer(self.registry, keep_s=config.history_keep_s)
        self._cleanup.push_async_callback(self.committer.close)
        self.committer.start()
        await self._bootstrap()
        self.flight = self._flight_recorder()
        steps = LoopSteps(self.metrics)
        app = self._around(self._application(address, steps))
        listener = Listener(
            app if self._readers is None else self._readers.around(app),
            connections_max=config.limits.connections_max,
            timing=periods.connections,
        )
        self._listen(listener, periods.stop_grace_s, self.end_streams)
        if self._readers is None:
            self.listener.start(sockets[0], access.tls.context)
        else:
            self._cleanup.push_async_callback(self._readers.stop)
            await self._readers.start(sockets)
        self._cleanup.push_async_callback(self._withdraw)
        self._spawn(steps.heartbeat(), "heartbeat")
        self._spawn(
            access.keep_certificates(self.listener.use, periods.certificates_s), "certificates"
        )
        if config.client_ca_file is not None or config.front_proxies is not None:
            self._spawn(
                access.follow_authorities(self.listener.use, periods.authorities_s), "authorities"
            )
        self._spawn_background_tasks()
        if self.flight is not None:
            self._spawn(self.flight.run(), "flight recorder")
        context = self._service_context()
        for service in self._services:
            self._started.append(service)
            await service.start(context)
        self._up = True

    def _spawn_background_tasks(self) -> None:
        expired = self.metrics.counter(
            "sliceplane_expired_events_total", "Events removed because their time was over."
        )
        committer = self.committer
        registry = self.registry
        periods = self._periods
        retention_s = min(periods.retention_s, max(self.config.history_keep_s / 2, 0.1))
        tasks = {
            "retention": background_tasks.compact_history(committer, self.store, retention_s),
            "expiry": background_tasks.remove_expired_events(
                committer, lambda: registry.expire(self.clock()), expired, periods.expiry_s
            ),
            "addresses": background_tasks.repeat(
                committer, "tend", lambda: registry.tend(self.clock()), periods.tend_s
            ),
            "api-service": background_tasks.repeat(
                committer, "keep_api_service", self._keep_api_service, INTERVAL_S
            ),
        }
        for name, task in tasks.items():
            self._spawn(task, name)

    def _service_context(self) -> ServiceContext:
        return ServiceContext(
            client=lambda name, field_manager: self.client(name, field_manager=field_manager),
            clock=self.clock,
            kubeconfig=self.kubeconfig,
            url=self.url,
            pki=self._access.pki.folder,
            authority=self._access.pki.ca_file.read_text(),
            add_check=self.health.add,
            add_readiness=self.health.add_readiness,
            add_samples=self.metrics.include,
            flight=self.flight,
        )

    def end_streams(self) -> None:
        self.hub.close_all()
        self.reports.close()

    def _flight_recorder(self) -> FlightRecorder | None:
        config = self.config.flight
        if not config.size_bytes:
            return None
        folder = config.folder or self.data_dir.path / "recordings"
        flight = FlightRecorder("plane", config.size_bytes, folder, self.clock, self._unhealthy)
        self.metrics.include(flight.metrics.families)
        # A server that shares its storage, or its port, does not know all watchers.
        if self.config.etcd is None and self._readers is None:
            self.hub.on_sent[EndpointSlices.storage_key] = self._sent_recorder(flight)
        return flight

    def _sent_recorder(self, flight: FlightRecorder) -> Callable[[StoreEvent, int, int], None]:
        now = loop_clock(self.clock())

        def record(event: StoreEvent, watchers: int, size_bytes: int) -> None:
            key = event.record.key
            service = f"{key.namespace}/{event.record.labels.get(LABEL_SERVICE_NAME, '')}"
            version = SentVersion(key.name, event.last_version, event.is_end)
            flight.recorder.sent(version, service, watchers, size_bytes, quantized(now()))

        return record

    def _unhealthy(self) -> str:
        return "; ".join(f"{name}: {why}" for name, why in self.health.results("healthz") if why)

    async def drain(self) -> None:
        """Have clients leave for another server, while each that comes is served: the time is
        ``shutdown_delay_s``. After a ``start``; ``stop`` may be called at any moment of it.
        """
        self._stopping = True
        ends = asyncio.get_running_loop().time() + self.config.shutdown_delay_s
        self.listener.drain()
        if self._readers is not None:
            self._readers.drain()
        await self._drain_services()
        await self._withdraw()
        await asyncio.sleep(max(0.0, ends - asyncio.get_running_loop().time()))

    async def stop(self) -> None:
        """Idempotent; errors of one part do not keep the others from stopping."""
        self._stopping = True
        await (
            self._drain_services()
        )  # before the first one takes its time: what ends meanwhile is no incident
        while self._started:
            service = self._started.pop()
            await self._carefully(service.name, service.stop)
        await self._cleanup.aclose()

    async def _drain_services(self) -> None:
        """Once, in the reverse order of their starts."""
        for service in () if self._are_drained else reversed(self._started):
            await self._carefully(service.name, service.drain)
        self._are_drained = True

    async def _carefully(self, name: str, step: Callable[[], Awaitable[None]]) -> None:
        """Runs *step* and logs its failure: the rest must stop all the same."""
        try:
            await step()
        except Exception as error:
            _log.error("a service did not stop cleanly", service=name, exc_info=error)

    async def _open_storage(self) -> OwnStorage | SharedStorage:
        """The store as the back end remembers it."""
        storage: OwnStorage | SharedStorage
        try:
            if self.config.etcd is not None:
                from sliceplane.server.io.storage.shared import SharedStorage

                storage = await SharedStorage.open(self.config.etcd)
            else:
                storage = OwnStorage(self.data_dir)
        except StorageError as error:
            raise StartError(str(error)) from error
        self._cleanup.callback(storage.close)
        return storage

    async def _bootstrap(self) -> None:
        """The objects that every cluster has; nothing is written where they are there already."""
        try:
            await self.committer.write(lambda: self.registry.bootstrap(self.clock()), int)
        except StatusError as error:
            raise StartError(f"cannot write to {self._storage.name}: {error}") from error

    def _application(self, address: str, steps: LoopSteps) -> ApiServer:
        self._start_offload()
        self.reports = ReportService(self.clock)
        periods = self._periods
        resources = ResourceHandlers(
            self.registry,
            self.store,
            self.committer,
            self.clock,
            self.offload,
            future_version_s=periods.future_version_s,
        )
        self.ticker = HubTicker(self.hub)
        revocation = Revocation(self.registry, self.clock)
        self._cleanup.callback(revocation.close)
        watches = WatchHandler(
            resources,
            self.registry,
            self.ticker,
            revocation,
            stalled_s=periods.stalled_watch_s,
        )
        self._cleanup.callback(watches.close)
        services = Services(
            respond=resources.respond,
            stream=watches.respond,
            discovery=Discovery(address, self.config.served),
            health=self.health,
            metrics=self.metrics,
            find_user=lambda token: self.registry.authenticate(token, self.clock()),
            impersonate=self.registry.impersonate,
            anonymous=self.config.anonymous,
            issuer=IssuerPages(self._access.tokens, f"https://{address}", self.config.jwks_url),
            decide=self.registry.decide,
            store=self.store,
            reports=self.reports,
            flight=self.flight,
            limits=self.config.limits,
            emulated=self.config.gates.release,
            audit=self._open_audit_log(self.config.audit),
            steps=steps,
            clock=self.clock,
        )
        app = ApiServer(services)
        self._add_health_checks()
        self._include(
            app.in_flight,
            self.offload,
            self.committer,
            self.hub,
            log_output,
            revocation,
            self.registry,
            self.health,
            self.reports,
            watches.backlogs,
        )
        database = self.data_dir.database
        storage = store_metrics(self.store, database, lambda: self._storage.spare_bytes)
        self.metrics.include(storage.families)
        self.metrics.declare_gates(self.config.gates)
        declare_build(self.metrics, self.config.gates.release)
        return app

    def _add_health_checks(self) -> None:
        """Names and order are those that monitoring of Kubernetes expects."""
        self.health.add("log", lambda: "")
        self.health.add("etcd", lambda: health_of(self.committer))
        # A service with informers replaces the check of this name.
        self.health.add_readiness(
            "informer-sync", lambda: "" if self._up else "the process is starting"
        )
        if self.config.etcd is not None:
            self.health.add_readiness("etcd-readiness", self._storage.unready)
        self._check_shutdown()

    def _keep_api_service(self) -> int:
        return 0 if self._stopping else self.registry.keep_api_service(self.clock())

    async def _withdraw(self) -> None:
        """Withdraws this server from default/kubernetes, so that clients use another.  Once."""
        if self._is_withdrawn:
            return
        self._is_withdrawn = True
        try:
            withdrawal = self.committer.write(
                lambda: self.registry.withdraw_api_service(self.clock()), int
            )
            problem = (
                ""
                if await ends_within(self._periods.stop_grace_s, withdrawal)
                else "the storage gives no answer"
            )
        except StatusError as error:
            problem = str(error)
        if problem:
            _log.error("this server is still an endpoint of default/kubernetes", error=problem)
