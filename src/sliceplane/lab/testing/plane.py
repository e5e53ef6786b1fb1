"""``Plane``: what a test starts, asks and ends.

All that it does runs in a thread with the plane (``thread``), and takes a millisecond or so. So a
coroutine may call it, too, without an ``await``; only waiting would keep the caller's loop from
what it waits for, and has two forms.
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
#: between two looks at a condition; the consumer under test is told nothing of them
POLL_S: Final = 0.01
#: a Pod that is deleted lives on this long, serving
TERMINATION_S: Final = 0.5


class Plane:
    """A plane of a test's own.  Use as ``with`` or ``async with``; a second time starts it anew.

    *nodes* is how many kubelets are emulated, in *zones* in turn: with at least one, Deployments
    become Pods that are ready at once (after *ready_delay* seconds), and deleted Pods end after
    *termination* seconds. *controllers* false leaves an API server alone, where slices stay as they
    are written. *data_dir* keeps everything in a folder, and *port* is for what must be the same
    after another start.

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

    # Life

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
        """Returns when the server answers, and every controller knows the state."""
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
        """Idempotent.  What ``memory:`` held is gone, its kubeconfig included."""
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
        """Members that ``start`` sets are asked for before."""
        if name in ("_plane", "_objects"):
            raise ValueError(NOT_RUNNING)
        raise AttributeError(f"a Plane has no {name!r}")

    # Where it is

    @property
    def url(self) -> str:
        """``https://127.0.0.1:PORT``"""
        return self._plane.url

    @property
    def kubeconfig(self) -> Path:
        """The file with the administrator's way in, for any client."""
        return self._plane.kubeconfig

    def client(self) -> AbstractAsyncContextManager[HttpClient]:
        """As ``sliceplane.client.connect`` with this kubeconfig."""
        from sliceplane.consume.io.client.connecting import connect

        return connect(self.kubeconfig)

    # What is in it

    def apply(self, source: Source, *, namespace: str = "default") -> list[Document]:
        """Server-side apply of YAML, a file of it (a ``Path``), a document or several; the objects
        as they are then.

        *namespace* is for those that name none. A ``status`` is written as well. Raises
        ``StatusError`` as a server refuses, and ``ValueError`` for what is no object.
        """
        from sliceplane.lab.testing.objects import documents_of

        return cast(
            "list[Document]", self._call(self._objects.apply(documents_of(source), namespace))
        )

    def get(self, kind: str, name: str, *, namespace: str = "default") -> Document:
        """*kind* as kubectl takes it: ``pods``, ``pod`` or ``Pod``.  Raises ``StatusError`` 404."""
        return cast("Document", self._call(self._objects.get(kind, name, namespace)))

    def list(
        self, kind: str, *, namespace: str = "default", label_selector: str = ""
    ) -> list[Document]:
        """In the order of names.  *namespace* "" is all."""
        return cast(
            "list[Document]", self._call(self._objects.list(kind, namespace, label_selector))
        )

    def delete(self, kind: str, name: str, *, namespace: str = "default") -> None:
        """Raises ``StatusError`` 404.  An emulated Pod ends a little later."""
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
        """Give a Service without a selector exactly these endpoints, as ``10.0.0.1:80``, without
        any Pods.

        As in every cluster no endpoint may be on 127.0.0.0/8 or ::1.
        """
        self._call(self._objects.set_endpoints(service, tuple(addresses), namespace, port_name))

    def set_ready(self, pod: str, ready: bool = True, *, namespace: str = "default") -> None:
        """Make the Pod ready or not; slices follow when the controllers have seen it."""
        self._call(self._objects.set_ready(pod, ready, namespace))

    def advance(self, seconds: float) -> None:
        """Set the server's wall clock ahead: tokens and Events age, new objects are younger."""
        self._ahead += seconds

    # Waiting

    def wait_for(self, condition: Callable[[], T], timeout: float = WAIT_S) -> T:
        """Returns the value of *condition* once it is true (not empty, not zero); checked every 10
        ms.

        An ``AssertionError`` counts as not yet. Raises ``TimeoutError`` that tells what there was
        last.
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

    # What ``_build`` needs

    def clock(self) -> float:
        """The server's wall clock."""
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
    """The plane of ``sliceplane up`` with these options, not started. Raises ``StartError`` without
    the extra.

    All modules are loaded here: the plane's loop would be held by it, and say so.
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
