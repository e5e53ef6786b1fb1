"""How hard property tests try.

A test names the size at which it finds what there is to find; HYPOTHESIS_PROFILE scales it, so that
``make check`` (15%) and ``make test`` (30%) stay quick and ``make soak``, which runs every
property, means something (fifty times).
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings

#: of the profile in which a test has the size that it names
EXAMPLES_OF_FULL_SIZE = 100


def scaled(size: int, least: int = 1) -> int:
    """*size* as the profile scales it; *least* at least."""
    return max(least, size * settings().max_examples // EXAMPLES_OF_FULL_SIZE)


def effort(examples: int, **others: Any) -> settings:
    """Settings for a property whose full size is *examples*."""
    return settings(max_examples=scaled(examples, least=5), **others)


def machine(examples: int) -> settings:
    """The same for a state machine: 40 steps each, 20 in the quick profile."""
    return effort(examples, stateful_step_count=min(40, settings().stateful_step_count))
