"""The arithmetic of a Deployment's rollout, apart from everything else: numbers in, numbers out.

Facts: ``maxSurge`` Pods may exist beyond the wanted number (percentages round up) and ``maxUnavailable``
may be missing (percentages round down); both zero would never move, so one may then be missing.
"""

from __future__ import annotations

from dataclasses import dataclass

from sliceplane.api.apps import DeploymentStrategy


@dataclass(frozen=True, slots=True)
class Counts:
    """One ReplicaSet: ``wanted`` is its spec.replicas, ``available`` its status.availableReplicas."""

    name: str
    wanted: int
    available: int


def resolve(value: int | str | None, default: str, total: int, *, up: bool) -> int:
    """A number or a percentage of *total*.  What cannot be read counts as 0 (the server validates it)."""
    text = default if value is None else value
    if isinstance(text, int):
        return max(text, 0)
    try:
        hundredths = int(text.removesuffix("%")) * total  # of any size: a quotient of it need not be a float
    except ValueError:
        return 0
    return max(-(-hundredths // 100) if up else hundredths // 100, 0)


def limits(strategy: DeploymentStrategy, replicas: int) -> tuple[int, int]:
    """(surge, unavailable) in Pods."""
    if strategy.type == "Recreate":
        return 0, replicas
    rolling = strategy.rolling_update
    surge = resolve(rolling.max_surge if rolling else None, "25%", replicas, up=True)
    unavailable = resolve(rolling.max_unavailable if rolling else None, "25%", replicas, up=False)
    return (surge, unavailable) if surge or unavailable else (0, 1)


def newest_size(replicas: int, surge: int, newest: Counts, older: list[Counts]) -> int:
    """How large the newest set may be now: grow into the surge, never past the wanted number."""
    if newest.wanted >= replicas:
        return replicas
    room = replicas + surge - newest.wanted - sum(one.wanted for one in older)
    return min(newest.wanted + max(room, 0), replicas)


def older_sizes(replicas: int, unavailable: int, newest: Counts, older: list[Counts]) -> dict[str, int]:
    """What the older sets shrink to now, oldest first: Pods that are not available go first, then as many
    available ones as the bound on unavailable Pods allows."""
    sizes = {one.name: one.wanted for one in older}
    minimum = replicas - unavailable
    total = newest.wanted + sum(sizes.values())
    removable = total - minimum - max(newest.wanted - newest.available, 0)
    for one in older:
        broken = max(min(one.wanted - one.available, removable), 0)
        sizes[one.name] -= broken
        removable -= broken
    spare = newest.available + sum(min(one.available, sizes[one.name]) for one in older) - minimum
    for one in older:
        surplus = max(min(sizes[one.name], spare, removable), 0)
        sizes[one.name] -= surplus
        spare -= surplus
        removable -= surplus
    return sizes
