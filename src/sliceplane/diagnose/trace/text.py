"""The answer for people: the verdict, then the facts that led to it, then every endpoint with its
reason.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from sliceplane.diagnose.trace.answer import LoadView, TraceAnswer, TracedEndpoint, XdsTraceAnswer
from sliceplane.diagnose.trace.question import joined
from sliceplane.diagnose.zone_loads import SAME_ZONE, factor
from sliceplane.kit.columns import Row, table

#: rows of one table; the JSON output has all
ROWS_MAX: Final = 50
_LABEL_WIDTH = 12


def as_text(answer: TraceAnswer, width: int | None = None) -> str:
    """*width*: columns of the screen; ``None``: lines are not wrapped."""
    return laid_out(_lines(answer, width), width)


def laid_out(lines: Iterator[str], width: int | None) -> str:
    return "\n".join(line for part in lines for line in _wrapped(part, width))


def _wrapped(line: str, width: int | None) -> Iterator[str]:
    """Wraps a fact with an indent; tables fit already."""
    is_of_table = line.startswith("  ") and not line.startswith(fact("", ""))
    if width is None or len(line) <= width or is_of_table:
        yield line.rstrip()
        return
    yield from textwrap.wrap(
        line,
        width,
        subsequent_indent=" " * _LABEL_WIDTH,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
        replace_whitespace=False,
        expand_tabs=False,
    )


def _lines(answer: TraceAnswer, width: int | None) -> Iterator[str]:
    yield fact("verdict", f"{answer.verdict}: {answer.reason}")
    for finding in answer.findings:
        yield fact("finding", f"{finding.code} {finding.severity}: {finding.remedy}")
    source = answer.source
    destination = answer.destination
    node = answer.node
    yield fact(
        "from", _also(source.address, (f"{source.kind} {source.name}",) if source.name else ())
    )
    to = f"{joined(destination.address, destination.port)}/{destination.protocol}"
    yield fact("to", _also(to, destination.is_))
    yield fact(
        "at", f"node {node.name}" + (f", zone {node.zone}" if node.zone else ", without a zone")
    )
    service = answer.service
    if service is not None:
        yield fact("policy", f"{service.policy_field} {service.policy}")
    if answer.hints is not None:
        distribution = service.traffic_distribution if service is not None else ""
        yield fact(
            "hints",
            answer.hints.sentence
            + (f" (trafficDistribution {distribution})" if distribution else ""),
        )
    if service is not None:
        seconds = service.session_affinity_seconds
        affinity = (
            f"ClientIP: a client stays where its first connection went, for {seconds} s after its "
            "last"
        )
        yield fact("affinity", affinity if seconds else "none")
    if answer.targets:
        yield fact("masquerade", answer.masquerade)
    for number, chain in enumerate(answer.chains):
        yield fact("" if number else "chains", chain)
    if answer.element:
        yield fact("element", answer.element)
    for number, note in enumerate(answer.notes):
        yield fact("" if number else "notes", note)
    yield from endpoint_tables(answer, width)


def endpoint_tables(answer: TraceAnswer | XdsTraceAnswer, width: int | None) -> Iterator[str]:
    if answer.load is not None:
        yield from _load_table(answer.load, width)
    if answer.targets:
        targets = [(_share(target), *_row(target)) for target in answer.targets]
        yield from _table("goes to", ("SHARE", *_HEADS), targets, width)
    if answer.others:
        yield from _table(
            "does not go to", _HEADS, [_row(endpoint) for endpoint in answer.others], width
        )
    unused = [endpoint_slice for endpoint_slice in answer.slices if endpoint_slice.why]
    if unused:
        rows = [
            (endpoint_slice.name, str(endpoint_slice.endpoints), endpoint_slice.why)
            for endpoint_slice in unused
        ]
        yield from _table("slices that do not count", ("SLICE", "ENDPOINTS", "WHY"), rows, width)


def _load_table(load: LoadView, width: int | None) -> Iterator[str]:
    problem = f"; it gives no hints: {load.problem}" if load.problem else ""
    rows = [
        (
            zone or "-",
            f"{part:.1%}",
            str(load.endpoints[zone]),
            *(factor(by_zone[zone]) for by_zone in load.loads.values()),
        )
        for zone, part in load.demand.items()
    ]
    yield from _table(
        f"load by zone, demand by {load.origin}; 1 x is an even share{problem}",
        ("ZONE", "DEMAND", "ENDPOINTS", "LOAD NOW", "DECIDED", SAME_ZONE),
        rows,
        width,
    )


_HEADS = ("ENDPOINT", "POD", "SLICE", "NODE", "ZONE", "HINTS", "CONDITIONS", "WHY")


def _row(endpoint: TracedEndpoint) -> tuple[str, ...]:
    hints = [f"node {name}" for name in endpoint.node_hints] + [
        f"zone {name}" for name in endpoint.zone_hints
    ]
    conditions = (
        ("ready", endpoint.ready),
        ("serving", endpoint.serving),
        ("terminating", endpoint.terminating),
    )
    return (
        joined(endpoint.address, endpoint.port),
        endpoint.pod or "-",
        endpoint.slice,
        endpoint.node or "-",
        endpoint.zone or "-",
        ", ".join(hints) or "-",
        ",".join(name for name, is_true in conditions if is_true) or "-",
        endpoint.why,
    )


def _share(each: TracedEndpoint) -> str:
    return each.share if each.verdict in (None, "dnat") else f"{each.share} {each.verdict}"


def _also(text: str, more: Sequence[str]) -> str:
    return ", ".join((text, *more))


def fact(label: str, text: str) -> str:
    return f"{label:<{_LABEL_WIDTH}}{text}"


def _table(title: str, heads: Row, rows: Sequence[Row], width: int | None) -> Iterator[str]:
    yield ""
    yield title
    yield from table(
        heads, rows, indent="  ", width=width, rows_max=ROWS_MAX, elsewhere="--output json has all"
    )
