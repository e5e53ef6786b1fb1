"""Who wrote what last: of each object the last few writes that came as requests, for ``sliceplane
explain``.

``metadata.managedFields`` tells which program wrote a field, to the second; the user is known to
the audit log alone, which is a file, if there is one. This is the memory between the two: bounded,
lost with the process, and of this server's requests alone. Told at ``PATH/RESOURCE/NAMESPACE/NAME``
("-": no namespace), a page with a right of its own: names of users are nobody's business who may
merely read the object.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

import msgspec

from sliceplane.api.codec import encode
from sliceplane.server.registry.types import Attributes

PATH: Final = "/sliceplane/writes"
#: objects that are remembered; the one that was written longest ago goes first
OBJECTS_MAX: Final = 10_000
WRITES_PER_OBJECT_MAX: Final = 4
#: written again and again, and shown by no finding
_UNTOLD: Final = ("leases", "events")
_AGENT_CHARACTERS_MAX: Final = 64
#: of a user, and of an object: a longer name of a user is cut, an object with a longer one is not
#: remembered
NAME_CHARACTERS_MAX: Final = 320


class NotedWrite(NamedTuple):
    """*time*: seconds since the epoch."""

    time: float
    user: str
    verb: str
    agent: str


class _Metadata(msgspec.Struct):
    name: str = ""


class _Named(msgspec.Struct):
    metadata: _Metadata


_created = msgspec.json.Decoder(_Named)


class LastWrites:
    """Owned by the application."""

    def __init__(self) -> None:
        #: by resource, namespace and name
        self._by_object: OrderedDict[tuple[str, str, str], tuple[NotedWrite, ...]] = OrderedDict()

    def note(self, wanted: Attributes, created: bytes, write: NotedWrite) -> None:
        """A request was done.  *created*: the object that it made, b"" for other verbs."""
        name = wanted.name or (_created.decode(created).metadata.name if created else "")
        if not name or len(name) > NAME_CHARACTERS_MAX or wanted.resource in _UNTOLD:
            return
        write = write._replace(
            user=write.user[:NAME_CHARACTERS_MAX], agent=write.agent[:_AGENT_CHARACTERS_MAX]
        )
        resource = f"{wanted.resource}.{wanted.group}" if wanted.group else wanted.resource
        key = (resource, wanted.namespace, name)
        last = (*self._by_object.pop(key, ()), write)
        self._by_object[key] = last[-WRITES_PER_OBJECT_MAX:]
        if len(self._by_object) > OBJECTS_MAX:
            self._by_object.popitem(last=False)

    def page(self, path: str) -> bytes | None:
        """``None``: *path* is none of these."""
        parts = path.removeprefix(f"{PATH}/").split("/")
        if not path.startswith(f"{PATH}/") or len(parts) != 3:
            return None
        resource, namespace, name = parts
        writes = self._by_object.get((resource, "" if namespace == "-" else namespace, name), ())
        return encode([write._asdict() for write in writes]) + b"\n"
