"""What a committer reports, kept for tests to look at."""

from __future__ import annotations

from sliceplane.server.io.storage.committing import TroubleLog


class Troubles(TroubleLog):
    def __init__(self) -> None:
        self.reports: list[str] = []
        self.mended: list[str] = []

    def report(self, sentence: str) -> None:
        self.reports.append(sentence)

    def report_mended(self, sentence: str) -> None:
        self.mended.append(sentence)
