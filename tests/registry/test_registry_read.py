"""GET, list and watch options: versions, selectors, tokens, and every sentence about wrong ones."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from tests.tables import tables

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import ConfigMaps, EndpointSlices, Namespaces, Nodes, Pods
from sliceplane.server.registry.verbs.options import (
    NEWEST,
    Continue,
    decode_continue,
    encode_continue_start,
)

TABLES = tables(__file__)


def fill(api: Any, *names: str, namespace: str = "default", labels: Any = None) -> None:
    for name in names:
        api.create(
            ConfigMaps, {"metadata": {"name": name, "labels": labels or {}}}, namespace=namespace
        )


@pytest.fixture
def spread(make_api: Any) -> Any:
    api = make_api()
    for namespace in ("zz", "zz-b", "zz0"):
        api.create(Namespaces, {"metadata": {"name": namespace}})
    fill(api, "a", namespace="zz")
    fill(api, "o", namespace="zz-b")
    fill(api, "a", namespace="zz0")
    fill(api, "c2", "c10", "c1", "c.1", "c-1")
    return api


def test_order_is_that_of_bytes(spread: Any) -> None:
    names = [
        "default/c-1",
        "default/c.1",
        "default/c1",
        "default/c10",
        "default/c2",
        "zz-b/o",
        "zz/a",
        "zz0/a",
    ]
    assert spread.names(ConfigMaps, namespace="") == names
    assert spread.names(ConfigMaps, namespace="zz") == ["zz/a"]
    assert spread.names(ConfigMaps, namespace="missing") == []


@pytest.mark.parametrize("namespace", ["", "default"])
@pytest.mark.parametrize("selector", ["", "!nope"])
def test_pages_join_to_the_list(spread: Any, namespace: str, selector: str) -> None:
    whole = spread.names(ConfigMaps, namespace=namespace)
    version = spread.store.revision
    for limit in range(1, len(whole) + 2):
        found: list[str] = []
        token = ""
        while True:
            page = spread.list(
                ConfigMaps,
                namespace=namespace,
                limit=limit,
                continue_token=token,
                label_selector=selector,
            )
            found += [record.key.path for record in page.records]
            assert page.resource_version == version
            expected_rest = len(whole) - len(found)
            assert page.remaining == (expected_rest if expected_rest and not selector else None)
            token = page.continue_token
            if not token:
                break
        assert found == whole


def test_a_token_shows_the_state_of_its_first_page(spread: Any) -> None:
    page = spread.list(ConfigMaps, limit=2)
    spread.delete(ConfigMaps, "c2")
    fill(spread, "c3")
    rest = spread.list(ConfigMaps, continue_token=page.continue_token)
    assert [record.key.name for record in rest.records] == ["c1", "c10", "c2"]
    assert rest.resource_version == page.resource_version


def test_the_form_of_a_token(spread: Any) -> None:
    def read(token: str) -> Any:
        assert "=" not in token
        return json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))

    version = spread.store.revision
    token = read(spread.list(ConfigMaps, limit=1).continue_token)
    assert token == {"v": "meta.k8s.io/v1", "rv": version, "start": "/c-1\u0000"}
    token = read(spread.list(ConfigMaps, namespace="", limit=6).continue_token)
    assert token == {"v": "meta.k8s.io/v1", "rv": version, "start": "/zz-b/o\u0000"}


def test_tokens_without_slash_or_nul(spread: Any) -> None:
    def rest(start: str) -> list[str]:
        token = encode_continue_start(spread.store.revision, start)
        return [record.key.name for record in spread.list(ConfigMaps, continue_token=token).records]

    assert rest("c1\0") == ["c10", "c2"]
    assert rest("/c1") == ["c1", "c10", "c2"], "without the NUL the key itself comes next"


def encoded(**fields: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(fields).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    ("token", "detail"),
    [
        ("%%%", "illegal base64 data at input byte 0"),
        (encoded(v="v0", rv=3, start="/a"), 'server does not recognize this encoded version "v0"'),
        (
            encoded(v="meta.k8s.io/v1", rv=0, start="/a"),
            "incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
        ),
        (
            encoded(v="meta.k8s.io/v1", rv=3, start=""),
            "encoded start key empty (version meta.k8s.io/v1)",
        ),
        (encoded(v="meta.k8s.io/v1", rv=3, start="../a"), "../a"),
        (encoded(v="meta.k8s.io/v1", rv=3, start="/a/../../b"), "/a/../../b"),
    ],
)
def test_bad_tokens(api: Any, token: str, detail: str) -> None:
    error = api.fails("list", ConfigMaps, continue_token=token)
    assert (error.code, error.message) == (
        400,
        f"invalid continue token: continue key is not valid: {detail}",
    )


def test_an_expired_token_brings_a_fresh_one(spread: Any) -> None:
    page = spread.list(ConfigMaps, limit=2)
    fill(spread, "c3")
    spread.store.compact(spread.store.revision)
    error = spread.fails("list", ConfigMaps, limit=2, continue_token=page.continue_token)
    assert (error.code, error.reason) == (410, "Expired")
    assert error.message.startswith(
        "The provided continue parameter is too old to display a consistent list result."
    )
    fresh = error.metadata["continue"]
    assert decode_continue(fresh) == Continue(NEWEST, "c.1\0")
    page = spread.list(ConfigMaps, limit=2, continue_token=fresh)
    assert [record.key.name for record in page.records] == ["c1", "c10"]
    assert page.resource_version == spread.store.revision
    assert decode_continue(page.continue_token).revision == spread.store.revision


def test_versions_of_a_list(spread: Any) -> None:
    old = spread.store.revision
    fill(spread, "d")
    new = spread.store.revision

    def at(**options: Any) -> tuple[int, int]:
        listed = spread.list(ConfigMaps, **options)
        return listed.resource_version, len(listed.records)

    assert at() == (new, 6)
    assert at(resource_version="") == (new, 6)
    assert at(resource_version="0", limit=2) == (new, 6), "version 0 ignores the limit"
    assert at(resource_version=str(old)) == (new, 6), "not older than"
    assert at(resource_version=str(old), limit=9) == (old, 5), "with a limit: exactly"
    assert at(resource_version=str(old), limit=9, resource_version_match="NotOlderThan") == (new, 6)
    assert at(resource_version=str(old), resource_version_match="Exact") == (old, 5)
    spread.store.compact(new)
    error = spread.fails(
        "list", ConfigMaps, resource_version=str(old), resource_version_match="Exact"
    )
    assert (error.code, error.reason, error.message) == (
        410,
        "Expired",
        "The resourceVersion for the provided list is too old.",
    )


@pytest.mark.parametrize(("options", "code", "message"), TABLES["wrong_list_options"])
def test_wrong_list_options(api: Any, options: Any, code: int, message: str | None) -> None:
    error = api.fails("list", Pods, **options)
    assert error.code == code
    if message:
        assert error.message == message


def test_zero_with_continue_is_accepted(spread: Any) -> None:
    token = spread.list(ConfigMaps, limit=1).continue_token
    assert len(spread.list(ConfigMaps, resource_version="0", continue_token=token).records) == 4


def test_versions_from_the_future(api: Any) -> None:
    fill(api, "c")
    wanted = api.store.revision + 5
    for error in (
        api.fails("list", ConfigMaps, resource_version=str(wanted)),
        api.fails("get", ConfigMaps, "c", rv=str(wanted)),
    ):
        assert (error.code, error.reason, error.retry_after_s) == (504, "Timeout", 1)
        assert (
            error.message
            == f"Timeout: Too large resource version: {wanted}, current: {api.store.revision}"
        )
    assert api.get(ConfigMaps, "c", rv="0")
    assert api.get(ConfigMaps, "c", rv="1")
    error = api.fails("get", ConfigMaps, "c", rv="abc")
    assert (error.code, error.reason) == (500, "")


def test_selectors(api: Any) -> None:
    fill(api, "a", "b", labels={"x": "1"})
    fill(api, "c", labels={"x": "2"})
    assert api.names(ConfigMaps, label_selector="x=1") == ["default/a", "default/b"]
    assert api.names(ConfigMaps, label_selector="x=1", field_selector="metadata.name!=a") == [
        "default/b"
    ]
    assert api.names(ConfigMaps, field_selector="metadata.name=b") == ["default/b"]
    assert api.names(ConfigMaps, namespace="", field_selector="metadata.name=b") == ["default/b"]
    assert api.names(ConfigMaps, field_selector="metadata.name=b", label_selector="x=2") == []
    assert api.names(
        ConfigMaps, namespace="", field_selector="metadata.namespace=default,metadata.name=c"
    ) == ["default/c"]
    assert api.names(ConfigMaps, field_selector="metadata.namespace=other") == []
    page = api.list(ConfigMaps, label_selector="x=1", limit=1)
    assert (len(page.records), page.remaining) == (1, None)
    last = api.list(ConfigMaps, label_selector="x=1", limit=1, continue_token=page.continue_token)
    assert ([record.key.name for record in last.records], last.continue_token) == (["b"], "")


def test_readers_do_not_see_what_is_not_durable(api: Any) -> None:
    api.commits = False
    fill(api, "a")
    assert api.fails("get", ConfigMaps, "a").code == 404
    assert api.names(ConfigMaps) == []
    api.commit()
    assert api.names(ConfigMaps) == ["default/a"]


# Watches


@pytest.mark.parametrize(("options", "initial", "since"), TABLES["where_a_watch_starts"])
def test_where_a_watch_starts(api: Any, options: Any, initial: bool, since: int | None) -> None:
    plan = api.watch(EndpointSlices, **options, allow_bookmarks=True)
    assert (plan.initial, plan.since, plan.bookmarks, plan.wait_for) == (initial, since, True, None)
    assert plan.matches is None


def test_a_watch_list_of_the_future_waits(api: Any) -> None:
    plan = api.watch(
        EndpointSlices,
        send_initial_events=True,
        resource_version_match="NotOlderThan",
        resource_version="999",
    )
    assert plan.wait_for == 999


@pytest.mark.parametrize(("options", "code", "message"), TABLES["wrong_watch_options"])
def test_wrong_watch_options(api: Any, options: Any, code: int, message: str | None) -> None:
    error = api.fails("watch", EndpointSlices, **options)
    assert error.code == code
    if message:
        assert error.message == f'ListOptions.meta.k8s.io "" is invalid: {message}'


def test_a_watch_of_one_object_is_routed_by_its_name(api: Any) -> None:
    api.create(Nodes, {"metadata": {"name": "n1"}})
    api.create(Nodes, {"metadata": {"name": "n2"}})
    plan = api.watch(Nodes, field_selector="metadata.name=n1")
    assert plan.name == "n1"
    assert plan.selector
    assert plan.matches is not None
    records = api.list(Nodes).records
    assert [plan.matches(record) for record in records] == [True, False]
    assert plan.selector == api.watch(Nodes, field_selector="metadata.name==n1").selector


def test_errors_are_status_documents(api: Any) -> None:
    with pytest.raises(StatusError) as caught:
        api.list(Pods, send_initial_events=True, resource_version_match="Foo")
    status = caught.value.status()
    assert status["details"]["kind"] == "ListOptions"
    assert status["details"]["group"] == "meta.k8s.io"
    assert status["message"].startswith('ListOptions.meta.k8s.io "" is invalid: [')
