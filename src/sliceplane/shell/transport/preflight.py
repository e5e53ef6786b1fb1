"""May everything be read that will be needed?  Asked once before a run that shall end by itself.

An informer tries again for ever, which is right for a server that comes back and wrong for a person who waits for an
answer: a server that is not there, or a right that is missing, is told at once.
"""

from __future__ import annotations

from collections.abc import Iterable

from sliceplane.api.dispensable import is_done_without
from sliceplane.api.errors import StatusError
from sliceplane.controllers.base import Selection
from sliceplane.shell.transport.base import Reader

#: answers that another try does not change: who is it, may they, is it served
_FINAL = (401, 403, 404)


class CannotRead(Exception):
    """A sentence with all that is missing."""


async def check_readable(reader: Reader, wanted: Iterable[Selection]) -> None:
    """Raises ``CannotRead``, and ``Unreachable`` where there is no server.  One short list for each of *wanted*;
    a server that is busy is left to the informers."""
    refused: dict[str, StatusError] = {}
    for each in sorted(set(wanted), key=lambda watched: (watched.resource.key, watched.namespace)):
        try:
            await reader.list(Selection(each.resource, each.namespace), limit=1)
        except StatusError as error:
            if error.code in _FINAL and not is_done_without(each.resource, error):
                refused[each.resource.plural] = error
    if refused:
        first = next(iter(refused.values()))
        raise CannotRead(f"the server does not let us read {', '.join(refused)} (get, list and watch): {first}")
