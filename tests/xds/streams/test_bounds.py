"""What a client may have a stream keep and do: names, versions, fields, types, texts, steps."""

from __future__ import annotations

import gc
import time
import tracemalloc

import pytest
from tests.fuzz.watchdog import slowness
from tests.xds.streams.clients import (
    API,
    WEB,
    Envoy,
    FakeView,
    delta_request,
    node,
    read_response,
    scaled,
    whole_request,
)

from sliceplane.xds import wire
from sliceplane.xds.names import ASSIGNMENT, CLUSTER, LISTENER, NAME_MAX
from sliceplane.xds.streams import messages, requests
from sliceplane.xds.streams.actions import VisibleNamespaces, XdsFinish, XdsSend
from sliceplane.xds.streams.channel import REFUSED_MAX
from sliceplane.xds.streams.delta import DeltaStream
from sliceplane.xds.streams.stream import AdsStream
from sliceplane.xds.streams.whole import WholeStream

#: of a step, of the processor's time, on a machine that is not busy
STEP_S_MAX = 0.05


def admitted(view: FakeView, make: type[AdsStream] = DeltaStream) -> AdsStream:
    stream = make(messages.ResponseEncoder())
    first = delta_request(ASSIGNMENT, subscribe=(WEB,), of_node=node())
    stream.on_request(
        first if make is DeltaStream else whole_request(ASSIGNMENT, WEB, of_node=node()), 0.0
    )
    stream.on_admitted(view, VisibleNamespaces(), view.revision, 0.0)  # type: ignore[arg-type]
    stream.take_actions()
    return stream


def work(stream: AdsStream, message: bytes) -> tuple[int, float, XdsFinish | None]:
    """Steps, the processor time of the longest, and how the stream ended."""
    gc.collect()
    # as servers do: a collection within a step looks at the stream, not at what other tests left
    gc.freeze()
    try:
        return _work(stream, message)
    finally:
        gc.unfreeze()


def _work(stream: AdsStream, message: bytes) -> tuple[int, float, XdsFinish | None]:
    steps, longest_s = 1, 0.0
    began = time.thread_time()
    stream.on_request(message, 0.0)
    while stream.has_work:
        longest_s = max(longest_s, time.thread_time() - began)
        steps += 1
        began = time.thread_time()
        stream.work(0.0)
    longest_s = max(longest_s, time.thread_time() - began)
    finished = [action for action in stream.take_actions() if isinstance(action, XdsFinish)]
    return steps, longest_s, finished[0] if finished else None


@pytest.mark.parametrize("field", ["subscribe", "unsubscribe"])
def test_a_name_that_is_longer_than_a_name_can_be_ends_the_stream(
    view: FakeView, field: str
) -> None:
    longest = "n" * NAME_MAX
    assert work(admitted(view), delta_request(ASSIGNMENT, **{field: (longest,)}))[2] is None  # type: ignore[arg-type]
    _, _, finished = work(admitted(view), delta_request(ASSIGNMENT, **{field: (longest + "n",)}))  # type: ignore[arg-type]
    assert finished is not None
    assert (finished.status, finished.limit) == (messages.INVALID_ARGUMENT, "name")


def test_long_names_are_not_copied(view: FakeView) -> None:
    message = delta_request(ASSIGNMENT, subscribe=("n" * 3_000_000,))
    stream = admitted(view)
    tracemalloc.start()
    work(stream, message)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000


def test_whole_requests_have_the_same_bounds(view: FakeView) -> None:
    _, _, finished = work(
        admitted(view, WholeStream), whole_request(ASSIGNMENT, "n" * (NAME_MAX + 1))
    )
    assert finished is not None
    assert (finished.status, finished.limit) == (messages.INVALID_ARGUMENT, "name")


def test_too_many_versions_are_refused_in_steps(view: FakeView) -> None:
    message = delta_request(CLUSTER, initial={f"{number:x}": "1" for number in range(300_000)})
    assert len(message) < 4 * 2**20
    steps, longest_s, finished = work(admitted(view), message)
    assert finished is not None
    assert finished.status == messages.RESOURCE_EXHAUSTED
    assert steps > 100
    assert longest_s < STEP_S_MAX * slowness()


def test_as_many_versions_as_are_taken_are_answered_in_steps(view: FakeView) -> None:
    stream = admitted(view)
    message = delta_request(
        CLUSTER, initial={f"gone/{number}:http": "1" for number in range(requests.NAMES_MAX)}
    )
    steps, longest_s, finished = work(stream, message)
    assert finished is None
    assert steps > requests.NAMES_MAX // requests.STEP
    assert longest_s < STEP_S_MAX * slowness()


@pytest.mark.parametrize("make", [DeltaStream, WholeStream])
def test_as_many_names_as_are_taken_are_answered_in_steps(
    view: FakeView, make: type[AdsStream]
) -> None:
    stream = admitted(view, make)
    names = tuple(f"shop/s{number}:http" for number in range(requests.NAMES_MAX - 1))
    is_delta = make is DeltaStream
    message = (
        delta_request(CLUSTER, subscribe=names) if is_delta else whole_request(CLUSTER, *names)
    )
    steps, longest_s, finished = work(stream, message)
    assert finished is None
    assert steps > requests.NAMES_MAX // requests.STEP
    assert longest_s < STEP_S_MAX * slowness()


def test_many_short_fields_are_refused_in_steps(view: FakeView) -> None:
    steps, longest_s, finished = work(admitted(view), wire.text(12, "x") * 1_000_000)
    assert finished is not None
    assert (finished.status, finished.limit) == (messages.RESOURCE_EXHAUSTED, "request-fields")
    assert steps > 100
    assert longest_s < STEP_S_MAX * slowness()


