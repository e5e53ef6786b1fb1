"""Our own rules, asked as ``tests/peers/kubernetes/validation`` asks Kubernetes': without
admission, in one process.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from tests.peers.seldom_specs import EXTRA, extra
from tests.peers.specs import Maker

from sliceplane.api import scheme
from sliceplane.server.registry import metadata
from sliceplane.server.registry.decoding import UndecodableBody, decoded
from sliceplane.server.registry.kinds import kind_of
from sliceplane.server.registry.kinds.kind import Kind
from sliceplane.server.registry.kinds.pods import pod
from sliceplane.server.registry.kinds.workloads import stateful_set
from sliceplane.server.registry.validation.resources import text_of

RECORDED = Path(__file__).with_name("data") / "validation.json"
SEEDS_RECORDED = 600
UPDATES_RECORDED = 150
UNDECODABLE = [["undecodable"]]
TRIES = 12
_AMOUNTS = {"limits", "requests", "overhead"}


def question(seed: int, *, updates: bool) -> Any:
    """What is asked of both.  An update is of a good object: upstream forgives an old one what it
    did wrong before.
    """
    if not updates:
        return {"object": extra(seed) if seed < len(EXTRA) else Maker(seed).object()}
    maker = Maker(-1 - seed)
    olds = (maker.object() for _ in range(TRIES))
    old = next((old for old in olds if not ours({"object": old})), None)
    return maker.update(old or maker.good_one("Pod"))


def ours(asked: Any) -> list[list[str]]:
    """The complaints: type, field, message."""
    try:
        new = _prepared(asked["object"])
        old = _prepared(asked["old"]) if "old" in asked else None
    except UndecodableBody:
        return UNDECODABLE
    kind = _kind(new)
    if new["kind"] == "StatefulSet":
        stateful_set.drop_max_unavailable(new, old)
    if old is None and new["kind"] == "Pod":
        pod.merge_label_keys(new)
    if old is None:
        errors = [*metadata.validate(kind.resource, new["metadata"]), *kind.validate(new)]
    else:
        metadata.prepare_update(kind.resource, new, old)
        errors = [
            *metadata.validate_update(new["metadata"], old["metadata"]),
            *kind.validate_update(new, old),
        ]
    return [[error.type, error.field, error.message] for error in errors]


def is_same(mine: list[list[str]], theirs: Any) -> bool:
    verdicts = theirs.get("verdicts", [UNDECODABLE])
    return _comparable(mine) in map(_comparable, verdicts)


def _comparable(verdict: list[list[str]]) -> list[list[str]]:
    """Without the difference of two Go values that upstream appends; labels are complained of once,
    not thrice.
    """
    told = [[text.partition("\n")[0] for text in complaint] for complaint in verdict]
    return [
        one
        for at, one in enumerate(told)
        if one[1:2] != ["metadata.labels"] or one not in told[:at]
    ]


def defaulted(document: Any) -> Any:
    """With defaults, without parts that are empty, at every depth: Go prints some and not
    others.
    """
    return _bare(decoded(_kind(document).resource, copy.deepcopy(document)))


def _prepared(document: Any) -> Any:
    kind = _kind(document)
    made = decoded(kind.resource, copy.deepcopy(document))
    head = made["metadata"]
    head |= {"namespace": "default", "uid": "u", "resourceVersion": "1"}
    return made


def _kind(document: Any) -> Kind:
    resource = scheme.by_kind(document["apiVersion"], document["kind"])
    assert resource is not None
    return kind_of(resource)


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        made = {name: _bare(member) for name, member in value.items()}
        for member in _AMOUNTS & made.keys():
            # Upstream writes them anew.
            made[member] = {name: text_of(quantity) for name, quantity in made[member].items()}
        return {
            name: member
            for name, member in made.items()
            if member not in (None, {}, [], "", 0, False)
        }
    return [_bare(item) for item in value] if isinstance(value, list) else value
