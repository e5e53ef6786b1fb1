"""The reading side: pages, lists that begin anew, and the second look at what may be a change on
its way.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.fake_api import FakeApi

from sliceplane.api.errors import StatusError, expired
from sliceplane.api.requests import Selection, Write
from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Resource, Services
from sliceplane.diagnose.audit.judge import key_of
from sliceplane.diagnose.io import endpoints_audit
from sliceplane.diagnose.io.endpoints_audit import LISTS_MAX, audit, read_log
from sliceplane.watch.io.base import ListPage

GONE = expired("The provided continue parameter is too old to display a consistent list result.")


class ReadingClient:
    """The part of a client that an audit may use, over a fake server.  *before* is called before
    each request.
    """

    def __init__(self, api: FakeApi, before: Callable[[str], None] = lambda request: None) -> None:
        self.api = api
        self.before = before
        self.pages = 0

    async def get(self, resource: Resource, namespace: str, name: str) -> bytes:
        self.before(f"get {resource.plural}")
        return self.api.perform(
            Write(verb="get", resource=resource, namespace=namespace, name=name)
        )

    async def list(self, selection: Selection, **options: Any) -> ListPage:
        self.before(f"list {selection.resource.plural}")
        self.pages += 1
        return self.api.list(selection, **options)


def put_endpoints(api: FakeApi, name: str, *ips: str) -> None:
    api.put(
        EndpointsObjects, "shop", name, {"subsets": [{"addresses": [{"ip": ip} for ip in ips]}]}
    )


def put_service(api: FakeApi, name: str) -> None:
    api.put(Services, "shop", name, {"spec": {"selector": {"a": name}, "ipFamilies": ["IPv4"]}})


def put_slice(api: FakeApi, name: str, *ips: str) -> None:
    labels = {"kubernetes.io/service-name": name}
    listed = [{"addresses": [ip]} for ip in ips]
    api.put(
        EndpointSlices,
        "shop",
        f"{name}-x",
        {"metadata": {"labels": labels}, "addressType": "IPv4", "endpoints": listed},
    )


async def audited(client: ReadingClient) -> Any:
    return await audit(client, "", log=None, recheck_delay_s=0.0)  # type: ignore[arg-type]  # it reads, and no more


async def test_all_pages_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints_audit, "PAGE_OBJECTS", 3)
    api = FakeApi()
    for number in range(10):
        put_endpoints(api, f"gone-{number}", "10.0.0.1")
    client = ReadingClient(api)
    found = await audited(client)
    assert found.counts == {"services": 0, "endpoints": 10, "endpointslices": 0}
    assert [each.code for each in found.findings] == ["L3"] * 10
    assert client.pages == 4 + 1 + 1 + 10, "lists, and slices by name in the second look"


async def test_a_token_that_expired_begins_the_list_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints_audit, "PAGE_OBJECTS", 2)
    api = FakeApi()
    for number in range(6):
        put_service(api, f"s{number}")
        put_slice(api, f"s{number}", "10.0.0.1")
        put_endpoints(api, f"s{number}", "10.0.0.1")
    asked: list[str] = []

    def compact_once(request: str) -> None:
        asked.append(request)
        if asked.count("list endpointslices") == 3:
            api.compact()

    found = await audited(ReadingClient(api, compact_once))
    assert found.counts == {"services": 6, "endpoints": 6, "endpointslices": 6}
    assert found.safe
    assert asked.count("list endpointslices") == 3 + 3


async def test_tokens_that_always_expire_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints_audit, "PAGE_OBJECTS", 1)
    api = FakeApi()
    put_endpoints(api, "a", "10.0.0.1")
    put_endpoints(api, "b", "10.0.0.1")
    client = ReadingClient(api, lambda request: api.compact())
    with pytest.raises(StatusError) as refused:
        await audited(client)
    assert refused.value.code == 410
    assert client.pages == 2 * LISTS_MAX


@pytest.mark.parametrize(("code", "passes"), [(429, True), (503, True), (403, False)])
@pytest.mark.looptime
async def test_a_page_that_fails_is_asked_for_again(code: int, passes: bool) -> None:
    api = FakeApi()
    put_service(api, "web")
    api.fail(StatusError(code, "", "not now"), "list", times=2)
    if passes:
        assert (await audited(ReadingClient(api))).counts["services"] == 1
    else:
        with pytest.raises(StatusError, match="not now"):
            await audited(ReadingClient(api))


@pytest.mark.parametrize("names_max", [300, 0], ids=["name by name", "all lists again"])
async def test_a_change_on_its_way_is_no_finding(
    monkeypatch: pytest.MonkeyPatch, names_max: int
) -> None:
    """A rolling update: slices are ahead of Endpoints for a moment.  What stays wrong is told as it
    is in the end.
    """
    monkeypatch.setattr(endpoints_audit, "NAMES_MAX", names_max)
    api = FakeApi()
    for name in ("moving", "stuck"):
        put_service(api, name)
        put_endpoints(api, name, "10.0.0.1")
        put_slice(api, name, "10.0.0.1", "10.0.0.2")
    looks: list[str] = []

    def catch_up(request: str) -> None:
        looks.append(request)
        if looks.count("list services") == 1 and request != "list services":
            put_endpoints(api, "moving", "10.0.0.1", "10.0.0.2")
            put_slice(api, "stuck", "10.0.0.2")

    found = await audited(ReadingClient(api, catch_up))
    assert [(each.code, key_of(each)) for each in found.findings] == [("L1", "shop/stuck")]
    assert "1 address only in EndpointSlices (10.0.0.2)" in found.findings[0].sentence
    assert "1 address only in Endpoints (10.0.0.1)" in found.findings[0].sentence
    assert ("get services" in looks) is (names_max > 0)


async def test_what_went_between_the_looks_is_no_finding() -> None:
    api = FakeApi()
    put_endpoints(api, "gone", "10.0.0.1")

    def remove(request: str) -> None:
        if request == "get endpoints":
            api.remove(EndpointsObjects, "shop", "gone")

    assert (await audited(ReadingClient(api, remove))).safe


async def test_audit_logs_of_several_files(tmp_path: Path) -> None:
    for number in range(2):
        line = (
            b'{"stage":"ResponseComplete","verb":"get","stageTimestamp":"2026-01-0%dT00:00:00Z"}\n'
            % (number + 1)
        )
        (tmp_path / f"{number}.log").write_bytes(line * 3)
    log = await read_log([tmp_path / "1.log", tmp_path / "0.log"])
    assert (log.lines, log.begins, log.ends) == (6, "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")
