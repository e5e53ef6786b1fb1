"""Recordings of simulations: an incident as a file, and the controllers that replay it.

A simulated process is recorded at the same place as the production host, so results for one replay
hold for the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from sliceplane.api.codec import decode_document, encode
from sliceplane.api.core import Pod
from sliceplane.api.meta import Object
from sliceplane.api.scheme import (
    Deployments,
    EndpointSlices,
    EndpointsObjects,
    Namespaces,
    Nodes,
    Pods,
    ReplicaSets,
    Services,
)
from sliceplane.diagnose.timeline.reader import entries
from sliceplane.emulation.nodes import make_nodes
from sliceplane.lab.sim.roster import AUTHORITY, EMULATED_NODES, ZONES, Setup, makers
from sliceplane.lab.sim.simulation import START, Adoption, Options
from sliceplane.server.registry.documents import canonical, make_record
from sliceplane.slices.engine import MAX_ENDPOINTS_DEFAULT
from sliceplane.watch.controller.base import Controller
from sliceplane.watch.recorder.blocks import RecordingError
from sliceplane.watch.recorder.entries import Changed, LoopBegan
from sliceplane.watch.recorder.file import Header, Recording, write_lines
from sliceplane.watch.recorder.recorder import Recorder

COMPONENT: Final = "simulator"
LIMIT_BYTES: Final = 64 << 20
#: a simulation has no secrets
_SALT: Final = b"simulate"
#: resources that a simulation continues with; its server and controllers create the others anew
_ADOPTED: Final = {
    resource.key: resource
    for resource in (
        Namespaces,
        Nodes,
        Services,
        Pods,
        EndpointSlices,
        EndpointsObjects,
        Deployments,
        ReplicaSets,
    )
}


def make_recorder(limit_bytes: int = LIMIT_BYTES) -> Recorder:
    return Recorder(limit_bytes, _SALT, START)


def lines(recorder: Recorder, options: Options, setup: Setup, program: str = "") -> Iterator[bytes]:
    """Yields the lines of a file that ``sliceplane recorder`` reads."""
    segments = recorder.segments()
    header = Header(
        program=program,
        component=COMPONENT,
        host=f"seed {options.seed}",
        saved=segments[-1].began,
        reason="simulate --record",
        settings={
            "setup": msgspec.to_builtins(setup),
            "authority": recorder.redactor.token(AUTHORITY),
        },
        entries=recorder.ring.entries,
        forgotten=recorder.ring.forgotten,
    )
    return write_lines(header, segments)


def makers_of(settings: dict[str, Any]) -> dict[str, Callable[[], Controller]]:
    """Returns factories of the controllers of a recording with these *settings*. Raises
    ``msgspec.ValidationError`` for others.
    """
    return makers(
        msgspec.convert(settings.get("setup", {}), Setup), str(settings.get("authority", AUTHORITY))
    )


def adopt(recording: Recording, file: str = "") -> Adoption:
    """Returns the objects at the end of *recording*, for a simulation that continues from there.

    They have only the fields that controllers use. Raises ``RecordingError``.
    """
    start = next((at for at, segment in enumerate(recording.segments) if segment.whole), 0)
    newest: dict[tuple[str, str], Object] = {}
    for entry in entries(recording, start):
        changes = entry.objects if isinstance(entry, LoopBegan) else ()
        if isinstance(entry, Changed):
            changes = (entry.change,)
        for change in changes:
            name = (change.resource, change.object.metadata.key)
            if change.new is None:
                newest.pop(name, None)
            else:
                newest[name] = change.new
    adopted = {name: version for name, version in newest.items() if name[0] in _ADOPTED}
    if not adopted:
        raise RecordingError("no object is in this recording that a simulation could go on with")
    records = []
    for (key, _), version in adopted.items():
        resource, revision = _ADOPTED[key], version.metadata.revision
        document = canonical(resource, decode_document(encode(version)))
        records.append(make_record(resource, document, revision))
    simulated = {node.name for node in make_nodes(EMULATED_NODES, ZONES)}
    pods = frozenset(
        version.metadata.key
        for version in adopted.values()
        if isinstance(version, Pod) and version.spec.node_name not in simulated
    )
    records.sort(key=lambda record: record.revision)
    return Adoption(
        setup=_setup(recording.header.settings), records=tuple(records), pods=pods, file=file
    )


def _setup(settings: dict[str, Any]) -> Setup:
    """Returns the flags of the recorded controllers, with one instance of each."""
    if "setup" in settings:
        return msgspec.convert({**settings["setup"], "instances": 1}, Setup)
    slices = settings.get("discovery", {}).get("slices", {})
    return Setup(
        max_endpoints=slices.get("max_endpoints_per_slice", MAX_ENDPOINTS_DEFAULT),
        defragment=bool(slices.get("defragment")),
    )