def test_requests_keep_their_order_and_changes_come_in_between(view: FakeView) -> None:
    stream = admitted(view)
    stream.on_request(
        delta_request(CLUSTER, initial={f"gone/{number}:http": "1" for number in range(5_000)}), 0.0
    )
    assert stream.has_work
    stream.on_request(delta_request(ASSIGNMENT, subscribe=(API,)), 0.0)
    stream.on_request(delta_request(ASSIGNMENT, unsubscribe=(API,)), 0.0)
    scaled(view)
    stream.on_changes(view.take_changes(), view.revision, 0.0)  # type: ignore[arg-type]
    assert API not in stream._channels[ASSIGNMENT].names
    while stream.has_work:
        stream.work(0.0)
    assert list(stream._channels[ASSIGNMENT].names) == [WEB]
    assert stream._channels[ASSIGNMENT].owed == {WEB: None}, "its first answer is under way"


def test_a_node_that_is_too_large_or_comes_late_is_refused(view: FakeView) -> None:
    for first in (
        delta_request(ASSIGNMENT, of_node=node() + wire.text(9, "x" * requests.NODE_BYTES_MAX)),
        wire.text(12, "x") * 1_000 + delta_request(ASSIGNMENT, of_node=node()),
    ):
        stream = DeltaStream(messages.ResponseEncoder())
        stream.on_request(first, 0.0)
        (finished,) = stream.take_actions()
        assert isinstance(finished, XdsFinish)
        assert finished.status == messages.INVALID_ARGUMENT


def test_of_metadata_only_what_is_honoured_is_kept(view: FakeView) -> None:
    stream = DeltaStream(messages.ResponseEncoder())
    members = {f"member-{number}": "x" * 100 for number in range(500)} | {"node_name": "n7"}
    stream.on_request(delta_request(ASSIGNMENT, of_node=node(members)), 0.0)
    assert stream.node is not None
    assert stream.node.metadata == {"node_name": "n7"}


def test_refusals_are_kept_with_their_texts_up_to_a_bound(view: FakeView) -> None:
    for number in range(4 * REFUSED_MAX):
        view.put(CLUSTER, f"default/s{number}:http", f"default/s{number}:http=1")
    view.take_changes()
    envoy = Envoy(view)
    envoy.refuses = lambda name, body: "x" * 5_000
    envoy.connect()
    assert envoy.stream is not None
    refused = envoy.stream._channels[CLUSTER].refused
    assert len(refused) == REFUSED_MAX
    assert {len(text) for text in refused.values()} == {requests.TEXT_MAX}


def test_the_estimate_of_memory_is_one(view: FakeView) -> None:
    """Within twice of what names really take, and above it."""
    stream = admitted(view)
    names = tuple(f"shop/{number}-{'n' * 100}:http" for number in range(20_000))
    message = delta_request(ASSIGNMENT, subscribe=names)
    before = stream.memory_bytes
    requests.forget_shared()
    tracemalloc.start()
    work(stream, message)
    requests.forget_shared()
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    estimate = stream.memory_bytes - before
    assert taken / 1.3 < estimate < taken * 2
    work(stream, delta_request(ASSIGNMENT, unsubscribe=names))
    stream.take_actions()
    assert stream._channels[ASSIGNMENT].text_bytes < 1_000


def test_requests_that_wait_count(view: FakeView) -> None:
    stream = DeltaStream(messages.ResponseEncoder())
    for _ in range(3):
        stream.on_request(
            delta_request(ASSIGNMENT, of_node=node()) + wire.text(12, "x" * 100_000), 0.0
        )
    assert stream.memory_bytes > 300_000
    stream.close()
    assert stream.memory_bytes < 50_000


def test_what_a_client_may_not_see_concerns_it_not(view: FakeView) -> None:
    """It would be behind on changes of Services that it has nothing to do with."""
    stream = DeltaStream(messages.ResponseEncoder())
    stream.on_request(delta_request(ASSIGNMENT, subscribe=(WEB,), of_node=node()), 0.0)
    none = VisibleNamespaces(everything=False)
    stream.on_admitted(view, none, view.revision, 0.0)  # type: ignore[arg-type]
    scaled(view)
    stream.on_changes(view.take_changes(), view.revision, 0.0)  # type: ignore[arg-type]
    assert stream.behind_from is None
    assert not stream._channels[ASSIGNMENT].owed


def test_listeners_of_grpc_are_found_by_the_service_that_changed(view: FakeView) -> None:
    """Not by a look at each of thousands of names."""
    view.topic = lambda type_url, name: f"default/{name}" if type_url == LISTENER else name  # type: ignore[method-assign]
    stream = admitted(view, WholeStream)
    stream.on_request(whole_request(LISTENER, "web", "api"), 0.0)
    channel = stream._channels[LISTENER]
    assert stream._find_subscribed(channel, "default/api") == ("api",)
    assert stream._find_subscribed(channel, "default/other") == ()
    stream.on_request(whole_request(LISTENER, "web", nonce=channel.nonce), 0.0)
    assert "default/api" not in stream._by_topic


def test_a_client_does_not_learn_whether_a_service_exists_that_it_may_not_see(
    view: FakeView,
) -> None:
    stream = DeltaStream(messages.ResponseEncoder())
    stream.on_request(
        delta_request(CLUSTER, subscribe=(WEB, "default/none:http"), of_node=node()), 0.0
    )
    stream.on_admitted(view, VisibleNamespaces(everything=False), view.revision, 0.0)  # type: ignore[arg-type]
    while stream.has_work:
        stream.work(0.0)
    (response,) = [
        read_response(action.message, delta=True)
        for action in stream.take_actions()
        if isinstance(action, XdsSend)
    ]
    assert set(response.removed) == set(response.errors) == {WEB, "default/none:http"}
