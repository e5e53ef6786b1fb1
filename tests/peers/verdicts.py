"""Our own rules, asked as ``tests/peers/kubernetes/validation`` asks Kubernetes': without admission, in one process."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from tests.peers.specs import Maker

from sliceplane.api import scheme
from sliceplane.registry import metadata
from sliceplane.registry.decoding import UndecodableBody, decoded
from sliceplane.registry.kinds import kind_of, pod, stateful_set
from sliceplane.registry.kinds.kind import Kind

RECORDED = Path(__file__).with_name("data") / "validation.json"
SEEDS_RECORDED = 600
UPDATES_RECORDED = 150
UNDECODABLE = [["undecodable"]]


def question(seed: int, *, updates: bool) -> Any:
    """What is asked of both."""
    return Maker(-1 - seed).update() if updates else {"object": Maker(seed).object()}


def ours(asked: Any) -> list[list[str]]:
    """The complaints: type, field, message."""
    try:
        new = _prepared(asked["object"], is_new="old" not in asked)
        old = _prepared(asked["old"], is_new=True) if "old" in asked else None
    except UndecodableBody:
        return UNDECODABLE
    kind = _kind(new)
    if old is None:
        errors = [*kind.validate(new), *metadata.validate(kind.resource, new["metadata"])]
    else:
        metadata.prepare_update(kind.resource, new, old)
        errors = [*metadata.validate_update(new, old), *kind.validate_update(new, old)]
    return [[error.type, error.field, error.message] for error in errors]


def is_same(mine: list[list[str]], theirs: Any) -> bool:
    return mine in theirs.get("verdicts", [UNDECODABLE])


def defaulted(document: Any) -> Any:
    """With defaults, without parts that are empty, at every depth: Go prints some and not others."""
    return _bare(decoded(_kind(document).resource, copy.deepcopy(document)))


def _prepared(document: Any, *, is_new: bool) -> Any:
    kind = _kind(document)
    made = decoded(kind.resource, copy.deepcopy(document))
    head = made["metadata"]
    head |= {"namespace": "default", "uid": "u", "resourceVersion": "1"}
    if is_new and made["kind"] == "Pod":
        pod.merge_label_keys(made)
    if made["kind"] == "StatefulSet":
        stateful_set.drop_max_unavailable(made)
    return made


def _kind(document: Any) -> Kind:
    resource = scheme.by_kind(document["apiVersion"], document["kind"])
    assert resource is not None
    return kind_of(resource)


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        made = {name: _bare(member) for name, member in value.items()}
        return {name: member for name, member in made.items() if member not in (None, {}, [], "", 0, False)}
    return [_bare(item) for item in value] if isinstance(value, list) else value
