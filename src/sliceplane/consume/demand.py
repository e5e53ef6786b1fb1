"""New connections of Services, as nodes report them for ``sliceplane.dev/Measured``.

A node counts the connections that its clients and containers open to each Service that asks for
measured zones, and writes the totals into the Lease that it renews anyway (``consume.progress``):
annotation ``sliceplane.dev/demand``, such as ``3f9a12c0:431,77be0d4e:12``: the first eight
characters of the Service's UID, and its connections since the counter was made. A count below the
last one means that the counter was made anew: its connections are counted from zero, never
subtracted.

An xDS server reports the requests of its clients in the same form, with the zone of the clients:
``zone-a/3f9a12c0:431``. The connections of a node are from the node's zone.

Reports are written by nodes, so whatever they contain is possible. A reader takes what is valid,
counts what is not, and reads no more than ``DEMAND_LENGTH_MAX`` characters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from sys import intern
from typing import Final, NamedTuple

from sliceplane.api.core import Service
from sliceplane.api.selectors.distribution import requested_distribution
from sliceplane.consume.progress import ANNOTATION_DEMAND
from sliceplane.kit.names import check_label_value

MEASURED: Final = "sliceplane.dev/Measured"
#: values of the Service's annotation: connections that nodes count, requests of xDS clients
CONNECTIONS: Final = "connections"
REQUESTS: Final = "requests"
#: Services of one report, those with most connections
DEMAND_SERVICES_MAX: Final = 200
#: characters of one report
DEMAND_LENGTH_MAX: Final = 4096
UID_LENGTH: Final = 8
#: a counter of the kernel has 64 bits; JSON readers keep 53
COUNT_MAX: Final = 2**53
#: the reports of nodes as they should be, with less than ``COUNT_MAX`` everywhere
_UID: Final = f"[0-9A-Za-z]{{{UID_LENGTH}}}"
_ENTRY: Final = f"{_UID}:[0-9]{{1,15}}"
_REPORT: Final = re.compile(f"{_ENTRY}(?:,{_ENTRY})*")
#: key, zone and total of an entry that may be of a server or view
_ANY_ENTRY: Final = re.compile(f"((?:([^/:]+)/)?{_UID}):([0-9]{{1,{len(str(COUNT_MAX))}}})")


class Demand(NamedTuple):
    """A decoded report: totals by the start of the UID, with the zone before it if the report names
    one (``zone-a/3f9a12c0``), and the number of entries that are invalid.
    """

    counts: dict[str, int]
    invalid: int


def is_measured(service: Service) -> bool:
    """Returns True if *service* asks for measured zones, by annotation or field."""
    annotations = service.metadata.annotations or {}
    return requested_distribution(annotations, service.spec.traffic_distribution) == MEASURED


def write_demand(counts: Mapping[str, int]) -> str:
    """Returns the annotation for *counts* by the start of the UID: the largest, at most
    ``DEMAND_SERVICES_MAX``.
    """
    largest = sorted(counts, key=lambda uid: (-counts[uid], uid))[:DEMAND_SERVICES_MAX]
    text = ""
    for uid in largest:
        entry = f"{uid}:{counts[uid]}"
        if len(text) + 1 + len(entry) > DEMAND_LENGTH_MAX:
            break
        text = f"{text},{entry}" if text else entry
    return text


def read_demand(text: str) -> Demand:
    """Returns what of the annotation *text* is valid. What is too long is one invalid entry."""
    if len(text) > DEMAND_LENGTH_MAX:
        return Demand({}, 1)
    counts: dict[str, int] = {}
    if _REPORT.fullmatch(text):
        words = text.replace(",", ":").split(":")
        # Thousands of nodes report the same Services: their keys are the same strings.
        counts = dict(zip(map(intern, words[::2]), map(int, words[1::2]), strict=True))
        if 2 * len(counts) == len(words):
            return Demand(counts, 0)
        counts = {}
    invalid = 0
    for entry in text.split(",") if text else ():
        match = _ANY_ENTRY.fullmatch(entry)
        key, zone, total = match.groups(default="") if match else ("", "", "0")
        if key and key not in counts and not check_label_value(zone) and int(total) <= COUNT_MAX:
            counts[key] = int(total)
        else:
            invalid += 1
    return Demand(counts, invalid)


def count_since(before: int, total: int) -> int:
    """Returns the connections between two reads of a total. A lower one is that of a new counter."""
    return total - before if total >= before else total


def demand_source(service: Service) -> str:
    """Returns the value of the annotation that names the source of demand."""
    return (service.metadata.annotations or {}).get(ANNOTATION_DEMAND, CONNECTIONS)
