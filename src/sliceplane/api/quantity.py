"""Quantities: the numbers of resources (``5``, ``"1k"``, ``"2Gi"``, ``"1e3"``) of the API
(kubernetes.io, Quantity).

``amount`` is for comparing; sums are made of ``exact`` numbers, so that what is added and taken
away again leaves nothing behind.
"""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from typing import Final

_DECIMAL: Final = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_BILLION: Final = 10**9
_SUFFIXES: Final = {
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(_DECIMAL, -3)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", 1)},
}
AMOUNT_MAX: Final = Decimal(2**63 - 1)
_AMOUNT_MIN: Final = Decimal("1e-9")
#: exponents beyond this change nothing any more
_POWER_MAX: Final = 4000
_POWER_DIGITS: Final = 6
_AMOUNT: Final = re.compile(r"\s*([+-]?[0-9.]+)(?:([eE][+-]?[0-9]+)|([A-Za-z]*))\s*")


def amount(quantity: str | int) -> Decimal:
    """The number that a quantity (``5``, ``"1k"``, ``"2Gi"``, ``"1e3"``) stands for. It must be a
    good one.

    Like upstream's, numbers end at ``AMOUNT_MAX`` and at a billionth; what is beyond counts as the
    last one.
    """
    match = _AMOUNT.fullmatch(str(quantity))
    assert match is not None, f"{quantity!r} is no quantity"
    mantissa = Decimal(match[1])
    if not mantissa:
        return mantissa
    power = max(-_POWER_MAX, min(_POWER_MAX, int(match[2][1:][:_POWER_DIGITS]))) if match[2] else 0
    factor = _SUFFIXES[match[3] or ""]
    size = mantissa.adjusted() + power + factor.adjusted()
    if size > AMOUNT_MAX.adjusted():
        return AMOUNT_MAX.copy_sign(mantissa)
    if size < _AMOUNT_MIN.adjusted():
        return _AMOUNT_MIN.copy_sign(mantissa)
    return max(-AMOUNT_MAX, min(AMOUNT_MAX, mantissa.scaleb(power) * factor))


def exact(quantity: str | int) -> Fraction:
    """``amount`` as a number whose sums are exact."""
    return Fraction(amount(quantity))


def quantity_of(number: Fraction | int, *, binary: bool = False) -> str:
    """The shortest text of *number*, as upstream writes sums: ``1500m``, ``2k``; *binary*:
    ``1536Mi``, where it can.

    What is finer than a billionth is rounded up.
    """
    billionths = -(-number.numerator * _BILLION // number.denominator)
    if not billionths:
        return "0"
    if binary:
        for power, prefix in reversed(tuple(enumerate("KMGTPE", 1))):
            if billionths % (_BILLION * 1024**power) == 0:
                return f"{billionths // (_BILLION * 1024**power)}{prefix}i"
    power = max(power for power in range(len(_DECIMAL)) if billionths % 1000**power == 0)
    return f"{billionths // 1000**power}{_DECIMAL[power]}"
