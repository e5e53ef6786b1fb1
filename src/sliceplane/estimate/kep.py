"""The KEP's two sample cases as the KEP has them (KEP-0752, "Sample Case 1" and "Sample Case 2").

Each table has five quantities; a cell is the order of growth and the figure.  The figures are the KEP's own, with its
roundings and its slips (case 2 counts one watch event where ten watchers each get one): ``scale`` reckons anew.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sliceplane.estimate.scale import Case, Scenario

QUANTITIES: Final = (
    "# of writes",
    "Size of API object",
    "# of watchers per object",
    "# of total watch event",
    "Total Bytes Transmitted",
)


class Cell(NamedTuple):
    order: str
    figure: str


#: a quantity's cells: Endpoints, 100 endpoints per slice, 1 endpoint per slice
Line = tuple[Cell, Cell, Cell]


class SampleCase(NamedTuple):
    title: str
    case: Case
    tables: dict[Scenario, tuple[Line, ...]]


SAMPLES: Final = (
    SampleCase(
        "Sample Case 1: 20,000 endpoints, 5,000 nodes",
        Case(pods=20_000, nodes=5_000),
        {
            Scenario.CREATION: (
                (Cell("O(1)", "1"), Cell("O(P/B)", "200"), Cell("O(P)", "20000")),
                (Cell("O(P)", "20k * const = ~2.0 MB"), Cell("O(B)", "100 * const = ~10 KB"), Cell("O(1)", "< ~1KB")),
                (Cell("O(N)", "5000"), Cell("O(N)", "5000"), Cell("O(N)", "5000")),
                (
                    Cell("O(N)", "5000"),
                    Cell("O(NP/B)", "5000 * 200 = 1,000,000"),
                    Cell("O(NP)", "5000 * 20000 = 100,000,000"),
                ),
                (
                    Cell("O(PN)", "2.0MB * 5000 = 10GB"),
                    Cell("O(PN)", "10KB * 5000 * 200 = 10GB"),
                    Cell("O(PN)", "~10GB"),
                ),
            ),
            Scenario.UPDATE: (
                (Cell("O(1)", "1"), Cell("O(1)", "1"), Cell("O(1)", "1")),
                (Cell("O(P)", "20k * const = ~2.0 MB"), Cell("O(B)", "100 * const = ~10 KB"), Cell("O(1)", "< ~1KB")),
                (Cell("O(N)", "5000"), Cell("O(N)", "5000"), Cell("O(N)", "5000")),
                (Cell("O(N)", "5000"), Cell("O(N)", "5000"), Cell("O(N)", "5000")),
                (
                    Cell("O(PN)", "~2.0MB * 5000 = 10GB"),
                    Cell("O(BN)", "~10k * 5000 = 50MB"),
                    Cell("O(N)", "~1KB * 5000 = ~5MB"),
                ),
            ),
            Scenario.ROLLING: (
                (Cell("O(P)", "20k"), Cell("O(P)", "20k"), Cell("O(P)", "20k")),
                (Cell("O(P)", "20k * const = ~2.0 MB"), Cell("O(B)", "100 * const = ~10 KB"), Cell("O(1)", "< ~1KB")),
                (Cell("O(N)", "5000"), Cell("O(N)", "5000"), Cell("O(N)", "5000")),
                (Cell("O(NP)", "5000 * 20k"), Cell("O(NP)", "5000 * 20k"), Cell("O(NP)", "5000 * 20k")),
                (
                    Cell("O(P^2N)", "2.0MB * 5000 * 20k = 200 TB"),
                    Cell("O(NPB)", "10KB * 5000 * 20k = 1 TB"),
                    Cell("O(NP)", "~1KB * 5000 * 20k = ~100 GB"),
                ),
            ),
        },
    ),
    SampleCase(
        "Sample Case 2: 20 endpoints, 10 nodes",
        Case(pods=20, nodes=10),
        {
            Scenario.CREATION: (
                (Cell("O(1)", "1"), Cell("O(P/B)", "1"), Cell("O(P)", "20")),
                (Cell("O(P)", "~1KB"), Cell("O(B)", "~1KB"), Cell("O(1)", "~1KB")),
                (Cell("O(N)", "10"), Cell("O(N)", "10"), Cell("O(N)", "10")),
                (Cell("O(N)", "1 * 10 = 10"), Cell("O(NP/B)", "1 * 10 = 10"), Cell("O(NP)", "10 * 20 = 200")),
                (
                    Cell("O(PN)", "~1KB * 10 = 10KB"),
                    Cell("O(PN)", "~1KB * 10 = 10KB"),
                    Cell("O(PN)", "~1KB * 200 = 200KB"),
                ),
            ),
            Scenario.UPDATE: (
                (Cell("O(1)", "1"), Cell("O(1)", "1"), Cell("O(1)", "1")),
                (Cell("O(P)", "~1KB"), Cell("O(B)", "~1KB"), Cell("O(1)", "~1KB")),
                (Cell("O(N)", "10"), Cell("O(N)", "10"), Cell("O(N)", "10")),
                (Cell("O(N)", "1"), Cell("O(N)", "1"), Cell("O(N)", "1")),
                (
                    Cell("O(PN)", "~1KB * 10 = 10KB"),
                    Cell("O(BN)", "~1KB * 10 = 10KB"),
                    Cell("O(N)", "~1KB * 10 = 10KB"),
                ),
            ),
            Scenario.ROLLING: (
                (Cell("O(P)", "20"), Cell("O(P)", "20"), Cell("O(P)", "20")),
                (Cell("O(P)", "~1KB"), Cell("O(B)", "~1KB"), Cell("O(1)", "~1KB")),
                (Cell("O(N)", "10"), Cell("O(N)", "10"), Cell("O(N)", "10")),
                (Cell("O(NP)", "10 * 20"), Cell("O(NP)", "10 * 20"), Cell("O(NP)", "10 * 20")),
                (
                    Cell("O(P^2N)", "~1KB * 10 * 20 = 200KB"),
                    Cell("O(NPB)", "~1KB * 10 * 20 = 200KB"),
                    Cell("O(NP)", "~1KB * 10 * 20 = 200KB"),
                ),
            ),
        },
    ),
)
