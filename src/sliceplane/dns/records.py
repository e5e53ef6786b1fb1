"""Sets of records as bytes, ready to be sent: each record's owner is a pointer to the question's
name, so that an answer repeats the case in which it was asked.

A set never repeats a record and has one TTL (RFC 2181 section 5). What does not fit is left out,
beginning with any record, so that a client without TCP gets some of them too. Records that do not
fit are not built: an answer costs its own size, and not that of the set.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from struct import Struct
from typing import Final

from sliceplane.dns.wire import HEADER_BYTES, IN, SOA, SRV, encode_record

#: to the name of the question, the first of a message
QUESTION_POINTER: Final = b"\xc0\x0c"
#: sets of fixed size up to this many bytes are kept twice in a row, so that a rotation is one slice
_TWICE_BYTES_MAX: Final = 4096
_SOA_NAMES: Final = (b"\2ns\3dns", b"\x0ahostmaster")
_soa_head: Final = Struct("!HHIH")
_soa_tail: Final = Struct("!IIIII")
_srv_head: Final = Struct("!HHHH")
#: SRV records of a set that are built together when the set is kept
BUILT_MAX: Final = 128
#: octets of an SRV record without its target
_SRV_BYTES: Final = 12 + 6
#: of SRV records of endpoints: those that hints name for the client, and the others
PRIORITY_NEAR: Final = 0
PRIORITY_FAR: Final = 10
#: refresh, retry and expire, as CoreDNS has them; no server transfers this zone
_SOA_TIMES: Final = (7200, 1800, 86400)


class RecordSet:
    """*data*: of each record; the list may be shared, and is not changed while this set is used."""

    __slots__ = ("_prefix", "_size", "_total", "_twice", "data", "kind")

    def __init__(self, kind: int, ttl: int, data: Sequence[bytes], size: int = 0) -> None:
        """*size*: of each one's data, if all have the same; the data are whole records otherwise
        (``encoded``).
        """
        self.kind = kind
        self.data = data
        self._prefix = encode_record(QUESTION_POINTER, kind, ttl, b"\0" * size)[: 12 if size else 0]
        self._size = size + 12 if size else 0
        self._total = self._size * len(data) if size else sum(map(len, data))
        whole = self._prefix.join((b"", *data)) if self._total <= _TWICE_BYTES_MAX else b""
        self._twice = whole * 2

    def __len__(self) -> int:
        return len(self.data)

    @property
    def size(self) -> int:
        """Octets of all records."""
        return self._total

    @property
    def kept_bytes(self) -> int:
        """Memory of the set, with its data."""
        return 2 * self._total + 48 * len(self.data)

    def window(self, rotation: int, room: int) -> tuple[int, bytes, bool]:
        """Returns the number of records that fit in *room* bytes, these records, beginning with
        record number *rotation*, and True if they are all.
        """
        data = self.data
        count = len(data)
        start = rotation % count
        if self._total <= room:
            if self._size and self._twice:
                start *= self._size
                return count, self._twice[start : start + self._total], True
            return count, self._prefix.join((b"", *data[start:], *data[:start])), True
        if self._size:
            count = room // self._size
            chosen = (*data[start : start + count], *data[: max(0, start + count - len(data))])
            return count, self._prefix.join((b"", *chosen)), False
        taken: list[bytes] = []
        for index in range(count):
            record = data[(start + index) % count]
            if len(record) > room:
                break
            room -= len(record)
            taken.append(record)
        return len(taken), b"".join(taken), False

    def records(self) -> Iterator[bytes]:
        """Each of them whole, in order."""
        return (self._prefix + data for data in self.data)


class SrvSet:
    """SRV records, each built when it is sent: the endpoints of a Service are thousands, and an
    answer has few.

    *targets*: pairs of labels and port numbers; every label of a pair has a record for every number
    of it. *suffix*: the name that follows a label; the label b"" stands for *suffix* itself.
    *near*: labels with the better priority, ``None`` for all. *totals*: numbers of ports that share
    the weight 100, by priority.
    """

    kind: Final = SRV

    def __init__(
        self,
        targets: Sequence[tuple[Sequence[bytes], Sequence[int]]],
        suffix: bytes,
        ttl: int,
        *,
        near: Collection[bytes] | None = None,
        totals: tuple[int, int],
    ) -> None:
        self._targets = targets
        self._suffix = suffix
        self._near = near
        self._prefix = encode_record(QUESTION_POINTER, SRV, ttl, b"")[:-2]
        self._count = sum(len(labels) * len(numbers) for labels, numbers in targets)
        self._weights = [max(1, 100 // max(1, total)) for total in totals]

    @property
    def size(self) -> int:
        """Octets of all records, approximately."""
        return self._count * (_SRV_BYTES + len(self._suffix) + 16)

    @property
    def kept_bytes(self) -> int:
        """Labels and numbers are the Service's own."""
        return 256 + 128 * len(self._targets)

    def window(self, rotation: int, room: int) -> tuple[int, bytes, bool]:
        """Does the same as ``RecordSet.window``."""
        taken: list[bytes] = []
        for record in self._from(rotation):
            room -= len(record)
            if room < 0:
                return len(taken), b"".join(taken), False
            taken.append(record)
        return len(taken), b"".join(taken), True

    def records(self) -> Iterator[bytes]:
        """Each of them whole, in order."""
        return self._from(0)

    def labels(self) -> Iterator[bytes]:
        """Labels of all targets, some of them more than once."""
        return (label for labels, _ in self._targets for label in labels)

    def built(self) -> RecordSet | None:
        """The same set, for many questions; ``None``: it is too large for that."""
        if self._count > BUILT_MAX:
            return None
        return RecordSet(SRV, 0, list(self._from(0)))

    def _from(self, rotation: int) -> Iterator[bytes]:
        """Yields all records once, beginning with number *rotation*."""
        prefix, suffix, near = self._prefix, self._suffix, self._near
        bare = 6 + len(suffix)
        # A label may stand in several pairs: its ports differ between slices.
        emitted: set[tuple[bytes, int]] | None = set() if len(self._targets) > 1 else None
        for label, number in self._round(rotation % self._count):
            if emitted is not None:
                if (label, number) in emitted:
                    continue
                emitted.add((label, number))
            is_far = near is not None and label not in near
            size = len(label)
            head = _srv_head.pack(
                bare + 1 + size if size else bare,
                PRIORITY_FAR if is_far else PRIORITY_NEAR,
                self._weights[is_far],
                number,
            )
            yield (
                b"%b%b%c%b%b" % (prefix, head, size, label, suffix)
                if size
                else prefix + head + suffix
            )

    def _round(self, start: int) -> Iterator[tuple[bytes, int]]:
        for is_before in (False, True):
            to_skip = start
            for labels, numbers in self._targets:
                whole = len(labels) * len(numbers)
                here = min(to_skip, whole)
                to_skip -= here
                for at in range(here) if is_before else range(here, whole):
                    yield labels[at // len(numbers)], numbers[at % len(numbers)]


def encoded(kind: int, ttl: int, data: Sequence[bytes]) -> RecordSet:
    """Encodes records of data of different sizes."""
    return RecordSet(kind, ttl, [encode_record(QUESTION_POINTER, kind, ttl, item) for item in data])


def pointer_to(offset: int) -> bytes:
    """Returns a pointer to *offset* bytes into the name of the question."""
    return (0xC000 | HEADER_BYTES + offset).to_bytes(2, "big")


def soa(zone: bytes, serial: int, ttl: int, minimum: int) -> bytes:
    """The SOA record of *zone*, a name or a pointer to it. A negative answer may be kept for the
    least of *ttl* and *minimum* (RFC 2308 section 5).
    """
    names = _SOA_NAMES[0] + zone + _SOA_NAMES[1] + zone
    tail = _soa_tail.pack(serial & 0xFFFFFFFF, *_SOA_TIMES, minimum)
    return zone + _soa_head.pack(SOA, IN, ttl, len(names) + len(tail)) + names + tail
