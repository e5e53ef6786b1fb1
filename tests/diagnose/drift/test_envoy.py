"""What one Envoy uses beside what the API means for its place."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from tests.diagnose.trace.traced import NODES, ZONES, ep, service, slice_of

from sliceplane.diagnose.drift.envoy import (
    EnvoyDrift,
    NoAdminPages,
    as_text,
    compare_envoy,
    confirm_differences,
    read_envoy,
)
from sliceplane.diagnose.io.drifting import _admin_page
from sliceplane.xds.catalog import XdsCatalog, catalog_of

ALL = ("10.1.1.1:8080", "10.1.1.2:8080", "10.1.2.1:8080")


def info(**node: Any) -> dict[str, Any]:
    return {"version": "1.40.0", "node": {"id": "edge", **node}}


def clusters(**uses: tuple[str, ...]) -> dict[str, Any]:
    """By Service: the endpoints, as Envoy has them in JSON."""
    return {
        "cluster_statuses": [
            {"name": "sliceplane_xds"},
            *(
                {
                    "name": f"prod/{name}:http",
                    "host_statuses": [place(item) for item in of],
                }
                for name, of in uses.items()
            ),
        ]
    }


def place(authority: str) -> dict[str, Any]:
    address, _, port = authority.rpartition(":")
    return {
        "address": {"socket_address": {"address": address.strip("[]"), "port_value": int(port)}}
    }


def there(**spec: Any) -> XdsCatalog:
    return catalog_of([service(**spec)], [slice_of("api-1", [*ZONES])], NODES, "test")


def drift(catalog: XdsCatalog, told: dict[str, Any], **node: Any) -> EnvoyDrift:
    return compare_envoy(read_envoy(info(**node), told), catalog)


def test_an_envoy_that_uses_what_is_meant() -> None:
    found = drift(there(), clusters(api=ALL))
    assert (found.differs, found.others) == (False, 0)
    assert as_text(found) == "Envoy edge: 1 of 1 clusters as the API has them"


def test_its_place_counts() -> None:
    """Hints lead a client of zone-a to two endpoints; by its node its zone is known."""
    near = {"trafficDistribution": "PreferSameZone"}
    for node in ({"locality": {"zone": "zone-a"}}, {"metadata": {"node_name": "node-a"}}):
        assert not drift(there(**near), clusters(api=ALL[:2]), **node).differs
        (row,) = drift(there(**near), clusters(api=ALL), **node).rows
        assert (row.state, row.lacks, row.keeps) == ("differs", (), ALL[2:])


def test_what_it_lacks_and_keeps_is_told() -> None:
    found = drift(there(), clusters(api=(*ALL[:2], "[fd00::9]:8080"), gone=("10.1.9.9:80",)))
    assert found.differs
    assert as_text(found).splitlines() == [
        "Envoy edge: 0 of 2 clusters as the API has them",
        "CLUSTER         STATE           LACKS          KEEPS",
        "prod/api:http   differs         10.1.2.1:8080  [fd00::9]:8080",
        "prod/gone:http  not in the API  -              10.1.9.9:80",
    ]
    assert found.as_document()["clusters"][0]["lacks"] == ["10.1.2.1:8080"]


def test_clusters_that_it_was_not_told_to_take_are_counted_alone() -> None:
    found = drift(there(), clusters())
    assert (found.differs, found.others) == (False, 1)
    assert as_text(found).endswith("not among its clusters: 1 port of Services")


def test_only_what_two_looks_find_is_a_difference() -> None:
    catalog = there()
    first = drift(catalog, clusters(api=ALL[:1], gone=()))
    assert not confirm_differences(first, drift(catalog, clusters(api=ALL))).differs
    (api, gone) = confirm_differences(
        first, drift(catalog, clusters(api=(*ALL[:1], "10.1.9.9:80"), gone=()))
    ).rows
    assert (api.lacks, api.keeps, gone.state) == (ALL[1:], (), "not in the API")
    assert not confirm_differences(
        drift(catalog, clusters(api=ALL[1:])), drift(catalog, clusters(api=ALL[:2]))
    ).differs


def test_a_draining_endpoint_is_used_too() -> None:
    catalog = catalog_of(
        [service(sessionAffinity="ClientIP")],
        [slice_of("api-1", [ep("10.1.1.1"), ep("10.1.1.2", flags="st")])],
        NODES,
        "test",
    )
    resource = drift(catalog, clusters(api=ALL[:1])).rows[0]
    assert resource.lacks in ((), ALL[1:2])


@contextmanager
def pages(answer: bytes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_pages_that_are_none_are_told() -> None:
    def page(url: str) -> object:
        return asyncio.run(_admin_page(url, "/server_info"))

    with pages(json.dumps(info()).encode()) as url:
        assert page(url) == info()
    with pages(b"<html>") as url, pytest.raises(NoAdminPages, match=url):
        page(url)
    with pages(b"[" * 100_000) as url, pytest.raises(NoAdminPages, match="cannot be read"):
        page(url)
    with pytest.raises(NoAdminPages, match=r"http://127\.0\.0\.1:9901"):
        page("127.0.0.1:9901")
    with pytest.raises(NoAdminPages, match="refused"):
        page(url)
    for wrong in ({}, {"node": 1}, {"node": {"locality": 7}}):
        with pytest.raises(NoAdminPages, match="no admin pages of Envoy"):
            read_envoy(wrong, clusters())
    with pytest.raises(NoAdminPages, match="no admin pages of Envoy"):
        read_envoy(info(), {"cluster_statuses": [{"name": "prod/api:http", "host_statuses": [{}]}]})
