"""JSON patch, RFC 6902, by the library ``jsonpatch``, with what Kubernetes does differently.

- ``replace`` of a member that is missing adds it; ``test`` for null passes if the member is missing.
- There are limits: ``OPERATIONS_MAX`` operations, ``COPIED_BYTES_MAX`` for everything that ``copy`` operations
  duplicate (each of them can double a document), ``SHIFTED_MAX`` for the elements that move because others come and go
  before them, and the depth of the result.
- A patch that does not apply is one generic 422, whatever is wrong with it.
"""

from __future__ import annotations

from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Document
from sliceplane.documents.patch.merge_patch import copy_of
from sliceplane.documents.schema.walks import DEPTH_MAX, deeper_than

if TYPE_CHECKING:
    import jsonpatch

OPERATIONS_MAX: Final = 10_000
COPIED_BYTES_MAX: Final = 3 * 1024 * 1024
#: elements of lists that make room for others or close a gap, in all operations together
SHIFTED_MAX: Final = 1 << 28


def apply_json(document: Document, operations: list[Any]) -> Document:
    """*document* after *operations*.  Raises ``StatusError``: 422 if one of them fails, 413 if there are too many."""
    import jsonpatch
    import jsonpointer

    if len(operations) > OPERATIONS_MAX:
        raise StatusError(
            413,
            "RequestEntityTooLarge",
            "Request entity too large: The allowed maximum operations in a JSON patch is "
            f"{OPERATIONS_MAX}, got {len(operations)}",
        )
    result: Any = copy_of(document)
    copied_bytes = shifted = 0
    # A list has fewer elements than its text has characters: small documents need no account.
    size = len(msgspec.json.encode(document)) + len(msgspec.json.encode(operations))
    may_shift = len(operations) * size > SHIFTED_MAX
    try:
        for operation in operations:
            if isinstance(operation, dict) and operation.get("op") == "copy":
                copied_bytes += _size_of(result, operation.get("from"))
                if copied_bytes > COPIED_BYTES_MAX:
                    raise _unprocessable()
            if may_shift and isinstance(operation, dict):
                shifted += sum(_behind(result, operation.get(member)) for member in ("from", "path"))
                if shifted > SHIFTED_MAX:
                    raise _shifts_too_much()
            result = _patch_class()([operation]).apply(result, in_place=True)
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, TypeError, RecursionError):
        # TypeError: members of an operation of a wrong type, which the library finds out in many places.
        raise _unprocessable() from None
    if not isinstance(result, dict) or deeper_than(result, DEPTH_MAX):
        raise _unprocessable()
    return result


def _unprocessable() -> StatusError:
    return StatusError(422, "Invalid", "the server rejected our request due to an error in our request", {})


def _shifts_too_much() -> StatusError:
    message = f"Request entity too large: the JSON patch moves more than {SHIFTED_MAX} elements of lists"
    return StatusError(413, "RequestEntityTooLarge", message)


def _behind(document: Any, pointer: Any) -> int:
    """How many elements of a list stand at *pointer* or after it; a bad pointer is left for the operation to refuse."""
    import jsonpointer

    if not isinstance(pointer, str):
        return 0
    try:
        parent, position = jsonpointer.JsonPointer(pointer).to_last(document)
    except jsonpointer.JsonPointerException:
        return 0
    return len(parent) - position if isinstance(parent, list) and isinstance(position, int) else 0


def _size_of(document: Any, pointer: Any) -> int:
    """Bytes of JSON that a copy from *pointer* duplicates; a bad pointer is left for the operation to refuse."""
    import jsonpointer

    if not isinstance(pointer, str):
        return 0
    return len(msgspec.json.encode(jsonpointer.resolve_pointer(document, pointer, None)))


@cache
def _patch_class() -> type[jsonpatch.JsonPatch]:
    # Made on first use: the library takes 20 ms to import.
    import jsonpatch
    import jsonpointer

    class Replace(jsonpatch.ReplaceOperation):
        def apply(self, obj: Any) -> Any:
            parent, name = self.pointer.to_last(obj)
            if name is not None and isinstance(parent, dict):
                return jsonpatch.AddOperation(self.operation).apply(obj)
            return super().apply(obj)

    class Test(jsonpatch.TestOperation):
        def apply(self, obj: Any) -> Any:
            if "value" in self.operation and self.operation["value"] is None:
                try:
                    parent, name = self.pointer.to_last(obj)
                except jsonpointer.JsonPointerException:
                    return super().apply(obj)
                if isinstance(parent, dict) and parent.get(name) is None:
                    return obj
            return super().apply(obj)

    class KubernetesPatch(jsonpatch.JsonPatch):
        operations = MappingProxyType({**jsonpatch.JsonPatch.operations, "replace": Replace, "test": Test})

    return KubernetesPatch
