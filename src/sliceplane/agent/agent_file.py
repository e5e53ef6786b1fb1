"""``agent.yaml``: the Services of one agent, parsed strictly. An error is a sentence that names the
entry.

name: vm-1
address: auto            # or an IP; a list for both families
zone: eu-west-1a
services:
  - service: web
    namespace: default
    ports: {http: 8080}
    checks:
      - http: /healthz
        period: 5s
        fall: 3
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sliceplane.consume.agents.checks import PROBED, CheckSpec, Kind
from sliceplane.consume.agents.registration import AgentPort
from sliceplane.kit.times import parse_duration
from sliceplane.kit.yaml_documents import YamlError, parse_yaml

#: maximum size of the file in bytes
AGENT_FILE_BYTES_MAX: Final = 256 * 1024
#: each Service needs watches of its own; a grant has the same bound
SERVICES_MAX: Final = 128
_DEPTH_MAX: Final = 16
_KINDS: Final[tuple[Kind, ...]] = (*PROBED, "ttl")
_TOP: Final = frozenset({"name", "address", "zone", "nodeName", "services"})
_SERVICE: Final = frozenset({"service", "namespace", "ports", "checks"})
_CHECK: Final = frozenset({*_KINDS, "port", "period", "timeout", "initialDelay", "rise", "fall"})
_DURATIONS: Final = {
    "period": "period_s",
    "timeout": "timeout_s",
    "initialDelay": "initial_delay_s",
}


class AgentFileError(Exception):
    """A sentence for the user."""


class ServiceEntry(NamedTuple):
    service: str
    namespace: str
    ports: tuple[AgentPort, ...]
    checks: tuple[CheckSpec, ...]


class AgentFile(NamedTuple):
    """``addresses`` may contain ``auto``; "" stands for an absent field."""

    name: str
    addresses: tuple[str, ...]
    zone: str
    node_name: str
    services: tuple[ServiceEntry, ...]


def read_agent_file(raw: bytes) -> AgentFile:
    """Raises ``AgentFileError``."""
    try:
        parsed = parse_yaml(raw, depth_max=_DEPTH_MAX)
    except YamlError as error:
        raise AgentFileError(f"no YAML: {error.placed}") from error
    if parsed.problems:
        raise AgentFileError(parsed.problems[0])
    top = _mapping(parsed.value, "the file", _TOP)
    address = top.get("address", "auto")
    entries = top.get("services")
    if not isinstance(entries, list) or not entries:
        raise AgentFileError("services: a list of at least one Service is needed")
    if len(entries) > SERVICES_MAX:
        raise AgentFileError(
            f"services: {len(entries)} are too many: an agent registers at most {SERVICES_MAX}"
        )
    services = tuple(_service(entry, f"services[{index}]") for index, entry in enumerate(entries))
    keys = set()
    for entry in services:
        if (entry.namespace, entry.service) in keys:
            raise AgentFileError(f"services: {entry.service!r} stands there twice")
        keys.add((entry.namespace, entry.service))
    return AgentFile(
        name=_text(top, "name", "the file"),
        addresses=tuple(str(part) for part in address)
        if isinstance(address, list)
        else (str(address),),
        zone=_text(top, "zone", "the file"),
        node_name=_text(top, "nodeName", "the file"),
        services=services,
    )


def _service(entry: Any, where: str) -> ServiceEntry:
    fields = _mapping(entry, where, _SERVICE)
    name = _text(fields, "service", where)
    if not name:
        raise AgentFileError(f"{where}: service: a name is needed")
    ports = fields.get("ports")
    if not isinstance(ports, dict) or not ports:
        raise AgentFileError(f"{where}: ports: names and numbers are needed, as {{http: 8080}}")
    if not all(
        isinstance(number, int) and not isinstance(number, bool) for number in ports.values()
    ):
        raise AgentFileError(f"{where}: ports: each is NAME: NUMBER")
    checks = fields.get("checks", [])
    if not isinstance(checks, list):
        raise AgentFileError(f"{where}: checks: a list is needed")
    return ServiceEntry(
        service=name,
        namespace=_text(fields, "namespace", where),
        ports=tuple(AgentPort(str(port), number) for port, number in ports.items()),
        checks=tuple(
            _check(check, f"{where}.checks[{index}]") for index, check in enumerate(checks)
        ),
    )


def _check(entry: Any, where: str) -> CheckSpec:
    fields = _mapping(entry, where, _CHECK)
    kinds = [kind for kind in _KINDS if kind in fields]
    if len(kinds) != 1:
        raise AgentFileError(f"{where}: exactly one of {', '.join(_KINDS)} is needed")
    kind = kinds[0]
    options: dict[str, Any] = {}
    for name, member in _DURATIONS.items():
        if name in fields:
            options[member] = _duration(fields[name], f"{where}: {name}")
    target = fields[kind]
    if kind == "ttl":
        options["period_s"] = _duration(target, f"{where}: ttl")
        target = ""
    for name in ("port", "rise", "fall"):
        if name in fields:
            options[name] = fields[name]
            if not isinstance(options[name], int):
                raise AgentFileError(f"{where}: {name}: a number is needed")
    try:
        return CheckSpec(kind=kind, target="" if target in (None, True) else str(target), **options)
    except ValueError as error:
        raise AgentFileError(f"{where}: {error}") from error


def _duration(value: Any, where: str) -> float:
    seconds = parse_duration(str(value))
    if seconds is None or seconds <= 0:
        raise AgentFileError(f"{where}: {value!r} is no duration, as 5s or 1m30s")
    return seconds


def _mapping(value: Any, where: str, allowed: frozenset[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise AgentFileError(f"{where}: names and values are needed")
    for name in value:
        if name not in allowed:
            raise AgentFileError(
                f"{where}: {name!r} is not known; there are {', '.join(sorted(allowed))}"
            )
    return value


def _text(fields: Mapping[str, Any], name: str, where: str) -> str:
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise AgentFileError(f"{where}: {name}: a text is needed, not {value!r}")
    return value
