"""Bodies that fit the limit and were made to cost the square of their length: lists, names, aliases
and patches that multiply.

Each is sent once, by somebody who may write objects of that kind. What counts is how long the CPU
of the server works on it, how large the answer is, and what a bystander waits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp
from benchmarks.tools.process import PlaneProcess
from tests.attack.harness import Attack, Figure, admin_context, alive, bystander

#: of the server's CPU for one body: linear work on 3 MiB in Python, on a small and busy machine
_CPU_SECONDS_MAX: Final = 8.0
_ANSWER_MB_MAX: Final = 6.0
_MEMORY_MB_MAX: Final = 700.0
_CORE: Final = "/api/v1/namespaces/default"
_TIMEOUT: Final = aiohttp.ClientTimeout(total=120)


class _Ask(NamedTuple):
    what: str
    method: str
    path: str
    media: str
    body: bytes


def _json(
    what: str, method: str, path: str, document: Any, media: str = "application/json"
) -> _Ask:
    return _Ask(what, method, _CORE + path, media, json.dumps(document).encode())


def _pod(name: str, **spec: Any) -> Any:
    return {
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i"}], **spec},
    }


def _lists() -> Iterator[_Ask]:
    spec = {
        "ports": [{"port": 80}],
        "ipFamilyPolicy": "PreferDualStack",
        "ipFamilies": ["IPv4", "IPv6"] * 150_000,
    }
    yield _json(
        "300,000 ipFamilies", "POST", "/services", {"metadata": {"name": "wide"}, "spec": spec}
    )
    tolerations = [{"key": f"k{number}", "operator": "Exists"} for number in range(32_000)]
    yield _json("32,000 tolerations", "POST", "/pods", _pod("tolerant", tolerations=tolerations))
    small = {"spec": {"activeDeadlineSeconds": 5}}
    yield _json(
        "a small patch of them", "PATCH", "/pods/tolerant", small, "application/merge-patch+json"
    )
    limits = {f"example.com/{number}": "1" for number in range(120_000)}
    amounts = [{"name": "c", "image": "i", "resources": {"limits": limits}}]
    yield _json("120,000 limits", "POST", "/pods", _pod("greedy", containers=amounts))
    volumes = [{"name": f"v{number}", "emptyDir": {}} for number in range(60_000)]
    yield _json("60,000 volumes", "POST", "/pods", _pod("large", volumes=volumes))
    containers = [{"name": f"c{number}", "image": "i"} for number in range(12_000)]
    yield _json("12,000 containers", "POST", "/pods", _pod("crowd", containers=containers))
    for letter, method, path in (("a", "POST", "/configmaps"), ("b", "PUT", "/configmaps/held")):
        head = {
            "name": "held",
            "finalizers": [f"{letter}.example/{number}" for number in range(64_000)],
        }
        yield _json(f"64,000 finalizers {letter}", method, path, {"metadata": head})
        yield _json("deletion of them", "DELETE", "/configmaps/held", {})
    labels = {f"!{number}": "" for number in range(200_000)}
    yield _json(
        "200,000 bad labels", "POST", "/configmaps", {"metadata": {"name": "bad", "labels": labels}}
    )


def _readers() -> Iterator[_Ask]:
    raw = (
        b'{"kind":"ConfigMap","kind":"ConfigMap","metadata":{"name":"x"},"'
        + b"n" * 1_500_000
        + b'":['
    )
    yield _Ask(
        "a long name over 500,000 elements",
        "POST",
        f"{_CORE}/configmaps",
        "application/json",
        raw + b"0," * 500_000 + b"0]}",
    )
    raw = b"a: &a " + b"x" * 1_000_000 + b"\nb: [" + b"*a," * 90_000 + b"]"
    yield _Ask("90,000 aliases of 1 MB", "POST", f"{_CORE}/configmaps", "application/yaml", raw)
    raw = b"".join(b"%%TAG !a%d! tag:x\n" % number for number in range(150_000)) + b"---\na: b"
    yield _Ask("150,000 directives", "POST", f"{_CORE}/configmaps", "application/yaml", raw)
    raw = b"k8s\0" + b"\x0a\x02\x0a\x00" * 700_000
    yield _Ask(
        "700,000 types in an envelope",
        "POST",
        f"{_CORE}/configmaps",
        "application/vnd.kubernetes.protobuf",
        raw,
    )


def _patches() -> Iterator[_Ask]:
    strategic = "application/strategic-merge-patch+json"
    environment = [{"name": f"E{number}"} for number in range(20_000)]
    yield _json(
        "a Pod",
        "POST",
        "/pods",
        _pod("p", containers=[{"name": "c", "image": "i", "env": environment}]),
    )
    again = [{"name": "c", "env": [{"name": f"F{number}"}]} for number in range(50_000)]
    yield _json(
        "50,000 merges into one element",
        "PATCH",
        "/pods/p",
        {"spec": {"containers": again}},
        strategic,
    )
    arguments = [{"name": "x", "args": ["a"] * 500_000}]
    yield _json(
        "a Pod with many arguments", "POST", "/pods", _pod("q", ephemeralContainers=arguments)
    )
    insert = {"op": "add", "path": "/spec/ephemeralContainers/0/args/0", "value": "b"}
    yield _json(
        "10,000 inserts before them",
        "PATCH",
        "/pods/q",
        [insert] * 10_000,
        "application/json-patch+json",
    )
    wide = {"name": "x" * 1_000_000, "env": [{"name": f"E{number}"} for number in range(80_000)]}
    config = {"apiVersion": "v1", "kind": "Pod", **_pod("r", containers=[wide])}
    path = "/pods/r?fieldManager=attacker"
    yield _json(
        "a long key over 80,000 elements", "PATCH", path, config, "application/apply-patch+yaml"
    )
    yield _json("a ConfigMap", "POST", "/configmaps", {"metadata": {"name": "managed"}})
    entries = [
        {
            "manager": f"m{n}",
            "operation": "Update",
            "apiVersion": "v1",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {f"f:k{n}": {}}},
        }
        for n in range(20_000)
    ]
    managed = {"metadata": {"name": "managed", "managedFields": entries}, "data": {"a": "b"}}
    yield _json("20,000 managers", "PUT", "/configmaps/managed", managed)


async def _send_all(folder: Path, asks: Callable[[], Iterator[_Ask]]) -> Sequence[Figure]:
    figures: list[Figure] = []
    largest = 0
    with PlaneProcess(folder) as plane:
        connector = aiohttp.TCPConnector(ssl=admin_context(plane))
        async with (
            bystander(plane) as seen,
            aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT) as session,
        ):
            for ask in asks():
                before = plane.cpu_s()
                headers = {"Content-Type": ask.media}
                async with session.request(
                    ask.method, plane.url + ask.path, data=ask.body, headers=headers
                ) as answer:
                    largest = max(largest, len(await answer.read()))
                figures.append(
                    Figure(
                        f"CPU for {ask.what}",
                        round(plane.cpu_s() - before, 2),
                        "s",
                        _CPU_SECONDS_MAX,
                    )
                )
        figures += seen.figures()
        figures.append(Figure("largest answer", round(largest / 1e6, 2), "MB", _ANSWER_MB_MAX))
        figures.append(
            Figure("memory at its peak", round(plane.rss_mib(peak=True), 0), "MiB", _MEMORY_MB_MAX)
        )
        figures.append(alive(plane))
    return figures


async def _long_lists(folder: Path) -> Sequence[Figure]:
    return await _send_all(folder, _lists)


async def _long_reading(folder: Path) -> Sequence[Figure]:
    return await _send_all(folder, _readers)


async def _multiplying_patches(folder: Path) -> Sequence[Figure]:
    return await _send_all(folder, _patches)


ATTACKS: Final = (
    Attack("long-lists", "objects whose lists are as long as a body allows", _long_lists),
    Attack(
        "multiplying-bodies", "JSON, YAML and protobuf that say one thing very often", _long_reading
    ),
    Attack(
        "multiplying-patches",
        "patches that look at the same elements again and again",
        _multiplying_patches,
    ),
)
