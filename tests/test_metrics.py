"""Every metric that is declared is counted somewhere, and a document names it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
#: methods of ``kit.metrics.Metrics`` that declare a metric which other lines count
DECLARING = {"counter", "counters", "gauge", "gauges", "histogram", "histograms"}
DECLARATION = re.compile(rf"\.(?:{'|'.join(sorted(DECLARING))})\(")
COUNTING = re.compile(r"\b(\w+)(?:\.of\([^\n]*?\))?\.(?:value|observe|of)\b")


def declared(tree: ast.Module) -> list[tuple[str, str]]:
    """Returns the attribute that holds each metric, and the expression of its name."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Call):
            continue
        call = node.value
        if (
            not isinstance(call.func, ast.Attribute)
            or call.func.attr not in DECLARING
            or not call.args
        ):
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
        found.append((name, ast.unparse(call.args[0])))
    return found


def uncounted(texts: list[str]) -> list[str]:
    """Returns the metrics whose attribute no line adds to, sets or observes."""
    counted = {attribute for text in texts for attribute in COUNTING.findall(text)}
    declaring = (text for text in texts if DECLARATION.search(text))
    return [
        metric
        for text in declaring
        for attribute, metric in declared(ast.parse(text))
        if attribute not in counted
    ]


def test_every_metric_that_is_declared_is_counted() -> None:
    texts = [path.read_text(encoding="utf-8") for path in SOURCES]
    assert sum(len(DECLARATION.findall(text)) for text in texts) > 50
    assert uncounted(texts) == []


def test_one_that_is_not_counted_is_seen() -> None:
    text = (
        "self._lost = self.metrics.counter('lost_total', 'Lost.')\nself._kept = "
        "self.metrics.counter('kept', '')\n"
    )
    assert uncounted([text, "self._kept.value += 1\n"]) == ["'lost_total'"]


def unnamed(texts: list[str], pages: str) -> list[str]:
    """Returns the metrics that are declared under a plain name in *texts* and that *pages* do not
    name.
    """
    literal = re.compile(rf"\.(?:{'|'.join(sorted(DECLARING))})\(\s*\"([a-z_]+)\"")
    names = {name for text in texts for name in (*literal.findall(text), *OF_XDS.findall(text))}
    return sorted(name for name in names if f"`{name}`" not in pages)


#: names that a table of xDS has without a call
OF_XDS = re.compile(r'"(sliceplane_xds_[a-z_]+)"')


def test_every_metric_is_in_a_document() -> None:
    pages = "\n".join(
        path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))
    )
    assert unnamed([path.read_text(encoding="utf-8") for path in SOURCES], pages) == []


def test_one_that_no_document_names_is_seen() -> None:
    text = (
        'self.counter(\n    "lost_total", "")\nself.gauge("kept", "")\n_LEFT = '
        '("sliceplane_xds_left_total",)\n'
    )
    assert unnamed([text], "| `kept` |") == ["lost_total", "sliceplane_xds_left_total"]
