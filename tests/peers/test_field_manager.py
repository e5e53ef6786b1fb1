"""Histories of writes, owned by Kubernetes' own field manager and by ours: the same objects,
managers and refusals.

The peer holds typed Go objects and we hold documents, so empty parts are left out of objects before
they are compared. Sets of fields are compared as they are.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest
from tests.peers.programs import build

from sliceplane.api import scheme
from sliceplane.api.users import User
from sliceplane.server.documents import fields
from sliceplane.server.documents.schema import lookup
from sliceplane.server.registry.core import Core, WriteCall
from sliceplane.server.registry.documents import canonical, normalised
from sliceplane.server.registry.types import Context, Target, WriteOptions
from sliceplane.server.registry.verbs import managed_fields
from sliceplane.server.registry.verbs.apply import check_configuration, conflict_error

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]

SOURCE = Path(__file__).with_name("fieldmanager")
HISTORIES = 600
CTX = Context(now=1_800_000_000.0, user=User(name="t"))


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build(SOURCE, tmp_path_factory.mktemp("peer"))


class Make:
    """Random configurations; small alphabets, so that histories meet."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def some(self, **makers: Any) -> Any:
        """A dictionary of some of the members."""
        return {name: make() for name, make in makers.items() if self.rng.random() < 0.6}

    def text(self) -> str:
        return self.rng.choice("abc")

    def texts(self) -> list[str]:
        return self.rng.sample(["a.io/a", "b.io/b", "c.io/c", "d.io/d"], self.rng.randint(1, 3))

    def strings(self) -> dict[str, str]:
        return {
            name: self.text()
            for name in self.rng.sample(["x", "y/z", "w.w"], self.rng.randint(1, 2))
        }

    def head(self) -> Any:
        made = self.some(labels=self.strings, annotations=self.strings, finalizers=self.texts)
        return {"name": "o", "namespace": "default", **made}

    def several(self, keys: list[Any], make: Any) -> list[Any]:
        chosen = self.rng.sample(keys, self.rng.randint(1, len(keys)))
        return [{**key, **make()} for key in chosen]

    def service(self) -> Any:
        keys = [
            {"port": 80},
            {"port": 80, "protocol": "UDP"},
            {"port": 443, "protocol": "TCP"},
            {"port": 1},
        ]
        port = lambda: {"targetPort": self.rng.choice([1, "web"]), **self.some(name=self.text)}  # noqa: E731
        spec = self.some(
            ports=lambda: self.several(keys, port),
            selector=self.strings,
            type=self.text,
            externalIPs=self.texts,
            publishNotReadyAddresses=lambda: True,
            sessionAffinityConfig=lambda: {
                "clientIP": self.some(timeoutSeconds=lambda: self.rng.choice([5, 6]))
            },
        )
        return {"apiVersion": "v1", "kind": "Service", "metadata": self.head(), "spec": spec}

    def container(self) -> Any:
        ports = [
            {"containerPort": 80},
            {"containerPort": 80, "protocol": "UDP"},
            {"containerPort": 81},
        ]
        return self.some(
            image=self.text,
            args=self.texts,
            env=lambda: self.several(
                [{"name": "A"}, {"name": "B"}], lambda: self.some(value=self.text)
            ),
            ports=lambda: self.several(ports, lambda: self.some(name=self.text)),
            resources=lambda: self.some(limits=lambda: {"cpu": "1"}),
            securityContext=lambda: self.some(runAsUser=lambda: 5),
        )

    def deployment(self) -> Any:
        names = [{"name": "c"}, {"name": "d"}, {"name": "e"}]
        pod = self.some(
            containers=lambda: self.several(names, self.container),
            nodeSelector=self.strings,
            serviceAccountName=self.text,
            tolerations=lambda: [{"key": self.text()}],
            imagePullSecrets=lambda: self.several([{"name": "a"}, {"name": "b"}], dict),
        )
        template = self.some(metadata=lambda: self.some(labels=self.strings), spec=lambda: pod)
        spec = self.some(
            replicas=lambda: self.rng.choice([1, 2]),
            strategy=lambda: self.some(
                type=self.text, rollingUpdate=lambda: self.some(maxSurge=lambda: 1)
            ),
            template=lambda: template,
            paused=lambda: True,
        )
        spec["selector"] = {"matchLabels": self.strings()}
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": self.head(),
            "spec": spec,
        }

    def slice(self) -> Any:
        endpoint = lambda: {"addresses": [self.text()], "conditions": self.some(ready=lambda: True)}  # noqa: E731
        # What Go prints even when it is nothing, and a server never stores without.
        made = {
            "addressType": self.text(),
            "ports": [self.some(name=self.text, port=lambda: 80)],
            "endpoints": [endpoint() for _ in range(self.rng.randint(1, 2))],
        }
        return {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": self.head(),
            **made,
        }

    def history(self) -> Any:
        make = self.rng.choice([self.service, self.deployment, self.slice])
        steps = []
        for _ in range(self.rng.randint(2, 6)):
            applies = self.rng.random() < 0.7
            force = applies and self.rng.random() < 0.6
            steps.append(
                {
                    "apply": applies,
                    "force": force,
                    "manager": self.rng.choice(["m", "n"]),
                    "object": make(),
                }
            )
        first = steps[0]["object"]
        return {"apiVersion": first["apiVersion"], "kind": first["kind"], "steps": steps}


