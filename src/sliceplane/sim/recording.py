"""Recordings of simulations: an incident as a file, and the controllers that replay it.

A simulated process is recorded where the production host is, so what is proven of one replay holds for the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from sliceplane.controllers.base import Controller
from sliceplane.recorder.delta import schema
from sliceplane.recorder.file import Header, write_lines
from sliceplane.recorder.recorder import Recorder
from sliceplane.sim.roster import AUTHORITY, Setup, makers
from sliceplane.sim.simulation import START, Options

COMPONENT: Final = "simulator"
LIMIT_BYTES: Final = 64 << 20
#: nothing of a simulation is secret
_SALT: Final = b"simulate"


def make_recorder(limit_bytes: int = LIMIT_BYTES) -> Recorder:
    return Recorder(limit_bytes, _SALT, START)


def lines(recorder: Recorder, options: Options, setup: Setup, program: str = "") -> Iterator[bytes]:
    """Of a file that ``sliceplane recorder`` reads."""
    segments = recorder.segments()
    header = Header(
        program=program,
        schema=schema(),
        component=COMPONENT,
        host=f"seed {options.seed}",
        saved=segments[-1].began,
        reason="simulate --record",
        settings={"setup": msgspec.to_builtins(setup), "authority": recorder.redactor.token(AUTHORITY)},
        forgotten=recorder.ring.forgotten,
    )
    return write_lines(header, segments)


def makers_of(settings: dict[str, Any]) -> dict[str, Callable[[], Controller]]:
    """The controllers of a recording with these *settings*.  Raises ``msgspec.ValidationError`` for others."""
    return makers(msgspec.convert(settings.get("setup", {}), Setup), str(settings.get("authority", AUTHORITY)))
