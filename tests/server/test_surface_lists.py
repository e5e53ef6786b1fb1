"""Lists: versions and matches, pages, limits, and every complaint."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import pytest
from tests.server.serving import Server
from tests.server.surface import CONFIG_MAPS, EVENTS, NAMESPACES, SLICES, Case, check, make

from sliceplane.server.io.requests.resources import FUTURE_VERSION_S_MAX

INVALID = 'ListOptions.meta.k8s.io "" is invalid: '
MATCH = f"{INVALID}resourceVersionMatch: "
BAD_TOKEN = "invalid continue token: continue key is not valid: "


def token(**members: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(members).encode()).rstrip(b"=").decode()


def listed(line: str, query: str, code: int, told: str = "") -> Case:
    return Case(line, "GET", f"{CONFIG_MAPS}?{query}", code, told)


GOOD = token(v="meta.k8s.io/v1", rv=-1, start="/a\0")
CASES = [
    listed(
        "B4 row 8",
        "resourceVersion=0&resourceVersionMatch=Exact",
        422,
        f'{MATCH}Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"',
    ),
    listed(
        "B4 row 9",
        "resourceVersionMatch=Exact",
        422,
        f"{MATCH}Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
    ),
    listed(
        "B4 row 10",
        "resourceVersion=1&resourceVersionMatch=Foo",
        422,
        f'{MATCH}Unsupported value: "Foo": supported values: "Exact", "NotOlderThan", ""',
    ),
    listed(
        "B4 row 11",
        f"resourceVersion=1&resourceVersionMatch=Exact&continue={GOOD}",
        422,
        f"{MATCH}Forbidden: resourceVersionMatch is forbidden when continue is provided",
    ),
    listed(
        "B4 row 12",
        f"resourceVersion=1&continue={GOOD}",
        400,
        "specifying resource version is not allowed when using continue",
    ),
    listed("B4 row 12, 0", f"resourceVersion=0&continue={GOOD}", 200),
    listed(
        "B4 row 13",
        "resourceVersion=abc",
        400,
        'invalid resource version: resourceVersion: Invalid value: "abc": strconv.ParseUint: '
        'parsing "abc": '
        "invalid syntax",
    ),
    listed(
        "B4 two complaints",
        "resourceVersionMatch=Foo",
        422,
        f"{INVALID}[resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless "
        "resourceVersion is "
        'provided, resourceVersionMatch: Unsupported value: "Foo": supported values: "Exact", '
        '"NotOlderThan", ""]',
    ),
    *(
        listed(
            "B4 sendInitialEvents",
            f"sendInitialEvents={value}",
            422,
            f"{INVALID}sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list",
        )
        for value in ("true", "false")
    ),
    *(listed("B4 limit", f"limit={limit}", 200, '"items":[') for limit in ("", "0", "-1")),
    listed("B4 limit", "limit=x", 400, 'strconv.ParseInt: parsing "x": invalid syntax'),
    listed(
        "B4 limit",
        "limit=99999999999999999999",
        400,
        'strconv.ParseInt: parsing "99999999999999999999": value out of range',
    ),
    listed(
        "B4 timeout",
        "timeout=abc",
        400,
        'invalid timeout specified in the request URL - time: invalid duration "abc"',
    ),
    listed("B4 timeout", "timeout=1m0.5s", 200),
    *(
        Case(
            "B4 timeout on any path",
            "GET",
            f"{path}?timeout=invalid",
            400,
            'invalid timeout specified in the request URL - time: invalid duration "invalid"',
        )
        for path in ("/version", "/apis", "/healthz")
    ),
    *(
        listed("B4 no boolean", f"watch={value}", 200, '"kind":"ConfigMapList"')
        for value in ("false", "0")
    ),
    listed("B4 shardSelector is off", "shardSelector=anything", 200, '"items":['),
    listed("B4 unknown parameter", "nope=1", 200, '"items":['),
    *(
        listed("B4 bad token", f"continue={bad}", 400, f"{BAD_TOKEN}{why}")
        for bad, why in (
            (
                token(v="meta.k8s.io/v1", rv=0, start="/a"),
                "incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
            ),
            (
                token(v="meta.k8s.io/v2", rv=1, start="/a"),
                'server does not recognize this encoded version "meta.k8s.io/v2"',
            ),
            (
                token(v="meta.k8s.io/v1", rv=1, start=""),
                "encoded start key empty (version meta.k8s.io/v1)",
            ),
            (token(v="meta.k8s.io/v1", rv=1, start="../x"), "../x"),
        )
    ),
    Case("B4 missing namespace", "GET", f"{NAMESPACES}/no-such/configmaps", 200, '"items":[]'),
    Case(
        "B4 GET by name",
        "GET",
        f"{NAMESPACES}/default?resourceVersion=0&resourceVersionMatch=Foo",
        200,
    ),
    Case(
        "B4 GET by name",
        "GET",
        f"{NAMESPACES}/default?resourceVersion=abc",
        500,
        'resourceVersion: Invalid value: "abc": strconv.ParseUint: parsing "abc": invalid syntax',
    ),
    Case(
        "B4 watch of a name is a GET",
        "GET",
        f"{NAMESPACES}/default?watch=true",
        200,
        '"kind":"Namespace"',
    ),
    Case("B3 empty list", "GET", SLICES, 200, '"items":[]}'),
    Case(
        "B12 field",
        "GET",
        f"{SLICES}?fieldSelector=addressType=IPv4",
        400,
        '"addressType" is not a known field selector: only "metadata.name", "metadata.namespace"',
    ),
    Case(
        "B12 field",
        "GET",
        "/api/v1/pods?fieldSelector=nope=1",
        400,
        "field label not supported: nope",
    ),
    Case(
        "B12 accepted, never matches",
        "GET",
        "/api/v1/pods?fieldSelector=status.podIPs=1.2.3.4",
        200,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_lists(server: Server, case: Case) -> None:
    reply = check(server, case)
    if case.code == 500:
        assert "reason" not in reply.json


@pytest.mark.parametrize(
    ("path", "retry", "waits"),
    [(CONFIG_MAPS, "1", True), (f"{NAMESPACES}/default", "1", True), (EVENTS, None, False)],
)
def test_a_version_from_the_future(
    server: Server, path: str, retry: str | None, waits: bool
) -> None:
    """Events have no cache upstream: nobody waits, and nobody is told to come back."""
    current = server.plane.store.revision
    taken = []
    for _ in range(
        1 if waits else 3
    ):  # a busy machine may take its time once, but does not wait whenever it is asked
        before = time.monotonic()
        reply = server.get(f"{path}?resourceVersion=99999999")
        taken.append(time.monotonic() - before)
    assert (min(taken) >= FUTURE_VERSION_S_MAX) is waits
    details: dict[str, Any] = {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    }
    if retry:
        details["retryAfterSeconds"] = 1
    assert (reply.code, reply.headers["Retry-After"], reply.json["details"]) == (
        504,
        retry,
        details,
    )
    assert (
        reply.json["message"]
        == f"Timeout: Too large resource version: 99999999, current: {current}"
    )


def test_limits_and_what_remains(server: Server) -> None:
    make(server, *(f"page-{number}" for number in range(5)), labels={"pages": "yes"})
    first = server.get(f"{CONFIG_MAPS}?limit=2").json["metadata"]
    assert first["remainingItemCount"] >= 3
    selected = server.get(f"{CONFIG_MAPS}?limit=2&labelSelector=pages").json["metadata"]
    assert "remainingItemCount" not in selected
    make(server, "page-9", labels={"pages": "yes"})
    rest = server.get(
        f"{CONFIG_MAPS}?limit=9&labelSelector=pages&continue={selected['continue']}"
    ).json
    assert [item["metadata"]["name"] for item in rest["items"]] == ["page-2", "page-3", "page-4"]
    assert rest["metadata"] == {"resourceVersion": selected["resourceVersion"]}
    everything = server.get(f"{CONFIG_MAPS}?limit=2&resourceVersion=0").json
    assert len(everything["items"]) >= 6
    assert "continue" not in everything["metadata"]


def test_events_are_paged_from_any_version(server: Server) -> None:
    for number in range(2):
        event = {"metadata": {"name": f"e{number}"}, "involvedObject": {"namespace": "default"}}
        assert server.request("POST", EVENTS, event).code == 201
    page = server.get(f"{EVENTS}?limit=1&resourceVersion=0").json
    assert len(page["items"]) == 1
    assert page["metadata"]["continue"]


def test_an_exact_version_and_an_old_token(server: Server) -> None:
    old = make(server, "exact-1", labels={"exact": "yes"})["metadata"]["resourceVersion"]
    make(server, "exact-2", labels={"exact": "yes"})
    path = f"{CONFIG_MAPS}?labelSelector=exact&resourceVersion={old}"
    assert len(server.get(f"{path}&resourceVersionMatch=Exact").json["items"]) == 1
    assert len(server.get(f"{path}&limit=5").json["items"]) == 1
    assert len(server.get(f"{path}&resourceVersionMatch=NotOlderThan&limit=5").json["items"]) == 2
    page = server.get(f"{CONFIG_MAPS}?labelSelector=exact&limit=1").json["metadata"]
    server.plane.store.compact(server.plane.store.revision)
    gone = server.get(f"{path}&resourceVersionMatch=Exact")
    message = "The resourceVersion for the provided list is too old."
    assert (gone.code, gone.json["reason"], gone.json["message"]) == (410, "Expired", message)
    make(server, "exact-3", labels={"exact": "yes"})
    server.plane.store.compact(server.plane.store.revision)
    expired = server.get(f"{CONFIG_MAPS}?labelSelector=exact&limit=1&continue={page['continue']}")
    assert (expired.code, expired.json["reason"]) == (410, "Expired")
    fresh = expired.json["metadata"]["continue"]
    rest = server.get(f"{CONFIG_MAPS}?labelSelector=exact&continue={fresh}").json
    assert [item["metadata"]["name"] for item in rest["items"]] == ["exact-2", "exact-3"]
