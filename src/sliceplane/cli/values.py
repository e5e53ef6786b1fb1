"""Kinds of flag values that several commands have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click
from click.core import ParameterSource

from sliceplane.kit.ip import parse_network_lenient, parse_strict
from sliceplane.kit.times import parse_duration


def given_flags(names: Iterable[str]) -> tuple[str, ...]:
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


class DurationType(click.ParamType[float]):
    """A duration as Go writes it: ``1s``, ``500ms``, ``1m30s``, ``0``; seconds as a float."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        text = str(value)
        seconds = parse_duration(text)
        if seconds is None or text.startswith(("-", "+")):
            self.fail(f"{text!r} is not a duration (1s, 500ms, 1m30s, 0)", param, ctx)
        return seconds


class AddressType(click.ParamType[str]):
    name = "ip"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        address = parse_strict(str(value))
        if address is None:
            self.fail(f"{value!r} is not an IP address", param, ctx)
        return str(address)


class ListenType(click.ParamType[tuple[str, int]]):
    """``ADDRESS:PORT``, IPv6 in brackets; an address and a number."""

    name = "ip:port"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        host, _, port = str(value).rpartition(":")
        address = parse_strict(host.removeprefix("[").removesuffix("]"))
        if address is None or not port.isdecimal() or int(port) > 65535:
            self.fail(f"{value!r} is not an address and a port (127.0.0.1:10256)", param, ctx)
        return str(address), int(port)


class NetworksType(click.ParamType[tuple[str, ...]]):
    """``CIDR,CIDR``, as given; at most one of each family."""

    name = "cidrs"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        ranges = _networks_of(str(value))
        if ranges is None:
            self.fail(
                f"{value!r} is not a list of ranges (10.244.0.0/16,fd00:10:244::/56)", param, ctx
            )
        if len({":" in text for text in ranges}) != len(ranges):
            self.fail(f"{value!r} has two ranges of one IP family", param, ctx)
        return ranges


class NodePortAddressesType(click.ParamType[tuple[str, ...]]):
    """``CIDR,...``, or ``primary`` alone."""

    name = "cidrs"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        if str(value).strip() == "primary":
            return ("primary",)
        ranges = _networks_of(str(value))
        if ranges is None:
            self.fail(
                f"{value!r} is neither a list of ranges (192.168.0.0/16,fd00::/8) nor 'primary'",
                param,
                ctx,
            )
        return ranges


def _networks_of(text: str) -> tuple[str, ...] | None:
    """The parts of *text*; ``None`` if one is not a network."""
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    return parts if all(parse_network_lenient(part) is not None for part in parts) else None
