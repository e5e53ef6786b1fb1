"""Results of the view that are kept by name, so that the next question of the usual shape costs one
look-up.

Kept are results at names that exist in the cluster, until their Service changes, and denials, until
anything changes: search lists of resolvers ask for the same absent names all the time. Clients
choose the names of denials, and may ask for every host and type of the cluster, so that both have a
bound in bytes. At a bound everything of that kind is dropped: the view finds it again, and what is
asked for often is soon back. Never: a result that depends on the client, or at a name of which
clients make up a part.

Owned by one ``dns.server``.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from sliceplane.dns import wire
from sliceplane.dns.records import SrvSet
from sliceplane.dns.service import NamedService
from sliceplane.dns.view import LookupResult

#: memory of results at names that exist
RESULTS_BYTES_MAX: Final = 32 << 20
#: memory of denials
DENIALS_BYTES_MAX: Final = 4 << 20
#: the objects of one result besides its name, records and reason, and its places in dictionaries
_RESULT_BYTES: Final = 900
#: one larger than this is not kept
_SIZE_MAX: Final = 1 << 20
_EXTRAS_MAX: Final = 256


class KeptResults:
    """See the module."""

    def __init__(self) -> None:
        #: by lower-cased name, then by the octets of the type; never another object, for the server
        #: keeps it, too
        self.by_name: Final[dict[bytes, dict[bytes, LookupResult]]] = {}
        self._denied: set[bytes] = set()
        self._services: set[NamedService] = set()
        self.result_bytes = 0
        self.denial_bytes = 0

    def keep(
        self, name: bytes, kind: int, result: LookupResult, *, is_narrowed: bool
    ) -> LookupResult:
        """The result to answer with: *result*, or the same in the form in which it is kept.
        *is_narrowed*: it depends on the client.
        """
        named = result.service
        # Any number of types and of names below ``_zone`` can be made up.
        if kind not in wire.TYPE_NAMES or b"\5_zone" in name:
            return result
        if result.rcode == wire.NXDOMAIN:
            size = _RESULT_BYTES + 2 * len(name) + len(result.why)
            if self.denial_bytes + size > DENIALS_BYTES_MAX:
                self.drop_denials()
            self._denied.add(name)
            self.denial_bytes += size
        elif named is None or is_narrowed:
            return result
        else:
            result = _built(result)
            size = _RESULT_BYTES + 2 * len(name) + len(result.why) + _records_bytes(result)
            if size > _SIZE_MAX:
                return result
            if self.result_bytes + size > RESULTS_BYTES_MAX:
                self._drop_results()
            named.kept[name] = named.kept.get(name, 0) + size
            self._services.add(named)
            self.result_bytes += size
        self.by_name.setdefault(name, {})[kind.to_bytes(2, "big")] = result
        return result

    def drop(self, touched: Iterable[NamedService]) -> None:
        """These Services changed."""
        for named in touched:
            for name, size in named.kept.items():
                self.by_name.pop(name, None)
                self.result_bytes -= size
            named.kept.clear()
            self._services.discard(named)

    def drop_denials(self) -> None:
        for name in self._denied:
            self.by_name.pop(name, None)
        self._denied.clear()
        self.denial_bytes = 0

    def _drop_results(self) -> None:
        self.drop(list(self._services))

    def check(self) -> None:
        assert self.result_bytes == sum(sum(named.kept.values()) for named in self._services), (
            "sizes do not add up"
        )
        names = {name for named in self._services for name in named.kept}
        assert names | self._denied == self.by_name.keys(), "a name is kept that nothing drops"
        assert self.result_bytes <= RESULTS_BYTES_MAX, self.result_bytes
        assert self.denial_bytes <= DENIALS_BYTES_MAX, self.denial_bytes


def _built(result: LookupResult) -> LookupResult:
    """With small sets of SRV records built for good."""
    records = result.records.built() if isinstance(result.records, SrvSet) else None
    if records is None:
        return result
    extras = tuple(islice(result.extras, _EXTRAS_MAX + 1))
    return result if len(extras) > _EXTRAS_MAX else result._replace(records=records, extras=extras)


def _records_bytes(result: LookupResult) -> int:
    size = 0 if result.records is None else result.records.kept_bytes
    return (
        size + sum(48 + len(extra) for extra in result.extras)
        if isinstance(result.extras, tuple)
        else size
    )
