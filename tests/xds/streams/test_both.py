"""What holds of both variants: who asks, what is held back, limits, and a client that is slow."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.xds.streams.clients import (
    WEB,
    Client,
    Envoy,
    FakeView,
    Grpc,
    delta_request,
    node,
    read_response,
    scaled,
    whole_request,
)

from sliceplane.xds.names import ASSIGNMENT, CLUSTER, LISTENER
from sliceplane.xds.streams import messages, requests, stream
from sliceplane.xds.streams.actions import VisibleNamespaces, XdsSend
from sliceplane.xds.streams.whole import WholeStream

MAKERS: list[Callable[[FakeView], Client]] = [Envoy, Grpc]
BOTH = pytest.mark.parametrize("make", MAKERS, ids=["delta", "whole"])


@BOTH
def test_pitfall_23_nacos_10209_nothing_is_answered_before_the_first_lists(
    view: FakeView, make: type
) -> None:
    client = make(view)
    client.connect(admitted=False)
    assert client.recorded.responses == []
    client.stream.on_admitted(view, VisibleNamespaces(), view.revision, client.now)
    client.work()
    assert WEB in client.held[ASSIGNMENT]


def test_a_client_that_takes_silence_for_an_answer_is_sent_away_in_time(view: FakeView) -> None:
    client = Grpc(view)
    client.connect(admitted=False)
    client.pass_time(stream.ADMISSION_WAIT_S - 0.1)
    assert client.recorded.finished is None
    client.pass_time(0.1)
    assert client.recorded.finished is not None
    assert client.recorded.finished.status == messages.UNAVAILABLE


@BOTH
def test_a_slow_client_costs_what_it_holds_and_gets_the_last_state(
    view: FakeView, make: type
) -> None:
    client = make(view)
    client.connect()
    before = len(client.recorded.responses)
    client.silent = {ASSIGNMENT}
    for number in range(100):
        scaled(view, body=str(number))
        client.tell()
    assert len(client.recorded.responses) == before + 1
    assert client.stream.behind_from is not None
    client.pass_time(stream.LATE_S)
    assert client.stream.is_late
    client.silent = set()
    client.pass_time(0.0)
    assert len(client.recorded.responses) == before + 2
    assert client.stream.behind_from is None
    assert not client.stream.is_late
    assert b"=99" in (
        client.held[ASSIGNMENT][WEB][1] if make is Envoy else client.held[ASSIGNMENT][WEB]
    )


@BOTH
def test_the_first_message_says_which_node_asks(view: FakeView, make: type) -> None:
    client = make(view)
    client.open()
    request = delta_request if make is Envoy else whole_request
    client.say(request(CLUSTER))
    assert client.recorded.finished.status == messages.INVALID_ARGUMENT


@BOTH
@pytest.mark.parametrize(
    "octets", [b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x2a\x02\x10\x01" * 3, bytes(range(256))]
)
def test_octets_that_are_no_request_end_the_stream(
    view: FakeView, make: type, octets: bytes
) -> None:
    client = make(view)
    client.open()
    client.say(octets)
    assert client.recorded.finished.status == messages.INVALID_ARGUMENT


@BOTH
def test_a_namespace_that_is_kept_from_a_client_is_not_there(view: FakeView, make: type) -> None:
    view.put(CLUSTER, "other/web:http", "other/web:http=1")
    view.put(ASSIGNMENT, "other/web:http", "other/web:http=a")
    view.take_changes()
    view.put(LISTENER, "other", "other=other/web:http")
    view.take_changes()
    client = make(view)
    client.visible = VisibleNamespaces(everything=False, namespaces=frozenset({"default"}))
    client.targets = ("web", "other")
    client.connect()
    assert "other/web:http" not in client.held[CLUSTER]
    assert WEB in client.held[CLUSTER]
    client.stream.on_admitted(view, VisibleNamespaces(), view.revision, client.now)
    client.work()
    assert "other/web:http" in client.held[CLUSTER]
    client.stream.on_admitted(view, VisibleNamespaces(everything=False), view.revision, client.now)
    client.work()
    assert client.held[CLUSTER] == {}


@BOTH
def test_pitfall_28_a_removal_is_sent_when_it_is_told_of(view: FakeView, make: type) -> None:
    """Without any time passing, and the one after it as soon as the client has answered."""
    client = make(view)
    client.connect()
    for text in ("two", "one", "none"):
        scaled(view, WEB, text)
        client.tell()
        _, held = client.recorded.of(ASSIGNMENT)[-1].resources[WEB]
        assert held == f"{WEB}={text}".encode()


def test_pitfall_17_istio_53532_two_streams_of_one_node_id_are_two_clients(view: FakeView) -> None:
    first, second = Grpc(view), Grpc(view, targets=("web", "gone"))
    first.connect()
    second.connect()
    scaled(view)
    changes = view.take_changes()
    for client in (first, second):
        assert client.stream is not None
        client.stream.on_changes(changes, view.revision, client.now)  # type: ignore[arg-type]
        client.work()
        assert client.held[ASSIGNMENT] == {WEB: b"default/web:http=b"}


def test_names_requests_and_types_are_bounded(view: FakeView) -> None:
    envoy = Envoy(view)
    envoy.open()
    many = tuple(f"default/s{number}:http" for number in range(requests.NAMES_MAX + 1))
    envoy.say(delta_request(ASSIGNMENT, subscribe=many, of_node=node()))
    assert envoy.recorded.finished is not None
    assert envoy.recorded.finished.status == messages.RESOURCE_EXHAUSTED


def test_a_flood_of_requests_ends_the_stream(view: FakeView) -> None:
    client = Grpc(view)
    client.connect()
    version, nonce = client.last[ASSIGNMENT]
    message = whole_request(ASSIGNMENT, WEB, version=version, nonce=nonce)
    for _ in range(stream.REQUESTS_BURST + 1):
        client.say(message)
        if client.recorded.finished is not None:
            break
    assert client.recorded.finished is not None
    assert client.recorded.finished.status == messages.RESOURCE_EXHAUSTED


def test_streams_of_one_view_share_the_bytes_of_a_change(view: FakeView) -> None:
    encoder = messages.ResponseEncoder()
    clients = [Envoy(view, encoder) for _ in range(3)]
    for envoy in clients:
        envoy.connect()
    scaled(view)
    changes = view.take_changes()
    sent = set()
    for envoy in clients:
        assert envoy.stream is not None
        envoy.stream.on_changes(changes, view.revision, 1.0)  # type: ignore[arg-type]
        for action in envoy.stream.take_actions():
            assert isinstance(action, XdsSend)
            sent.add(id(action.message))
    assert len(sent) == 1


def test_what_a_client_says_of_itself_is_read(view: FakeView) -> None:
    envoy = Envoy(view)
    envoy.open(admitted=False)
    build = messages.wire.message(
        8, messages.wire.message(1, messages.wire.integer(1, 1), messages.wire.integer(2, 40))
    )
    of_node = node({"node_name": "n7", "namespace": "shop"}, "id-1", "eu-1a") + build
    envoy.say(delta_request(CLUSTER, of_node=of_node))
    assert envoy.stream is not None
    facts = envoy.stream.node
    assert facts is not None
    assert (facts.id, facts.zone, facts.version) == ("id-1", "eu-1a", (1, 40, 0))
    assert facts.metadata == {"node_name": "n7", "namespace": "shop"}


def test_responses_are_read_back(view: FakeView) -> None:
    encoder = messages.ResponseEncoder()
    resource = view.held[CLUSTER][WEB]
    delta = read_response(encoder.delta(CLUSTER, "7", [resource], ["x"]), delta=True)
    assert (delta.resources, delta.removed, delta.nonce) == (
        {WEB: (resource.version, resource.body)},
        ("x",),
        "7",
    )


def test_what_one_client_asked_for_is_not_sent_to_another() -> None:
    """Resources made for one answer are gone when the next is made, maybe at the same place in
    memory.
    """
    encoder = messages.ResponseEncoder()
    first = encoder.whole(LISTENER, "5", [messages.absent_listener("a.default:80")])
    assert encoder.whole(LISTENER, "5", [messages.absent_listener("b.default:80")]) != first
    gone = encoder.delta(ASSIGNMENT, "5", [messages.empty_assignment("default/a:80")], [])
    assert encoder.delta(ASSIGNMENT, "5", [messages.empty_assignment("default/b:80")], []) != gone
    again = messages.empty_assignment("default/b:80")
    assert encoder.delta(ASSIGNMENT, "5", [again], []) is encoder.delta(
        ASSIGNMENT, "5", [again], []
    )


def test_names_that_a_client_gave_up_are_forgotten(view: FakeView) -> None:
    """Else one that asks for other names all the time would fill the server's memory."""
    asked = WholeStream(messages.ResponseEncoder())
    asked.on_request(whole_request(LISTENER, "web", of_node=node()), 0.0)
    asked.on_admitted(view, VisibleNamespaces(), view.revision, 0.0)  # type: ignore[arg-type]
    for number in range(100):
        view.put(LISTENER, "other", f"other={number}")
        asked.on_changes(view.take_changes(), view.revision, 0.0)  # type: ignore[arg-type]
        nonce = asked._channels[LISTENER].nonce
        asked.on_request(whole_request(LISTENER, f"name-{number}", nonce=nonce), 0.0)
    channel = asked._channels[LISTENER]
    assert list(channel.names) == ["name-99"]
    assert list(channel.sent) == ["name-99"]
    assert len(asked._by_topic) <= 1
