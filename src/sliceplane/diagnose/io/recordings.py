"""The recording of a running plane, for a file or a query, and the substitute if nothing is
recorded.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

from sliceplane.api.codec import decode_document
from sliceplane.api.discovery import LABEL_SERVICE_NAME
from sliceplane.api.errors import StatusError
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import (
    DaemonSets,
    Deployments,
    EndpointSlices,
    Events,
    Pods,
    ReplicaSets,
    Resource,
    Services,
    StatefulSets,
)
from sliceplane.diagnose.io.lists import list_whole
from sliceplane.diagnose.timeline.elsewhere import NOTICE, lines_of
from sliceplane.diagnose.timeline.index import Index
from sliceplane.diagnose.timeline.reader import UNREADABLE
from sliceplane.diagnose.timeline.timeline import Line, Timeline
from sliceplane.watch.io.flight import PATH, write_file
from sliceplane.watch.io.http.client import HttpClient
from sliceplane.watch.recorder.blocks import RecordingError
from sliceplane.watch.recorder.file import Recording, read_lines

_OWNERS: Final = {
    resource.kind: resource for resource in (ReplicaSets, Deployments, StatefulSets, DaemonSets)
}
#: requests for Pods and their owners; further ones are like their siblings
_OBJECTS_MAX: Final = 200
#: bound of a recording of the last minutes, as lines
RECORDING_BYTES_MAX: Final = 256 << 20


async def fetch(client: HttpClient) -> list[bytes]:
    """Returns the lines of a recording. Raises what the client raises: ``StatusError``,
    ``Unreachable``.
    """
    return (await client.page(PATH, bytes_max=RECORDING_BYTES_MAX)).splitlines(keepends=True)


async def save(client: HttpClient, path: Path) -> Recording:
    """Writes the recording to *path*. Raises ``RecordingError`` if there is none, or it is
    incomplete or cannot be written, and as ``fetch``.
    """
    try:
        lines = await fetch(client)
    except StatusError as error:
        if error.code != 404:
            raise
        raise RecordingError(
            f"{client.server} records nothing: it is no API server of Sliceplane, or runs with "
            "--recorder-size 0; 'sliceplane timeline' shows what managedFields and Events have"
        ) from error
    recording = read_lines(lines)
    if recording.problem:
        raise RecordingError(f"what the server sent is not whole: {recording.problem}")
    try:
        await asyncio.to_thread(write_file, path, lines)
    except OSError as error:
        raise RecordingError(f"cannot write {path}: {error.strerror or error}") from error
    return recording


async def recorded(client: HttpClient) -> Recording | None:
    """Returns the server's recording; ``None`` if the server is not ours or refuses access."""
    try:
        return read_lines(await fetch(client))
    except StatusError as error:
        if error.code in (403, 404):
            return None
        raise


async def timeline_lines(
    client: HttpClient, namespace: str, name: str, since: float
) -> tuple[list[Line], str]:
    """Returns the timeline of a Service from the plane's recording or from the objects, and a
    remark for the reader ("" for none). Raises ``RecordingError`` for a recording that cannot be
    read, and as ``fetch``.
    """
    recording = await recorded(client)
    if recording is None:
        return await lines_elsewhere(client, namespace, name, since), NOTICE
    try:
        timeline = Timeline(Index(recording), namespace, name)
        lines = timeline.lines(since) if timeline.is_recorded else []
    except UNREADABLE as error:
        raise RecordingError(f"the recording cannot be read by this version: {error}") from error
    return lines, recording.problem


async def lines_elsewhere(
    client: HttpClient, namespace: str, name: str, since: float
) -> list[Line]:
    """Returns a timeline from managedFields and Events of the objects. Raises ``StatusError`` if
    there is no such Service.
    """
    service = await _get(client, Services, namespace, name)
    slices = Selection(EndpointSlices, namespace, label_selector=f"{LABEL_SERVICE_NAME}={name}")
    objects = [
        service,
        *(_named(EndpointSlices, body) for body in await list_whole(client, slices)),
    ]
    selector = (service.get("spec") or {}).get("selector") or {}
    if selector:
        text = ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
        pods = await list_whole(client, Selection(Pods, namespace, label_selector=text))
        objects += [_named(Pods, body) for body in pods]
        objects += await _owners(client, namespace, objects)
    names = {document["metadata"]["name"] for document in objects}
    events = [
        decode_document(body) for body in await list_whole(client, Selection(Events, namespace))
    ]
    about = [event for event in events if (event.get("involvedObject") or {}).get("name") in names]
    return lines_of(objects, about, since)


async def _owners(
    client: HttpClient, namespace: str, objects: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Returns the owners of *objects*, and their owners; missing or forbidden ones are left out."""
    owners: dict[tuple[str, str], dict[str, Any]] = {}
    waiting = list(objects)
    while waiting and len(owners) < _OBJECTS_MAX:
        document = waiting.pop()
        for reference in document["metadata"].get("ownerReferences") or ():
            resource = _OWNERS.get(reference.get("kind", ""))
            owner = (reference.get("kind", ""), reference.get("name", ""))
            if resource is None or owner in owners:
                continue
            try:
                owners[owner] = await _get(client, resource, namespace, owner[1])
            except StatusError:
                owners[owner] = {"metadata": {"name": owner[1]}}
            waiting.append(owners[owner])
    return list(owners.values())


async def _get(client: HttpClient, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
    return _named(resource, await client.get(resource, namespace, name))


def _named(resource: Resource, body: bytes) -> dict[str, Any]:
    return {**decode_document(body), "kind": resource.kind}
