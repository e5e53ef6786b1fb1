"""Kinds of flag values that several commands have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import click
from click.core import ParameterSource

from sliceplane.kit.ip import parse_network_lenient, parse_strict
from sliceplane.kit.times import parse_duration


def flags_used(names: Iterable[str]) -> tuple[str, ...]:
    """The flags (``--like-this``) of those parameters that the command line has, in the order of
    *names*.
    """
    context = click.get_current_context()
    spelled = {
        parameter.name: parameter.opts[-1] if parameter.opts else ""
        for parameter in context.command.params
    }
    return tuple(
        spelled[name]
        for name in names
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    )


class SwitchType(click.types.BoolParamType):
    """``true`` or ``false``, and what else click takes for them; the error names just these two."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is neither true nor false", param, ctx)


class ParsedType(click.ParamType[Any]):
    """A value that *parse* makes of a text; the sentence of its ``ValueError`` is the usage
    error.
    """

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _duration(text: str) -> float:
    seconds = parse_duration(text)
    if seconds is None or text.startswith(("-", "+")):
        raise ValueError(f"{text!r} is not a duration (1s, 500ms, 1m30s, 0)")
    return seconds


def _address(text: str) -> str:
    address = parse_strict(text)
    if address is None:
        raise ValueError(f"{text!r} is not an IP address")
    return str(address)


def _listen(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    address = parse_strict(host.removeprefix("[").removesuffix("]"))
    if address is None or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{text!r} is not an address and a port (127.0.0.1:10256)")
    return str(address), int(port)


def _networks(text: str) -> tuple[str, ...]:
    ranges = _networks_of(text)
    if ranges is None:
        raise ValueError(f"{text!r} is not a list of ranges (10.244.0.0/16,fd00:10:244::/56)")
    if len({":" in network for network in ranges}) != len(ranges):
        raise ValueError(f"{text!r} has two ranges of one IP family")
    return ranges


def _node_port_addresses(text: str) -> tuple[str, ...]:
    if text.strip() == "primary":
        return ("primary",)
    ranges = _networks_of(text)
    if ranges is None:
        raise ValueError(
            f"{text!r} is neither a list of ranges (192.168.0.0/16,fd00::/8) nor 'primary'"
        )
    return ranges


def _networks_of(text: str) -> tuple[str, ...] | None:
    """Returns the parts of *text*; ``None`` if one is not a network."""
    parts = names_in(text)
    return parts if all(parse_network_lenient(part) is not None for part in parts) else None


def names_in(text: str) -> tuple[str, ...]:
    """Returns the parts of a list with commas, without blanks and empty ones."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


#: a duration as Go writes it (``1s``, ``500ms``, ``1m30s``, ``0``): seconds as a float
DURATION: Final = ParsedType("duration", _duration)
ADDRESS: Final = ParsedType("ip", _address)
#: ``ADDRESS:PORT``, IPv6 in brackets: an address and a number
LISTEN: Final = ParsedType("address:port", _listen)
#: ``CIDR,CIDR`` as written, at most one of each IP family
NETWORKS: Final = ParsedType("cidr[,cidr]", _networks)
#: ``CIDR,...``, or ``primary`` alone
NODE_PORT_ADDRESSES: Final = ParsedType("cidr,...", _node_port_addresses)
