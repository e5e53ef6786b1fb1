"""The uids of flow schemas and priority levels.

Answers name both in headers and the objects carry them, on every server that shares a storage and without asking it:
so a uid is made of the name, in the form of a version 4 UUID.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Literal


@lru_cache(maxsize=64)
def uid_of(kind: Literal["flowschema", "prioritylevel"], name: str) -> str:
    digits = hashlib.sha256(f"{kind}/{name}".encode()).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:32]}"
