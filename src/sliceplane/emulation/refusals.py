"""Creations and deletions that the server refused: what it said, and when to try again.

A key whose object cannot have its children (a quota is spent, say) goes on telling its status
meanwhile, so its queue's own back-off will not do: a status that was written would count as
success. What is refused is tried again when the delay has passed or the object's spec has changed,
and is over with the first success.
"""

from __future__ import annotations

import msgspec

from sliceplane.watch.controller.keyed import RETRY_BACKOFF


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    reason: str
    message: str
    generation: int
    tries: int
    until: float


class Refusals:
    """By uid of the object that wants children.  Owned by its controller, which forgets objects
    that are gone.
    """

    def __init__(self) -> None:
        self._refused: dict[str, Refusal] = {}

    def note(self, uid: str, generation: int, reason: str, message: str, now: float) -> None:
        before = self._refused.get(uid)
        tries = before.tries + 1 if before is not None and before.generation == generation else 1
        until = now + RETRY_BACKOFF.delay_s(tries - 1)
        self._refused[uid] = Refusal(
            reason=reason, message=message, generation=generation, tries=tries, until=until
        )

    def of(self, uid: str) -> Refusal | None:
        return self._refused.get(uid)

    def holding(self, uid: str, generation: int, now: float) -> Refusal | None:
        """The refusal, if it is too early to try again."""
        refusal = self._refused.get(uid)
        return (
            refusal
            if refusal is not None and refusal.generation == generation and now < refusal.until
            else None
        )

    def forget(self, uid: str) -> None:
        self._refused.pop(uid, None)

    def uids(self) -> set[str]:
        return set(self._refused)
