"""Logins end by themselves, and there are never more than so many."""

from __future__ import annotations

import pytest

from sliceplane.page.logins import IDLE_S, LAST_S, LOGINS_MAX, Login, Logins

NOW = 1000.0


def login(key: str, now: float = NOW) -> Login:
    return Login(key, "ann", "default", now)


def test_a_login_ends_when_it_was_idle_and_after_its_time() -> None:
    logins = Logins()
    ann = login("a")
    assert logins.admit(ann, NOW) is None
    assert logins.find("a", NOW + IDLE_S) is ann
    assert logins.find("a", NOW + 2 * IDLE_S) is ann, "idle since it was used last"
    assert logins.find("a", NOW + 3 * IDLE_S + 1) is None
    ann.tabs = 1
    assert logins.find("a", NOW + LAST_S) is ann, "who has a tab open is not idle"
    assert logins.find("a", NOW + LAST_S + 1) is None
    logins.end(ann)
    logins.end(ann)
    assert list(logins) == []


def test_another_login_takes_the_room_of_the_one_unused_for_longest() -> None:
    logins = Logins()
    known = [login(str(number)) for number in range(LOGINS_MAX)]
    for number, one in enumerate(known):
        assert logins.admit(one, NOW + number) is None
    known[0].tabs = 1
    assert logins.find("1", NOW + 100) is known[1]
    assert logins.admit(login("new"), NOW + 101) is known[2]
    assert len(list(logins)) == LOGINS_MAX
    for one in logins:
        one.tabs = 1
    with pytest.raises(OverflowError, match=f"{LOGINS_MAX} logins have open tabs, and that is the most"):
        logins.admit(login("newer"), NOW + 102)
