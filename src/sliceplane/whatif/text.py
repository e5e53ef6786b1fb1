"""The answer for people; ``document`` has it for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from fractions import Fraction
from typing import Final

from sliceplane.balancing.shares import OVERLOAD, TrafficShares
from sliceplane.estimate.wire import human_bytes
from sliceplane.findings.wording import count
from sliceplane.kit.columns import table
from sliceplane.whatif.assumptions import percent, zone_name
from sliceplane.whatif.prediction import Picture, Prediction, Written
from sliceplane.whatif.verify import Happened, compared, rows

_WIDTH: Final = 100


def as_text(found: Prediction, width: int | None, real: Happened | None = None) -> str:
    """*real*: what happened, where one may compare."""
    question = found.question
    changes = ", ".join(question.changes.words) or "nothing changes"
    blocks = [
        [*_wrapped(f"What if: {changes}", width), f"Service {question.service.metadata.key}", found.origin],
        ["Assumed", *(line for sentence in found.assumed for line in _bullet(sentence, width))],
        list(table(("", "now", "then", "difference"), list(_rows(found)), width=width)),
        list(
            table(("by zone", "clients", "endpoints", "connections", "load of one"), list(_zones(found)), width=width)
        ),
        [line for sentence in judgement(found) for line in _wrapped(sentence, width)],
    ]
    if real is not None:
        blocks += _happened(found, real, width)
    return "\n\n".join("\n".join(block) for block in blocks)


def _happened(found: Prediction, real: Happened, width: int | None) -> list[list[str]]:
    pairs = compared(found, real)
    differing = sum(foreseen != happened for _, foreseen, happened in pairs)
    said = "It happened as it was foreseen." if not differing else f"{count(differing, 'figure', 'differs')}."
    if real.problem:
        said += f" The recording is not whole: {real.problem}"
    return [list(table(("", "foreseen", "happened", ""), list(rows(pairs)), width=width)), _wrapped(said, width)]


def _bullet(sentence: str, width: int | None) -> list[str]:
    return textwrap.wrap(
        sentence, width or _WIDTH, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False
    )


def _wrapped(sentence: str, width: int | None) -> list[str]:
    return textwrap.wrap(sentence, width or _WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _rows(found: Prediction) -> Iterator[tuple[str, ...]]:
    before = found.before
    after = found.after
    written = found.written
    yield "slices", f"{before.slices:,}", f"{after.slices:,}", _more(after.slices - before.slices)
    ready = (before.ready.total(), after.ready.total())
    yield "ready endpoints", f"{ready[0]:,}", f"{ready[1]:,}", _more(ready[1] - ready[0])
    yield "watchers", f"{before.watchers:,}", f"{after.watchers:,}", _more(after.watchers - before.watchers)
    yield "writes of slices", "", f"{written.writes:,}", _verbs(written)
    yield "watch events", "", f"{written.events:,}", f"in {written.took_s:.1f} s" if written.writes else ""
    yield "bytes sent, protobuf", "", human_bytes(written.protobuf), f"as JSON {human_bytes(written.json)}"
    each = (before.each_protobuf, after.each_protobuf)
    yield "one endpoint changes", human_bytes(float(each[0])), human_bytes(float(each[1])), _times(each)
    leaving = (before.shares.leaving, after.shares.leaving)
    yield "leaves its zone", percent(leaving[0]), percent(leaving[1]), _points(leaving)
    if before.shares.dropped or after.shares.dropped:
        dropped = (before.shares.dropped, after.shares.dropped)
        yield "finds no endpoint", percent(dropped[0]), percent(dropped[1]), _points(dropped)
    yield "greatest load", _load(before.shares), _load(after.shares), _in_zone(after.shares)


def _zones(found: Prediction) -> Iterator[tuple[str, ...]]:
    before = found.before
    after = found.after
    for zone in sorted({*before.zones, *after.zones}):
        clients = (before.clients.get(zone, Fraction(0)), after.clients.get(zone, Fraction(0)))
        yield (
            zone_name(zone),
            _both(percent(clients[0]), percent(clients[1])),
            _both(f"{before.ready[zone]:,}", f"{after.ready[zone]:,}"),
            _both(percent(before.shares.of_zone(zone)), percent(after.shares.of_zone(zone))),
            _both(_factor(before.shares.load(zone)), _factor(after.shares.load(zone))),
        )


def judgement(found: Prediction) -> Iterator[str]:
    """What is to be thought of it, sentence by sentence."""
    after = found.after
    factor, zone = after.shares.greatest
    for note in found.notes:
        yield f"The controller tells: {note}"
    if not after.shares.candidates:
        yield "No endpoint is left: every connection is refused."
        return
    if not after.ready.total():
        yield "No endpoint is ready: those are used that terminate and still serve."
    if factor > OVERLOAD:
        yield (
            f"Overload: an endpoint in {zone_name(zone)} gets {_factor(factor)} an even share, more than "
            f"{float(OVERLOAD):g} times. {_fix(after)}"
        )
    else:
        yield f"No overload: no endpoint gets more than {float(OVERLOAD):g} times an even share."
    connections = found.question.clients.connections
    noise = found.chance
    yield (
        f"By chance alone the fullest of {count(after.shares.candidates, 'endpoint')} gets about {noise:.2f} times its "
        f"share of {connections:,} connections; the fewer and longer they are, the more."
        if noise is not None
        else f"{connections:,} connections are too few for {after.shares.candidates:,} endpoints to say what chance "
        "does."
    )
    if found.stays is not None:
        yield (
            f"If the clients of the lost zone go on elsewhere: {percent(found.stays.leaving)} leave the zone that they "
            f"were counted in, and the greatest load is {_load(found.stays)}{_in_zone(found.stays, ' ')}."
        )
    if after.outside is not None:
        yield (
            f"From outside the cluster: the greatest load is {_load(after.outside)}{_in_zone(after.outside, ' ')}, and "
            f"{percent(after.outside.dropped)} finds no endpoint."
        )
    others = found.everything.writes - found.written.writes
    if others:
        size = found.everything.protobuf - found.written.protobuf
        yield f"Other Services: {count(others, 'write')}, {human_bytes(size)} in protobuf."
    yield _cost(found)


def _fix(after: Picture) -> str:
    if after.topology_mode.lower() == "auto":
        return "With topology-mode Auto each new Pod moves hints: ask again with replicas=N."
    if not after.fix:
        return "Adding Pods does not mend that."
    pods = ", ".join(f"{number:,} in {zone_name(zone)}" for zone, number in sorted(after.fix.items()))
    total = {zone: after.ready[zone] + after.fix[zone] for zone in after.zones}
    split = ", ".join(f"{zone} {number:,}" for zone, number in sorted(total.items()) if zone)
    more = count(after.fix.total(), "Pod")
    return f"{more} more would mend it: {pods}. A Deployment for each zone keeps it so: {split}."


def _cost(found: Prediction) -> str:
    price = found.question.price
    leaving = (found.before.shares.leaving, found.after.shares.leaving)
    rate = f"{float(price.per_gb):g} $ a GB that crosses ({price.of})"
    if not price.gigabytes:
        return (
            f"Cost: measured GB x share that leaves its zone x {rate}; the share is {percent(leaving[0])} now, "
            f"{percent(leaving[1])} then. --gigabytes says what was measured."
        )
    sums = [float(price.gigabytes * share * price.per_gb) for share in leaving]
    return (
        f"Cost of {float(price.gigabytes):,g} GB, requests and answers, at {rate}: {sums[0]:,.2f} $ now, "
        f"{sums[1]:,.2f} $ then, {sums[1] - sums[0]:+,.2f} $."
    )


def _verbs(written: Written) -> str:
    parts = [(written.creates, "new"), (written.updates, "updated"), (written.deletes, "deleted")]
    return ", ".join(f"{number:,} {verb}" for number, verb in parts if number)


def _more(number: int) -> str:
    return f"{number:+,}" if number else "."


def _times(each: tuple[Fraction, Fraction]) -> str:
    return f"x {float(each[1] / each[0]):.2f}" if each[0] and each[0] != each[1] else "."


def _points(shares: tuple[Fraction, Fraction]) -> str:
    difference = float(shares[1] - shares[0]) * 100
    return f"{difference:+.1f} points" if round(difference, 1) else "."


def _factor(factor: Fraction) -> str:
    return f"{float(factor):.2f} x" if factor else "-"


def _load(shares: TrafficShares) -> str:
    return _factor(shares.greatest[0])


def _in_zone(shares: TrafficShares, before: str = "") -> str:
    factor, zone = shares.greatest
    return f"{before}in {zone_name(zone)}" if factor else ""


def _both(now: str, then: str) -> str:
    return now if now == then else f"{now} -> {then}"
