"""What each variant answers, rule by rule (Envoy's ``xds_protocol``), and what went wrong in other servers, by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.xds.streams.clients import (
    GLOB,
    Client,
    Envoy,
    FakeView,
    Grpc,
    delta_request,
    node,
    read_response,
    whole_request,
)

from sliceplane.xds.names import ASSIGNMENT, CLUSTER, ENDPOINT, LISTENER
from sliceplane.xds.streams import messages, stream
from sliceplane.xds.streams.stream import Sight

WEB = "default/web:http"
API = "default/api:http"


@pytest.fixture
def view() -> FakeView:
    view = FakeView()
    for key in (API, WEB):
        view.put(CLUSTER, key, f"{key}=1")
        view.put(ASSIGNMENT, key, f"{key}=a")
    view.put(LISTENER, "api", f"api={API}")
    view.put(LISTENER, "web", f"web={WEB}")
    view.take_changes()
    return view


def scaled(view: FakeView, key: str = WEB, body: str = "b") -> None:
    view.put(ASSIGNMENT, key, f"{key}={body}")


def connected(client: Client) -> Client:
    client.connect()  # type: ignore[attr-defined]
    return client


# -- delta ---------------------------------------------------------------------------------------------


def test_a_wildcard_gets_every_cluster_and_each_assignment_that_is_asked_for(view: FakeView) -> None:
    envoy = Envoy(view)
    envoy.connect()
    assert sorted(envoy.held[CLUSTER]) == [API, WEB]
    assert sorted(envoy.held[ASSIGNMENT]) == [API, WEB]
    assert not envoy.warming


def test_one_change_is_one_message_and_an_accepted_one_is_answered_by_nothing(view: FakeView) -> None:
    envoy = Envoy(view)
    envoy.connect()
    before = len(envoy.recorded.responses)
    scaled(view)
    envoy.tell()
    assert [list(response.resources) for response in envoy.recorded.responses[before:]] == [[WEB]]
    assert envoy.held[ASSIGNMENT][WEB][1] == b"default/web:http=b"


def test_pitfall_1_an_assignment_is_emptied_and_never_removed_from_who_holds_it(view: FakeView) -> None:
    envoy = Envoy(view)
    envoy.connect()
    view.drop(ASSIGNMENT, WEB)
    envoy.tell()
    last = envoy.recorded.responses[-1]
    assert last.removed == ()
    assert last.resources[WEB][1] == messages.wire.text(1, WEB)  # its name and nothing else


def test_pitfall_2_a_cluster_that_is_sent_again_is_followed_by_its_assignment(view: FakeView) -> None:
    envoy = Envoy(view)
    envoy.connect()
    view.put(CLUSTER, WEB, f"{WEB}=2")
    envoy.tell()
    assert not envoy.warming, "it waits for 15 s"


def test_pitfall_2_also_where_it_changed_while_the_client_was_away(view: FakeView) -> None:
    envoy = Envoy(view)
    envoy.connect()
    view.put(CLUSTER, WEB, f"{WEB}=2")
    view.take_changes()
    envoy.connect()
    assert not envoy.warming
    assert [list(response.resources) for response in envoy.recorded.of(ASSIGNMENT)] == [[WEB]]


def test_pitfall_3_a_collection_comes_whole_after_a_reconnect_with_what_ever_went(view: FakeView) -> None:
    directory = GLOB.removesuffix("*")
    for number in range(3):
        view.put(ENDPOINT, f"{directory}{number}", f"{number}")
    view.take_changes()
    envoy = Envoy(view, leds=True)
    envoy.connect()
    view.drop(ENDPOINT, f"{directory}1")
    view.take_changes()
    envoy.connect()
    assert sorted(envoy.held[ENDPOINT]) == [f"{directory}0", f"{directory}2"]


def test_pitfall_4_an_empty_collection_is_told_by_its_glob(view: FakeView) -> None:
    envoy = Envoy(view, leds=True)
    envoy.connect()
    assert [response.removed for response in envoy.recorded.of(ENDPOINT)] == [(GLOB,)]


def test_one_member_is_one_resource(view: FakeView) -> None:
    directory = GLOB.removesuffix("*")
    for number in range(100):
        view.put(ENDPOINT, f"{directory}{number}", f"{number}")
    view.take_changes()
    envoy = Envoy(view, leds=True)
    envoy.connect()
    view.put(ENDPOINT, f"{directory}7", "other")
    view.drop(ENDPOINT, f"{directory}8")
    envoy.tell()
    last = envoy.recorded.responses[-1]
    assert (list(last.resources), last.removed) == ([f"{directory}7"], (f"{directory}8",))


def test_pitfall_7_assignments_do_not_wait_for_clusters_to_be_accepted(view: FakeView) -> None:
    envoy = Envoy(view)
    envoy.silent = {CLUSTER}
    envoy.open()
    envoy.say(delta_request(CLUSTER, of_node=node()))
    envoy.subscribed = {ASSIGNMENT: {WEB: None}}
    envoy.say(delta_request(ASSIGNMENT, subscribe=(WEB,)))
    assert WEB in envoy.held[ASSIGNMENT]


@pytest.mark.parametrize("answers", [True, False], ids=["when they are accepted", "after two seconds"])
def test_pitfall_8_a_listener_waits_for_the_clusters_that_are_under_way(view: FakeView, answers: bool) -> None:
    envoy = Envoy(view, listeners=True)
    envoy.connect()
    envoy.silent = {CLUSTER}
    new = "default/new:http"
    view.put(CLUSTER, new, f"{new}=1")
    view.put(LISTENER, "new", f"new={new}")
    envoy.tell()
    assert "new" not in envoy.held[LISTENER]
    if answers:
        envoy.silent = set()
        envoy.pass_time(0.0)
    else:
        envoy.held[CLUSTER][new] = ("", b"")  # it has it, and does not say so
        envoy.pass_time(stream.GATE_S)
        assert envoy.stream is not None
        assert envoy.stream.gates_forced == 1
        assert envoy.stream.next_deadline() == 100.0 + stream.LATE_S
    assert "new" in envoy.held[LISTENER]


def test_a_cluster_goes_after_its_listener(view: FakeView) -> None:
    envoy = Envoy(view, listeners=True)
    envoy.connect()
    envoy.silent = {LISTENER}
    for type_url, name in ((CLUSTER, WEB), (ASSIGNMENT, WEB), (LISTENER, "web")):
        view.drop(type_url, name)
    envoy.tell()
    assert WEB in envoy.held[CLUSTER]
    envoy.silent = set()
    envoy.pass_time(0.0)
    assert WEB not in envoy.held[CLUSTER]


def test_pitfall_19_a_stale_nonce_makes_no_subscription_void(view: FakeView) -> None:
    envoy = Envoy(view)
    envoy.connect()
    envoy.subscribed[ASSIGNMENT]["default/late:http"] = None
    envoy.say(delta_request(ASSIGNMENT, subscribe=("default/late:http",), nonce="long ago"))
    assert envoy.recorded.responses[-1].removed == ("default/late:http",)
    view.put(ASSIGNMENT, "default/late:http", "default/late:http=a")
    envoy.tell()
    assert "default/late:http" in envoy.held[ASSIGNMENT]


def test_istio_41494_what_went_while_the_client_was_away_is_removed(view: FakeView) -> None:
    envoy = Envoy(view)
    envoy.connect()
    view.drop(CLUSTER, WEB)
    view.drop(ASSIGNMENT, WEB)
    view.take_changes()
    envoy.connect()
    assert list(envoy.held[CLUSTER]) == [API]


def test_consul_12174_versions_do_not_turn_a_wildcard_into_a_list(view: FakeView) -> None:
    envoy = Envoy(view)
    envoy.connect()
    envoy.connect()
    view.put(CLUSTER, "default/new:http", "default/new:http=1")
    envoy.tell()
    assert "default/new:http" in envoy.held[CLUSTER]


def test_pitfall_26_a_reconnect_to_another_replica_sends_nothing_that_did_not_change(view: FakeView) -> None:
    envoy = Envoy(view)
    envoy.connect()
    other = FakeView()  # the same objects in another process, where revisions are others
    other.revision = 1_000_000
    for type_url, held in view.held.items():
        for name, resource in held.items():
            other.put(type_url, name, resource.body.decode())
    other.take_changes()
    envoy.view = other
    envoy.connect()
    assert envoy.recorded.responses == []


def test_every_subscription_is_answered_whatever_the_server_thinks(view: FakeView) -> None:
    envoy = Envoy(view)
    envoy.connect()
    before = len(envoy.recorded.responses)
    envoy.say(delta_request(ASSIGNMENT, subscribe=(WEB,)))
    assert list(envoy.recorded.responses[before].resources) == [WEB]


def test_a_wildcard_of_nothing_is_answered_all_the_same() -> None:
    envoy = Envoy(FakeView())
    envoy.connect()
    assert [response.type_url for response in envoy.recorded.responses] == [CLUSTER]


def test_unsubscribing_everything_wants_nothing(view: FakeView) -> None:
    envoy = Envoy(view)
    envoy.open()
    envoy.say(delta_request(CLUSTER, subscribe=(WEB,), of_node=node()))
    envoy.say(delta_request(CLUSTER, unsubscribe=(WEB,)))
    before = len(envoy.recorded.responses)
    view.put(CLUSTER, WEB, f"{WEB}=2")
    envoy.tell()
    assert len(envoy.recorded.responses) == before


def test_a_name_that_is_unsubscribed_under_a_wildcard_is_answered(view: FakeView) -> None:
    envoy = Envoy(view)
    envoy.connect()
    envoy.say(delta_request(CLUSTER, subscribe=(WEB,)))
    before = len(envoy.recorded.responses)
    envoy.say(delta_request(CLUSTER, unsubscribe=(WEB,)))
    assert [
        list(response.resources) for response in envoy.recorded.responses[before:] if response.type_url == CLUSTER
    ] == [[WEB]]


def test_an_unknown_type_is_answered_by_nothing_exists(view: FakeView) -> None:
    envoy = Envoy(view)
    envoy.open()
    envoy.subscribed = {"type.googleapis.com/other": {"x": None}}
    envoy.held["type.googleapis.com/other"] = {}
    envoy.say(delta_request("type.googleapis.com/other", subscribe=("x",), of_node=node()))
    assert envoy.recorded.responses[-1].removed == ("x",)
    assert envoy.recorded.finished is None


def test_pitfall_22_what_is_refused_is_found_by_halves_told_once_and_not_sent_again(view: FakeView) -> None:
    for number in range(9):
        view.put(CLUSTER, f"default/s{number}:http", f"default/s{number}:http=1")
    view.take_changes()
    envoy = Envoy(view)
    envoy.refuses = lambda name, body: "no such policy" if name == "default/s4:http" and body.endswith(b"=1") else ""
    envoy.connect()
    assert sorted(set(view.held[CLUSTER]) - set(envoy.held[CLUSTER])) == ["default/s4:http"]
    assert [(refusal.names, refusal.text) for refusal in envoy.recorded.refusals] == [
        (("default/s4:http",), "no such policy")
    ]
    assert envoy.stream is not None
    assert envoy.stream.status()[0].refused == ("default/s4:http", "no such policy")
    before = len(envoy.recorded.responses)
    scaled(view)
    envoy.tell()
    assert [response.type_url for response in envoy.recorded.responses[before:]] == [ASSIGNMENT]
    view.put(CLUSTER, "default/s4:http", "default/s4:http=2")
    envoy.tell()
    assert "default/s4:http" in envoy.held[CLUSTER]
    assert envoy.stream.status()[0].refused == ("", "")


# -- state of the world --------------------------------------------------------------------------------


def test_a_target_is_resolved_to_its_assignment_and_follows_it(view: FakeView) -> None:
    client = Grpc(view)
    client.connect()
    assert client.held[ASSIGNMENT] == {WEB: b"default/web:http=a"}
    scaled(view)
    client.tell()
    assert client.held[ASSIGNMENT] == {WEB: b"default/web:http=b"}


def test_a_target_that_is_nothing_is_answered_at_once_and_recovers(view: FakeView) -> None:
    client = Grpc(view, targets=("soon",))
    client.connect()
    assert list(client.held[LISTENER]) == ["soon"]
    assert client.recorded.responses[0].errors == ("soon",)
    view.put(LISTENER, "soon", f"soon={WEB}")
    client.tell()
    assert client.held[ASSIGNMENT] == {WEB: b"default/web:http=a"}


def test_pitfall_29_a_service_that_goes_is_emptied_before_it_is_gone(view: FakeView) -> None:
    client = Grpc(view)
    client.connect()
    before = len(client.recorded.responses)
    for type_url, name in ((CLUSTER, WEB), (ASSIGNMENT, WEB), (LISTENER, "web")):
        view.drop(type_url, name)
    client.tell()
    assert client.recorded.responses[before].type_url == ASSIGNMENT
    assert client.held[CLUSTER] == client.held[ASSIGNMENT] == {}


def test_pitfall_18_a_name_that_is_asked_for_again_is_sent_again(view: FakeView) -> None:
    """go-control-plane#431: same version, same nonce."""
    client = Grpc(view)
    client.connect()
    version, nonce = client.last[CLUSTER]
    before = len(client.recorded.of(CLUSTER))
    client.say(whole_request(CLUSTER, version=version, nonce=nonce))
    client.say(whole_request(CLUSTER, WEB, version=version, nonce=nonce))
    assert len(client.recorded.of(CLUSTER)) == before + 1


