"""What fuzzing has found, each as the request that showed it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.fuzz.application import Answer, Application, Ask
from tests.fuzz.cases import check, check_watches
from tests.fuzz.requests import JSON, PROTOBUF, YAML

from sliceplane.kit.times import format_time, parse_time
from sliceplane.server.documents import protobuf

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
SECRETS = "/api/v1/namespaces/default/secrets"
PODS = "/api/v1/namespaces/default/pods"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
METADATA_V1BETA1 = f"{PROTOBUF};as=PartialObjectMetadata%s;v=v1beta1;g=meta.k8s.io"
POD = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}


def send(
    method: str,
    path: str,
    body: Any = b"",
    media: str = JSON,
    accept: str = JSON,
    query: bytes = b"",
) -> Ask:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Ask(
        method, path, query, ((b"accept", accept.encode()), (b"content-type", media.encode())), raw
    )


async def answers(*asks: Ask) -> list[Answer]:
    """Every property is checked on the way."""
    async with Application(1) as application:
        for ask in asks:
            await check(application, ask)
        found = [await application.ask(ask) for ask in asks]
        await check_watches(application)
    return found


async def stored(path: str, body: Any, name: str, *, media: str = JSON) -> dict[str, Any]:
    """What a POST leaves behind."""
    async with Application(1) as application:
        assert await check(application, send("POST", path, body, media)) == name
        document: dict[str, Any] = json.loads(
            (await application.ask(send("GET", f"{path}/{name}"))).body
        )
        return document


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "10.96.0.1",
        "a.b.c",
        "a[0]",
        "[]",
        "",
        "a\nb",
        "a\r\nb",
        "\u2028",
        '"',
        "]",
        "metadata.labels",
    ],
)
async def test_unknown_members_are_dropped_whatever_their_name(name: str) -> None:
    """Case 1438: the names were taken from the complaints; one with a dot in it stayed in the
    stored object, one with a line break was an internal error.
    """
    body = {
        "metadata": {"name": "a", name: 1, "labels": {"x": "y"}},
        "data": {"k": "v"},
        name: {"deep": [1]},
    }
    document = await stored(CONFIG_MAPS, body, "a")
    assert set(document) == {"kind", "apiVersion", "metadata", "data"}
    assert document["metadata"]["labels"] == {"x": "y"}
    assert name not in document["metadata"]


async def test_unknown_members_are_dropped_however_many_there_are() -> None:
    """Case 14: complaints end at a hundred, and so did the dropping."""
    body = {"metadata": {"name": "a"}, **{f"k{number}": number for number in range(300)}}
    assert set(await stored(SECRETS, body, "a")) == {"kind", "apiVersion", "metadata", "type"}


async def test_unknown_members_in_lists_and_maps_are_dropped() -> None:
    """Case 611."""
    body = {
        **POD,
        "spec": {
            "containers": [
                {"name": "c", "image": "i", "x.y": 1, "resources": {"requests": {"cpu": "1"}}}
            ]
        },
    }
    container = (await stored(PODS, body, "p"))["spec"]["containers"][0]
    assert "x.y" not in container
    assert container["resources"] == {"requests": {"cpu": "1"}}


@pytest.mark.parametrize("sort", ["List", ""])
async def test_partial_metadata_of_the_older_version_in_protobuf(sort: str) -> None:
    """Case 65: a list was an internal error."""
    ask = send(
        "GET", "/api/v1/namespaces" + ("" if sort else "/default"), accept=METADATA_V1BETA1 % sort
    )
    (answer,) = await answers(ask)
    assert protobuf.decode(answer.body)["apiVersion"] == "meta.k8s.io/v1beta1"


async def test_watches_of_partial_metadata_of_the_older_version_in_protobuf() -> None:
    """Case 33: such a watch hung for good, without a word."""
    async with Application(1) as application:
        await check(
            application,
            send("GET", "/api/v1/namespaces", accept=METADATA_V1BETA1 % "", query=b"watch=1"),
        )
        while not application.watches[0].wire.written:
            await asyncio.sleep(0)
        await check_watches(application)


async def test_a_null_in_a_list_of_a_binding() -> None:
    """Case 33: an internal error."""
    body = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}, "x": [None]}
    made, refused = await answers(send("POST", PODS, POD), send("POST", f"{PODS}/p/binding", body))
    assert (made.code, refused.code) == (409, 400)
    assert b"cannot unmarshal null" in refused.body


@pytest.mark.parametrize(
    "text",
    ["n", "Y", "on", "1e3", "0o17", "0b1", "12e03", "1_000", ".5", "~", "null", "=", "<<", "22:22"],
)
async def test_text_that_looks_like_something_else_is_quoted_in_yaml(text: str) -> None:
    """Case 21: ``n`` was written without quotes, and read back as false."""
    async with Application(1) as application:
        body = {"metadata": {"name": "a"}, "data": {"k": text}}
        assert await check(application, send("POST", CONFIG_MAPS, body)) == "a"
        seen = await application.ask(send("GET", f"{CONFIG_MAPS}/a", accept=YAML))
        back = await application.ask(send("PUT", f"{CONFIG_MAPS}/a", seen.body, YAML))
        assert json.loads(back.body)["data"] == {"k": text}


async def test_an_empty_map_of_a_pod_does_not_make_it_immutable_for_clients_of_protobuf() -> None:
    """Case 1039: ``nodeSelector: {}`` was kept, protobuf has no way to say it, and so every update
    was refused.
    """
    body = {
        **POD,
        "spec": {
            **POD["spec"],
            "nodeSelector": {},
            "hostname": "",
            "hostNetwork": False,
            "priority": 0,
        },
    }
    spec = (await stored(PODS, body, "p"))["spec"]
    assert not {"nodeSelector", "hostname", "hostNetwork"} & set(spec)
    assert spec["priority"] == 0  # a pointer: 0 is a value


async def test_a_quantity_that_is_a_number_is_stored_as_text() -> None:
    """Case 10820: it became text when a client of protobuf wrote it back, which in a Pod was
    refused.
    """
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": 0.5}}}
    spec = {"volumes": [{"name": "v", "emptyDir": {"sizeLimit": 80}}], "containers": [container]}
    found = (await stored(PODS, {**POD, "spec": spec}, "p"))["spec"]
    requests = found["containers"][0]["resources"]["requests"]
    assert (found["volumes"][0]["emptyDir"]["sizeLimit"], requests["cpu"]) == ("80", "0.5")


async def test_what_says_something_stays() -> None:
    body = {
        "metadata": {"name": "a", "labels": {"empty": ""}, "annotations": {}},
        "data": {"empty": ""},
        "binaryData": {},
        "immutable": False,
    }
    document = await stored(CONFIG_MAPS, body, "a")
    assert document["data"] == {"empty": ""}
    assert document["metadata"]["labels"] == {"empty": ""}
    assert document["immutable"] is False
    assert "binaryData" not in document


@pytest.mark.parametrize("time", ["0000-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59"])
async def test_times_beyond_the_calendar(time: str) -> None:
    """Case 1057: year 0 was an internal error, in any object."""
    body = {
        "metadata": {"name": "e", "creationTimestamp": time},
        "regarding": {"namespace": "default"},
    }
    (answer,) = await answers(send("POST", EVENTS, body))
    assert answer.code == 400
    old = {
        **POD,
        "status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": time}]},
    }
    made, *shown = await answers(
        send("POST", PODS, old),
        *(send("GET", f"{PODS}/p", accept=each) for each in (PROTOBUF, YAML)),
    )
    assert made.code == 409
    assert [answer.code for answer in shown] == [200, 200]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("2026-01-01T00:00:00.123456Z", "2026-01-01T00:00:00Z"),
        ("2026-01-01T00:00:00+01:00", "2025-12-31T23:00:00Z"),
        ("0001-01-01T00:00:00Z", None),
        ("0050-01-01T00:00:00Z", "0050-01-01T00:00:00Z"),
    ],
)
async def test_times_are_stored_as_go_writes_them(given: str, kept: str | None) -> None:
    """Cases 51259 and 700774: whoever wrote the object back in protobuf changed it."""
    body = {
        "metadata": {"name": "e"},
        "involvedObject": {"namespace": "default"},
        "lastTimestamp": given,
    }
    document = await stored("/api/v1/namespaces/default/events", body, "e")
    assert document.get("lastTimestamp", "none") == (kept or "none")


def test_early_years_have_four_digits() -> None:
    assert format_time(parse_time("0001-01-01T00:00:00Z")) == "0001-01-01T00:00:00Z"
    assert parse_time("0000-12-31T23:59:59Z") == parse_time("0001-01-01T00:00:00Z") - 1
    assert parse_time("0000-02-29T00:00:00Z") + 86400 == parse_time("0000-03-01T00:00:00Z")


async def test_base64_with_line_breaks_is_stored_without() -> None:
    """Case 701379: it was kept as it came, and reading the object in protobuf was an internal
    error.
    """
    body = {"metadata": {"name": "a"}, "binaryData": {"b": "YQ==\n", "c": "YW\r\nFh"}}
    assert (await stored(CONFIG_MAPS, body, "a"))["binaryData"] == {"b": "YQ==", "c": "YWFh"}


async def test_scales_in_protobuf() -> None:
    """Case 701135: an internal error."""
    template = {"metadata": {"labels": {"a": "b"}}, "spec": POD["spec"]}
    body = {
        "metadata": {"name": "d"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": template},
    }
    path = "/apis/apps/v1/namespaces/default/deployments"
    async with Application(1) as application:
        assert (await application.ask(send("POST", path, body))).code == 201
        seen = await application.ask(send("GET", f"{path}/d/scale", accept=PROTOBUF))
        scale = protobuf.decode(seen.body)
        assert (scale["kind"], scale["spec"], scale["status"]) == (
            "Scale",
            {"replicas": 2},
            {"replicas": 0, "selector": "a=b"},
        )
        scale["spec"]["replicas"] = 5
        written = await application.ask(
            send("PUT", f"{path}/d/scale", protobuf.encode(scale), PROTOBUF)
        )
        assert json.loads(written.body)["spec"] == {"replicas": 5}


async def test_an_aggregated_role_without_a_name() -> None:
    """Case 9061: an internal error, as roles are filled before names are looked at."""
    rule = {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    (answer,) = await answers(send("POST", path, {"metadata": {}, "aggregationRule": rule}))
    assert (answer.code, json.loads(answer.body)["reason"]) == (422, "Invalid")


@pytest.mark.parametrize("limit", [b"9223372036854775807", b"4611686018427387904"])
async def test_the_largest_limits(limit: bytes) -> None:
    """Case 2088: an internal error."""
    plain, selected = await answers(
        send("GET", "/api/v1/namespaces", query=b"limit=" + limit),
        send("GET", "/api/v1/namespaces", query=b"labelSelector=a!%3Db&limit=" + limit),
    )
    assert len(json.loads(plain.body)["items"]) == len(json.loads(selected.body)["items"]) > 0


async def test_a_thousand_controllers_are_told_of_in_a_few_words() -> None:
    """Case 1795274684809: each of 999 complaints showed all of the thousand references, 100 MB in
    all.
    """
    owner = {"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "u1", "controller": True}
    body = {"metadata": {"name": "a", "ownerReferences": [owner] * 1000}}
    (answer,) = await answers(send("POST", "/api/v1/namespaces/default/configmaps", body))
    status = json.loads(answer.body)
    assert answer.code == 422
    assert 1 < len(status["details"]["causes"]) <= 8
    assert "Only one reference can have Controller set to true" in status["message"]
