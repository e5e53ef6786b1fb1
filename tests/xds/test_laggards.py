"""Clients that acknowledge nothing hold up drains of their own Services, for a bounded time, and
are named.
"""

from __future__ import annotations

import pytest

from sliceplane.consume.model import ServiceKey
from sliceplane.consume.progress import ClientLag
from sliceplane.xds.laggards import ENTRIES_MAX, WAIT_S, Laggards

WEB = ServiceKey("shop", "web")
CART = ServiceKey("shop", "cart")


@pytest.fixture
def laggards() -> Laggards[str]:
    return Laggards[str]()


def test_a_client_counts_for_the_services_of_which_it_lacks_changes(
    laggards: Laggards[str],
) -> None:
    laggards.begin("a", "ana", "envoy a of ana", 0.0)
    laggards.add("a", [WEB], 7)
    laggards.begin("b", "ben", "envoy b of ben", 0.0)
    laggards.add("b", [WEB, CART], 5)
    laggards.add("b", [WEB], 9)
    behind, unacknowledged = laggards.report()
    assert behind == {
        "service/shop/web": ClientLag(5, "envoy b of ben"),
        "service/shop/cart": ClientLag(5, "envoy b of ben"),
    }
    assert unacknowledged == {}
    laggards.end("b", 1.0)
    assert laggards.report().behind == {"service/shop/web": ClientLag(7, "envoy a of ana")}
    laggards.check()


def test_a_client_is_given_up_after_a_bounded_time_and_named(laggards: Laggards[str]) -> None:
    laggards.begin("a", "ana", "envoy a of ana", 0.0)
    laggards.add("a", [WEB], 7)
    assert not laggards.on_time(WAIT_S - 0.1)
    assert laggards.on_time(WAIT_S)
    assert laggards.report() == ({}, {"service/shop/web": "envoy a of ana"})
    laggards.check()


def test_new_streams_and_new_names_of_an_account_do_not_start_the_clock_again(
    laggards: Laggards[str],
) -> None:
    """For every time, however often it comes again: drains wait ``WAIT_S`` and a twentieth of the
    rest.
    """
    waited_s = 0.0
    now = 0.0
    for number in range(2_000):
        client = f"stream-{number}"
        laggards.begin(client, "ana", f"envoy {number} of ana", now)
        laggards.add(client, [WEB], number)
        for _ in range(6):
            waited_s += 0.5 * bool(laggards.report().behind)
            now += 0.5
            laggards.on_time(now)
        laggards.end(client, now)
    assert WAIT_S <= waited_s <= WAIT_S + now * 0.05 + 10.0
    laggards.check()


def test_clients_of_other_accounts_are_waited_for_meanwhile(laggards: Laggards[str]) -> None:
    laggards.begin("a", "ana", "envoy a of ana", 0.0)
    laggards.on_time(WAIT_S)
    laggards.begin("b", "ben", "envoy b of ben", WAIT_S)
    laggards.add("b", [WEB], 7)
    assert laggards.report().behind == {"service/shop/web": ClientLag(7, "envoy b of ben")}


def test_an_account_whose_client_was_behind_is_watched(laggards: Laggards[str]) -> None:
    assert not laggards.is_watched("ana", 0.0)
    laggards.watch("ana", 0.0)
    assert laggards.is_watched("ana", 599.0)
    assert not laggards.is_watched("ben", 1.0)
    assert not laggards.is_watched("ana", 600.0)


def test_a_report_is_bounded_and_one_tenant_makes_no_entry_of_another_coarser(
    laggards: Laggards[str],
) -> None:
    laggards.begin("a", "ana", "envoy a of ana", 0.0)
    laggards.add("a", [ServiceKey("evil", f"s{number}") for number in range(5_000)], 3)
    laggards.begin("b", "ben", "envoy b of ben", 0.0)
    laggards.add("b", [WEB], 7)
    assert laggards.report().behind == {
        "namespace/evil": ClientLag(3, "envoy a of ana"),
        "service/shop/web": ClientLag(7, "envoy b of ben"),
    }
    laggards.add("a", [ServiceKey(f"n{number}", "s") for number in range(ENTRIES_MAX)], 4)
    assert laggards.report().behind == {"namespace/*": ClientLag(3, "envoy a of ana")}
    laggards.on_time(WAIT_S)
    assert len(laggards.report().unacknowledged) == ENTRIES_MAX


def test_what_a_client_calls_itself_moves_no_cursor(laggards: Laggards[str]) -> None:
    laggards.begin("a", "ana", "\x1b[2Jenvoy\n" + "x" * 500, 0.0)
    laggards.add("a", [WEB], 7)
    (lag,) = laggards.report().behind.values()
    assert lag.client.startswith("?[2Jenvoy?xxx")
    assert len(lag.client) == 120
