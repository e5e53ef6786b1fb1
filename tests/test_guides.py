"""How guides are read and compared (``tools/guides.py``), and how they are wrapped;
``tests/kernel`` runs them.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools.guides import GUIDES, ROOT, cut, shape, steps
from tools.site_markdown import breakable, deepened, labelled

#: prose is wrapped, so that it can be read in a terminal and a change is a small difference
COLUMNS_MAX = 100


def test_steps_of_a_block() -> None:
    block = (
        "$ one \\\n    two\nsaid\n$ cat >f <<'EOF'\n$ not a command\nEOF\n$ three |\n    "
        "four\n...\n"
    )
    assert [(step.command, step.output) for step in steps(block)] == [
        ("one \\\n    two", ("said",)),
        ("cat >f <<'EOF'\n$ not a command\nEOF", ()),
        ("three |\n    four", ("...",)),
    ]


def test_the_shape_of_an_output_tells_words_and_forgets_what_changes() -> None:
    table = ("NAME  AGE", "demo-58mvhnr5bf-6x246  0s")
    assert shape(table) == shape(["NAME                    AGE", "demo-58mvhnr5bf-ndmpc   12s"])
    assert shape(table) != shape(["NAME AGE"])
    assert shape(("10 requests, 0 failed",)) != shape(["10 requests, refused"])
    assert cut(("a", "...", "z"), ["a", "b", "c", "d"]) == ["a", "...", "d"]


@pytest.mark.parametrize("path", [*GUIDES, ROOT / "CONTRIBUTING.md"], ids=lambda path: path.name)
def test_prose_is_wrapped_evenly(path: Path) -> None:
    fenced = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        fenced ^= line.startswith("```")
        if not fenced and not line.startswith(("|", "[", "<", "!")):
            assert len(line) <= COLUMNS_MAX, f"{path.name}:{number} has {len(line)} columns"


# The site


def configuration() -> str:
    return (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_every_document_has_a_place_in_the_site() -> None:
    nav = configuration().partition("\nnav:\n")[2]
    named = re.findall(r"[\w/-]+\.md", nav)
    docs = ROOT / "docs"
    there = [str(path.relative_to(docs)) for path in (*docs.glob("*.md"), *docs.glob("*/index.md"))]
    assert sorted(named) == sorted([*there, "index.md", "contributing.md", "changelog.md"])


#: what readers type into the search of the site, and the page that answers
SOUGHT = {
    "CRD": "api.md",
    "HPA": "api.md",
    "CronJob": "api.md",
    "webhooks": "api.md",
    "VirtualService": "api.md",
    "logs": "api.md",
    "VirtualHost": "xds.md",
    "Istio": "xds.md",
    "listener": "xds.md",
    "troubleshooting": "troubleshooting.md",
    "web": "troubleshooting.md",
    "DNS": "dns.md",
    "deploying": "deploy.md",
    "Helm": "deploy.md",
    "performance": "figures.md",
    "availability": "deploy.md",
    "failover": "deploy.md",
    "upgrade": "operations.md",
    "backup": "operations.md",
}


def test_search_of_the_site_finds_what_readers_type() -> None:
    """A word is found whole, after the text was cut where mkdocs.yml says; case does not matter."""
    separator = re.search(
        r"^plugins: \[search: \{separator: '(.*)'\}\]$", configuration(), re.MULTILINE
    )
    assert separator is not None
    for word, page in SOUGHT.items():
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        assert word.lower() in re.split(separator[1], text.lower()), (
            f"{page} does not have the word {word}"
        )


def test_navigation_has_the_words_of_the_field() -> None:
    nav = configuration().partition("\nnav:\n")[2]
    titles = re.findall(r"^ *- \"?([A-Z][^\"\n]*?)\"?: [\w-]+\.md$", nav, re.MULTILINE)
    terms = {term for title in titles for term in re.split(", | and |: ", title)}
    assert {
        "Troubleshooting",
        "Web UI",
        "DNS",
        "Security",
        "Performance",
        "Operations",
        "Helm",
        "etcd",
        "Conformance kit",
    } <= terms
    sections = re.findall(r"^- ([\w ]+):", nav, re.MULTILINE)
    assert {"Getting started", "Operating", "Deploying", "Reference"} <= set(sections)


def test_code_of_the_site_wraps_and_is_not_cut_off() -> None:
    css = (ROOT / "docs" / "site.css").read_text(encoding="utf-8")
    rule = re.search(r"^\.md-typeset pre > code \{(.*)\}$", css, re.MULTILINE)
    assert rule is not None
    assert "white-space: pre-wrap" in rule[1]
    assert "overflow-wrap: anywhere" in rule[1]


def test_lists_that_github_reads_are_lists_in_the_site() -> None:
    text = (
        "Words\n* one\n  goes on\n\n  ```\n  code\n  ```\n  - below\n1. first\n   goes on\n\nend\n"
    )
    assert deepened(text) == (
        "Words\n\n* one\n    goes on\n\n    ```\n    code\n    ```\n    - below\n1. first\n    "
        "goes on\n\nend\n"
    )


def test_a_cell_says_its_column() -> None:
    table = "<table><tr><th>what</th><th></th></tr><tr><td>a</td><td>b</td></tr></table>"
    assert '<td data-label="what">a</td><td>b</td>' in labelled(table)


def test_long_names_break_between_their_words() -> None:
    assert breakable("<code>tests/kit/test_a.py::test_long_name</code>") == (
        "<code>tests/<wbr>kit/<wbr>test_<wbr>a.<wbr>py::<wbr>test_<wbr>long_<wbr>name</code>"
    )
    assert breakable("<code>kubectl_short</code>") == "<code>kubectl_short</code>"
