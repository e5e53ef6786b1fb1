"""The state of etcd, as this server's calls to it show it."""

from __future__ import annotations

from typing import Final

from sliceplane.server.io.storage.committing import TroubleLog

#: seconds without an answer after which storage takes no new writes
OUTAGE_S: Final = 3.0


class EtcdHealth:
    """Owned by a committer.  Times are seconds of its loop's clock."""

    def __init__(self, members: int, trouble: TroubleLog) -> None:
        """*members*: failures in a row that are no reason to report anything, since the next call
        goes to another member.
        """
        self._members = members
        self._trouble = trouble
        self._failures = 0
        #: when the oldest call that is still without an answer began
        self._silent_since: float | None = None
        #: why the last call failed; ``None``: it did not
        self.call_failing: str | None = None
        #: why etcd takes no writes, whatever its answers to reads are; ``None``: it does
        self._writes_failing: str | None = None

    @property
    def failing(self) -> str | None:
        """The reason why storage does not work; ``None``: it does."""
        return self.call_failing or self._writes_failing

    def is_out(self, now: float) -> bool:
        return self._silent_since is not None and now - self._silent_since > OUTAGE_S

    def on_call(self, now: float) -> None:
        if self._silent_since is None:
            self._silent_since = now

    def on_answer(self) -> None:
        self._silent_since = None
        self._failures = 0
        was_failing, self.call_failing = self.call_failing is not None, None
        if was_failing and self.failing is None:
            self._trouble.report_mended("etcd answers again")

    def on_no_answer(self, error: Exception) -> None:
        self._failures += 1
        if self._failures > self._members:
            self.fail(str(error))

    def fail(self, why: str) -> None:
        was_failing, self.call_failing = self.call_failing is not None, why
        if not was_failing:
            self._trouble.report(f"etcd: {why}")

    def on_taken(self) -> None:
        """etcd took a write."""
        if self._writes_failing is not None:
            self._writes_failing = None
            self._trouble.report_mended("etcd takes writes again")
        self.on_answer()

    def on_refused(self, why: str, *, lasting: bool) -> None:
        """etcd answered, so reads may go on. A *lasting* refusal is about more than this write:
        health shows it until a write is taken.
        """
        self.on_answer()
        if why != self._writes_failing:
            self._trouble.report(f"etcd: {why}")
        if lasting:
            self._writes_failing = why