def test_pitfall_21_go_control_plane_1319_nothing_is_answered_where_nothing_changed(
    view: FakeView,
) -> None:
    client = Grpc(view)
    client.connect()
    before = len(client.recorded.responses)
    scaled(view, API)
    view.put(CLUSTER, API, f"{API}=2")
    client.tell()
    version, nonce = client.last[ASSIGNMENT]
    client.say(whole_request(ASSIGNMENT, WEB, version=version, nonce=nonce))
    assert len(client.recorded.responses) == before


def test_a_stale_nonce_makes_a_request_void(view: FakeView) -> None:
    client = Grpc(view)
    client.connect()
    before = len(client.recorded.responses)
    client.say(whole_request(ASSIGNMENT, API, nonce="long ago"))
    assert len(client.recorded.responses) == before


def test_a_reconnect_gets_everything_again(view: FakeView) -> None:
    client = Grpc(view)
    client.connect()
    scaled(view)
    view.take_changes()
    client.connect()
    assert client.held[ASSIGNMENT] == {WEB: b"default/web:http=b"}


def test_an_empty_list_is_everything_only_before_any_name(view: FakeView) -> None:
    client = Grpc(view)
    client.open()
    client.wanted = {CLUSTER: (API, WEB), ASSIGNMENT: (API, WEB)}
    client.say(whole_request(CLUSTER, of_node=node()))
    assert sorted(client.recorded.of(CLUSTER)[0].resources) == [API, WEB]
    count = len(client.recorded.of(CLUSTER))
    client.wanted[CLUSTER] = (WEB,)
    client._say(CLUSTER, None)
    client.wanted[CLUSTER] = ()
    client._say(CLUSTER, None)
    after = len(client.recorded.of(CLUSTER))
    assert after == count + 1
    view.put(CLUSTER, API, f"{API}=2")
    client.tell()
    assert len(client.recorded.of(CLUSTER)) == after


