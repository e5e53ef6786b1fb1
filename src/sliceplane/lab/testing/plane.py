"""``Plane``: an API server with controllers for a test.

All its operations run in the plane's thread (``thread``) and take about a millisecond, so a
coroutine may call them, too, without an ``await``. Only waiting would block the caller's loop, so
it has two forms.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

from sliceplane.lab.testing.faults import Faults
from sliceplane.lab.testing.thread import NOT_RUNNING, PlaneThread

if TYPE_CHECKING:
    from sliceplane.consume.balancing.model import Endpoint
    from sliceplane.lab.testing.objects import Document, Objects, Source
    from sliceplane.server.io import plane as server
    from sliceplane.watch.io.http.client import HttpClient

T = TypeVar("T")

WAIT_S: Final = 10.0
#: seconds between two evaluations of a condition, which the consumer under test does not notice
POLL_S: Final = 0.01
#: seconds for which a deleted Pod continues to serve
TERMINATION_S: Final = 0.5


class Plane:
    """A plane for one test. Use it as ``with`` or ``async with``; a second use starts it again.

    *nodes* is the number of emulated kubelets, distributed over *zones*: with at least one,
    Deployments become Pods that are ready after *ready_delay* seconds, and deleted Pods end after
    *termination* seconds. With *controllers* false only an API server runs, and slices stay as
    written. *data_dir* stores everything in a folder, and *port* keeps the port across restarts.

    Raises ``ValueError`` for options that contradict each other, and at the start ``StartError``
    with a sentence.
    """

    def __init__(
        self,
        *,
        controllers: bool = True,
        nodes: int = 0,
        zones: Iterable[str] = (),
        ready_delay: float = 0.0,
        termination: float = TERMINATION_S,
        data_dir: str | Path = "memory:",
        port: int = 0,
    ) -> None:
        self._controllers = controllers
        self._nodes = nodes
        self._zones = tuple(zones)
        self._ready_delay = ready_delay
        self._termination = termination
        self._data_dir = str(data_dir)
        self._port = port
        if nodes and not controllers:
            raise ValueError(
                "emulated nodes need the controllers: leave out controllers=False, or nodes"
            )
        if self._zones and not nodes:
            raise ValueError("zones are those of emulated nodes: say how many nodes, too")
        for name, value in (
            ("nodes", nodes),
            ("ready_delay", ready_delay),
            ("termination", termination),
        ):
            if value < 0:
                raise ValueError(f"{name} is {value}, it must be 0 or more")
        if not 0 <= port <= 65535:
            raise ValueError(f"port is {port}, it must be 0 (a free one) to 65535")
        self._ahead = 0.0
        self.faults = Faults()
        # Set by ``start``.
        self._plane: server.ServerPlane
        self._objects: Objects
        self._thread: PlaneThread | None = None

    # Start and stop

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.stop)

    def start(self) -> None:
        """Starts the plane; returns when the server answers and every controller is synced."""
        if self._thread is not None:
            raise ValueError(
                "this plane runs already: a with block starts it, and start() does so without one"
            )
        self._plane = _build(self)
        thread = PlaneThread(self._plane)
        thread.start()
        self._thread = thread
        try:
            self._call(self._wait_ready())
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops the plane. Data of ``memory:`` is lost, its kubeconfig included. Idempotent."""
        thread = self._thread
        self._thread = None
        if thread is not None:
            self.faults.clear()
            thread.stop()

    async def _wait_ready(self) -> None:
        from sliceplane.lab.testing.objects import Objects  # loaded by ``_build``

        self._objects = Objects(self._plane, emulates=self._nodes > 0)
        self.faults.attach(self._call, self._objects.forget_history, self._objects.send_bookmarks)
        if self._controllers:
            async with asyncio.timeout(WAIT_S):
                await self._objects.wait_ready()

    def _call(self, question: Any) -> Any:
        if self._thread is None:
            question.close()
            raise ValueError(NOT_RUNNING)
        return self._thread.call(question)

    def __getattr__(self, name: str) -> Any:
        """Raises a helpful error for members that only ``start`` sets."""
        if name in ("_plane", "_objects"):
            raise ValueError(NOT_RUNNING)
        raise AttributeError(f"a Plane has no {name!r}")

    # Address and client

    @property
    def url(self) -> str:
        """``https://127.0.0.1:PORT``"""
        return self._plane.url

    @property
    def kubeconfig(self) -> Path:
        """The file with the administrator's credentials, for any client."""
        return self._plane.kubeconfig

    def client(self) -> AbstractAsyncContextManager[HttpClient]:
        """Returns ``sliceplane.client.connect`` with this kubeconfig."""
        from sliceplane.consume.io.client.connecting import connect

        return connect(self.kubeconfig)

    # Objects

    def apply(self, source: Source, *, namespace: str = "default") -> list[Document]:
        """Applies YAML, a file of it (a ``Path``), a document or several server-side; returns the
        stored objects.

        *namespace* is the default for documents without one. A ``status`` is written as well.
        Raises ``StatusError`` if the server refuses, and ``ValueError`` for anything that is no
        object.
        """
        from sliceplane.lab.testing.objects import documents_of

        return cast(
            "list[Document]", self._call(self._objects.apply(documents_of(source), namespace))
        )

    def get(self, kind: str, name: str, *, namespace: str = "default") -> Document:
        """Returns an object; *kind* as in kubectl: ``pods``, ``pod`` or ``Pod``. Raises
        ``StatusError`` 404.
        """
        return cast("Document", self._call(self._objects.get(kind, name, namespace)))

    def list(
        self, kind: str, *, namespace: str = "default", label_selector: str = ""
    ) -> list[Document]:
        """Returns objects in the order of their names. *namespace* "" means all."""
        return cast(
            "list[Document]", self._call(self._objects.list(kind, namespace, label_selector))
        )

    def delete(self, kind: str, name: str, *, namespace: str = "default") -> None:
        """Deletes an object; an emulated Pod ends a little later. Raises ``StatusError`` 404."""
        self._call(self._objects.delete(kind, name, namespace))

    def endpoints(
        self, service: str, *, namespace: str = "default", port: str | int | None = None
    ) -> tuple[Endpoint, ...]:
        """Returns the endpoints in the Service's slices, ready or not; *port* as for an
        ``EndpointView``.
        """
        return cast(
            "tuple[Endpoint, ...]", self._call(self._objects.endpoints(service, namespace, port))
        )

    def set_endpoints(
        self,
        service: str,
        addresses: Iterable[str],
        *,
        namespace: str = "default",
        port_name: str = "",
    ) -> None:
        """Gives a Service without a selector exactly these endpoints, as ``10.0.0.1:80``, without
        Pods.

        As in every cluster, no endpoint may be in 127.0.0.0/8 or be ::1.
        """
        self._call(self._objects.set_endpoints(service, tuple(addresses), namespace, port_name))

    def set_ready(self, pod: str, ready: bool = True, *, namespace: str = "default") -> None:
        """Makes the Pod ready or not; slices follow when the controllers have observed it."""
        self._call(self._objects.set_ready(pod, ready, namespace))

    def advance(self, seconds: float) -> None:
        """Advances the server's wall clock: tokens and Events age, new objects are younger."""
        self._ahead += seconds

    # Waiting

    def wait_for(self, condition: Callable[[], T], timeout: float = WAIT_S) -> T:
        """Returns the value of *condition* once it is true (not empty, not zero); checked every 10
        ms.

        An ``AssertionError`` counts as not yet true. Raises ``TimeoutError`` with the last value.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise RuntimeError(
                "in a coroutine use `await plane.until(...)`: wait_for would hold up the loop"
            )
        ends = time.monotonic() + timeout
        while True:
            last, why = _evaluate(condition)
            if last and why is None:
                return cast("T", last)
            if time.monotonic() > ends:
                raise _timeout_error(condition, timeout, last) from why
            time.sleep(POLL_S)

    async def until(self, condition: Callable[[], T | Awaitable[T]], timeout: float = WAIT_S) -> T:
        """``wait_for`` for coroutines; *condition* may be a coroutine function."""
        ends = time.monotonic() + timeout
        while True:
            last, why = _evaluate(condition)
            if inspect.isawaitable(last):
                try:
                    last = await last
                except AssertionError as error:
                    last = None
                    why = error
            if last and why is None:
                return cast("T", last)
            if time.monotonic() > ends:
                raise _timeout_error(condition, timeout, last) from why
            await asyncio.sleep(POLL_S)

    # Used by ``_build``

    def clock(self) -> float:
        """Returns the time of the server's wall clock."""
        return time.time() + self._ahead


