"""Writes that are worked out elsewhere end as those that are not: the same requests, answered both
ways.
"""

from __future__ import annotations

import re
from random import Random

import pytest
from tests.fuzz import requests
from tests.fuzz.application import Answer, Application, Ask
from tests.fuzz.cases import check_watches

from sliceplane.server.io.offload.pool import Inline
from sliceplane.server.io.offload.service import OffloadService

BLOCKS, CASES, REQUESTS = 4, 8, 40
#: of those, the ones that ``make soak`` adds
_SLOW = (1, 3)
#: what is drawn at random, and differs: uids, addresses, ports, the ends of generated names
_DRAWN = (
    (rb"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", b"UID"),
    (rb"kube-api-access-[a-z0-9]{5}", b"kube-api-access-DRAWN"),
    (rb"10\.96\.[0-9]+\.[0-9]+", b"ADDRESS"),
    (rb"fd00:10:96::[0-9a-f:]+", b"ADDRESS"),
    (rb'odePort"?: ?3[0-9]{4}', b"PORT"),
    (rb":3[0-9]{4}/", b"PORT"),
)


def _same_for_all(answer: Answer) -> tuple[int, str, bytes]:
    body = answer.body
    if answer.content_type.startswith("application/vnd.kubernetes.protobuf"):
        # Numbers and lengths are bytes there: what is the same in JSON is the same in protobuf.
        return answer.code, answer.content_type, b""
    for pattern, name in _DRAWN:
        body = re.sub(pattern, name, body)
    return answer.code, answer.content_type, body


@pytest.mark.parametrize(
    "block",
    [pytest.param(block, marks=[pytest.mark.slow] * (block in _SLOW)) for block in range(BLOCKS)],
)
async def test_writes_worked_out_elsewhere_end_the_same(block: int) -> None:
    worked_out = 0
    for number in range(1000 + block * CASES, 1000 + (block + 1) * CASES):
        rng, names = Random(number), ["web"]
        heavy = OffloadService(Inline(), offload_bytes=-1)
        async with Application(number) as plain, Application(number, heavy) as elsewhere:
            for _ in range(REQUESTS):
                ask = requests.make(rng, names)
                if b"generateName" in ask.body or ask.path == "/metrics" or b"timeout" in ask.query:
                    continue
                first, second = await plain.ask(ask), await elsewhere.ask(ask)
                if b"413" in (str(first.code).encode(), str(second.code).encode()):
                    continue
                if _same_for_all(first) != _same_for_all(second):
                    raise AssertionError(_told(number, ask, first, second))
                if len(plain.watches) > 8:
                    await check_watches(plain)
                    await check_watches(elsewhere)
            assert plain.store.revision == elsewhere.store.revision
            elsewhere.check()
            assert not elsewhere.faults
        worked_out += heavy.requests.value
    assert worked_out > CASES * 5, "hardly anything was worked out elsewhere: nothing was tested"


def _told(number: int, ask: Ask, first: Answer, second: Answer) -> str:
    asked = (
        f"{ask.method} {ask.path[:200]}?{ask.query[:200]!r} {dict(ask.headers)}\n "
        f"{ask.body[:1500]!r}"
    )
    answers = f"{_same_for_all(first)}\n{_same_for_all(second)}"
    return f"case {number}: {asked}\n{answers[:6000]}"
