"""Open connections to draining endpoints, as nodes count them for ``sliceplane drain --until-idle``.

**A request** is one for a report (``consume.progress``) whose word names targets:
``NONCE.N count=TARGET,TARGET/SECONDS``. A drain writes it when no node sends new connections to the
targets any more. While the drain waits, it repeats the request with another N: a node forgets a
request that was not repeated for ``KEPT_S``.

**A node** begins to count when its kernel has applied the slice with the request, so that a count
misses no connection. It counts until none of the targets has a connection, and reports the counts
under NONCE, without zeros. Nothing is counted while no drain requests it.

**A target** is an address, or ``ADDRESS port NUMBER`` for a Pod that shares its node's address.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from sliceplane.kit.ip import parse_strict

#: seconds after which a node forgets a request that is not repeated
KEPT_S: Final = 60.0
#: seconds between two counts for one request; twice the spread of the nodes' answers if that is more
PASS_S: Final = 1.0
#: seconds until the kernel is checked again for a request that it has not applied
APPLY_CHECK_S: Final = 0.1
#: a count's duration may be this share of the time, at most, within ``PAUSE_MAX_S``
SHARE: Final = 0.05
PAUSE_MAX_S: Final = 10.0
#: targets of one request, and of all requests that a node retains; the oldest are forgotten first
TARGETS_MAX: Final = 256
REQUESTS_MAX: Final = 16
_NONCE_LENGTH_MAX: Final = 32
_COUNT: Final = " count="
_PORT: Final = " port "


class FlowTarget(NamedTuple):
    """An endpoint's address, in canonical form; ``port`` 0: any."""

    address: str
    port: int = 0

    @property
    def text(self) -> str:
        return f"{self.address}{_PORT}{self.port}" if self.port else self.address


#: returns the open connections by target; raises the error of whoever counts them
CountFlows = Callable[[Sequence[FlowTarget]], Awaitable[dict[FlowTarget, int]]]


class FlowRequest(NamedTuple):
    nonce: str
    targets: tuple[FlowTarget, ...]


def write_request(nonce: str, number: int, targets: Iterable[FlowTarget]) -> str:
    """Returns the word of a request; *number* grows when the same request is repeated."""
    return f"{nonce}.{number}{_COUNT}{','.join(target.text for target in targets)}"


def read_request(text: str) -> FlowRequest | None:
    """Returns the request in *text*, a word or ``WORD/SECONDS``; ``None``: it is no valid one."""
    name, is_count, listed = text.partition("/")[0].partition(_COUNT)
    nonce = name.partition(".")[0]
    if not is_count or not nonce.isalnum() or len(nonce) > _NONCE_LENGTH_MAX:
        return None
    targets = [read_target(part) for part in listed.split(",", TARGETS_MAX)]
    valid = tuple(target for target in targets if target is not None)
    return FlowRequest(nonce, valid) if len(valid) == len(targets) <= TARGETS_MAX else None


def read_target(text: str) -> FlowTarget | None:
    address_text, separator, port = text.partition(_PORT)
    address = parse_strict(address_text)
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 1 << 16
    if address is None or bool(separator) != is_port:
        return None
    return FlowTarget(str(address), int(port) if separator else 0)


class _Counting(msgspec.Struct):
    """A request. Times are seconds since the epoch; ``due``: of the next count; ``open``: the last
    counts by target, without zeros, ``None`` before the first.
    """

    targets: tuple[FlowTarget, ...]
    due: float
    until: float
    period_s: float
    #: the kernel must have applied this revision of this resource and selection
    scope: tuple[str, str]
    revision: int
    open: dict[str, int] | None = None

    @property
    def is_done(self) -> bool:
        return self.open == {}


class FlowPass(NamedTuple):
    """A count to make now: the requests that it answers, and their targets."""

    nonces: tuple[str, ...] = ()
    targets: tuple[FlowTarget, ...] = ()


class FlowCounts:
    """The requests that one node answers. Times are seconds since the epoch."""

    def __init__(self) -> None:
        #: by nonce, the oldest first
        self._requests: dict[str, _Counting] = {}

    def on_request(
        self,
        text: str,
        now: float,
        *,
        due: float,
        spread_s: float,
        scope: tuple[str, str],
        revision: int,
    ) -> bool:
        """Notes the request in *text*, an annotation that a slice of *scope* has at *revision*.
        Returns False if it is none. The first count begins at *due*, or later.
        """
        request = read_request(text)
        if request is None:
            return False
        known = self._requests.get(request.nonce)
        if known is not None:
            known.until = now + KEPT_S
            return True
        period_s = max(PASS_S, 2 * spread_s)
        self._requests[request.nonce] = _Counting(
            request.targets, due, due + KEPT_S, period_s, scope, revision
        )
        while (
            len(self._requests) > REQUESTS_MAX
            or sum(len(counting.targets) for counting in self._requests.values()) > TARGETS_MAX
        ):
            del self._requests[next(iter(self._requests))]
        return True

    def next_deadline(self) -> float | None:
        """Returns when a count begins or a request is forgotten; ``None``: there is no request."""
        return min(
            (
                counting.until if counting.is_done else min(counting.due, counting.until)
                for counting in self._requests.values()
            ),
            default=None,
        )

    def take_pass(self, now: float, applied: Mapping[tuple[str, str], int]) -> FlowPass:
        """Forgets old requests, and returns the count that is due. *applied*: the revisions that
        the kernel has applied; a selection that is no longer read delays no count.
        """
        self._requests = {
            nonce: counting for nonce, counting in self._requests.items() if now < counting.until
        }
        due = {
            nonce: counting
            for nonce, counting in self._requests.items()
            if counting.due <= now and not counting.is_done
        }
        for nonce, counting in list(due.items()):
            if applied.get(counting.scope, counting.revision) < counting.revision:
                counting.due = now + APPLY_CHECK_S
                del due[nonce]
        targets = (target for counting in due.values() for target in counting.targets)
        return FlowPass(tuple(due), tuple(dict.fromkeys(targets)))

    def on_counted(
        self, counted: FlowPass, counts: Mapping[FlowTarget, int] | None, began: float, now: float
    ) -> None:
        """Notes the open connections by target, counted from *began* until *now*; ``None``: they
        could not be counted.
        """
        pause_s = min((now - began) / SHARE, PAUSE_MAX_S)
        for nonce in counted.nonces:
            counting = self._requests.get(nonce)
            if counting is None:
                continue  # it was displaced meanwhile
            counting.due = now + max(counting.period_s, pause_s)
            if counts is not None:
                counting.open = {
                    target.text: counts[target]
                    for target in counting.targets
                    if counts.get(target, 0)
                }

    @property
    def report(self) -> dict[str, dict[str, int]]:
        """The open connections by nonce and target, without zeros."""
        return {
            nonce: counting.open
            for nonce, counting in self._requests.items()
            if counting.open is not None
        }