def ours(history: Any) -> list[Any]:
    resource = scheme.by_kind(history["apiVersion"], history["kind"])
    assert resource is not None
    target = Target(resource=resource, namespace="default", name="o")
    live: Any = {}
    results = []
    for step in history["steps"]:
        # Managers of fields read nothing of the state.
        call = WriteCall(cast(Core, None), CTX, target, WriteOptions(field_manager=step["manager"]))
        document = json.loads(json.dumps(step["object"]))
        try:
            if step["apply"]:
                check_configuration(lookup(resource.schema_key), document)
                made = managed_fields.on_apply(call, live, document, force=step["force"])
            else:
                made = document
                if live:
                    managed_fields.on_update(call, made, live)
                else:
                    managed_fields.on_create(call, made)
        except fields.Conflicts as refused:
            results.append({"error": conflict_error(refused.conflicts).message})
            continue
        live = canonical(resource, normalised(json.loads(json.dumps(made))))
        entries = live["metadata"].get("managedFields", [])
        managers = {
            f"{entry['manager']} {entry['operation']}": entry["fieldsV1"] for entry in entries
        }
        head = {name: value for name, value in live["metadata"].items() if name != "managedFields"}
        results.append(
            {"object": {**live, "metadata": head}, **({"managers": managers} if managers else {})}
        )
    return results


def bare(value: Any) -> Any:
    """Without parts that are empty, at every depth."""
    if isinstance(value, dict):
        made = {name: bare(member) for name, member in value.items()}
        return {
            name: member
            for name, member in made.items()
            if member not in (None, {}, [], "", 0, False)
        }
    return [bare(item) for item in value] if isinstance(value, list) else value


def comparable(result: Any) -> Any:
    if "error" in result:
        # The peer finds conflicts in the order of a hash map.
        return sorted(re.split(r"\n| conflicts?: ", result["error"]))
    return bare(result["object"]), result.get("managers", {})


def test_histories_end_alike(peer: str) -> None:
    histories = [Make(seed).history() for seed in range(HISTORIES)]
    text = "".join(json.dumps(history) + "\n" for history in histories)
    done = subprocess.run(
        [peer], input=text, capture_output=True, text=True, check=True, timeout=200
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == HISTORIES
    refused = 0
    for seed, (history, theirs) in enumerate(zip(histories, answers, strict=True)):
        for number, (mine, other) in enumerate(zip(ours(history), theirs, strict=True)):
            refused += "error" in other
            said = (
                f"seed {seed} step {number}\n{json.dumps(history['steps'][: number + 1], indent=1)}"
            )
            assert comparable(mine) == comparable(other), f"{said}\nours   {mine}\ntheirs {other}"
    assert refused > HISTORIES / 10, "too few conflicts to prove anything"


def test_older_updaters_become_one_alike(peer: str) -> None:
    labels: dict[str, str] = {}
    steps = []
    for number in range(15):
        labels[f"l{number:02d}"] = "x"
        document = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "o", "labels": dict(labels)},
            "spec": {},
        }
        steps.append({"apply": False, "manager": f"u{number:02d}", "object": document})
    history = {"apiVersion": "v1", "kind": "Service", "steps": steps}
    done = subprocess.run(
        [peer], input=json.dumps(history), capture_output=True, text=True, check=True, timeout=60
    )
    theirs = [result["managers"] for result in json.loads(done.stdout)]
    mine = [result["managers"] for result in ours(history)]
    assert mine[:11] == theirs[:11]
    assert "ancient-changes Update" in theirs[-1]
    assert mine == theirs
