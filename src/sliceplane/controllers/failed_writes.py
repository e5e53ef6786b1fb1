"""What a controller is told of a write that failed: the same each time, if it is the same failure.

A create with ``generateName`` gets another name at every try, and what refuses the object (a quota, say) puts that name
into its message, as Kubernetes' admission does.  The name is of nothing that exists.  Said again with each retry it
would make each retry a new Event, a new condition and a new line; so it is shown as what was asked for, the prefix.
"""

from __future__ import annotations

import re
from dataclasses import replace

from sliceplane.api.codec import decode
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object
from sliceplane.controllers.base import Write
from sliceplane.kit.names import GENERATED_ALPHABET, GENERATED_BASE_MAX, GENERATED_SUFFIX_LENGTH

_SUFFIX = f"[{GENERATED_ALPHABET}]{{{GENERATED_SUFFIX_LENGTH}}}"


def as_told(write: Write, error: StatusError) -> StatusError:
    """*error* of *write*, without a name that was made up for this try."""
    if write.verb != "create" or write.name:
        return error
    meta = decode(write.body, Object).metadata
    prefix = meta.generate_name
    if meta.name or not prefix:
        return error
    made_up = re.compile(f'"{re.escape(prefix[:GENERATED_BASE_MAX])}{_SUFFIX}"')
    return replace(error, message=made_up.sub(lambda _: f'"{prefix}"', error.message))
