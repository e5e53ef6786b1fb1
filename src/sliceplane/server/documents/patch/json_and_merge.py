"""JSON patch (RFC 6902) and JSON merge patch (RFC 7396): read, applied, and whether the result
still is of its kind.

JSON patch is the library ``jsonpatch`` with what Kubernetes does differently:

- ``replace`` of a member that is missing adds it; ``test`` for null passes if the member is
  missing.
- There are limits: ``OPERATIONS_MAX`` operations, ``COPIED_BYTES_MAX`` for everything that ``copy``
  operations duplicate (each of them can double a document), ``SHIFTED_MAX`` for the elements that
  move because others come and go before them, and the depth of the result.
- A patch that does not apply is one generic 422, whatever is wrong with it.
"""

from __future__ import annotations

from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from sliceplane.api.codec import copy_of
from sliceplane.api.errors import StatusError, bad_request, invalid, invalid_value
from sliceplane.api.meta import Document
from sliceplane.server.documents.schema import accepts, first_mismatch, lookup, unknown_fields
from sliceplane.server.documents.schema.check import json_name
from sliceplane.server.documents.schema.walks import DEPTH_MAX, deeper_than
from sliceplane.server.documents.strict import MalformedBody, decode_json, decode_value

if TYPE_CHECKING:
    import jsonpatch


OPERATIONS_MAX: Final = 10_000
COPIED_BYTES_MAX: Final = 3 * 1024 * 1024
#: elements of lists that make room for others or close a gap, in all operations together
SHIFTED_MAX: Final = 1 << 28
_GO_MAP: Final = "map[string]interface {}"


def go_text(value: Any) -> str:
    """Returns *value* as Go's ``%v`` prints it: ``map[a:1 b:[x y]]`` with sorted keys. Errors about
    strategic patches show values so.
    """
    match value:
        case None:
            return "<nil>"
        case bool():
            return "true" if value else "false"
        case dict():
            return "map[" + " ".join(f"{key}:{go_text(value[key])}" for key in sorted(value)) + "]"
        case list():
            return "[" + " ".join(go_text(item) for item in value) + "]"
        case _:
            return str(value)


def apply_merge(document: Document, patch: Document) -> Document:
    """*document* with *patch* merged into it."""
    return _merge(copy_of(document), patch)


def _merge(target: Document, patch: Document) -> Document:
    """Changes *target*, which is ours, and returns it."""
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        elif isinstance(value, dict):
            old: Any = target.get(name)
            # What is no object counts as an empty one, so that nulls inside of the patch never
            # arrive.
            target[name] = _merge(old if isinstance(old, dict) else {}, value)
        else:
            target[name] = copy_of(value)
    return target


def apply_json(document: Document, operations: list[Any]) -> Document:
    """*document* after *operations*.  Raises ``StatusError``: 422 if one of them fails, 413 if
    there are too many.
    """
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
                shifted += sum(
                    _behind(result, operation.get(member)) for member in ("from", "path")
                )
                if shifted > SHIFTED_MAX:
                    raise _shifts_too_much()
            result = _patch_class()([operation]).apply(result, in_place=True)
    except (
        jsonpatch.JsonPatchException,
        jsonpointer.JsonPointerException,
        TypeError,
        RecursionError,
    ):
        # TypeError: members of an operation of a wrong type, which the library finds out in many
        # places.
        raise _unprocessable() from None
    if not isinstance(result, dict) or deeper_than(result, DEPTH_MAX):
        raise _unprocessable()
    return result


def _unprocessable() -> StatusError:
    return StatusError(
        422, "Invalid", "the server rejected our request due to an error in our request", {}
    )


def _shifts_too_much() -> StatusError:
    message = (
        f"Request entity too large: the JSON patch moves more than {SHIFTED_MAX} elements of lists"
    )
    return StatusError(413, "RequestEntityTooLarge", message)