def test_pitfall_16_no_message_is_larger_than_a_client_of_grpc_takes(view: FakeView) -> None:
    keys = [f"default/big{number}:http" for number in range(5)]
    for key in keys:
        view.put(ASSIGNMENT, key, f"{key}=" + "x" * 1_500_000)
        view.put(CLUSTER, key, f"{key}=1")
        view.put(LISTENER, key, f"{key}={key}")
    view.take_changes()
    client = Grpc(view, targets=tuple(keys))
    client.connect()
    assert [len(response.resources) for response in client.recorded.of(ASSIGNMENT)] == [2, 2, 1]
    assert sorted(client.held[ASSIGNMENT]) == keys


def test_one_assignment_that_is_larger_is_told_of_and_the_others_go_on(view: FakeView) -> None:
    view.put(ASSIGNMENT, API, f"{API}=" + "x" * 5_000_000)
    view.take_changes()
    client = Grpc(view, targets=("api", "web"))
    client.connect()
    assert list(client.held[ASSIGNMENT]) == [WEB]
    assert [refusal.names for refusal in client.recorded.refusals] == [(API,)]


def test_a_refusal_names_what_the_client_says(view: FakeView) -> None:
    client = Grpc(view, targets=("api", "web"))
    client.refuses = lambda name, body: f"{name}: no" if name == API and body.endswith(b"=b") else ""
    client.connect()
    scaled(view, API)
    scaled(view, WEB)
    client.tell()
    assert [refusal.names for refusal in client.recorded.refusals] == [(API,)]
    assert client.held[ASSIGNMENT] == {API: b"default/api:http=a", WEB: b"default/web:http=b"}


