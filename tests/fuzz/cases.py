"""A case: a fresh server and some dozens of requests, all determined by the case's number."""

from __future__ import annotations

from random import Random
from urllib.parse import unquote

from tests.fuzz import requests
from tests.fuzz.application import Application, Ask
from tests.fuzz.properties import Violation, bounded, check_accepted, check_answer, check_watch

REQUESTS = 40
_OPEN_WATCHES_MAX = 8


async def run_case(number: int, requests_max: int = REQUESTS) -> int:
    """How many requests were accepted.  Raises ``Violation``."""
    rng, accepted, names = Random(number), 0, ["web"]
    async with Application(number) as application:
        for _ in range(requests_max):
            ask = requests.make(rng, names)
            name = await check(application, ask)
            if name is not None:
                accepted += 1
                if name and name not in names:
                    names.append(name)
            if len(application.watches) > _OPEN_WATCHES_MAX:
                await check_watches(application)
        await check_watches(application)
    return accepted


async def check(application: Application, ask: Ask) -> str | None:
    """Ask, and check the answer and what it left behind.  ``None`` if it was refused, else a name
    or "".
    """
    async with bounded(ask):
        try:
            answer = await application.ask(ask)
        except Exception as error:
            raise Violation(f"no answer: {error!r}", ask) from error
    check_answer(application, ask, answer)
    if answer.code >= 300:
        return None
    name = ""
    if ask.method in ("POST", "PUT", "PATCH"):
        try:
            name = await check_accepted(application, ask, answer)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Violation(
                f"what was accepted cannot be checked: {error!r}", ask, answer
            ) from error
    if application.faults:
        raise Violation(f"the server blames itself: {application.faults}", ask, answer)
    try:
        application.check()
    except AssertionError as error:
        raise Violation(f"an invariant is broken: {error}", ask, answer) from error
    return name


async def check_watches(application: Application) -> None:
    for watch in await application.hang_up():
        check_watch(watch)


def as_test(ask: Ask) -> str:
    """The request as a line of Python, for a regression test."""
    return (
        f"Ask({ask.method!r}, {unquote(ask.path)!r}, {ask.query!r}, {ask.headers!r}, {ask.body!r})"
    )
