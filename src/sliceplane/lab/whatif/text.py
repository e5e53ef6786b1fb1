"""The answer as text for users; ``document`` returns it for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from typing import Final

from sliceplane.api.findings.wording import count, verb
from sliceplane.consume.balancing.shares import OVERLOAD, TrafficShares
from sliceplane.diagnose.zone_loads import factor
from sliceplane.kit.columns import table
from sliceplane.kit.times import format_duration
from sliceplane.lab.whatif.assumptions import percent, rate, zone_name
from sliceplane.lab.whatif.picture import Loads, Picture
from sliceplane.lab.whatif.prediction import Prediction, WhatIfRun
from sliceplane.lab.whatif.verify import WhatIfOutcome, compared, ranged, rows
from sliceplane.lab.wire import human_bytes

_WIDTH: Final = 100
_ZONE_HEADS: Final = ("clients", "endpoints", "connections")
_MOMENT_HEADS: Final = (
    "after the loss",
    "ready",
    "sent to the lost",
    "leave their zone",
    "greatest load",
)


def as_text(prediction: Prediction, width: int | None, real: WhatIfOutcome | None = None) -> str:
    """Returns the answer as text. *real*: the recorded outcome, for comparison."""
    question = prediction.question
    changes = ", ".join(question.changes.texts) or "nothing changes"
    blocks = [
        [
            *wrapped(f"What if: {changes}", width),
            f"Service {question.service.metadata.key}",
            prediction.origin,
        ],
        [
            "Assumed",
            *(line for sentence in prediction.assumed for line in bullet(sentence, width)),
        ],
        list(table(("", "now", "then", "difference"), list(_rows(prediction)), width=width)),
        list(
            table(
                ("by zone", *_ZONE_HEADS, _one(prediction)), list(_zones(prediction)), width=width
            )
        ),
        *(
            [list(table(_MOMENT_HEADS, list(_moments(prediction)), width=width))]
            if prediction.moments
            else []
        ),
        [line for sentence in judgement(prediction) for line in wrapped(sentence, width)],
    ]
    if real is not None:
        blocks += _outcome(prediction, real, width)
    return "\n\n".join("\n".join(block) for block in blocks)


def _outcome(prediction: Prediction, real: WhatIfOutcome, width: int | None) -> list[list[str]]:
    figures = compared(prediction, real)
    differing = sum(not figure.is_as_predicted for figure in figures)
    verdict = (
        "It happened as it was foreseen."
        if not differing
        else f"{count(differing, 'figure', 'differs')}."
    )
    if real.problem:
        verdict += f" The recording is not whole: {real.problem}"
    return [
        list(table(("", "foreseen", "happened", ""), list(rows(figures)), width=width)),
        wrapped(verdict, width),
    ]


def bullet(sentence: str, width: int | None) -> list[str]:
    return textwrap.wrap(
        sentence,
        width or _WIDTH,
        initial_indent="  - ",
        subsequent_indent="    ",
        break_on_hyphens=False,
    )


def wrapped(sentence: str, width: int | None) -> list[str]:
    return textwrap.wrap(sentence, width or _WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _rows(prediction: Prediction) -> Iterator[tuple[str, ...]]:
    before = prediction.before
    after = prediction.after
    written = prediction.written
    slices = _between(prediction, lambda run: run.slices)
    yield "slices", f"{before.slices:,}", slices, _more(after.slices - before.slices)
    ready = (before.ready.total(), after.ready.total())
    yield "ready endpoints", f"{ready[0]:,}", f"{ready[1]:,}", _more(ready[1] - ready[0])
    yield (
        "watchers",
        f"{before.watchers:,}",
        f"{after.watchers:,}",
        _more(after.watchers - before.watchers),
    )
    yield (
        "writes of slices",
        "",
        _between(prediction, lambda run: run.written.writes),
        _verbs(prediction),
    )
    events = _between(prediction, lambda run: run.written.events)
    yield "watch events", "", events, f"in {written.took_s:.1f} s" if written.writes else ""
    protobuf = ranged(*map(human_bytes, prediction.between(lambda run: run.written.protobuf)))
    in_json = ranged(*map(human_bytes, prediction.between(lambda run: run.written.json)))
    yield "bytes sent, protobuf", "", protobuf, f"as JSON {in_json}"
    each = (before.each_protobuf, after.each_protobuf)
    yield (
        "one endpoint changes",
        human_bytes(float(each[0])),
        human_bytes(float(each[1])),
        _times(each),
    )
    leaving = (before.shares.leaving, after.shares.leaving)
    yield "leaves its zone", percent(leaving[0]), percent(leaving[1]), _points(leaving)
    if before.shares.dropped or after.shares.dropped:
        dropped = (before.shares.dropped, after.shares.dropped)
        yield "finds no endpoint", percent(dropped[0]), percent(dropped[1]), _points(dropped)
    greatest = ranged(*map(factor, prediction.between(lambda run: run.greatest)))
    yield "greatest load", _load(before.shares), greatest, in_zone(after.shares)
    if before.loads.rate is not None and after.loads.rate is not None:
        yield (
            "requests a second",
            f"{float(before.loads.rate):,.0f}",
            f"{float(after.loads.rate):,.0f}",
            "",
        )
    if prediction.question.clients.capacity is not None:
        yield (
            "of what a Pod can take",
            percent(before.loads.used),
            percent(after.loads.used),
            in_zone(after.shares),
        )


def _moments(prediction: Prediction) -> Iterator[tuple[str, ...]]:
    for moment in prediction.moments:
        at = moment.picture
        when = "at once" if not moment.after_s else format_duration(round(moment.after_s))
        load = f"{_load(at.shares)} {in_zone(at.shares)}"
        yield (
            when,
            f"{at.ready.total():,}",
            percent(moment.failing),
            percent(at.shares.leaving),
            load,
        )


def _one(prediction: Prediction) -> str:
    return "load of one" if prediction.question.clients.rate is None else "of one, a second"


def _zones(prediction: Prediction) -> Iterator[tuple[str, ...]]:
    before = prediction.before
    after = prediction.after
    for zone in sorted({*before.zones, *after.zones}):
        clients = (before.clients.get(zone, Fraction(0)), after.clients.get(zone, Fraction(0)))
        yield (
            zone_name(zone),
            _both(percent(clients[0]), percent(clients[1])),
            _both(f"{before.ready[zone]:,}", _between(prediction, partial(_ready, zone))),
            _both(percent(before.shares.of_zone(zone)), percent(after.shares.of_zone(zone))),
            _both(_of_one(before, zone), _of_one(after, zone)),
        )


def _of_one(at: Picture, zone: str) -> str:
    return (
        factor(at.shares.load(zone)) if at.loads.rate is None else _figure(at.loads.rate_in(zone))
    )


def judgement(prediction: Prediction) -> Iterator[str]:
    """Yields the judgement, sentence by sentence."""
    after = prediction.after
    for note in prediction.notes:
        yield f"The controller tells: {note}"
    if not after.shares.candidates:
        yield "No endpoint is left: every connection is refused."
        return
    if not after.ready.total():
        yield "No endpoint is ready: those are used that terminate and still serve."
    yield f"{_overload(prediction, after.loads)} {_fix(after, after.loads)}".rstrip()
    connections = prediction.question.clients.connections
    noise = prediction.chance
    yield (
        f"By chance alone the fullest of {count(after.shares.candidates, 'endpoint')} gets about "
        f"{noise:.2f} times its "
        f"share of {connections:,} connections; the fewer and longer they are, the more."
        if noise is not None
        else f"{connections:,} connections are too few for {after.shares.candidates:,} endpoints "
        "to say what chance "
        "does."
    )
    stays = prediction.stays
    if stays is not None:
        yield (
            f"If the clients of the lost zone go on elsewhere: {percent(stays.shares.leaving)} "
            "leave the zone that "
            "they were counted in, and the greatest load is "
            f"{_load(stays.shares)}{in_zone(stays.shares, ' ')}. "
            f"{_overload(prediction, stays)} {_fix(after, stays)}".rstrip()
        )
    yield from _replaced(prediction)
    if after.outside is not None:
        yield (
            "From outside the cluster: the greatest load is "
            f"{_load(after.outside)}{in_zone(after.outside, ' ')}, and "
            f"{percent(after.outside.dropped)} finds no endpoint."
        )
    others = prediction.all_written.writes - prediction.written.writes
    if others:
        size = prediction.all_written.protobuf - prediction.written.protobuf
        yield f"Other Services: {count(others, 'write')}, {human_bytes(size)} in protobuf."
    yield _cost(prediction)


def _overload(prediction: Prediction, loads: Loads) -> str:
    """Returns a sentence about overload: an endpoint gets more than its capacity, or than a
    multiple of an even share.
    """
    most, zone = loads.shares.greatest
    which = "each endpoint" if _is_even(loads.shares) else f"an endpoint in {zone_name(zone)}"
    capacity = prediction.question.clients.capacity
    if capacity is None:
        if loads.used > 1:
            return (
                f"Overload: {which} gets {factor(most)} an even share, more than "
                f"{float(OVERLOAD):g} times."
            )
        return f"No overload: no endpoint gets more than {float(OVERLOAD):g} times an even share."
    gets = (
        f"{which} gets {rate(loads.used * capacity)}, {float(loads.used):.0%} of what it can take."
    )
    return f"Overload: {gets}" if loads.used > 1 else f"No overload: {gets}"


def _fix(after: Picture, loads: Loads) -> str:
    if loads.used <= 1:
        return ""
    if after.topology_mode.lower() == "auto":
        return "With topology-mode Auto each new Pod moves hints: ask again with replicas=N."
    if not loads.fix:
        return "Adding Pods does not mend that."
    pods = ", ".join(
        f"{number:,} in {zone_name(zone)}" for zone, number in sorted(loads.fix.items())
    )
    total = {zone: after.ready[zone] + loads.fix[zone] for zone in after.zones}
    split = ", ".join(
        f"{zone} {number:,}" for zone, number in sorted(total.items()) if zone and number
    )
    more = count(loads.fix.total(), "Pod")
    return f"{more} more would mend it: {pods}. A Deployment for each zone keeps it so: {split}."


def _replaced(prediction: Prediction) -> Iterator[str]:
    """Yields sentences about the Pods of a lost zone."""
    if not prediction.moments:
        return
    last = prediction.moments[-1]
    missing = prediction.before.ready.total() - last.picture.ready.total()
    if len(prediction.moments) < 3:
        yield (
            "No Pod is deleted: none is in the lost zone, each tolerates it for ever, or no Node "
            "is left."
        )
    elif missing > 0:
        yield (
            f"{count(missing, 'Pod')} of the Service {verb(missing, 'is')} not replaced: a Pod of "
            "a StatefulSet or "
            "without a controller waits for its Node, and no Node may have room."
        )
    else:
        yield (
            f"After {format_duration(round(last.after_s))} as many Pods are ready as before; "
            "until then "
            f"{count(prediction.moments[1].picture.ready.total(), 'Pod')} must do, and Pods that were "
            "made anew stay where "
            "they are when the zone comes back."
        )


def _cost(prediction: Prediction) -> str:
    price = prediction.question.price
    leaving = (prediction.before.shares.leaving, prediction.after.shares.leaving)
    rate = f"{float(price.per_gb):g} $ a GB that crosses ({price.of})"
    if not price.gigabytes:
        return (
            f"Cost: measured GB x share that leaves its zone x {rate}; the share is "
            f"{percent(leaving[0])} now, "
            f"{percent(leaving[1])} then. --gigabytes says what was measured."
        )
    sums = [float(price.gigabytes * share * price.per_gb) for share in leaving]
    return (
        f"Cost of {float(price.gigabytes):,g} GB, requests and answers, at {rate}: {sums[0]:,.2f} "
        "$ now, "
        f"{sums[1]:,.2f} $ then, {sums[1] - sums[0]:+,.2f} $."
    )


def _ready(zone: str, run: WhatIfRun) -> int:
    return run.ready[zone]


def _between(prediction: Prediction, read: Callable[[WhatIfRun], int]) -> str:
    return ranged(*(f"{number:,}" for number in prediction.between(read)))


def _verbs(prediction: Prediction) -> str:
    parts = (
        (_between(prediction, lambda run: run.written.creates), "new"),
        (_between(prediction, lambda run: run.written.updates), "updated"),
        (_between(prediction, lambda run: run.written.deletes), "deleted"),
    )
    return ", ".join(f"{number} {verb}" for number, verb in parts if number != "0")


def _more(number: int) -> str:
    return f"{number:+,}" if number else "."


def _times(each: tuple[Fraction, Fraction]) -> str:
    return f"x {float(each[1] / each[0]):.2f}" if each[0] and each[0] != each[1] else "."


def _points(shares: tuple[Fraction, Fraction]) -> str:
    difference = float(shares[1] - shares[0]) * 100
    return f"{difference:+.1f} points" if round(difference, 1) else "."


def _figure(requests: Fraction) -> str:
    number = float(requests)
    return f"{number:,.0f}" if number >= 99.5 or not number else f"{number:.3g}"


def _load(shares: TrafficShares) -> str:
    return factor(shares.greatest[0])


def in_zone(shares: TrafficShares, before: str = "") -> str:
    most, zone = shares.greatest
    if not most:
        return ""
    return f"{before}everywhere" if _is_even(shares) else f"{before}in {zone_name(zone)}"


def _is_even(shares: TrafficShares) -> bool:
    return len(set(shares.each.values())) == 1


def _both(now: str, then: str) -> str:
    return now if now == then else f"{now} -> {then}"