# -- both ----------------------------------------------------------------------------------------------

MAKERS: list[Callable[[FakeView], Client]] = [Envoy, Grpc]
BOTH = pytest.mark.parametrize("make", MAKERS, ids=["delta", "whole"])


@BOTH
def test_pitfall_23_nacos_10209_nothing_is_answered_before_the_first_lists(view: FakeView, make: type) -> None:
    client = make(view)
    client.connect(admitted=False)
    assert client.recorded.responses == []
    client.stream.on_admitted(view, Sight(), view.revision, client.now)
    client.work()
    assert WEB in client.held[ASSIGNMENT]


def test_a_client_that_takes_silence_for_an_answer_is_sent_away_in_time(view: FakeView) -> None:
    client = Grpc(view)
    client.connect(admitted=False)
    client.pass_time(stream.HELD_S - 0.1)
    assert client.recorded.finished is None
    client.pass_time(0.1)
    assert client.recorded.finished is not None
    assert client.recorded.finished.status == messages.UNAVAILABLE


@BOTH
def test_a_slow_client_costs_what_it_holds_and_gets_the_last_state(view: FakeView, make: type) -> None:
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
    assert b"=99" in (client.held[ASSIGNMENT][WEB][1] if make is Envoy else client.held[ASSIGNMENT][WEB])