def _behind(document: Any, pointer: Any) -> int:
    """Returns the number of elements of a list at *pointer* or after it; a bad pointer is left for
    the operation to refuse.
    """
    import jsonpointer

    if not isinstance(pointer, str):
        return 0
    try:
        parent, position = jsonpointer.JsonPointer(pointer).to_last(document)
    except jsonpointer.JsonPointerException:
        return 0
    return len(parent) - position if isinstance(parent, list) and isinstance(position, int) else 0


def _size_of(document: Any, pointer: Any) -> int:
    """Bytes of JSON that a copy from *pointer* duplicates; a bad pointer is left for the operation
    to refuse.
    """
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
        operations = MappingProxyType(
            {**jsonpatch.JsonPatch.operations, "replace": Replace, "test": Test}
        )

    return KubernetesPatch


def decode_json_patch(raw: bytes) -> list[Any]:
    """A list of operations; what they are is for ``apply_json`` to say."""
    try:
        operations = decode_value(raw)
    except MalformedBody as malformed:
        raise _not_decoded(str(malformed)) from None
    if operations is None:
        return []
    if not isinstance(operations, list):
        raise _not_decoded(
            f"json: cannot unmarshal {json_name(operations)} into Go value of type jsonpatch.Patch"
        )
    for operation in operations:
        if not isinstance(operation, dict):
            form = json_name(operation)
            raise _not_decoded(
                f"json: cannot unmarshal {form} into Go value of type jsonpatch.Operation"
            )
    return operations


def decode_merge_patch(raw: bytes) -> tuple[Document, tuple[str, ...]]:
    """The patch and its repeated members, as problems of strict decoding."""
    try:
        if decode_value(raw) is None:
            raise bad_request("Invalid JSON Patch")
        decoded = decode_json(raw)
    except MalformedBody as malformed:
        raise _not_decoded(_as_map(str(malformed))) from None
    return decoded.document, decoded.problems


def decode_strategic_patch(raw: bytes) -> tuple[Document, tuple[str, ...]]:
    """The patch and its repeated members, as problems of strict decoding.  ``null`` is the empty
    patch.
    """
    try:
        decoded = decode_json(raw)
    except MalformedBody as malformed:
        raise bad_request(_as_map(str(malformed))) from None
    return decoded.document, decoded.problems


def _as_map(complaint: str) -> str:
    """Patches are decoded into a map, not into an object's kind and version."""
    head, mark, _ = complaint.partition(" of type struct {")
    return f"{head} of type {_GO_MAP}" if mark else complaint


def _not_decoded(detail: str) -> StatusError:
    return bad_request(f"error decoding patch: {detail}")


def check_patched(
    resource_key: str,
    before: Document,
    patched: Document,
    *,
    strategic_patch: Document | None = None,
    patch_problems: tuple[str, ...] = (),
    validation: Literal["Ignore", "Warn", "Strict"] = "Warn",
) -> tuple[str, ...]:
    """Warnings about *patched*: what the patch brought in that the kind does not have, after
    *patch_problems*.

    Unknown members that *before* had already are not the patch's fault and not reported. Raises a
    422 for a result that does not decode, and with ``Strict`` for any warning. It shows the patched
    object; of a strategic merge patch it shows the patch, which is then given.
    """
    if accepts(resource_key, patched) and not patch_problems:
        return ()
    mismatch = first_mismatch(lookup(resource_key), patched)
    if mismatch is not None:
        raise _undecodable(patched, strategic_patch, str(mismatch))
    if validation == "Ignore":
        return ()
    unknown_before = frozenset(unknown_fields(resource_key, before))
    added = tuple(
        problem
        for problem in unknown_fields(resource_key, patched)
        if problem not in unknown_before
    )
    problems = patch_problems + added
    if problems and validation == "Strict":
        raise _undecodable(
            patched, strategic_patch, f"strict decoding error: {', '.join(problems)}"
        )
    return problems


def _undecodable(patched: Document, strategic_patch: Document | None, detail: str) -> StatusError:
    patch_text = (
        msgspec.json.encode(patched).decode()
        if strategic_patch is None
        else go_text(strategic_patch)
    )
    return invalid("", "", "", [invalid_value("patch", patch_text, detail)])
