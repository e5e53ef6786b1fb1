"""JSON bytes to documents and projections, and back.

``encode`` is compact and keeps the order of members, so equal documents built the same way are
equal bytes. Escaping of ``<``, ``>`` and ``&`` is the server's business, not the store's.

Each write asks them many times, so they are msgspec's own methods: a function around one costs as
much as a small object takes to encode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from sliceplane.api.meta import Document, Object

T = TypeVar("T", bound=Object)

#: what decoding raises for bytes that are no such object; a nesting that is too deep is no
#: ``DecodeError``
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
#: by projection, made when it is first read
_decoders: dict[type[Object], msgspec.json.Decoder[Any]] = {}


class OwnJson(bytes):
    """An object that this program encoded: no member is there twice, so a reader in the same
    process need not look.
    """

    __slots__ = ()


#: compact JSON of a document or a projection
encode: Final[Callable[[Any], bytes]] = msgspec.json.Encoder().encode
#: raises ``msgspec.DecodeError`` for what is not a JSON object
decode_document: Final[Callable[[bytes], Document]] = msgspec.json.Decoder(dict[str, Any]).decode
#: an independent copy of plain JSON data: dictionaries and lists are new at every depth
copy_of: Final[Callable[[Any], Any]] = msgspec.to_builtins


def decode(body: bytes, kind: type[T]) -> T:
    """The projection of *body*.  Raises ``msgspec.DecodeError`` (a ``ValidationError`` for a wrong
    type).
    """
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    result: T = decoder.decode(body)
    return result