@BOTH
def test_the_first_message_says_which_node_asks(view: FakeView, make: type) -> None:
    client = make(view)
    client.open()
    request = delta_request if make is Envoy else whole_request
    client.say(request(CLUSTER))
    assert client.recorded.finished.status == messages.INVALID_ARGUMENT


@BOTH
@pytest.mark.parametrize("octets", [b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x2a\x02\x10\x01" * 3, bytes(range(256))])
def test_octets_that_are_no_request_end_the_stream(view: FakeView, make: type, octets: bytes) -> None:
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
    client.sight = Sight(everything=False, namespaces=frozenset({"default"}))
    client.targets = ("web", "other")
    client.connect()
    assert "other/web:http" not in client.held[CLUSTER]
    assert WEB in client.held[CLUSTER]
    client.stream.on_admitted(view, Sight(), view.revision, client.now)
    client.work()
    assert "other/web:http" in client.held[CLUSTER]
    client.stream.on_admitted(view, Sight(everything=False), view.revision, client.now)
    client.work()
    assert client.held[CLUSTER] == {}


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
    many = tuple(f"default/s{number}:http" for number in range(stream.NAMES_MAX + 1))
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
    encoder = messages.Encoder()
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
            assert isinstance(action, stream.Send)
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
    encoder = messages.Encoder()
    resource = view.held[CLUSTER][WEB]
    delta = read_response(encoder.delta(CLUSTER, "7", [resource], ["x"]), delta=True)
    assert (delta.resources, delta.removed, delta.nonce) == ({WEB: (resource.version, resource.body)}, ("x",), "7")
