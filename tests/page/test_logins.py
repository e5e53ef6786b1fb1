"""Logins end by themselves, and there are never more than so many."""

from __future__ import annotations

import pytest

from sliceplane.diagnose.page.logins import (
    IDLE_S,
    LAST_S,
    LINK_TRIES,
    LINK_TRIES_PER_S,
    LOGINS_EACH_MAX,
    LOGINS_MAX,
    Login,
    LoginLink,
    Logins,
)
from sliceplane.kit.shares import Standing

NOW = 1000.0


def login(
    key: str, now: float = NOW, *, account: str = "", standing: Standing = "ordinary"
) -> Login:
    return Login(key, "ann", account or key, "default", now, standing=standing)


def test_a_login_ends_when_it_was_idle_and_after_its_time() -> None:
    logins = Logins()
    ann = login("a")
    assert logins.admit(ann, NOW) == ()
    assert logins.find("a", NOW + IDLE_S) is ann
    assert logins.find("a", NOW + 2 * IDLE_S) is ann, "idle since it was used last"
    assert logins.find("a", NOW + 3 * IDLE_S + 1) is None
    ann.tabs = 1
    assert logins.find("a", NOW + LAST_S) is ann, "who has a tab open is not idle"
    assert logins.find("a", NOW + LAST_S + 1) is None
    logins.end(ann)
    logins.end(ann)
    assert list(logins) == []


def full(*, tabs: int) -> tuple[Logins, list[Login]]:
    """Every login is of another ordinary account, the last of a vital one."""
    logins = Logins()
    known = [login(str(number)) for number in range(LOGINS_MAX - 1)]
    known.append(login("vital", standing="vital"))
    for number, one in enumerate(known):
        assert logins.admit(one, NOW + number) == ()
        one.tabs = tabs
    return logins, known


def test_another_login_takes_the_room_of_the_one_unused_for_longest() -> None:
    logins, known = full(tabs=0)
    known[0].tabs = 1
    assert logins.find("1", NOW + 100) is known[1]
    assert logins.admit(login("new"), NOW + 101) == (known[2], known[3]), (
        "the last room is kept for higher standings"
    )
    logins.check()


def test_nobody_of_the_same_standing_ends_the_only_login_of_an_account_that_uses_it() -> None:
    logins, _ = full(tabs=1)
    with pytest.raises(
        OverflowError, match=f"{LOGINS_MAX} logins have open tabs, and that is the most"
    ):
        logins.admit(login("newer"), NOW + 102)
    logins.check()


def test_an_account_alone_gets_few_logins_and_its_own_oldest_makes_room() -> None:
    logins = Logins()
    known = [login(str(number), account="eve") for number in range(LOGINS_EACH_MAX)]
    for number, one in enumerate(known):
        assert logins.admit(one, NOW + number) == ()
        one.tabs = 1
    assert logins.admit(login("more", account="eve"), NOW + 100) == (known[0],)
    assert logins.admit(login("ann"), NOW + 101) == (), "others are not touched"
    logins.check()


@pytest.mark.parametrize("standing", ["vital", "exempt"])
def test_no_number_of_accounts_shuts_out_one_of_a_higher_standing(standing: Standing) -> None:
    logins, known = full(tabs=3)
    assert logins.admit(login("new", standing=standing), NOW + 200) == (known[0],)
    assert known[-1] in set(logins), "of lower standings the lowest makes room"
    logins.check()


def test_an_account_with_several_logins_makes_room_for_one_that_has_none() -> None:
    logins = Logins()
    known = [login(str(number), account=f"eve-{number // 3}") for number in range(LOGINS_MAX)]
    for number, one in enumerate(known):
        logins.admit(one, NOW + number)
        one.tabs = 1
    (ended,) = logins.admit(login("ann"), NOW + 100)
    assert ended.account.startswith("eve-")
    logins.check()


def test_a_link_logs_in_once_and_in_its_time() -> None:
    link = LoginLink(b"right", NOW + 300)
    assert "a part of it is missing" in link.redeem(b"wrong", NOW)
    assert link.redeem(b"right", NOW + 300) == "", "a wrong guess does not use it up"
    assert "used already" in link.redeem(b"right", NOW + 301)
    late = LoginLink(b"right", NOW + 300)
    assert "expired" in late.redeem(b"right", NOW + 301)
    assert "a part of it is missing" in late.redeem(b"wrong", NOW + 301), (
        "only its holder learns that it has expired"
    )


def test_tries_of_a_link_are_limited_and_a_refused_one_is_not_counted() -> None:
    link = LoginLink(b"right", NOW + 300)
    assert not any(link.is_limited(NOW) for _ in range(LINK_TRIES))
    assert all(link.is_limited(NOW) for _ in range(1000))
    assert not link.is_limited(NOW + 1 / LINK_TRIES_PER_S)
    assert link.is_limited(NOW + 1 / LINK_TRIES_PER_S)
