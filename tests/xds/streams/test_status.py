"""What ``sliceplane xds status`` prints of a server's page."""

from __future__ import annotations

from typing import Any

from sliceplane.xds.streams.status import (
    ClientReport,
    TypeReport,
    clients_page,
    is_bad,
    pages,
    render_clients,
)


def client(name: str, *types: TypeReport, **members: Any) -> ClientReport:
    facts = {
        "kind": "envoy",
        "agent": "envoy 1.40.0",
        "user": "u",
        "peer": "10.0.0.1:5",
        "node": "",
        "zone": "eu-1a",
    }
    rest: dict[str, Any] = {
        "namespace": "",
        "leds": True,
        "listeners": "none",
        "connected_seconds": 1.0,
    }
    return ClientReport(id=name, types=types, behind=False, **{**facts, **rest, **members})


def test_each_client_and_type_has_a_line_and_each_refusal() -> None:
    well = client("well", TypeReport("CDS", 2, 7, 7), TypeReport("EDS", 2, 7, 7))
    slow = client("slow", TypeReport("EDS", 2, 7, 5, waiting_seconds=1.4))
    picky = client(
        "picky", TypeReport("CDS", 1, 7, 6, refused="shop/web:http", refusal="no such\n policy")
    )
    new = client("", kind="")
    lost = client(
        "lost", TypeReport("LDS", 1, 7, 7, absent={"wbe.shop": "there is no Service shop/wbe"})
    )
    page = pages.decode(clients_page(7, [well, slow, picky, new, lost], 3))
    lines = render_clients(page, 80)
    assert max(map(len, lines)) <= 80
    states = [
        (line.split()[0], line.split()[4:8], line.split(maxsplit=8)[8]) for line in lines[1:5]
    ]
    assert states == [
        ("well", ["CDS", "2", "7", "7"], "current"),
        ("well", ["EDS", "2", "7", "7"], "current"),
        ("slow", ["EDS", "2", "7", "5"], "behind for 1.4 s"),
        ("picky", ["CDS", "1", "7", "6"], "refused"),
    ]
    assert lines[5].startswith("10.0.0.1:5")
    assert lines[6].split()[4:] == ["LDS", "1", "7", "7", "1", "name", "absent"]
    assert lines[8:] == [
        "picky refuses shop/web:http: no such policy",
        "lost requests wbe.shop (LDS): there is no Service shop/wbe",
        "",
        "revision 7, 5 clients",
        "not served: 3 ports (UDP, SCTP, ExternalName)",
    ]
    assert [is_bad(report) for report in page.clients] == [False, True, True, False, True]
