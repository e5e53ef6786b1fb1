"""What a stream of the state of the world answers, rule by rule, and what went wrong in other
servers, by name.
"""

from __future__ import annotations

from tests.xds.streams.clients import (
    API,
    WEB,
    FakeView,
    Grpc,
    node,
    scaled,
    whole_request,
)

from sliceplane.xds.names import ASSIGNMENT, CLUSTER, LISTENER


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


def test_pitfall_18_go_control_plane_431_a_name_that_is_asked_for_again_is_sent_again(
    view: FakeView,
) -> None:
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
    client.refuses = lambda name, body: (
        f"{name}: no" if name == API and body.endswith(b"=b") else ""
    )
    client.connect()
    scaled(view, API)
    scaled(view, WEB)
    client.tell()
    assert [refusal.names for refusal in client.recorded.refusals] == [(API,)]
    assert client.held[ASSIGNMENT] == {API: b"default/api:http=a", WEB: b"default/web:http=b"}
