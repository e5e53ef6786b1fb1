"""The part of msgspec that Sliceplane's agent uses, in plain Python, for a program that must run
without compiled code.

``sliceplane-agent.pyz`` carries this package in place of the library, whose own classes are
compiled. The names, the results and the texts of errors are msgspec's
(https://jcristharif.com/msgspec/); tests compare both. It promises no speed: an agent decodes some
objects a second.

Differences: ``Raw`` keeps the value and not its spelling (spaces, ``1.50``); a JSON syntax error is
described in the words of Python's ``json``, and a wrong number of elements in fewer; ``msgpack``,
in which recordings are kept, is refused when it is used.
"""

from __future__ import annotations

from typing import Any

from . import json, msgpack, structs
from ._struct import NODEFAULT, Raw, Struct, field, fields_of, make_struct
from ._types import DecodeError, Meta, MsgspecError, ValidationError, convert

__version__ = "0.22.0"
__all__ = [
    "NODEFAULT",
    "DecodeError",
    "Meta",
    "MsgspecError",
    "Raw",
    "Struct",
    "ValidationError",
    "convert",
    "defstruct",
    "field",
    "json",
    "msgpack",
    "structs",
    "to_builtins",
]

defstruct = make_struct


def to_builtins(value: Any) -> Any:
    """A copy of *value* in dictionaries, lists and scalars."""
    if isinstance(value, Struct):
        return {wire: to_builtins(item) for wire, item in fields_of(value)}
    if isinstance(value, dict):
        return {to_builtins(key): to_builtins(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return (
            type(value)(map(to_builtins, value))
            if isinstance(value, tuple)
            else [to_builtins(one) for one in value]
        )
    return json.decode(value) if isinstance(value, Raw) else value
