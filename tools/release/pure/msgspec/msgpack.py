"""``msgspec.msgpack``: recordings are kept in it, and this program keeps none, so both halves
refuse to work.
"""

from __future__ import annotations

from typing import Any, NoReturn


class Encoder:
    def encode(self, _value: Any) -> NoReturn:
        raise NotImplementedError("recordings need the package sliceplane: pip install sliceplane")


class Decoder:
    def __init__(self, _type: Any = Any) -> None:
        pass

    def __class_getitem__(cls, _parameters: Any) -> Any:
        return cls

    def decode(self, _data: Any) -> NoReturn:
        raise NotImplementedError("recordings need the package sliceplane: pip install sliceplane")
