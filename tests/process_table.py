"""Processes as ``/proc`` has them. One may end between two looks, which is no failure."""

from __future__ import annotations

from pathlib import Path


def words_of(pid: int) -> list[str]:
    """The command line of *pid*; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def children_of(pid: int) -> list[int]:
    """The children that the main thread of *pid* started; empty if it has ended."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
