"""aiohttp is loaded when something needs it, and without what no connection of ours needs.

As it is imported it makes two TLS contexts, and OpenSSL reads all authorities of the system into both: 50 ms of CPU, a
seventh of what ``sliceplane explain`` costs.  Our clients bring a context of their own.  A program that uses our client
may well use aiohttp's contexts too, so they are not left without: the authorities are read when a connection is first
made with one.  Where aiohttp was imported before, nothing is changed.
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: what begins a connection with a context
_USES = ("wrap_bio", "wrap_socket")


def load_aiohttp() -> None:
    """Call it before ``import aiohttp``."""
    if "aiohttp" not in sys.modules:
        with _authorities_later():
            import aiohttp  # noqa: F401


@contextmanager
def _authorities_later() -> Iterator[None]:
    """Contexts that are made meanwhile read the system's authorities with their first use (``ssl`` inherits the method
    from C, so that one of Python goes before it and away again)."""
    ssl.SSLContext.set_default_verify_paths = _read_with_first_use  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        del ssl.SSLContext.set_default_verify_paths


def _read_with_first_use(context: ssl.SSLContext) -> None:
    def use(name: str) -> Any:
        def begin(*arguments: Any, **named: Any) -> Any:
            for deferred in _USES:
                vars(context).pop(deferred, None)
            context.set_default_verify_paths()
            return getattr(context, name)(*arguments, **named)

        return begin

    vars(context).update({name: use(name) for name in _USES})
