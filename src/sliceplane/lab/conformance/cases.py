"""The cases as data: ``cases.toml`` beside this file documents the syntax of a step."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any, Final

import msgspec

from sliceplane.lab.conformance.objects import READY, ip, pod, port, service, slice_
from sliceplane.lab.conformance.steps import (
    AWAY,
    BACK,
    BOOKMARK,
    CHECK,
    CUT,
    EXPIRE,
    Case,
    Delete,
    Document,
    PortQuery,
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
    """Parses steps; *conditions* by their names in endpoints."""

    def __init__(self, conditions: Mapping[str, Mapping[str, bool]]) -> None:
        self._conditions = conditions

    def case(self, entry: Mapping[str, Any]) -> Case:
        """Parses one case. Raises ``ValueError`` or ``KeyError`` for an invalid one."""
        query = {name: entry[name] for name in ("port", "family") if name in entry}
        return Case(
            entry["name"],
            entry["title"],
            tuple(entry["cites"]),
            setup=tuple(self._steps(entry.get("given", ()))),
            steps=tuple(self._steps(entry["story"])),
            query=msgspec.convert(query, PortQuery),
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
        verb, *tokens = line.split()
        if verb in _PLAIN:
            return _PLAIN[verb]
        if verb == "delete":
            return Delete(*tokens)
        if verb == "refuse":
            return Refuse(int(tokens[0]), int(tokens[1]), watches="watches" in tokens[2:])
        options = dict(token.split("=", 1) for token in tokens if _is_option(token))
        plain = [token for token in tokens if not _is_option(token)]
        if verb == "service":
            return _service(**options)
        if verb == "slice":
            return self._slice(*plain, **options)
        raise ValueError(f"{line!r} is no step")

    def _slice(self, name: str, *endpoints: str, family: str = "IPv4", **options: str) -> Put:
        keywords: dict[str, Any] = {**options}
        if "ports" in options:
            tokens = options["ports"].split(",")
            keywords["ports"] = [one for token in tokens if token for one in _ports(token)]
        for label in ("service", "manager"):
            if options.get(label) == "":
                keywords[label] = None
        read = [one for token in endpoints for one in self._endpoints(token, family)]
        return slice_(name, *read, family=family, **keywords)

    def _endpoints(self, token: str, family: str) -> Iterator[Document]:
        pods = _PODS.fullmatch(token)
        if pods is None:
            machine = _MACHINE.fullmatch(token)
            address = token if machine is None else ip(int(machine[1]))
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


def _is_option(token: str) -> bool:
    return "=" in token.partition(":")[0]


def _service(*, name: str = "", policy: str = "", port: str | None = None) -> Put:
    ports = () if port is None else ({"port": 80, "protocol": "TCP"},)
    return service(*ports, **({"name": name} if name else {}), policy=policy)


def _ports(token: str) -> Iterator[Document]:
    match = _PORT.fullmatch(token)
    if match is None:
        raise ValueError(f"{token!r} is no port")
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
