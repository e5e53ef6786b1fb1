"""The cases, which are data: ``cases.toml`` beside this file says how a step is written."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any, Final

import msgspec

from sliceplane.lab.conformance.objects import READY, ip, pod, port, service, slice_
from sliceplane.lab.conformance.story import (
    AWAY,
    BACK,
    BOOKMARK,
    CHECK,
    CUT,
    EXPIRE,
    AskedPort,
    Case,
    Delete,
    Document,
    Put,
    Refuse,
    Silence,
    Step,
)

_PLAIN: Final[Mapping[str, Step]] = {
    "check": CHECK,
    "cut": CUT,
    "away": AWAY,
    "back": BACK,
    "expire": EXPIRE,
    "bookmark": BOOKMARK,
    "silence": Silence(),
}
_EACH: Final = re.compile(r"each (\d+)\.\.(\d+) (.*)")
_COUNTER: Final = re.compile(r"\*(?:\+(\d+))?")
_PORT: Final = re.compile(r"(.*?)(?:(\d+)\.\.(\d+))?:(\d+)(?:/(\w+))?")
_PODS: Final = re.compile(r"(\d+)(?:-(\d+))?((?::[^:]+)*)")
_MACHINE: Final = re.compile(r"machine-(\d+)")


class _Reader:
    """Reads steps; *conditions* by their names in endpoints."""

    def __init__(self, conditions: Mapping[str, Mapping[str, bool]]) -> None:
        self._conditions = conditions

    def case(self, entry: Mapping[str, Any]) -> Case:
        """Raises ``ValueError`` or ``KeyError`` for what is no case."""
        asked = {name: entry[name] for name in ("port", "family") if name in entry}
        return Case(
            entry["name"],
            entry["title"],
            tuple(entry["cites"]),
            given=tuple(self._steps(entry.get("given", ()))),
            story=tuple(self._steps(entry["story"])),
            asked_port=msgspec.convert(asked, AskedPort),
            needs=frozenset(entry.get("needs", ())),
        )

    def _steps(self, lines: list[str]) -> Iterator[Step]:
        for line in lines:
            each = _EACH.fullmatch(line)
            if each is None:
                yield self._step(line)
                continue
            for number in range(int(each[1]), int(each[2]) + 1):
                counted = _COUNTER.sub(lambda at, n=number: str(n + int(at[1] or 0)), each[3])
                yield self._step(counted)

    def _step(self, line: str) -> Step:
        verb, *words = line.split()
        if verb in _PLAIN:
            return _PLAIN[verb]
        if verb == "delete":
            return Delete(*words)
        if verb == "refuse":
            return Refuse(int(words[0]), int(words[1]), watches="watches" in words[2:])
        options = dict(word.split("=", 1) for word in words if _is_option(word))
        plain = [word for word in words if not _is_option(word)]
        if verb == "service":
            return _service(**options)
        if verb == "slice":
            return self._slice(*plain, **options)
        raise ValueError(f"{line!r} is no step")

    def _slice(self, name: str, *endpoints: str, family: str = "IPv4", **options: str) -> Put:
        keywords: dict[str, Any] = {**options}
        if "ports" in options:
            words = options["ports"].split(",")
            keywords["ports"] = [one for word in words if word for one in _ports(word)]
        for label in ("service", "manager"):
            if options.get(label) == "":
                keywords[label] = None
        read = [one for word in endpoints for one in self._endpoints(word, family)]
        return slice_(name, *read, family=family, **keywords)

    def _endpoints(self, word: str, family: str) -> Iterator[Document]:
        pods = _PODS.fullmatch(word)
        if pods is None:
            machine = _MACHINE.fullmatch(word)
            address = word if machine is None else ip(int(machine[1]))
            yield {"addresses": [address], "conditions": dict(READY)}
            return
        keywords: dict[str, Any] = {"family": family}
        for part in pods[3].split(":")[1:]:
            key, equals, value = part.partition("=")
            if equals and key == "at":
                keywords["at"] = int(value)
            elif equals:
                keywords[{"for": "zones", "node": "nodes"}[key]] = value.split("+")
            elif part in self._conditions:
                keywords["conditions"] = self._conditions[part]
            else:
                keywords["zone"] = part
        for number in range(int(pods[1]), int(pods[2] or pods[1]) + 1):
            yield pod(number, **keywords)


def _is_option(word: str) -> bool:
    return "=" in word.partition(":")[0]


def _service(*, name: str = "", policy: str = "", port: str | None = None) -> Put:
    ports = () if port is None else ({"port": 80, "protocol": "TCP"},)
    return service(*ports, **({"name": name} if name else {}), policy=policy)


def _ports(word: str) -> Iterator[Document]:
    match = _PORT.fullmatch(word)
    if match is None:
        raise ValueError(f"{word!r} is no port")
    name, first, last, number, protocol = match.groups()
    if first is None:
        yield port(name, int(number), protocol or "TCP")
        return
    for at in range(int(first), int(last) + 1):
        yield port(f"{name}{at}", int(number) + at)


def _read() -> tuple[Case, ...]:
    document = tomllib.loads(files(__package__).joinpath("cases.toml").read_text(encoding="utf-8"))
    return tuple(map(_Reader(document["conditions"]).case, document["case"]))


CASES: Final = _read()
BY_NAME: Final = {case.name: case for case in CASES}
