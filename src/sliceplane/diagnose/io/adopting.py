"""Executes the steps of ``diagnose.adoption``: read, request, read again, until the end.

Each round reads the Service before its slices, and a request names the version of the Service that
it was decided on: a conflict leads to another round, never to a lost change. A command that gives up
before the selector has moved takes its annotations back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from sliceplane.api.codec import decode
from sliceplane.api.core import Endpoints, Service
from sliceplane.api.discovery import LABEL_SERVICE_NAME, EndpointSlice
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Document
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Services
from sliceplane.api.selectors.adoption import ANNOTATION_SELECTOR
from sliceplane.diagnose.adoption import (
    READERS,
    Direction,
    MoveFinished,
    MoveRefused,
    MoveRequest,
    MoveWait,
    MovingService,
    git_lines,
    give_up,
    next_step,
    steps_of_adopt,
)
from sliceplane.diagnose.explain.writers import last_write, managed_fields
from sliceplane.diagnose.io.lists import list_objects
from sliceplane.kit.columns import table
from sliceplane.watch.io.base import Client, Reader

#: seconds between two reads while a controller works
POLL_S: Final = 0.25


class Moved(msgspec.Struct, frozen=True):
    """A Service that reached its end. ``effects``: of the requests of this command, in order."""

    service: str
    direction: Direction
    effects: tuple[str, ...]
    seconds: float

    def as_document(self) -> Document:
        return {
            "service": self.service,
            "direction": self.direction,
            "steps": list(self.effects),
            "seconds": round(self.seconds, 3),
        }


class MovePlan(msgspec.Struct, frozen=True):
    """The answer of ``adopt --dry-run``. ``writer``: the field manager of spec.selector."""

    service: str
    steps: tuple[str, ...]
    writer: str
    git: tuple[str, ...]

    def as_document(self) -> Document:
        return {
            "service": self.service,
            "steps": list(self.steps),
            "selectorWrittenBy": self.writer,
            "git": list(self.git),
            "readers": [{"program": program, "effect": effect} for program, effect in READERS],
        }

    def text(self) -> str:
        writer = f", written by {self.writer}" if self.writer else ""
        readers = table(("READS SPEC.SELECTOR", "AFTERWARDS"), READERS)
        return "\n".join(
            (
                f"{self.service} would be adopted:",
                *(f"  {step}" for step in self.steps),
                f"to keep the selector{writer} from being applied again:",
                *(f"  {line}" for line in self.git),
                *readers,
            )
        )


async def plan_move(client: Reader, namespace: str, name: str) -> MovePlan:
    """Raises as ``move`` for a Service that cannot be adopted, and writes nothing."""
    moving = await read_moving(client, namespace, name)
    next_step(moving, "adopt", 0.0)
    written = last_write(
        managed_fields(await client.get(Services, namespace, name)), "spec.selector"
    )
    return MovePlan(
        moving.key,
        steps_of_adopt(moving),
        "" if written is None else written.manager,
        git_lines(moving.service),
    )


async def advice_on(client: Reader, key: str) -> tuple[str, ...]:
    """Returns what keeps the selector of an adopted Service from being applied again."""
    namespace, _, name = key.partition("/")
    return git_lines((await read_moving(client, namespace, name)).service)


async def read_moving(client: Reader, namespace: str, name: str) -> MovingService:
    """Raises ``MoveRefused`` if there is no such Service, ``StatusError`` and ``Unreachable``."""
    try:
        service = decode(await client.get(Services, namespace, name), Service)
    except StatusError as error:
        if error.code != 404:
            raise
        raise MoveRefused(f"there is no Service {namespace}/{name}") from error
    selection = Selection(EndpointSlices, namespace, f"{LABEL_SERVICE_NAME}={name}")
    slices = await list_objects(client, selection, EndpointSlice)
    try:
        endpoints = decode(await client.get(EndpointsObjects, namespace, name), Endpoints)
    except StatusError as error:
        if error.code != 404:
            raise
        endpoints = None
    return MovingService(service=service, slices=slices, endpoints=endpoints)


async def list_adopted(client: Reader, namespace: str) -> tuple[Service, ...]:
    """Returns the Services with the annotation, by name. *namespace* "": all."""
    services = await list_objects(client, Selection(Services, namespace), Service)
    adopted = [s for s in services if ANNOTATION_SELECTOR in (s.metadata.annotations or {})]
    return tuple(sorted(adopted, key=lambda service: service.metadata.key))


async def move(
    client: Client,
    key: str,
    direction: Direction,
    *,
    timeout_s: float,
    report: Callable[[str], None],
    on_step: Callable[[str], None] = lambda _: None,
) -> Moved:
    """Moves the Service *key* (``namespace/name``). *report* gets the reason of each wait, *on_step*
    the effect of each request.

    Raises ``MoveRefused`` if it cannot move or the time is over, ``StatusError`` and ``Unreachable``.
    """
    namespace, _, name = key.partition("/")
    clock = asyncio.get_running_loop().time
    began = requested = clock()
    effects: list[str] = []
    while True:
        moving = await read_moving(client, namespace, name)
        step = next_step(moving, direction, clock() - requested)
        match step:
            case MoveFinished():
                return Moved(key, direction, tuple(effects), clock() - began)
            case MoveRequest():
                if await _performed(client, step):
                    effects.append(step.effect)
                    on_step(step.effect)
                    requested = clock()
            case MoveWait():
                report(f"{key}: {step.reason}")
                if clock() - began >= timeout_s:
                    await _give_up(client, moving, step)
                await asyncio.sleep(POLL_S)
        if clock() - began >= 2 * timeout_s:
            raise MoveRefused(f"{key}: other writers change it all the time; try again")


async def _performed(client: Client, request: MoveRequest) -> bool:
    """Returns False if another writer was faster, so that the next round decides again."""
    try:
        await client.perform(request.write)
    except StatusError as error:
        if error.reason in (*request.write.tolerate, "Conflict"):
            return False
        raise
    return True


async def _give_up(client: Client, moving: MovingService, wait: MoveWait) -> None:
    """Takes back what a command that waits in vain has done. Raises ``MoveRefused``."""
    request = give_up(moving)
    end = ""
    if request is not None and await _performed(client, request):
        end = f"; {request.effect}"
    remedy = f"; {wait.remedy}" if wait.remedy else ""
    raise MoveRefused(f"{moving.key}: the time is over: {wait.reason}{remedy}{end}")


async def take_back(client: Client, key: str) -> bool:
    """Takes back an interrupted adoption. Returns True if there was one."""
    namespace, _, name = key.partition("/")
    request = give_up(await read_moving(client, namespace, name))
    return request is not None and await _performed(client, request)
