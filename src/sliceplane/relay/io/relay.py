"""A relay put together: the parent's resources, the application in front, and the port.

It keeps nothing on disk. Certificates are read again when their files change.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Final, Self

import msgspec
from msgspec.structs import replace

from sliceplane import __version__
from sliceplane.api.errors import StatusError, forbidden
from sliceplane.api.gates import NEWEST, Gates
from sliceplane.api.requests import Selection
from sliceplane.api.resource import Resource
from sliceplane.api.scheme import EndpointSlices, Leases, Nodes
from sliceplane.api.scheme import Services as ServiceObjects
from sliceplane.api.users import User
from sliceplane.consume.drain.relays import RelayReport
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.io.logs import output as log_output
from sliceplane.kit.io.start_error import StartError
from sliceplane.kit.io.tls.acceptor import FrontProxies
from sliceplane.kit.io.tls.files import FileTls
from sliceplane.kit.ip import join_host_port
from sliceplane.kit.rng import Rng
from sliceplane.relay.io.barriers import BarrierAnswers
from sliceplane.relay.io.children import Children, OpenChildren
from sliceplane.relay.io.front import RelayFront
from sliceplane.relay.io.parent import Parent
from sliceplane.relay.io.passing import Passage
from sliceplane.relay.io.reports import NEEDED, ReportLeases
from sliceplane.relay.io.served import FrontDurability, Served, ServedParts
from sliceplane.relay.io.upstream import ParentClient
from sliceplane.relay.metrics import declare_metrics
from sliceplane.relay.mirror import ResourceMirror
from sliceplane.relay.parts import parts_of
from sliceplane.relay.siblings import Siblings
from sliceplane.relay.subtree import described
from sliceplane.server.io.audit.log import AuditConfig
from sliceplane.server.io.connections.listener import Listener, bind
from sliceplane.server.io.metrics import LoopSteps
from sliceplane.server.io.nonresource.discovery import Discovery
from sliceplane.server.io.process import ServingProcess
from sliceplane.server.io.requests.app import ApiServer, Services
from sliceplane.server.io.requests.limits import Limits
from sliceplane.server.io.requests.reports import ReportService
from sliceplane.server.io.requests.resources import ResourceHandlers
from sliceplane.server.io.requests.timers import HubTicker
from sliceplane.server.io.requests.watch import WatchHandler
from sliceplane.server.registry.authentication.impersonation import Impersonation
from sliceplane.server.registry.config import RegistryConfig
from sliceplane.server.registry.registry import Registry
from sliceplane.server.store.shelf import HISTORY_BYTES_MAX, HISTORY_KEEP_S
from sliceplane.watch.io.base import Unreachable
from sliceplane.watch.io.connection import Connection
from sliceplane.watch.io.reflect import loop_clock

#: between two checks of history whose time is over
TICK_S: Final = 5.0
#: between two questions for the parent's release, and after one that had no answer
VERSION_S: Final = 60.0
VERSION_RETRY_S: Final = 5.0
STOP_GRACE_S: Final = 5.0
#: a server may have many processes, which should cost nothing while they have nothing to do
HEARTBEAT_S: Final = 0.5

_log = get_logger("relay")


class RelayConfig(msgspec.Struct, frozen=True, kw_only=True):
    """*trust_nodes*: nodes read without a question to the parent.  *history_bytes_max*: of each
    resource.  *reports_name*: of the Lease that aggregates nodes' reports; "": none does.
    """

    bind_address: str
    port: int
    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    #: clients that say for which user a request is
    front_proxies: FrontProxies | None = None
    #: files of the certificate and the key by which the relay is one itself, for its parent
    proxy_certificate: tuple[Path, Path] | None = None
    resources: tuple[Resource, ...] = (EndpointSlices, ServiceObjects, Nodes)
    trust_nodes: bool = False
    reports_name: str = ""
    history_keep_s: float = HISTORY_KEEP_S
    history_bytes_max: int = HISTORY_BYTES_MAX
    limits: Limits = msgspec.field(default_factory=Limits)
    gates: Gates = msgspec.field(default_factory=Gates)
    #: slices for other zones are not read; "": all are
    zone: str = ""
    #: of requests that are served here
    audit: AuditConfig | None = None
    anonymous: bool = True


class Relay(ServingProcess):
    """Used as a context manager, in one loop."""

    def __init__(
        self,
        connection: Connection,
        config: RelayConfig,
        siblings: Sequence[Connection] = (),
        sock: socket.socket | None = None,
    ) -> None:
        """*connection*: to the parent, as a user that may list and watch the resources, and create
        TokenReviews and SubjectAccessReviews; *siblings*: to others like it. *sock*: that listens.
        """
        super().__init__(time.time)
        self.config = config
        self._sock = sock
        rng = Rng(int.from_bytes(os.urandom(8), "big"))
        self.name = f"sliceplane-relay-{rng.uuid()}"
        self._rng = rng
        via = ("Via", f"1.1 {self.name}")
        self._connections = [
            replace(each, headers=(*each.headers, via)) for each in (connection, *siblings)
        ]
        self.siblings = Siblings(len(self._connections), rng.fork())
        # Set by ``start``.
        self.url: str
        self.port: int
        self.parents: dict[Selection, Parent]
        self.reports: ReportService
        self.front: RelayFront

    async def __aenter__(self) -> Self:
        """Returns when the port answers.  Raises ``StartError``."""
        try:
            await self._start()
        except BaseException:
            await self._cleanup.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping = True
        await self._cleanup.aclose()

    async def run(self) -> None:
        """Returns or raises when one of its tasks ends, which is a fault of ours."""
        ended, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()

    async def wait_ready(self) -> None:
        """Returns when every resource was listed once."""
        for parent in self.parents.values():
            await parent.informer.wait_synced()

    async def _start(self) -> None:
        config = self.config
        tls = FileTls(
            config.cert_file, config.key_file, config.client_ca_file, config.front_proxies
        )
        sock = self._sock or bind(config.bind_address, config.port)
        self._cleanup.callback(sock.close)
        self.port = sock.getsockname()[1]
        address = join_host_port(config.bind_address, self.port)
        self.url = f"https://{address}"
        client = ParentClient(self._connections, self.siblings)
        self._cleanup.push_async_callback(client.close)
        self.front = self._application(client, address)
        listener = Listener(
            self.front,
            connections_max=config.limits.connections_max,
            unauthenticated_bytes_max=config.limits.unauthenticated_bytes_max,
        )
        self._listen(listener, STOP_GRACE_S, self._end_watches)
        await self._begin(client)
        listener.start(sock, tls.context)
        self._spawn(tls.follow(listener.use), "certificates")
        self._spawn(self._tick(), "ticks")

    # Different in a process of a server (``reader``)

    parent_type: ClassVar[type[Parent]] = Parent

    def _make_passage(self, children: Children) -> Passage:
        return Passage(
            self._connections,
            self.siblings,
            self.name,
            proxy_certificate=self.config.proxy_certificate,
            clock=self.clock,
        )

    async def _begin(self, client: ParentClient) -> None:
        """Called before clients are accepted."""
        self._spawn(self._follow_release(client), "release of the parent")

    def _application(self, client: ParentClient, address: str) -> RelayFront:
        config = self.config
        steady = loop_clock(self.clock())
        plurals = frozenset(resource.plural for resource in config.resources)
        children = Children(client, steady, plurals if config.trust_nodes else frozenset())
        self._cleanup.callback(children.close)
        watches = OpenChildren(children)
        self._start_offload()
        served = {
            part: self._serve(part, client, watches, steady)
            for part in parts_of(config.resources, config.zone)
        }
        self.parents = {part: one.parent for part, one in served.items()}
        answers = self._aggregate_reports(client, steady)
        reports = None if answers is None else answers.leases
        self.reports = ReportService(self.clock) if answers is None else answers.memory
        offered = config.resources if reports is None else (*config.resources, Leases)
        parts = ServedParts(served, reports)
        passage = self._make_passage(children)
        self._cleanup.push_async_callback(passage.close)
        steps = LoopSteps(self.metrics)
        app = ApiServer(
            Services(
                respond=parts.respond,
                stream=parts.stream,
                discovery=Discovery(address, offered),
                health=self.health,
                metrics=self.metrics,
                find_user=children.known_user,
                impersonate=_refuse_impersonation,
                decide=children.known_decision,
                limits=config.limits,
                store=next(iter(served.values())).parent.mirror.store,
                reports=self.reports,
                audit=self._open_audit_log(config.audit),
                anonymous=config.anonymous,
                steps=steps,
                clock=self.clock,
            )
        )
        self._include(app.in_flight, self.offload, children, passage, self.health, log_output)
        declare_metrics(self.metrics, self.parents, lambda: self.siblings.moves)
        self._check_shutdown()
        self._spawn(steps.heartbeat(HEARTBEAT_S), "heartbeat")
        self._spawn(watches.run(), "rights of children")
        return RelayFront(
            app, self.parents, children, passage, answers, name=self.name, clock=self.clock
        )

    def _aggregate_reports(
        self, client: ParentClient, steady: Callable[[], float]
    ) -> BarrierAnswers | None:
        if not self.config.reports_name:
            return None
        name, rng = self.config.reports_name, self._rng.fork()
        process, zone = self.name.rpartition("-")[2], self.config.zone
        began = round(steady(), 1)

        def describe() -> RelayReport:
            server, now = self._connections[self.siblings.current].server, round(steady(), 1)
            own = RelayReport(name, process, now, now - began, server, __version__, zone=zone)
            return described(own, self.parents)

        reports = ReportLeases(name, client, self.offload, steady, rng=rng, describe=describe)
        answers = BarrierAnswers(reports, client, steady, rng.fork())
        # Reports are compared with all slices, so a relay of a zone passes those of nodes on.
        reports.core.compares = not zone
        for resource in () if zone else NEEDED:
            parent = self.parents.get(Selection(resource))
            if parent is None:
                raise StartError(
                    f"reports are compared with all {resource.plural}: see --resources"
                )
            reports.follow(parent)
        self._include(reports, answers.memory)
        self._spawn(reports.run(), "reports of nodes")
        self._spawn(answers.run(), "reports to barriers")
        return answers

    def _serve(
        self,
        part: Selection,
        client: ParentClient,
        open_children: OpenChildren,
        steady: Callable[[], float],
    ) -> Served:
        config = self.config
        mirror = ResourceMirror(
            part.resource, keep_s=config.history_keep_s, bytes_max=config.history_bytes_max
        )
        parent = self.parent_type(client, part, mirror, clock=steady, rng=self._rng.fork())
        registry = Registry(
            mirror.store, rng=self._rng.fork(), config=RegistryConfig(gates=config.gates)
        )
        resources = ResourceHandlers(
            registry, mirror.store, FrontDurability(), self.clock, self.offload
        )
        watches = WatchHandler(resources, registry, HubTicker(mirror.hub), open_children)
        self._cleanup.callback(watches.close)
        name = f"{part.resource.plural} {part.label_selector}".rstrip()
        self._spawn(parent.run(), name)
        self.health.add_readiness(f"parent-{name}", lambda: parent.trouble)
        return Served(parent, registry, resources, watches)

    def _end_watches(self) -> None:
        for parent in self.parents.values():
            parent.mirror.hub.close_all()
        self.reports.close()

    async def _tick(self) -> None:
        """Drops old history."""
        while True:
            await asyncio.sleep(TICK_S)
            now = asyncio.get_running_loop().time()
            for parent in self.parents.values():
                parent.mirror.on_tick(now)

    async def _follow_release(self, client: ParentClient) -> None:
        """Learns whether the parent may have fields that our protobuf schemas lack; and, since each
        relay on the way passes the request on, whether the way leads to a server.
        """
        while True:
            pause_s, loop = VERSION_RETRY_S, ""
            try:
                page = await client.page("/version", bytes_max=64 * 1024)
                self.front.knows_protobuf = _release_of(page) <= NEWEST
                pause_s = VERSION_S
            except StatusError as error:
                if error.code == 508:
                    loop = error.message
                    _log.error("parents of relays form a loop", problem=loop)
            except (Unreachable, ValueError):
                pass
            for parent in self.parents.values():
                parent.loop = loop
            await asyncio.sleep(pause_s)


class _Version(msgspec.Struct):
    major: str
    minor: str


def _release_of(page: bytes) -> tuple[int, int]:
    """Returns the release of ``/version``.  Raises ``ValueError``; some clouds write "31+"."""
    version = msgspec.json.decode(page, type=_Version)
    return int(version.major), int(version.minor.rstrip("+"))


def _refuse_impersonation(_: User, __: Impersonation) -> User:
    raise forbidden("users", "", "", "a relay impersonates nobody on its own pages")
