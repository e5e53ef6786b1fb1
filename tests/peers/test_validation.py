"""Random Pods and workloads, judged by Kubernetes' own rules and by ours: the same complaints in
the same order.

``RECORD_PEERS=1`` writes the verdicts of the first seeds to ``data/validation.json``, against which
``tests/registry/test_upstream_verdicts.py`` compares without Go.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest
from tests.peers import kubernetes
from tests.peers.programs import build
from tests.peers.verdicts import (
    RECORDED,
    SEEDS_RECORDED,
    UNDECODABLE,
    UPDATES_RECORDED,
    is_same,
    ours,
    question,
)
from tests.peers.verdicts import defaulted as our_defaults

pytestmark = [pytest.mark.peer, pytest.mark.timeout(900)]

OBJECTS = 6000
UPDATES = 1500
TIMES = 2000


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build(kubernetes.MODULE, tmp_path_factory.mktemp("validation"), "./validation")


def ask(peer: str, questions: list[Any]) -> list[Any]:
    text = "".join(json.dumps(one) + "\n" for one in questions)
    done = subprocess.run(
        [peer], input=text, capture_output=True, text=True, check=True, timeout=600
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(questions)
    return answers


@pytest.mark.parametrize(("updates", "count"), [(False, OBJECTS), (True, UPDATES)])
def test_complaints_are_the_same(peer: str, updates: bool, count: int) -> None:
    questions = [question(seed, updates=updates) for seed in range(count)]
    answers = ask(peer, questions)
    refused = 0
    for seed, (asked, theirs) in enumerate(zip(questions, list(answers), strict=True)):
        mine = ours(asked)
        refused += bool(mine)
        if not is_same(mine, theirs):
            # Some orders of a small map are rare.
            theirs = ask(peer, [{**asked, "times": TIMES}])[0]
            answers[seed] = theirs
        assert is_same(mine, theirs), (
            f"seed {seed}\n{json.dumps(asked)}\nours   {mine}\ntheirs {theirs}"
        )
    assert refused > count / 4, "too few complaints to prove anything"
    if os.environ.get(kubernetes.RECORD):
        name, kept = ("updates", UPDATES_RECORDED) if updates else ("objects", SEEDS_RECORDED)
        record(
            name,
            [
                (answer, ours(asked))
                for asked, answer in zip(questions[:kept], answers, strict=False)
            ],
        )


def record(name: str, answers: list[Any]) -> None:
    """A line for each seed: the verdicts in a few of their orders, with ours among them."""
    kept = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    kept[name] = [
        [
            verdict
            for verdict in answer.get("verdicts", [UNDECODABLE])
            if is_same(mine, {"verdicts": [verdict]})
        ][:1]
        for answer, mine in answers
    ]
    lines = (
        f'"{key}": [\n' + ",\n".join(map(json.dumps, kept[key])) + "\n]" for key in sorted(kept)
    )
    RECORDED.write_text("{" + ",\n".join(lines) + "}\n")


def test_defaults_are_the_same(peer: str) -> None:
    questions = [question(seed, updates=False) for seed in range(OBJECTS)]
    for seed, (asked, theirs) in enumerate(zip(questions, ask(peer, questions), strict=True)):
        if "defaulted" in theirs:
            mine, other = our_defaults(asked["object"]), our_defaults(theirs["defaulted"])
            assert mine == other, f"seed {seed}\n{json.dumps(asked)}\nours   {mine}\ntheirs {other}"
