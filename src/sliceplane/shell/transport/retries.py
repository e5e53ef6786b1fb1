"""When a request that was refused may be sent again, and after how long.

Only answers that say that the server did nothing: 429 (it, or something before it, has too much to do), and 503 with
Retry-After, with which an API server refuses what it has not begun.  A read may be sent again after any 503.  A request
without an answer is never sent again here: whether a write happened is found out by who reads its object.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

#: a server that asks for more than this is not waited for here: whoever asked has plans of its own for that
RETRY_AFTER_S_MAX = 10
#: where no time is given
RETRY_S = 0.5
JITTER = 0.2


@dataclass(frozen=True, slots=True)
class Retries:
    """``times`` is how often one request is sent again at most."""

    times: int = 4

    def wait_s(self, method: str, status: int, retry_after: str, attempt: int) -> float | None:
        """Seconds before try ``attempt + 2``, jittered so that clients that were refused together do not come
        together; ``None``: no.  *attempt* counts from 0."""
        if attempt >= self.times or not (status == 429 or (status == 503 and (retry_after or method == "GET"))):
            return None
        if retry_after:
            if not retry_after.isdecimal() or int(retry_after) > RETRY_AFTER_S_MAX:
                return None
            base = float(retry_after)
        else:
            base = RETRY_S * 2.0**attempt
        return base + random.uniform(0.0, JITTER * max(base, RETRY_S))


NO_RETRIES = Retries(0)
