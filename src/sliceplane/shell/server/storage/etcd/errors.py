"""What calls to etcd can end with, by what is known afterwards."""

from __future__ import annotations


class EtcdError(Exception):
    """The text is one sentence for a person."""


class NoAnswer(EtcdError):
    """Nothing is known: a write may have happened, and may still happen."""


class Refused(EtcdError):
    """etcd looked at the request and did nothing.  *lasting*: it will not take others either (it is full, or we have no
    rights)."""

    def __init__(self, why: str, *, lasting: bool = False) -> None:
        super().__init__(why)
        self.lasting = lasting


class Compacted(Refused):
    """The revision that was asked for is gone."""