def _evaluate(condition: Callable[[], object]) -> tuple[object, AssertionError | None]:
    try:
        return condition(), None
    except AssertionError as error:
        return None, error


def _timeout_error(condition: Callable[[], object], timeout: float, last: object) -> TimeoutError:
    name = getattr(condition, "__qualname__", "") or repr(condition)
    where = getattr(condition, "__code__", None)
    line = (
        f" (line {where.co_firstlineno} of {Path(where.co_filename).name})"
        if where is not None
        else ""
    )
    return TimeoutError(f"{name}{line} was not so within {timeout:g} s; it gave {str(last)[:500]}")


def _build(plane: Plane) -> server.ServerPlane:
    """Builds the plane of ``sliceplane up`` with these options, not started. Raises ``StartError``
    without the extra.

    All modules are loaded here, because a load would block the plane's loop, which reports that.
    """
    try:
        import uvloop  # noqa: F401

        from sliceplane.controllers.io.catalogue import default_controllers, emulation_controllers
        from sliceplane.controllers.io.embedded import ControllerService
        from sliceplane.emulation.nodes import EmulationConfig, make_nodes
        from sliceplane.lab.testing import objects  # noqa: F401
        from sliceplane.server.io.config import PlaneConfig
        from sliceplane.server.io.plane import ServerPlane as Server
    except ModuleNotFoundError as error:
        raise _lacking(error) from error
    entries = default_controllers()
    if plane._nodes:
        entries += emulation_controllers(
            EmulationConfig(
                nodes=make_nodes(plane._nodes, plane._zones),
                ready_s=plane._ready_delay,
                termination_s=plane._termination,
            )
        )
    config = PlaneConfig(data_dir=plane._data_dir, secure_port=plane._port)
    services = (ControllerService(entries),) if plane._controllers else ()
    return Server(config, services, clock=plane.clock, around=plane.faults.around)


def _lacking(error: ModuleNotFoundError) -> Exception:
    from sliceplane.kit.io.extras import EXTRA_OF, requirement
    from sliceplane.kit.io.start_error import StartError

    if (error.name or "").partition(".")[0] not in EXTRA_OF:
        return error
    return StartError(
        f"a plane for tests needs {error.name}, which the plain package does not bring; install "
        "it with "
        f"pip install {requirement('server')}"
    )


__all__ = ["Plane"]
