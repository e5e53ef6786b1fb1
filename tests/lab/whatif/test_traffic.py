"""Where clients are, out of a file: what Prometheus answers, a page of metrics, and what is
neither.
"""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest

from sliceplane.lab.whatif.traffic import BadTraffic, zones_of


def answer(*series: tuple[dict[str, str], str], kind: str = "vector") -> str:
    result = [{"metric": labels, "value": [1435781451.781, value]} for labels, value in series]
    return json.dumps({"status": "success", "data": {"resultType": kind, "result": result}})


def test_an_answer_of_prometheus() -> None:
    found = zones_of(
        answer(({"zone": "zone-a"}, "12.5"), ({"zone": "zone-b"}, "0"), ({"zone": "zone-a"}, "1e1"))
    )
    assert found == {"zone-a": Fraction("22.5"), "zone-b": 0}


def test_a_page_of_metrics() -> None:
    page = """# HELP http_requests_total Requests.
# TYPE http_requests_total counter
http_requests_total{client_zone="zone-a",code="200"} 1027 1395066363000
http_requests_total{client_zone="zone-a",code="500"}    3

http_requests_total{client_zone="zone-b",code="200"} 1.0e3
"""
    assert zones_of(page) == {"zone-a": 1030, "zone-b": 1000}


OF_NODE: Any = {"topology_kubernetes_io_zone": "zone-a"}


def test_the_label_of_nodes_is_one() -> None:
    assert zones_of(answer((OF_NODE, "1"))) == {"zone-a": 1}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"status":\n"success",\n', "line 3: Expecting property name"),
        (
            '{"status": "error", "error": "parse error at char 3"}',
            "Prometheus refused the query: parse error at char 3",
        ),
        (answer(kind="matrix"), "this is a matrix: ask Prometheus for sum by (zone)"),
        ('{"items": []}', "this is no answer of Prometheus"),
        (answer(), "no series with a zone has traffic"),
        (answer(({"zone": "a"}, "0")), "no series with a zone has traffic"),
        (
            answer(({"zone": "a"}, "1"), ({"zone": "b"}, "NaN")),
            "series 2: nan is no amount of traffic",
        ),
        (answer(({"zone": "a"}, "-1")), "series 1: -1.0 is no amount"),
        (answer(({"zone": "a"}, "many")), "series 1 has no labels and value"),
        (
            answer(({"job": "web", "pod": "x"}, "1")),
            "no label zone, nor one that ends in _zone (job, pod are there)",
        ),
        (
            answer(({"a_zone": "x", "b_zone": "y"}, "1")),
            "series 1: a_zone, b_zone all tell a zone: sum by one of them",
        ),
        (
            'requests{zone="a"} 1\nzone-b: 3',
            'line 2: this is no sample: write NAME{zone="ZONE"} NUMBER',
        ),
        ('requests{zone="a"} one', "line 1: this is no sample"),
        ("requests 3", "line 1: no label zone, nor one that ends in _zone (none is there)"),
        (
            'a{zone="a"} 1\n# b\nb{zone="a"} 2',
            "line 3: a, b are several metrics: leave one of them in the file",
        ),
        ("", "no series with a zone has traffic"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, sentence: str) -> None:
    with pytest.raises(BadTraffic) as caught:
        zones_of(text)
    assert sentence in str(caught.value)
