"""The history of all commits of EndpointSlices, against which reports of node proxies are checked."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from sliceplane.api.codec import decode
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.scheme import EndpointSlices
from sliceplane.consume.progress import (
    AppliedRevision,
)
from sliceplane.consume.selections import (
    list_selections_of_slice,
)
from sliceplane.lab.sim.checks.steady import Broken
from sliceplane.lab.sim.server import Server
from sliceplane.server.store.types import EventType, StoreEvent
from sliceplane.watch.digest import digest_of


class _Commit(NamedTuple):
    revision: int
    before: EndpointSlice | None
    after: EndpointSlice | None

    def touches(self, scope: str) -> bool:
        return scope in (
            *list_selections_of_slice(self.before),
            *list_selections_of_slice(self.after),
        )


class SliceHistory:
    """Every commit of EndpointSlices; a listener of the server."""

    def __init__(self, server: Server) -> None:
        self._commits: dict[str, list[_Commit]] = {}
        for record in server.records(EndpointSlices):  # a simulation may continue from a recording
            self._commits[record.key.path] = [
                _Commit(record.revision, None, decode(record.body, EndpointSlice))
            ]
        server.listeners.append(self._on_commit)

    def _on_commit(self, event: StoreEvent) -> None:
        if event.record.key.resource != EndpointSlices.storage_key:
            return
        before = decode(event.previous.body, EndpointSlice) if event.previous is not None else None
        after = (
            None if event.type is EventType.DELETED else decode(event.record.body, EndpointSlice)
        )
        self._commits.setdefault(event.record.key.path, []).append(
            _Commit(event.revision, before, after)
        )

    def last(self, scope: str) -> int:
        """Returns the version of the last commit in *scope*."""
        touching = (
            commit
            for commits in self._commits.values()
            for commit in commits
            if commit.touches(scope)
        )
        return max((commit.revision for commit in touching), default=0)

    def newest(self, scope: str, kernel: dict[str, int]) -> int:
        """Returns the newest version that *kernel* has of the slices in *scope*."""
        commits = (self._at(self._commits[key], applied) for key, applied in kernel.items())
        revisions = (
            commit.revision
            for commit in commits
            if commit is not None and scope in _list_scopes(commit)
        )
        return max(revisions, default=0)

    def digest(self, scope: str, revision: int) -> str:
        """Returns the digest of the server's state at *revision*."""
        states = (self._at(commits, revision) for commits in self._commits.values())
        return digest_of(
            commit.after
            for commit in states
            if commit is not None and commit.after and scope in _list_scopes(commit)
        )

    @staticmethod
    def _at(commits: list[_Commit], revision: int) -> _Commit | None:
        index = bisect_right(commits, revision, key=lambda commit: commit.revision)
        return commits[index - 1] if index else None

    def slice_at(self, name: str, revision: int) -> EndpointSlice | None:
        """Returns a slice at *revision*; *name* as in ``metadata.key``."""
        for commits in (commits for path, commits in self._commits.items() if path.endswith(name)):
            commit = self._at(commits, revision)
            if (
                commit is not None
                and commit.after is not None
                and commit.after.metadata.key == name
            ):
                return commit.after
        return None

    def check_applied(
        self, actor: str, reported: dict[str, AppliedRevision], kernel: dict[str, int]
    ) -> None:
        """Checks that *kernel*, versions by slice, has applied all slices of each scope up to the
        *reported* version.

        The exception is a slice that left a scope while another scope, which is not as far, still
        contains it. The node cannot know yet whether it was deleted or moved to the other scope,
        and keeps it (``Union``). A client that waits for a slice to leave waits for every scope
        that contained it (``consume.drain.departure``). Raises ``Broken``.
        """
        for scope, key in ((scope, key) for scope in reported for key in sorted(self._commits)):
            revision = reported[scope].revision
            touching = [commit for commit in self._commits[key] if commit.touches(scope)]
            commit = self._at(touching, revision) if revision else None
            if commit is None:
                continue
            applied = kernel.get(key)
            is_present = commit.after is not None and scope in _list_scopes(commit)
            later = self._commits[key][-1].revision > revision
            lags = (
                applied is not None
                and applied < commit.revision
                and (is_present or not self._is_in_another_scope(key, applied, reported))
            )
            if lags or (applied is None and is_present and not later):
                text = (
                    f"{actor} tells {scope} {revision}, and its kernel has {key} at {applied}, not "
                    f"{commit.revision}"
                )
                raise Broken("mark-never-early", key, text)

    def _is_in_another_scope(
        self, key: str, revision: int, reported: dict[str, AppliedRevision]
    ) -> bool:
        """Returns True if one of the scopes, at its reported version, contains the slice as it was
        at *revision*.
        """
        states = (
            (scope, self._at(self._commits[key], applied.revision))
            for scope, applied in reported.items()
        )
        return any(
            state and state.revision == revision and scope in _list_scopes(state)
            for scope, state in states
        )


def _list_scopes(commit: _Commit) -> tuple[str, ...]:
    return list_selections_of_slice(commit.after)
