"""Random histories of Services, endpoints, silence, refusals and reconnects: in the end each client
holds what the server has, whatever happened between, and every rule of ``Recorded`` held all the
time.
"""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from tests.effort import effort
from tests.xds.streams.clients import GLOB, Client, Envoy, FakeView, Grpc

from sliceplane.xds.names import ASSIGNMENT, CLUSTER, ENDPOINT, LISTENER
from sliceplane.xds.streams.messages import absent_listener, empty_assignment

SERVICES = ("a", "b", "c")
_DIRECTORY = GLOB.removesuffix("*")
_TYPES = st.sampled_from([CLUSTER, ASSIGNMENT, ENDPOINT, LISTENER])
#: what is put; the client refuses bodies that end with "bad"
_BODY = st.sampled_from(["1", "2", "3", "bad"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("service"), st.sampled_from(SERVICES), _BODY),
        st.tuples(st.just("scale"), st.sampled_from(SERVICES), _BODY),
        st.tuples(st.just("delete"), st.sampled_from(SERVICES), st.just("")),
        st.tuples(st.just("member"), st.sampled_from("xyz"), _BODY),
        st.tuples(st.just("member gone"), st.sampled_from("xyz"), st.just("")),
        st.tuples(st.just("tell"), st.just(""), st.just("")),
        st.tuples(st.just("silent"), _TYPES, st.just("")),
        st.tuples(st.just("speaks"), _TYPES, st.just("")),
        st.tuples(st.just("time"), st.just(""), st.just("")),
        st.tuples(st.just("reconnect"), st.sampled_from(["here", "elsewhere"]), st.just("")),
    ),
    max_size=40,
)


def _key(service: str) -> str:
    return f"default/{service}:http"


def _replica(view: FakeView) -> FakeView:
    """The same objects, served by another process."""
    other = FakeView()
    other.revision = view.revision // 2
    other.held = {type_url: dict(held) for type_url, held in view.held.items()}
    other.tombstones = view.tombstones
    return other


def _step(client: Client, kind: str, what: str, body: str) -> None:
    view = client.view
    match kind:
        case "service":
            view.put(CLUSTER, _key(what), f"{_key(what)}={body}")
            view.put(ASSIGNMENT, _key(what), f"{_key(what)}={body}")
            view.put(LISTENER, what, f"{what}={_key(what)}")
        case "scale" if view.get(CLUSTER, _key(what)):
            view.put(ASSIGNMENT, _key(what), f"{_key(what)}={body}")
        case "delete":
            for type_url, name in (
                (LISTENER, what),
                (ASSIGNMENT, _key(what)),
                (CLUSTER, _key(what)),
            ):
                view.drop(type_url, name)
        case "member":
            view.put(ENDPOINT, f"{_DIRECTORY}{what}", body)
        case "member gone":
            view.drop(ENDPOINT, f"{_DIRECTORY}{what}")
        case "tell":
            client.tell()
        case "silent":
            client.silent.add(what)
        case "speaks":
            client.silent.discard(what)
            client.pass_time(0.0)
        case "time":
            client.pass_time(2.0)
        case "reconnect":
            if what == "elsewhere":
                client.view = _replica(view)
            client.view.take_changes()
            client.connect()  # type: ignore[attr-defined]


def _ended(client: Client, steps: list[tuple[str, str, str]]) -> None:
    client.refuses = lambda name, body: f"{name}: bad" if body.endswith(b"bad") else ""
    client.connect()  # type: ignore[attr-defined]
    for step in steps:
        _step(client, *step)
    client.silent.clear()
    client.tell()
    assert client.stream is not None
    for _ in range(3):
        client.pass_time(2.0)
    assert client.recorded.finished is None
    assert client.recorded.open == {}, "Answered: nothing is under way for ever"
    assert client.stream.behind_from is None


#: Two clusters are refused in one message, and one of them is deleted before its half is sent: the
#: other half was still to be sent when the listener of its cluster was.
REFUSED_AND_DELETED = [
    ("service", "b", "bad"),
    ("silent", CLUSTER, ""),
    ("service", "a", "1"),
    ("reconnect", "here", ""),
    ("delete", "a", ""),
]


@effort(200)
@given(STEPS)
@example(REFUSED_AND_DELETED)
def test_envoy_converges(steps: list[tuple[str, str, str]]) -> None:
    view = FakeView()
    envoy = Envoy(view, leds=True, listeners=True)
    _ended(envoy, steps)
    # What was refused is found by halves.
    assert all(len(refusal.names) == 1 for refusal in envoy.recorded.refusals)
    view = envoy.view
    for type_url in (CLUSTER, ASSIGNMENT):
        for name, resource in view.held[type_url].items():
            if not resource.body.endswith(b"bad") and not view.held[CLUSTER][name].body.endswith(
                b"bad"
            ):
                assert envoy.held[type_url][name] == (resource.version, resource.body)
    assert envoy.held[CLUSTER].keys() <= view.held[CLUSTER].keys()
    good = {
        name for name, resource in view.held[ENDPOINT].items() if not resource.body.endswith(b"bad")
    }
    assert good <= envoy.held[ENDPOINT].keys() <= view.held[ENDPOINT].keys()
    assert set(envoy.warming) <= {
        name for name, resource in view.held[ASSIGNMENT].items() if resource.body.endswith(b"bad")
    }


@effort(200)
@given(STEPS)
def test_grpc_converges(steps: list[tuple[str, str, str]]) -> None:
    client = Grpc(FakeView(), targets=SERVICES)
    _ended(client, steps)
    view = client.view
    for service in SERVICES:
        listener = view.get(LISTENER, service) or absent_listener(service)
        assert client.held[LISTENER][service] == listener.body
        cluster = view.get(CLUSTER, _key(service))
        if cluster is None:
            assert _key(service) not in client.held[CLUSTER]
        elif not cluster.body.endswith(b"bad"):
            assert client.held[CLUSTER][_key(service)] == cluster.body
            assignment = view.get(ASSIGNMENT, _key(service)) or empty_assignment(_key(service))
            if not assignment.body.endswith(b"bad"):
                assert client.held[ASSIGNMENT][_key(service)] == assignment.body
