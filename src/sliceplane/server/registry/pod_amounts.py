"""What the containers of a Pod ask for together (kubernetes.io, Pods, Init containers: resource
sharing; KEP-0753).

Containers that run side by side are added up, and init containers that stay (sidecars) with them.
An init container that ends runs beside the sidecars that were started before it, so the Pod needs
the larger of the two amounts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

from sliceplane.api.quantity import exact

#: quantities by name, as they were written
Written = Mapping[str, str | int]


def total(
    containers: Iterable[Written], init: Iterable[tuple[Written, bool]]
) -> dict[str, Fraction]:
    """*init*: each init container's amounts, and whether it stays."""
    together: dict[str, Fraction] = {}
    for amounts in containers:
        _add(together, amounts)
    sidecars: dict[str, Fraction] = {}
    peaks: dict[str, Fraction] = {}
    for amounts, stays in init:
        if stays:
            _add(together, amounts)
            _add(sidecars, amounts)
        for name in amounts:
            beside = (
                sidecars[name] if stays else sidecars.get(name, Fraction()) + exact(amounts[name])
            )
            peaks[name] = max(peaks.get(name, beside), beside)
    return {
        name: max(together.get(name, Fraction()), peaks.get(name, Fraction()))
        for name in {**together, **peaks}
    }


def _add(sums: dict[str, Fraction], amounts: Written) -> None:
    for name, quantity in amounts.items():
        sums[name] = sums.get(name, Fraction()) + exact(quantity)
