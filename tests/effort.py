"""How hard property tests try.

A test names the size that is right for it in ``make test``; HYPOTHESIS_PROFILE scales it, so that ``make check`` stays
quick (15%) and ``make soak`` means something (fifty times).
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings

#: of the profile that sizes are given for
DEFAULT_EXAMPLES = 100


def scaled(size: int, least: int = 1) -> int:
    """*size* under the default profile, less or more of it under another; *least* at least."""
    return max(least, size * settings().max_examples // DEFAULT_EXAMPLES)


def effort(examples: int, **others: Any) -> settings:
    """Settings for a property that wants *examples* under the default profile."""
    return settings(max_examples=scaled(examples, least=5), **others)


def machine(examples: int) -> settings:
    """The same for a state machine: 40 steps each, 20 in the quick profile."""
    return effort(examples, stateful_step_count=min(40, settings().stateful_step_count))
