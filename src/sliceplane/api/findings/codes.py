"""The catalogue of causes, which is data: ``codes.toml`` beside this file.

A code is stable: programs and people's notes name it, so it is never given another meaning. Its
letter says in which part of the way from a name to an endpoint the fault is; the links of
``diagnose.explain.chain`` walk them in that order.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Final, Literal

import msgspec

#: ``error``: connections fail, or go where they should not, now. ``warning``: some may, or will at
#: the next change. ``note``: as it was asked for, and maybe not what the reader expects
Severity = Literal["error", "warning", "note"]
#: the input that shows the fault: API objects alone, reports of node proxies, a node's kernel, an
#: active probe, or a report of shadow mode
EvidenceKind = Literal["objects", "reports", "kernel", "probe", "shadow"]

SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note")


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the catalogue. ``symptom``: what the user observes. ``means`` and ``remedy``:
    sentences for its page. ``sources``: public issues and documents in which it happened.
    """

    title: str
    severity: Severity
    evidence: EvidenceKind
    symptom: str
    means: str
    remedy: str
    sources: tuple[str, ...] = ()


@cache
def catalogue() -> dict[str, Cause]:
    """By code, in the order of the file. Shared: must not be changed. Raises
    ``msgspec.ValidationError`` for a row that lacks a member or has one too many.
    """
    text = files(__package__).joinpath("codes.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, Cause])


def cause_of(code: str) -> Cause:
    """Raises ``KeyError`` for a code that is not in the catalogue."""
    return catalogue()[code]
