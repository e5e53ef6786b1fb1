"""Readers with few rights: ``sliceplane-reader`` of the chart is what the reading commands request.
A command that lacks one of its rights names it, answers the rest, and finds nothing new. So does
one whose user may ``view`` one namespace.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml
from click.testing import CliRunner
from tests.e2e.running import ROOT, Plane, ask, kubectl, running_plane
from tests.waiting import until

from sliceplane.cli import cluster
from sliceplane.cli.main import main

SERVICE: Final = """
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {trafficDistribution: PreferSameZone, selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: example.org/web:1}]}
"""
COMMANDS: Final = {
    "check": ("check",),
    "status": ("status",),
    "lint": ("lint",),
    "explain service": ("explain", "service", "web"),
    "explain pod": ("explain", "pod", "POD"),
    "explain node": ("explain", "node", "node-1"),
    "explain zone": ("explain", "zone", "zone-a"),
    "drift": ("drift",),
    "guard status": ("guard", "status"),
    "trace": ("trace", "--from", "node/node-1", "--to", "web"),
    "trace xds": ("trace", "--via", "xds", "--client", "node-1", "--to", "web"),
    "timeline": ("timeline", "service", "web"),
    "recorder save": ("recorder", "save", "FILE"),
    "endpoints audit": ("endpoints", "audit", "--second-look", "0s"),
    "what-if": ("what-if", "web", "--set", "replicas=7"),
    "dns query": ("dns", "query", "web", "--why"),
}
#: the commands of whom may view one namespace, and what each answers there; "": nothing, since it is
#: about objects of the cluster
OF_VIEWERS: Final = {
    "check": "checked  no Service",
    "check -n": "checked  2 Services",
    "status": "Services not looked at",
    "status -n": "nothing wrong in 2 Services in what was looked at",
    "lint": "of what was looked at",
    "lint -n": "in 2 Services, of what was looked at",
    "explain service": "2 of 2 endpoints ready in 1 slice",
    "explain pod": "selected by web (ready)",
    "explain node": "unknown node node-1",
    "explain zone": "unknown zone zone-a",
    "drift": "",
    "guard status": "",
    "guard status -n": "no removal is suspended",
    "trace": "",
    "trace xds": "leads to one of 2 endpoints",
    "timeline": "Pod POD: Started",
    "recorder save": "",
    "endpoints audit": "",
    "endpoints audit -n": "controller off for namespace default: yes",
    "what-if": "",
    "dns query": "NOERROR: the Service default/web",
    "agent list": "",
    "drain --dry-run": "default/web 80/TCP IPv4 2 1",
    "adopt --dry-run": "default/web would be adopted",
}
#: ... which need no right beyond those of view
WITHOUT_MORE: Final = {"guard status -n", "timeline", "endpoints audit -n", "adopt --dry-run"}
#: ... that say what they lack in a note
UNNAMED: Final = {"trace xds"}
MORE_COMMANDS: Final = {
    "agent list": ("agent", "list"),
    "drain --dry-run": ("drain", "pod", "POD", "--dry-run"),
    "adopt --dry-run": ("adopt", "service", "web", "--dry-run"),
}
ROLE: Final = yaml.safe_load((ROOT / "deploy" / "manifests" / "reader.yaml").read_text())
#: a command that lacks these answers from other objects, as completely: managedFields name writers,
#: and every account may get the last two (system:public-info-viewer)
SPARE: Final = {"/sliceplane/recording", "/sliceplane/writes/*", "/readyz", "/version"}
#: pairs of a right and a command whose answer does not depend on it: the client names its zone, the
#: target needs no Pod and no range
UNUSED: Final = {
    ("nodes", "trace xds"),
    ("pods", "trace"),
    ("servicecidrs.networking.k8s.io", "trace"),
}
_FOUND = re.compile(r"\b([SBRTEZNXDCL]\d+) (?:certain|likely|possible|error|warning|note)")


class Right(NamedTuple):
    """``resource``: ``plural.group``, or a path of the server."""

    verb: str
    resource: str


class Answer(NamedTuple):
    exit_code: int
    text: str

    @property
    def codes(self) -> set[str]:
        return set(_FOUND.findall(self.text))


class Reader:
    """An account of a plane; its ClusterRole changes with ``grant``."""

    def __init__(self, plane: Plane, folder: Path, audit_log: Path) -> None:
        self._plane = plane
        self._folder = folder
        self._audit_log = audit_log
        self._markers = 0
        self._pod = ""
        self._kubeconfig = folder / "reader.kubeconfig"

    @property
    def pod(self) -> str:
        """The name of a Pod of the Service."""
        return self._pod

    def start(self) -> None:
        plane = self._plane
        kubectl(plane, "apply", "-f", "-", document=SERVICE)
        kubectl(plane, "wait", "--for=condition=Available", "deployment/web", "--timeout=60s")
        self._pod = kubectl(plane, "get", "pods", "-o", "name").split()[0].partition("/")[2]
        kubectl(plane, "create", "serviceaccount", "reader")
        kubectl(
            plane,
            *("create", "clusterrolebinding", "reader", "--clusterrole=reader"),
            "--serviceaccount=default:reader",
        )
        config = yaml.safe_load(Path(plane.kubeconfig).read_text())
        token = kubectl(plane, "create", "token", "reader").strip()
        config["users"] = [
            {"name": user["name"], "user": {"token": token}} for user in config["users"]
        ]
        self._kubeconfig.write_text(yaml.safe_dump(config))

    def grant(self, rules: list[dict[str, Any]]) -> None:
        role = {**ROLE, "metadata": {"name": "reader"}, "rules": rules}
        kubectl(self._plane, "apply", "-f", "-", document=role)

    def view_namespace(self) -> None:
        """Takes all rights but those of ClusterRole ``view`` in the namespace."""
        self.grant([])
        kubectl(
            self._plane,
            *("create", "rolebinding", "viewer", "--clusterrole=view"),
            "--serviceaccount=default:reader",
        )

    def leave_namespace(self) -> None:
        kubectl(self._plane, "delete", "rolebinding", "viewer")

    def run(self, name: str, *flags: str) -> Answer:
        file = self._folder / "saved.recording"
        file.unlink(missing_ok=True)
        words = {"POD": self._pod, "FILE": str(file)}
        arguments = [words.get(word, word) for word in (COMMANDS | MORE_COMMANDS)[name]]
        done = CliRunner().invoke(main, [*arguments, *flags, "--kubeconfig", str(self._kubeconfig)])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return Answer(done.exit_code, done.output)

    def requested(self, name: str) -> tuple[set[Right], Answer]:
        """Runs the command, and returns the rights that the server's audit log says it used."""
        self._wait_for_log()
        offset = self._audit_log.stat().st_size
        answer = self.run(name)
        self._wait_for_log()
        with self._audit_log.open() as log:
            log.seek(offset)
            events = [json.loads(line) for line in log]
        own = [event for event in events if event["user"]["username"].endswith(":reader")]
        return {_right(event) for event in own}, answer

    def _wait_for_log(self) -> None:
        """Waits until the log has all requests so far: a request of its own comes last."""
        self._markers += 1
        path = f"/marker-{self._markers}"
        ask(self._plane, path)
        until(lambda: path in self._audit_log.read_text())


