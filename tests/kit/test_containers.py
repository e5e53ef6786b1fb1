"""What is remembered of texts is bounded in bytes, whoever chooses the texts."""

from __future__ import annotations

import contextlib
import tracemalloc

from sliceplane.api.errors import StatusError
from sliceplane.kit.containers import TEXT_MAX, Passed, remembered
from sliceplane.server.documents.protobuf import decode, supports
from sliceplane.server.io.requests.response import negotiate
from sliceplane.server.registry.metadata import validate_maps


def test_answers_for_long_texts_are_made_anew() -> None:
    asked: list[str] = []

    @remembered(2)
    def size(text: str, *, twice: bool = False) -> int:
        asked.append(text)
        return len(text) * (1 + twice)

    long = "x" * (TEXT_MAX + 1)
    assert [size("a"), size("a"), size(long), size(long), size("a", twice=True)] == [
        1,
        1,
        513,
        513,
        2,
    ]
    assert asked == ["a", long, long, "a"]


def test_what_passed_is_not_asked_about_again_and_what_did_not_is() -> None:
    asked: list[int] = []

    def is_even(number: int) -> bool:
        asked.append(number)
        return number % 2 == 0

    even = Passed(4, is_even)
    assert even.have({2, 4})
    assert even.have({2, 4}), "from memory"
    assert sorted(asked) == [2, 4]
    assert [even.have({2, 3}), even.have({3})] == [False, False]
    assert sorted(asked) == [2, 3, 3, 4]
    assert even.have({6, 8, 10})
    assert len(even._passed) == 3, "as many as there is room for"


def test_long_keys_and_names_of_kinds_leave_nothing_behind() -> None:
    def attack(number: int) -> None:
        text = f"{number}" + "x" * 100_000
        validate_maps({"labels": {text: text}, "annotations": {text: "a"}})
        supports("v1", text)
        negotiate(f"application/json;q=0.1,{text}")
        with contextlib.suppress(StatusError):
            decode(b"k8s\0\x12\x00", api_version="v1", kind=text)

    attack(0)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(1, 60):
            attack(number)
        assert tracemalloc.get_traced_memory()[0] - before < 500_000
    finally:
        tracemalloc.stop()
