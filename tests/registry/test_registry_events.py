"""Events: two APIs over one stored object, and their end after an hour (KEP-383)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.registry.conftest import Api

from sliceplane.api.scheme import Events, EventsV1
from sliceplane.kit.times import format_micro_time, format_time
from sliceplane.server.documents import conversion
from sliceplane.server.registry.documents import document_of
from sliceplane.server.registry.expiry import Expiry
from sliceplane.server.store.types import Key

TIME = "2026-11-21T10:00:00.000000Z"


def v1_event(name: str = "e", **changes: Any) -> dict[str, Any]:
    event = {
        "metadata": {"name": name},
        "eventTime": TIME,
        "type": "Normal",
        "action": "Bind",
        "reason": "Bound",
        "note": "hello",
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
        "reportingController": "example.com/c",
        "reportingInstance": "c-1",
        **changes,
    }
    return {name: value for name, value in event.items() if value is not None}


def core_event(name: str = "e", **changes: Any) -> dict[str, Any]:
    about = {"kind": "Pod", "name": "p", "namespace": "default"}
    return {
        "metadata": {"name": name},
        "involvedObject": about,
        "message": "hello",
        "reason": "Bound",
        **changes,
    }


def seen(api: Api, name: str = "e") -> Any:
    return api.get(EventsV1, name)


def test_one_object_in_two_forms(api: Api) -> None:
    written = api.create(EventsV1, v1_event())
    stored = api.get(Events, "e")
    (listed,) = api.list(EventsV1).records
    assert listed.body == written.body
    assert (stored["kind"], stored["apiVersion"]) == ("Event", "v1")
    assert (stored["message"], stored["reportingComponent"]) == ("hello", "example.com/c")
    assert stored["involvedObject"]["name"] == "p"
    shown = json.loads(written.body)
    assert shown == api.get(EventsV1, "e")
    assert shown["apiVersion"] == "events.k8s.io/v1"
    assert shown["metadata"] == stored["metadata"]
    assert {name: shown[name] for name in v1_event() if name != "metadata"} == {
        name: value for name, value in v1_event().items() if name != "metadata"
    }
    assert not {"message", "involvedObject", "source", "reportingComponent"} & shown.keys()


def test_an_old_event_read_through_the_new_api(api: Api) -> None:
    api.create(
        Events,
        core_event(source={"component": "c"}, count=3, firstTimestamp="2026-11-21T10:00:00Z"),
    )
    shown = seen(api)
    assert (shown["note"], shown["deprecatedCount"], shown["deprecatedSource"]) == (
        "hello",
        3,
        {"component": "c"},
    )
    assert shown["deprecatedFirstTimestamp"] == "2026-11-21T10:00:00Z"
    assert "reportingController" not in shown


def test_errors_name_the_api_that_was_asked(api: Api) -> None:
    api.create(EventsV1, v1_event())
    assert api.fails("create", Events, core_event()).message == 'events "e" already exists'
    assert (
        api.fails("create", EventsV1, v1_event()).message
        == 'events.events.k8s.io "e" already exists'
    )
    assert api.fails("get", EventsV1, "x").message == 'events.events.k8s.io "x" not found'


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eventTime": None}, "eventTime: Required value"),
        ({"type": "Foo"}, 'type: Invalid value: "": has invalid value: Foo'),
        ({"action": None}, "action: Required value"),
        ({"reason": "r" * 129}, 'reason: Invalid value: "": can have at most 128 characters'),
        ({"note": "n" * 1025}, 'message: Invalid value: "": can have at most 1024 characters'),
        ({"deprecatedCount": 1}, 'count: Invalid value: "": needs to be unset'),
        ({"deprecatedSource": {"component": "c"}}, 'source: Invalid value: "": needs to be unset'),
        (
            {"series": {"count": 1, "lastObservedTime": TIME}},
            'series.count: Invalid value: "": should be at least 2',
        ),
        ({"reportingInstance": ""}, "reportingInstance: Required value"),
    ],
)
def test_the_new_api_wants_more(api: Api, changes: Any, message: str) -> None:
    error = api.fails("create", EventsV1, v1_event(**changes))
    assert (error.code, error.message) == (422, f'Event "e" is invalid: {message}')


def test_micro_times_have_six_digits(api: Api) -> None:
    error = api.fails("create", EventsV1, v1_event(eventTime="2026-11-21T10:00:00Z"))
    assert error.code == 400
    assert error.message.startswith(
        'Event in version "v1" cannot be handled as a Event: parsing time'
    )
    assert error.message.endswith('cannot parse "Z" as ".000000"')


def test_only_the_series_moves(api: Api) -> None:
    api.create(EventsV1, v1_event())
    api.patch(EventsV1, "e", {"series": {"count": 2, "lastObservedTime": TIME}}, "strategic")
    assert seen(api)["series"]["count"] == 2
    assert api.fails("patch", EventsV1, "e", {"note": "changed"}).message == (
        'Event "e" is invalid: message: Invalid value: "changed": field is immutable'
    )
    api.patch(Events, "e", {"message": "changed"})
    assert seen(api)["note"] == "changed"
    again = seen(api)
    before = api.store.revision
    api.update(EventsV1, "e", again)
    assert api.store.revision == before, "what was read can be written back and changes nothing"


def test_selectors_of_each_api(api: Api) -> None:
    api.create(EventsV1, v1_event())
    for resource, selector in ((Events, "involvedObject.name=p"), (EventsV1, "regarding.name=p")):
        assert api.names(resource, field_selector=selector) == ["default/e"]
        assert api.names(resource, field_selector=selector.replace("=p", "=q")) == []
    assert api.names(EventsV1, field_selector="reportingController=example.com/c") == ["default/e"]
    assert api.fails("list", EventsV1, field_selector="involvedObject.name=p").message == (
        "field label not supported: involvedObject.name"
    )
    assert api.fails("list", Events, field_selector="regarding.name=p").code == 400


def test_put_creates_through_the_new_api(api: Api) -> None:
    assert api.update(EventsV1, "e", v1_event()).code == 201
    assert api.get(Events, "e")["reason"] == "Bound"


members = st.dictionaries(
    st.sampled_from(
        [
            "message",
            "reason",
            "count",
            "involvedObject",
            "source",
            "series",
            "firstTimestamp",
            "type",
        ]
    ),
    st.one_of(st.text(min_size=1), st.integers(1), st.dictionaries(st.text(), st.text())),
)


@given(members)
def test_there_and_back_changes_nothing(document: dict[str, Any]) -> None:
    stored = {"kind": "Event", "apiVersion": "v1", **document}
    assert conversion.to_stored(EventsV1, conversion.from_stored(EventsV1, stored)) == stored


def test_events_go_an_hour_after_the_last_write(api: Api) -> None:
    api.create(Events, core_event("old"))
    api.create(Events, core_event("kept"))
    assert api.registry.expire(api.now) == ()
    api.now += 3000
    api.patch(Events, "kept", {"count": 2})
    assert api.registry.expire(api.now) == ()
    api.now += 600
    gone = api.registry.expire(api.now)
    assert [record.key.name for record in gone] == ["old"]
    assert api.registry.expire(api.now) == (), "what is staged is not removed twice"
    api.commit()
    assert api.names(Events) == ["default/kept"]
    assert api.events[-1].type.value == "DELETED"
    api.registry.check()
    api.now += 3000
    assert [record.key.name for record in api.registry.expire(api.now)] == ["kept"]
    api.commit()
    assert api.names(Events) == []
    api.registry.check()


def test_after_a_start_events_go_by_the_times_that_they_tell(api: Api) -> None:
    api.create(Events, core_event("new", lastTimestamp=format_time(api.now + 9_000_000)))
    api.create(Events, core_event("old"))
    api.create(
        EventsV1,
        v1_event("seen", series={"count": 2, "lastObservedTime": format_micro_time(api.now + 60)}),
    )
    api.registry.on_aborted()  # derives everything anew, as a start does
    api.registry.check()
    assert api.registry.expire(api.now + 10) == ()
    assert [record.key.name for record in api.registry.expire(api.now + 3600)] == ["old"]
    # The one that claims to be of the future was found at +10.
    assert [record.key.name for record in api.registry.expire(api.now + 3610, 1)] == ["seen"]
    assert [record.key.name for record in api.registry.expire(api.now + 3610, 1)] == ["new"]
    api.commit()
    assert api.names(Events) == []


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from(["put", "remove", "due"]), st.integers(0, 40))
    )
)
def test_expiry_against_a_dumb_model(steps: list[tuple[int, str, int]]) -> None:
    queue, model, now = Expiry(ttl_s=50), dict[Key, float | None](), 0.0
    for number, step, seconds in steps:
        key = Key("events", "default", str(number))
        if step == "put":
            queue.on_stored(key, {})
            model[key] = None
        elif step == "remove":
            queue.on_removed(key)
            model.pop(key, None)
        else:
            now += seconds
            model = {
                each: now + 50 if deadline is None else deadline for each, deadline in model.items()
            }
            due = queue.take_due(now, 100)
            assert set(due) == {
                each for each, deadline in model.items() if deadline is not None and deadline <= now
            }
            for each in due:
                queue.on_removed(each)
                del model[each]
        queue.check([(each, {}) for each in model])


def test_deleting_a_collection_lists_it_in_the_form_that_was_asked(api: Api) -> None:
    api.create(EventsV1, v1_event())
    listed = json.loads(api.delete_collection(EventsV1).body)
    assert (listed["kind"], listed["apiVersion"]) == ("EventList", "events.k8s.io/v1")
    assert listed["items"][0]["note"] == "hello"
    assert [document_of(record) for record in api.list(Events).records] == []