def _right(event: dict[str, Any]) -> Right:
    ref = event.get("objectRef")
    if ref is None:
        path = event["requestURI"].partition("?")[0]
        is_writes = path.startswith("/sliceplane/writes/")
        return Right(event["verb"], "/sliceplane/writes/*" if is_writes else path)
    group = f".{ref['apiGroup']}" if ref.get("apiGroup") else ""
    return Right(event["verb"], f"{ref['resource']}{group}")


def _resources(rule: dict[str, Any]) -> list[str]:
    groups = rule.get("apiGroups", [""])
    names = [
        f"{resource}.{group}".rstrip(".")
        for group in groups
        for resource in rule.get("resources", ())
    ]
    return names + rule.get("nonResourceURLs", [])


def _without(resource: str) -> list[dict[str, Any]]:
    rules = []
    for rule in ROLE["rules"]:
        kind = "nonResourceURLs" if "nonResourceURLs" in rule else "resources"
        kept = [
            name
            for name, full in zip(rule[kind], _resources(rule), strict=True)
            if full != resource
        ]
        if kept:
            rules.append({**rule, kind: kept})
    return rules


RESOURCES: Final = [name for rule in ROLE["rules"] for name in _resources(rule)]


@pytest.fixture(scope="module", autouse=True)
def _haste() -> Iterator[None]:
    """Commands as fast as they can: their rate is another test's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "READING_QPS", 1e6)
        yield


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    folder = tmp_path_factory.mktemp("reader")
    log = folder / "audit.log"
    flags = ("--emulate", "--emulate-nodes", "2", "--zones", "zone-a,zone-b")
    with running_plane(folder, *flags, "--audit-log-path", str(log)) as plane:
        made = Reader(plane, folder, log)
        made.start()
        yield made


@pytest.fixture(scope="module")
def with_the_role(reader: Reader) -> dict[str, tuple[set[Right], Answer]]:
    reader.grant(ROLE["rules"])
    return {name: reader.requested(name) for name in COMMANDS}


@pytest.fixture(scope="module")
def requests(with_the_role: dict[str, tuple[set[Right], Answer]]) -> dict[str, set[Right]]:
    return {name: rights for name, (rights, _) in with_the_role.items()}


@pytest.fixture(scope="module")
def whole(with_the_role: dict[str, tuple[set[Right], Answer]]) -> dict[str, Answer]:
    """The answers with all rights of the role."""
    return {name: answer for name, (_, answer) in with_the_role.items()}


def test_the_role_is_what_commands_request(requests: dict[str, set[Right]]) -> None:
    used = {right for rights in requests.values() for right in rights}
    assert {right.resource for right in used} == set(RESOURCES)
    allowed = {
        Right(verb, resource)
        for rule in ROLE["rules"]
        for verb in rule["verbs"]
        for resource in _resources(rule)
    }
    assert used <= allowed


def test_with_the_role_no_right_is_missing(whole: dict[str, Answer]) -> None:
    for name, answer in whole.items():
        for sign in ("you need", "may not", "refuses"):
            assert sign not in answer.text, (name, answer.text)


@pytest.mark.parametrize("resource", RESOURCES)
def test_a_right_that_is_missing_is_named_and_makes_no_finding(
    reader: Reader, requests: dict[str, set[Right]], whole: dict[str, Answer], resource: str
) -> None:
    reader.grant(_without(resource))
    for name, rights in requests.items():
        verbs = {right.verb for right in rights if right.resource == resource}
        if not verbs:
            continue
        answer = reader.run(name)
        assert answer.exit_code in (0, 1, 2), (name, answer.text)
        assert answer.codes <= whole[name].codes, (name, answer.text)
        if answer.exit_code == 1:
            assert whole[name].exit_code == 1 or "refuses" in answer.text, (name, answer.text)
        if resource in SPARE or (resource, name) in UNUSED:
            continue
        is_named = "to grant it: kubectl" in answer.text or _is_named(answer.text, resource)
        assert is_named, (name, answer.text)


def _is_named(text: str, resource: str) -> bool:
    """Text for people breaks lines, and names resources by their plural."""
    return resource.partition(".")[0] in " ".join(text.split())


@pytest.fixture(scope="module")
def with_view(reader: Reader, whole: dict[str, Answer]) -> Reader:
    """A reader with the rights of ClusterRole ``view`` in all namespaces."""
    view = [
        {"apiGroups": ["", "apps", "batch", "discovery.k8s.io", "networking.k8s.io"]}
        | {"resources": [r.partition(".")[0] for r in RESOURCES if not r.startswith("/")]}
        | {"verbs": ["get", "list", "watch"]}
    ]
    cluster_scoped = {"nodes", "servicecidrs"}
    view[0]["resources"] = [r for r in view[0]["resources"] if r not in cluster_scoped]
    reader.grant(view)
    return reader


@pytest.mark.parametrize("name", COMMANDS)
def test_with_view_alone_nothing_is_forbidden_without_a_remedy(
    with_view: Reader, whole: dict[str, Answer], name: str
) -> None:
    answer = with_view.run(name)
    assert answer.exit_code in (0, 1, 2), answer.text
    assert "forbidden" not in answer.text or "to grant it: kubectl" in answer.text, answer.text
    assert answer.codes <= whole[name].codes, answer.text


@pytest.fixture(scope="module")
def viewer(reader: Reader) -> Iterator[Reader]:
    """A reader with ClusterRole ``view`` in the namespace of the Service, and no other right."""
    reader.view_namespace()
    yield reader
    reader.leave_namespace()


@pytest.mark.parametrize("name", OF_VIEWERS)
def test_with_view_of_one_namespace_the_rest_is_named_with_its_remedy(
    viewer: Reader, name: str
) -> None:
    command = name.removesuffix(" -n")
    flags = ("-n", "default") if name.endswith(" -n") else ()
    answer = viewer.run(command, *flags)
    assert answer.exit_code in (0, 1, 2), answer.text
    text = " ".join(answer.text.split())
    expected = OF_VIEWERS[name].replace("POD", viewer.pod)
    assert " ".join(expected.split()) in text, answer.text
    if name in WITHOUT_MORE:
        assert not re.search(r"forbidden|no right|you need|may not", text), answer.text
    elif name in UNNAMED:
        assert "Nodes may not be listed" in text, answer.text
    else:
        assert re.search(r"kubectl create clusterrole sliceplane-reader-\S+ --verb=", text), text
    if "cannot list" in text or "cannot get" in text:
        assert not expected, "a refusal alone answers nothing"
    if not expected:
        assert answer.exit_code != 0, answer.text


def test_a_command_of_all_namespaces_names_the_option_for_one(viewer: Reader) -> None:
    for name in ("check", "status", "lint", "guard status", "endpoints audit"):
        assert f"'sliceplane {name} -n NAMESPACE'" in viewer.run(name).text


def test_what_a_viewer_may_not_read_is_not_well(viewer: Reader) -> None:
    for name in ("check", "status"):
        answer = viewer.run(name, "-n", "default", "-o", "json")
        assert (answer.exit_code, json.loads(answer.text)["state"]) == (2, "unknown")
