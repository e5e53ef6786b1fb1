"""Every metric that is declared is counted somewhere, and those of xDS have a row in the documents."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
#: methods of ``kit.metrics.Metrics`` that declare a metric which other lines count
DECLARING = {"counter", "counters", "gauge", "gauges", "histogram", "histograms"}


def declared(tree: ast.Module) -> list[tuple[str, str]]:
    """Returns the attribute that holds each metric, and the expression of its name."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Call):
            continue
        call = node.value
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in DECLARING or not call.args:
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
        found.append((name, ast.unparse(call.args[0])))
    return found


def uncounted(texts: list[str]) -> list[str]:
    """Returns the metrics whose attribute no line adds to, sets or observes."""
    everything = "\n".join(texts)
    missing = []
    for text in texts:
        for attribute, metric in declared(ast.parse(text)):
            if not re.search(rf"\b{attribute}\b(\.of\([^\n]*\))?\.(value|observe|of)\b", everything):
                missing.append(metric)
    return missing


def test_every_metric_that_is_declared_is_counted() -> None:
    texts = [path.read_text(encoding="utf-8") for path in SOURCES]
    assert sum(len(declared(ast.parse(text))) for text in texts) > 50
    assert uncounted(texts) == []


def test_one_that_is_not_counted_is_seen() -> None:
    text = "self._lost = self.metrics.counter('lost_total', 'Lost.')\nself._kept = self.metrics.counter('kept', '')\n"
    assert uncounted([text, "self._kept.value += 1\n"]) == ["'lost_total'"]


#: metrics whose rows are complete: those of the xDS server
DOCUMENTED = re.compile(r'"(sliceplane_xds_[a-z_]+)"')


def without_row(texts: list[str], rows: str) -> list[str]:
    """Returns the metrics in *texts* that *rows*, lines of tables, do not name."""
    names = {name for text in texts for name in DOCUMENTED.findall(text)}
    return sorted(name for name in names if f"`{name}`" not in rows)


def test_every_metric_of_xds_has_a_row() -> None:
    pages = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))]
    rows = "\n".join(line for page in pages for line in page.splitlines() if line.startswith("| `"))
    texts = [path.read_text(encoding="utf-8") for path in SOURCES]
    assert without_row(texts, rows) == []


def test_one_without_a_row_is_seen() -> None:
    assert without_row(['counter("sliceplane_xds_lost_total")'], "| `sliceplane_xds_kept_total` |") == [
        "sliceplane_xds_lost_total"
    ]
