"""The arithmetic of a Deployment's rollout, apart from everything else: numbers in, numbers out.

Facts: ``maxSurge`` Pods may exist beyond the desired number (percentages round up) and
``maxUnavailable`` may be missing (percentages round down); both zero would never move, so one may
then be missing. ``Recreate`` knows neither.

A Deployment that is scaled in the middle of a rollout keeps its proportions: each set grows or
shrinks by its share of what all sets together might be before (``largest``, which the sets
remember) and may be now.
"""

from __future__ import annotations

import msgspec

from sliceplane.api.apps import DeploymentStrategy


class Counts(msgspec.Struct, frozen=True):
    """One ReplicaSet: ``desired`` is its spec.replicas, ``available`` its status.availableReplicas.

    ``largest`` is the number of Pods that the Deployment might have when the set was last resized;
    0 if that is unknown.
    """

    name: str
    desired: int
    available: int
    largest: int = 0


def resolve(value: int | str | None, default: str, total: int, *, up: bool) -> int:
    """Returns a number, or a percentage of *total*. A malformed value counts as 0: the server
    validates it.
    """
    text = default if value is None else value
    if isinstance(text, int):
        return max(text, 0)
    try:
        hundredths = (
            int(text.removesuffix("%")) * total
        )  # of any size: a quotient of it need not be a float
    except ValueError:
        return 0
    return max(-(-hundredths // 100) if up else hundredths // 100, 0)


def limits(strategy: DeploymentStrategy, replicas: int) -> tuple[int, int]:
    """(surge, unavailable) in Pods."""
    if strategy.type != "RollingUpdate":
        return 0, 0
    rolling = strategy.rolling_update
    surge = resolve(rolling.max_surge if rolling else None, "25%", replicas, up=True)
    unavailable = resolve(rolling.max_unavailable if rolling else None, "25%", replicas, up=False)
    return (surge, min(unavailable, replicas)) if surge or unavailable else (0, min(1, replicas))


def newest_size(replicas: int, surge: int, newest: Counts | None, older: list[Counts]) -> int:
    """Returns the size of the newest set: it grows into the surge, never past the desired
    number.
    """
    desired = newest.desired if newest is not None else 0
    if desired >= replicas:
        return replicas
    room = replicas + surge - desired - sum(one.desired for one in older)
    return min(desired + max(room, 0), replicas)


def older_sizes(
    replicas: int, unavailable: int, newest: Counts, older: list[Counts]
) -> dict[str, int]:
    """Returns the sizes that the older sets shrink to, oldest first: unavailable Pods go first,
    then as many available ones as the bound on unavailable Pods allows.
    """
    sizes = {one.name: one.desired for one in older}
    minimum = replicas - unavailable
    total = newest.desired + sum(sizes.values())
    removable = total - minimum - max(newest.desired - newest.available, 0)
    for one in older:
        broken = max(min(one.desired - one.available, removable), 0)
        sizes[one.name] -= broken
        removable -= broken
    spare = newest.available + sum(min(one.available, sizes[one.name]) for one in older) - minimum
    for one in older:
        surplus = max(min(sizes[one.name], spare, removable), 0)
        sizes[one.name] -= surplus
        spare -= surplus
        removable -= surplus
    return sizes


def proportional_sizes(replicas: int, surge: int, oldest_first: list[Counts]) -> dict[str, int]:
    """Returns the sizes of the sets when the desired number of Pods has changed and several sets
    have some.

    The largest set comes first and gets what rounding leaves over; of equals the newest grows and
    the oldest shrinks.
    """
    largest = replicas + surge if replicas else 0
    change = largest - sum(one.desired for one in oldest_first)
    ordered = sorted(
        reversed(oldest_first) if change > 0 else oldest_first, key=lambda one: -one.desired
    )
    sizes: dict[str, int] = {}
    done = 0
    for one in ordered:
        share = 0
        if change != done and one.desired:
            share = _share(one, replicas, replicas + surge)
            share = min(share, change - done) if change > 0 else max(share, change - done)
        sizes[one.name] = one.desired + share
        done += share
    if ordered and change:
        first = ordered[0].name
        sizes[first] = max(sizes[first] + change - done, 0)
    return sizes


def _share(one: Counts, replicas: int, largest: int) -> int:
    """Returns the change that keeps the set the same part of *largest* as it was of
    ``one.largest``, rounded half up.
    """
    if not replicas:
        return -one.desired
    if not one.largest:
        return 0
    return (2 * one.desired * largest + one.largest) // (2 * one.largest) - one.desired
