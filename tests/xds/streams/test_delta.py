"""What an incremental stream answers, rule by rule, and what went wrong in other servers, by
name.
"""

from __future__ import annotations

import pytest
from tests.xds.streams.clients import (
    API,
    GLOB,
    WEB,
    Envoy,
    FakeView,
    delta_request,
    node,
    scaled,
)

from sliceplane.xds.names import ASSIGNMENT, CLUSTER, ENDPOINT, LISTENER
from sliceplane.xds.streams import gate, messages, stream


def test_a_wildcard_gets_every_cluster_and_each_assignment_that_is_asked_for(
    view: FakeView,
) -> None:
    envoy = Envoy(view)
    envoy.connect()
    assert sorted(envoy.held[CLUSTER]) == [API, WEB]
    assert sorted(envoy.held[ASSIGNMENT]) == [API, WEB]
    assert not envoy.warming


def test_one_change_is_one_message_and_an_accepted_one_is_answered_by_nothing(
    view: FakeView,
) -> None:
    envoy = Envoy(view)
    envoy.connect()
    before = len(envoy.recorded.responses)
    scaled(view)
    envoy.tell()
    assert [list(response.resources) for response in envoy.recorded.responses[before:]] == [[WEB]]
    assert envoy.held[ASSIGNMENT][WEB][1] == b"default/web:http=b"


def test_pitfall_1_an_assignment_is_emptied_and_never_removed_from_who_holds_it(
    view: FakeView,
) -> None:
    envoy = Envoy(view)
    envoy.connect()
    view.drop(ASSIGNMENT, WEB)
    envoy.tell()
    last = envoy.recorded.responses[-1]
    assert last.removed == ()
    assert last.resources[WEB][1] == messages.wire.text(1, WEB)  # its name and nothing else


def test_pitfall_2_a_cluster_that_is_sent_again_is_followed_by_its_assignment(
    view: FakeView,
) -> None:
    envoy = Envoy(view)
    envoy.connect()
    view.put(CLUSTER, WEB, f"{WEB}=2")
    envoy.tell()
    assert not envoy.warming, "it waits for 15 s"


def test_pitfall_2_envoy_13009_also_where_it_changed_while_the_client_was_away(
    view: FakeView,
) -> None:
    envoy = Envoy(view)
    envoy.connect()
    view.put(CLUSTER, WEB, f"{WEB}=2")
    view.take_changes()
    envoy.connect()
    assert not envoy.warming
    assert [list(response.resources) for response in envoy.recorded.of(ASSIGNMENT)] == [[WEB]]


def test_pitfall_3_a_collection_comes_whole_after_a_reconnect_with_what_ever_went(
    view: FakeView,
) -> None:
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


@pytest.mark.parametrize(
    "answers", [True, False], ids=["when they are accepted", "after two seconds"]
)
def test_pitfall_8_a_listener_waits_for_the_clusters_that_are_under_way(
    view: FakeView, answers: bool
) -> None:
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
        envoy.pass_time(gate.GATE_S)
        assert envoy.stream is not None
        assert envoy.recorded.gates_forced == 1
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


def test_pitfall_20_istio_41494_what_went_while_the_client_was_away_is_removed(
    view: FakeView,
) -> None:
    envoy = Envoy(view)
    envoy.connect()
    view.drop(CLUSTER, WEB)
    view.drop(ASSIGNMENT, WEB)
    view.take_changes()
    envoy.connect()
    assert list(envoy.held[CLUSTER]) == [API]


def test_pitfall_20_consul_12174_versions_do_not_turn_a_wildcard_into_a_list(
    view: FakeView,
) -> None:
    envoy = Envoy(view)
    envoy.connect()
    envoy.connect()
    view.put(CLUSTER, "default/new:http", "default/new:http=1")
    envoy.tell()
    assert "default/new:http" in envoy.held[CLUSTER]


def test_pitfall_26_a_reconnect_to_another_replica_sends_nothing_that_did_not_change(
    view: FakeView,
) -> None:
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
        list(response.resources)
        for response in envoy.recorded.responses[before:]
        if response.type_url == CLUSTER
    ] == [[WEB]]


def test_a_type_that_other_servers_have_is_answered_by_nothing_exists_and_not_kept(
    view: FakeView,
) -> None:
    envoy = Envoy(view)
    envoy.open()
    secrets = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
    envoy.subscribed = {secrets: {"x": None}}
    envoy.held[secrets] = {}
    envoy.say(delta_request(secrets, subscribe=("x",), of_node=node()))
    assert envoy.recorded.responses[-1].removed == ("x",)
    assert envoy.recorded.finished is None
    assert envoy.stream is not None
    assert secrets not in envoy.stream._channels


def test_a_type_that_is_made_up_ends_the_stream(view: FakeView) -> None:
    envoy = Envoy(view)
    envoy.open()
    envoy.say(delta_request("type.googleapis.com/other", subscribe=("x",), of_node=node()))
    assert envoy.recorded.finished is not None
    assert (envoy.recorded.finished.status, envoy.recorded.finished.limit) == (
        messages.INVALID_ARGUMENT,
        "types",
    )


def test_pitfall_22_what_is_refused_is_found_by_halves_told_once_and_not_sent_again(
    view: FakeView,
) -> None:
    for number in range(9):
        view.put(CLUSTER, f"default/s{number}:http", f"default/s{number}:http=1")
    view.take_changes()
    envoy = Envoy(view)
    envoy.refuses = lambda name, body: (
        "no such policy" if name == "default/s4:http" and body.endswith(b"=1") else ""
    )
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
