"""A view that a test changes, and clients in memory that apply what they are sent as Envoy and gRPC
do.

Both are written from what the programs do (docs/xds.md, "What clients do"), not from our
streams: Envoy passes over the removal of an assignment, keeps members of collections over a
reconnect, and waits for the assignment of a cluster that it was sent again; gRPC forgets a listener
or a cluster that an answer leaves out.

What went over a stream is in ``Recorded``, whose ``check`` are the rules that hold for every
stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sliceplane.xds import names, wire
from sliceplane.xds.names import ASSIGNMENT, CLUSTER, ENDPOINT, LISTENER
from sliceplane.xds.resource import XdsResource
from sliceplane.xds.streams.actions import (
    Action,
    VisibleNamespaces,
    XdsAdmit,
    XdsFinish,
    XdsGateForced,
    XdsRefusal,
    XdsSend,
)
from sliceplane.xds.streams.delta import DeltaStream
from sliceplane.xds.streams.messages import ResponseEncoder
from sliceplane.xds.streams.requests import (
    RequestError,
    WholeRequest,
    read_delta,
    read_whole,
    run_steps,
)
from sliceplane.xds.streams.whole import WholeStream

GLOB = names.collection("p-1")


WEB = "default/web:http"
API = "default/api:http"


class Changed(NamedTuple):
    view: Any
    type_url: str
    topic: str


class FakeCollection(NamedTuple):
    members: list[XdsResource]
    removed: tuple[str, ...]


class FakeView:
    """Resources by type and name; the body of one is its text."""

    def __init__(self) -> None:
        self.held: dict[str, dict[str, XdsResource]] = {type_url: {} for type_url in names.TYPES}
        self.tombstones: dict[str, None] = {}
        self.changes: list[Changed] = []
        self.revision = 1

    def put(self, type_url: str, name: str, body: str) -> None:
        self.held[type_url][name] = XdsResource(type_url, name, body.encode())
        self.tombstones.pop(name, None)
        self._changed(type_url, name)

    def drop(self, type_url: str, name: str) -> None:
        if self.held[type_url].pop(name, None) is not None:
            if type_url == ENDPOINT:
                self.tombstones[name] = None
            self._changed(type_url, name)

    def _changed(self, type_url: str, name: str) -> None:
        self.revision += 1
        self.changes.append(Changed(self, type_url, name))

    @property
    def built_assignments(self) -> dict[str, XdsResource]:
        return self.held[ASSIGNMENT]

    def get(self, type_url: str, name: str) -> XdsResource | None:
        return self.held.get(type_url, {}).get(name)

    def all(self, type_url: str) -> list[XdsResource]:
        return [self.held[type_url][name] for name in sorted(self.held[type_url])]

    def collection(self, glob: str) -> FakeCollection | None:
        if glob != GLOB:
            return None
        return FakeCollection(self.all(ENDPOINT), tuple(self.tombstones))

    def topic(self, type_url: str, name: str) -> str:
        return name

    def absence(self, type_url: str, name: str) -> str:
        return "" if name in self.held.get(type_url, {}) else "nothing is there"

    def namespace_of(self, type_url: str, name: str) -> str | None:
        return name.partition("/")[0] if "/" in name else None

    def take_changes(self) -> list[Changed]:
        changes, self.changes = self.changes, []
        return sorted(changes, key=lambda change: names.TYPES.index(change.type_url))


def scaled(view: FakeView, key: str = WEB, body: str = "b") -> None:
    view.put(ASSIGNMENT, key, f"{key}={body}")


class Response(NamedTuple):
    type_url: str
    version: str
    nonce: str
    #: name -> (version, body); the name of a resource of the state of the world is its body up to
    #: "="
    resources: dict[str, tuple[str, bytes]]
    removed: tuple[str, ...]
    errors: tuple[str, ...]
    doubled: bool


def _texts(message: bytes, number: int) -> list[bytes]:
    return [
        wire.as_bytes(value)
        for field_number, value in wire.fields(message)
        if field_number == number
    ]


def _first(message: bytes, number: int) -> bytes:
    return next(iter(_texts(message, number)), b"")


def read_response(message: bytes, *, delta: bool) -> Response:
    resources: dict[str, tuple[str, bytes]] = {}
    items = _texts(message, 2)
    for item in items:
        if delta:
            resources[_first(item, 3).decode()] = (
                _first(item, 1).decode(),
                _first(_first(item, 2), 2),
            )
        else:
            body = _first(item, 2)
            # What stands for nothing is a real message: its name is field 1.
            name = _first(body, 1) if body.startswith(b"\n") else body.partition(b"=")[0]
            resources[name.decode()] = ("", body)
    removed = tuple(name.decode() for name in _texts(message, 6)) if delta else ()
    errors = tuple(
        _first(_first(error, 1), 1).decode() for error in _texts(message, 9 if delta else 7)
    )
    return Response(
        type_url=_first(message, 4).decode(),
        version="" if delta else _first(message, 1).decode(),
        nonce=_first(message, 5).decode(),
        resources=resources,
        removed=removed,
        errors=errors,
        doubled=len(resources) < len(items) or bool(set(resources) & set(removed)),
    )


def node(metadata: dict[str, str] | None = None, node_id: str = "n1", zone: str = "a") -> bytes:
    struct = b"".join(
        wire.message(1, wire.text(1, key), wire.message(2, wire.text(3, value)))
        for key, value in (metadata or {}).items()
    )
    return wire.text(1, node_id) + wire.message(3, struct) + wire.message(4, wire.text(2, zone))


def delta_request(
    type_url: str,
    *,
    subscribe: tuple[str, ...] = (),
    unsubscribe: tuple[str, ...] = (),
    initial: dict[str, str] | None = None,
    nonce: str = "",
    error: str | None = None,
    of_node: bytes | None = None,
) -> bytes:
    return b"".join(
        (
            b"" if of_node is None else wire.message(1, of_node),
            wire.text(2, type_url),
            *[wire.text(3, name) for name in subscribe],
            *[wire.text(4, name) for name in unsubscribe],
            *[
                wire.message(5, wire.text(1, name), wire.text(2, version))
                for name, version in (initial or {}).items()
            ],
            wire.text(6, nonce),
            b"" if error is None else wire.message(7, wire.integer(1, 3), wire.text(2, error)),
        )
    )


def whole_request(
    type_url: str,
    *wanted: str,
    version: str = "",
    nonce: str = "",
    error: str | None = None,
    of_node: bytes | None = None,
) -> bytes:
    return b"".join(
        (
            wire.text(1, version),
            b"" if of_node is None else wire.message(2, of_node),
            *[wire.text(3, name) for name in wanted],
            wire.text(4, type_url),
            wire.text(5, nonce),
            b"" if error is None else wire.message(6, wire.integer(1, 3), wire.text(2, error)),
        )
    )


@dataclass
class Recorded:
    """What went over a stream."""

    responses: list[Response] = field(default_factory=list)
    #: by type: nonces that the client has not answered
    open: dict[str, str] = field(default_factory=dict)
    refusals: list[XdsRefusal] = field(default_factory=list)
    finished: XdsFinish | None = None
    gates_forced: int = 0

    def sent(self, response: Response, *, names_wanted: Callable[[str, str], bool]) -> None:
        assert not response.doubled, "NoDuplicate: a name twice in a response"
        assert response.type_url not in self.open, (
            "OneInFlight: a response while one is not answered"
        )
        assert response.nonce, "Nonces: each response has one"
        assert response.nonce not in {old.nonce for old in self.responses}, (
            "Nonces: each once on a stream"
        )
        for name in (*response.resources, *response.removed):
            assert names_wanted(response.type_url, name), f"NothingUnsubscribed: {name}"
        self.open[response.type_url] = response.nonce
        self.responses.append(response)

    def of(self, type_url: str) -> list[Response]:
        return [response for response in self.responses if response.type_url == type_url]


class Client:
    """What both clients have: a stream, the time, and who says whether a message is refused."""

    delta: bool

    def __init__(
        self,
        view: FakeView,
        encoder: ResponseEncoder | None = None,
        visible: VisibleNamespaces | None = None,
    ) -> None:
        self.view = view
        self.encoder = encoder or ResponseEncoder()
        self.visible = visible or VisibleNamespaces()
        self.now = 100.0
        self.stream: DeltaStream | WholeStream | None = None
        self.recorded = Recorded()
        #: says why a resource is refused; "": it is not
        self.refuses: Callable[[str, bytes], str] = lambda name, body: ""
        #: types whose answers it keeps back
        self.silent: set[str] = set()
        self.unanswered: list[Response] = []
        self.outbox: list[bytes] = []
        self.working = False

    def open(self, *, admitted: bool = True) -> None:
        self.stream = DeltaStream(self.encoder) if self.delta else WholeStream(self.encoder)
        self.recorded = Recorded()
        self.unanswered, self.outbox, self.working = [], [], False
        self.admits = admitted
        self.asked: dict[str, dict[str, None] | None] = {}

    def say(self, message: bytes) -> None:
        """In turn: what it says while it takes an answer comes after that."""
        self.outbox.append(message)
        if not self.working:
            self.work()

    def tell(self) -> None:
        """The server tells what changed."""
        changes = self.view.take_changes()
        if self.stream is not None:
            self.stream.on_changes(changes, self.view.revision, self.now)
            self.work()

    def pass_time(self, seconds: float) -> None:
        assert self.stream is not None, "open"
        self.now += seconds
        due = self.stream.next_deadline()
        if due is not None and due <= self.now:
            self.stream.on_deadline(self.now)
        self.work()

    def work(self) -> None:
        """Until neither side has anything to say: a loop would never end."""
        assert self.stream is not None, "open"
        self.working = True
        for _ in range(10_000):
            if self.outbox:
                message = self.outbox.pop(0)
                self.note_asked(message)
                self.stream.on_request(message, self.now)
            while self.stream.has_work:
                self.stream.work(self.now)
            for action in self.stream.take_actions():
                self.perform(action)
            answerable = [
                response for response in self.unanswered if response.type_url not in self.silent
            ]
            if answerable:
                self.unanswered.remove(answerable[0])
                del self.recorded.open[answerable[0].type_url]
                self.take(answerable[0])
            elif not self.outbox:
                self.working = False
                return
        raise AssertionError("NoLoop: the two sides never come to an end")

    def perform(self, action: Action) -> None:
        assert self.stream is not None, "open"
        match action:
            case XdsAdmit() if self.admits:
                self.stream.on_admitted(self.view, self.visible, self.view.revision, self.now)  # type: ignore[arg-type]
                while self.stream.has_work:
                    self.stream.work(self.now)
                for more in self.stream.take_actions():
                    self.perform(more)
            case XdsSend():
                response = read_response(action.message, delta=self.delta)
                self.recorded.sent(response, names_wanted=self.wants)
                self.unanswered.append(response)
            case XdsFinish():
                self.recorded.finished = action
            case XdsRefusal():
                self.recorded.refusals.append(action)
            case XdsGateForced():
                self.recorded.gates_forced += 1

    def note_asked(self, message: bytes) -> None:
        """What the server knows that this client wants."""
        try:
            request = (
                run_steps(read_delta(message)) if self.delta else run_steps(read_whole(message))
            )
        except RequestError:
            return
        asked = self.asked.get(request.type_url)
        if isinstance(request, WholeRequest):
            if request.nonce in (
                "",
                next((r.nonce for r in reversed(self.recorded.of(request.type_url))), ""),
            ):
                named = dict.fromkeys(request.names)
                self.asked[request.type_url] = named if named or asked else {"*": None}
            return
        first = asked is None
        asked = self.asked[request.type_url] = asked or {}
        for name in request.unsubscribe:
            asked.pop(name, None)
        asked.update(dict.fromkeys(request.subscribe or (("*",) if first else ())))

    def wants(self, type_url: str, name: str) -> bool:
        asked = self.asked.get(type_url) or {}
        return "*" in asked or name in asked or names.collection_of(name) in asked

    def take(self, response: Response) -> None:
        raise NotImplementedError

    def _refusal(self, response: Response) -> str | None:
        texts = [self.refuses(name, body) for name, (_, body) in response.resources.items()]
        return "; ".join(text for text in texts if text) or None


def _place(response: Response) -> tuple[int, ...]:
    """The place of *response* among all of its stream."""
    return tuple(map(int, response.nonce.split(".")))


class Envoy(Client):
    """Delta: clusters by wildcard, their assignments by name, one collection."""

    delta = True

    def __init__(
        self, *args: Any, leds: bool = False, listeners: bool = False, **named: Any
    ) -> None:
        super().__init__(*args, **named)
        self.leds = leds
        self.listeners = listeners
        #: by type: name -> (version, body)
        self.held: dict[str, dict[str, tuple[str, bytes]]] = {
            type_url: {} for type_url in names.TYPES
        }
        self.subscribed: dict[str, dict[str, None]] = {ASSIGNMENT: {}, ENDPOINT: {}}
        #: clusters that it refused
        self.bad: set[str] = set()
        #: clusters that wait for their assignment
        self.warming: dict[str, None] = {}
        #: the place in this stream of the last assignment of each cluster
        self.assigned_at: dict[str, tuple[int, ...]] = {}

    def connect(self, *, admitted: bool = True) -> None:
        self.open(admitted=admitted)
        self.assigned_at = {}
        self.subscribed = {ASSIGNMENT: {}, ENDPOINT: {}}
        known = tuple(self.held[CLUSTER])
        self.subscribed[ASSIGNMENT].update(dict.fromkeys(known))
        again = {name: version for name, (version, _) in self.held[ASSIGNMENT].items()}
        self.working = True  # all its first requests are on their way before the first answer
        for number, type_url in enumerate([CLUSTER, LISTENER] if self.listeners else [CLUSTER]):
            initial = {name: version for name, (version, _) in self.held[type_url].items()}
            self.say(delta_request(type_url, initial=initial, of_node=None if number else node()))
        self._subscribe(ASSIGNMENT, known, again)
        if self.leds:
            self._subscribe(ENDPOINT, (GLOB,), {})
        self.work()

    def _subscribe(self, type_url: str, wanted: tuple[str, ...], initial: dict[str, str]) -> None:
        if wanted:
            self.subscribed[type_url].update(dict.fromkeys(wanted))
            self.say(delta_request(type_url, subscribe=wanted, initial=initial))

    def take(self, response: Response) -> None:
        refusal = self._refusal(response)
        if refusal is not None and response.type_url == CLUSTER and len(response.resources) == 1:
            self.bad |= response.resources.keys()
        fresh: list[str] = []
        gone: list[str] = []
        place = _place(response)
        if refusal is None:
            held = self.held[response.type_url]
            for name, (version, body) in response.resources.items():
                if response.type_url == CLUSTER and held.get(name, ("", b""))[0] != version:
                    # This model may read an older cluster after a newer assignment; Envoy may not.
                    if self.assigned_at.get(name, ()) < place:
                        self.warming[name] = None
                    if name not in self.subscribed[ASSIGNMENT]:
                        fresh.append(name)
                if response.type_url == ASSIGNMENT:
                    self.warming.pop(name, None)
                    self.assigned_at[name] = place
                if response.type_url == LISTENER:
                    named = body.partition(b"=")[2].decode()
                    is_forced = self.recorded.gates_forced > 0
                    assert is_forced or named in self.held[CLUSTER] or named in self.bad, (
                        "Ordered: listener before cluster"
                    )
                held[name] = (version, body)
            for name in response.removed:
                if response.type_url == ASSIGNMENT:
                    self.warming.pop(name, None)
                    continue
                held.pop(name, None)
                if response.type_url == CLUSTER:
                    used = [
                        item
                        for item, (_, body) in self.held[LISTENER].items()
                        if body.decode().endswith(f"={name}")
                    ]
                    # A server cannot know that listeners are requested next.
                    known = any(_place(told) < place for told in self.recorded.of(LISTENER))
                    assert not (known and used), "Ordered: a cluster gone before its listener"
                    self.warming.pop(name, None)
                    self.held[ASSIGNMENT].pop(name, None)
                    if name in self.subscribed[ASSIGNMENT]:
                        gone.append(name)
        self._subscribe(ASSIGNMENT, tuple(fresh), {})
        if gone:
            for name in gone:
                self.subscribed[ASSIGNMENT].pop(name)
            self.say(delta_request(ASSIGNMENT, unsubscribe=tuple(gone)))
        self.say(delta_request(response.type_url, nonce=response.nonce, error=refusal))


class Grpc(Client):
    """State of the world: listeners by name; a listener names a cluster, and this its
    assignment.
    """

    delta = False

    def __init__(self, *args: Any, targets: tuple[str, ...] = ("web",), **named: Any) -> None:
        super().__init__(*args, **named)
        self.targets = targets
        self.held: dict[str, dict[str, bytes]] = {LISTENER: {}, CLUSTER: {}, ASSIGNMENT: {}}
        self.wanted: dict[str, tuple[str, ...]] = {}
        self.last: dict[str, tuple[str, str]] = {}

    def connect(self, *, admitted: bool = True) -> None:
        self.open(admitted=admitted)
        versions = {type_url: version for type_url, (version, _) in self.last.items()}
        self.last = {type_url: (version, "") for type_url, version in versions.items()}
        wanted, self.wanted = self.wanted or {LISTENER: self.targets}, {}
        # A first request without names would be for everything.
        wanted = {type_url: of_type for type_url, of_type in wanted.items() if of_type}
        self.working = True  # all its first requests are on their way before the first answer
        for number, (type_url, of_type) in enumerate(wanted.items()):
            self.wanted[type_url] = of_type
            version = versions.get(type_url, "")
            self.say(
                whole_request(
                    type_url, *of_type, version=version, of_node=None if number else node()
                )
            )
        self.work()

    def take(self, response: Response) -> None:
        refusal = self._refusal(response)
        held = self.held[response.type_url]
        taken = {
            name: body
            for name, (_, body) in response.resources.items()
            if not self.refuses(name, body)
        }
        if response.type_url in (LISTENER, CLUSTER):
            for name in [name for name in held if name not in response.resources]:
                del held[name]
        held.update(taken)
        version, _ = self.last.get(response.type_url, ("", ""))
        self.last[response.type_url] = (version if refusal else response.version, response.nonce)
        self._say(response.type_url, refusal)
        clusters = {
            body.partition(b"=")[2].decode()
            for body in self.held[LISTENER].values()
            if body[:1] != b"\n"
        }
        self._want(CLUSTER, tuple(sorted(clusters)))
        self._want(ASSIGNMENT, tuple(sorted(self.held[CLUSTER])))

    def _want(self, type_url: str, wanted: tuple[str, ...]) -> None:
        if wanted != self.wanted.get(type_url, ()):
            self.wanted[type_url] = wanted
            for name in [name for name in self.held[type_url] if name not in wanted]:
                del self.held[type_url][name]
            self._say(type_url, None)

    def _say(self, type_url: str, error: str | None) -> None:
        version, nonce = self.last.get(type_url, ("", ""))
        self.say(
            whole_request(
                type_url, *self.wanted.get(type_url, ()), version=version, nonce=nonce, error=error
            )
        )
