"""A relay in front of kube-apiserver: the same bytes in every form, the same events, the same refusals."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.peers import kubernetes
from tests.peers.test_why_at_size import answers, running_etcd
from tests.ports import free_port
from tests.relay.relaying import IN_DEFAULT, SLICES, RelayServer, relaying
from tests.server.serving import CM, Reply, endpoint_slice
from tests.server.test_certificates_over_time import DAY
from tests.server.test_front_proxies import SPOOFED, Files, Party, name_of, party, who
from tests.waiting import until

from sliceplane.api.scheme import EndpointSlices, Nodes, Pods, Services
from sliceplane.server.io.keys import pki
from sliceplane.watch.io.kubeconfig import from_file

__all__ = ["party"]
pytestmark = [pytest.mark.peer, pytest.mark.timeout(1200)]

SECRET = {"authorization": "Bearer secret"}
PATHS = {
    Services: "/api/v1/services",
    Nodes: "/api/v1/nodes",
    Pods: "/api/v1/pods",
    EndpointSlices: SLICES,
}
FORMS = (
    "application/json",
    "application/vnd.kubernetes.protobuf",
    "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
)


class Cluster:
    """A kube-apiserver."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._context = ssl.create_default_context()
        self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE

    def open(self, method: str, path: str, document: Any = None, **headers: str) -> Any:
        body = None if document is None else json.dumps(document).encode()
        sent = {"content-type": "application/json", **SECRET, **headers}
        request = urllib.request.Request(self.url + path, body, sent, method=method)
        return urllib.request.urlopen(request, timeout=60, context=self._context)

    def ask(self, method: str, path: str, document: Any = None, **headers: str) -> Reply:
        try:
            with self.open(method, path, document, **headers) as answer:
                return Reply(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            return Reply(error.code, error.headers, error.read())


@pytest.fixture(scope="module")
def cluster(
    kube_apiserver: str, party: Party, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    port = free_port()
    with running_etcd(folder) as etcd:
        flags = (
            *kubernetes.api_server_flags(folder, etcd.url, "127.0.0.1", port),
            f"--client-ca-file={party.users.file}",
            f"--requestheader-client-ca-file={party.proxies.file}",
            "--requestheader-allowed-names=relay",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        )
        with kubernetes.started(folder / "kube-apiserver.log", kube_apiserver, *flags):
            config = folder / "admin.kubeconfig"
            until(lambda: answers(config), within_s=300, ignoring=(Exception,))
            made = Cluster(f"https://127.0.0.1:{port}")
            made.config = config  # type: ignore[attr-defined]
            node = {"metadata": {"name": "one", "annotations": {"zone": "<a>"}}, "spec": {}}
            assert made.ask("POST", PATHS[Nodes], node).code == 201
            port_of = [{"name": "http", "port": 80}]
            service = {
                "metadata": {"name": "web"},
                "spec": {"ports": port_of, "selector": {"a": "b"}},
            }
            assert made.ask("POST", "/api/v1/namespaces/default/services", service).code == 201
            containers = [{"name": "a", "image": "a", "ports": [{"containerPort": 80}]}]
            pod = {"metadata": {"name": "web-0"}, "spec": {"containers": containers}}
            assert made.ask("POST", "/api/v1/namespaces/default/pods", pod).code == 201
            assert made.ask("POST", IN_DEFAULT, endpoint_slice("kept")).code == 201
            yield made


@contextmanager
def relay_before(cluster: Any, folder: Path, **config: Any) -> Iterator[RelayServer]:
    folder.mkdir(exist_ok=True)
    made, _ = pki.ensure(folder, pki.server_names(("127.0.0.1",)), time.time())
    parent: Any = SimpleNamespace(plane=SimpleNamespace(pki=made))
    way = from_file(Path(cluster.config))
    with relaying(parent, connection=way, resources=tuple(PATHS), **config) as it:
        until(lambda: it.relay.front.knows_protobuf)
        yield it


@pytest.fixture(scope="module")
def relay(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayServer]:
    with relay_before(cluster, tmp_path_factory.mktemp("pki")) as it:
        yield it


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("resource", PATHS)
def test_lists_are_the_same_bytes(
    cluster: Cluster, relay: RelayServer, resource: Any, form: str
) -> None:
    mirror = relay.mirror(resource)
    path = f"{PATHS[resource]}?resourceVersion={mirror.store.revision}&resourceVersionMatch=Exact"
    passed = relay.relay.front._passage.passed.value
    ours = relay.request("GET", path, certificate=False, accept=form, **SECRET)
    theirs = cluster.ask("GET", path, accept=form)
    assert (ours.code, theirs.code) == (200, 200)
    assert ours.body == theirs.body
    assert relay.relay.front._passage.passed.value == passed


@pytest.mark.parametrize("form", FORMS[:2])
def test_watches_are_the_same_bytes(cluster: Cluster, relay: RelayServer, form: str) -> None:
    version = cluster.ask("GET", SLICES).json["metadata"]["resourceVersion"]
    query = f"?watch=true&resourceVersion={version}&timeoutSeconds=5&labelSelector=kept=yes"
    opened = relay.connect(certificate=False)
    opened.request("GET", IN_DEFAULT + query, headers={"accept": form, **SECRET})
    theirs = cluster.open("GET", IN_DEFAULT + query, accept=form)
    ours = opened.getresponse()
    body = endpoint_slice("watched")
    body["metadata"]["labels"] = {"kept": "yes"}
    assert cluster.ask("POST", IN_DEFAULT, body).code == 201
    for labels in ({"a": "b"}, {"kept": "no"}, {"kept": "yes"}):
        media = {"content-type": "application/merge-patch+json"}
        change = {"metadata": {"labels": labels, "annotations": {"t": "\u2028<&>"}}}
        assert cluster.ask("PATCH", f"{IN_DEFAULT}/watched", change, **media).code == 200
    assert cluster.ask("DELETE", f"{IN_DEFAULT}/watched").code == 200
    assert ours.read() == theirs.read()
    opened.close()


@pytest.mark.parametrize("selector", ["", "&labelSelector=kept%3Dyes", "&labelSelector=!kept"])
def test_events_from_before_a_relay_are_the_same_bytes(
    cluster: Cluster, tmp_path: Path, selector: str
) -> None:
    version = cluster.ask("GET", SLICES).json["metadata"]["resourceVersion"]
    body = endpoint_slice("earlier")
    body["metadata"]["labels"] = {"kept": "yes"}
    assert cluster.ask("POST", IN_DEFAULT, body).code == 201
    for kept in (None, "yes"):
        media = {"content-type": "application/merge-patch+json"}
        change = {"metadata": {"labels": {"kept": kept}}}
        assert cluster.ask("PATCH", f"{IN_DEFAULT}/earlier", change, **media).code == 200
    assert cluster.ask("DELETE", f"{IN_DEFAULT}/earlier").code == 200
    query = f"?watch=true&resourceVersion={version}&timeoutSeconds=5{selector}"
    query += "&fieldSelector=metadata.name!%3Dkubernetes"  # the server's own, written meanwhile
    with relay_before(cluster, tmp_path) as relay:
        # Old releases of etcd say nothing of a quiet resource: the next event proves the rest.
        for labels in ({}, {"kept": "yes"}):
            later = endpoint_slice(f"later-{version}-{len(labels)}")
            later["metadata"]["labels"] = labels
            assert cluster.ask("POST", IN_DEFAULT, later).code == 201
        for form in FORMS[:2]:
            ours = relay.request(
                "GET", IN_DEFAULT + query, certificate=False, accept=form, **SECRET
            )
            assert ours.code == 200
            theirs = cluster.ask("GET", IN_DEFAULT + query, accept=form).body
            assert ours.body == theirs
            assert ours.body
        assert relay.mirror(EndpointSlices).earlier.fetched == 1


def test_a_consistent_list_is_current(cluster: Cluster, relay: RelayServer) -> None:
    for number in range(5):
        assert cluster.ask("POST", IN_DEFAULT, endpoint_slice(f"fresh-{number}")).code == 201
        listed = relay.request("GET", IN_DEFAULT, certificate=False, **SECRET).json
        assert f"fresh-{number}" in {item["metadata"]["name"] for item in listed["items"]}


def test_a_list_of_an_idle_resource_is_current(cluster: Cluster, relay: RelayServer) -> None:
    """From memory where etcd tells its progress (from 3.4.31 and 3.5.13 on), else passed on."""
    config_map = {"metadata": {"name": "elsewhere"}}
    made = cluster.ask("POST", "/api/v1/namespaces/default/configmaps", config_map)
    listed = relay.request("GET", "/api/v1/nodes", certificate=False, **SECRET).json["metadata"]
    assert int(listed["resourceVersion"]) >= int(made.json["metadata"]["resourceVersion"])


def test_who_may_not_is_told_so(cluster: Cluster, relay: RelayServer) -> None:
    for token in ("wrong", ""):
        headers = {"authorization": f"Bearer {token}"} if token else {}
        for path in (SLICES, f"{SLICES}?watch=true&resourceVersion=0"):
            reply = relay.request("GET", path, certificate=False, **headers)
            theirs = cluster.ask("GET", path, authorization=headers.get("authorization", ""))
            assert (reply.code, reply.json["message"]) == (theirs.code, theirs.json["message"])


def test_clients_with_certificates(cluster: Cluster, party: Party, tmp_path: Path) -> None:
    def direct(files: Files) -> http.client.HTTPSConnection:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(*files)
        address = cluster.url.removeprefix("https://")
        return http.client.HTTPSConnection(address, context=context, timeout=60)

    def ask(relay: RelayServer, files: Files, path: str, **headers: str) -> Reply:
        context = relay.context(certificate=False)
        context.load_cert_chain(*files)
        opened = http.client.HTTPSConnection(relay.host, relay.port, context=context, timeout=60)
        with contextlib.closing(opened):
            return relay.request("GET", path, connection=opened, **headers)

    settings = {"client_ca_file": party.users.file, "proxy_certificate": party.proxy}
    chief = party.users.client("chief", DAY)
    with relay_before(cluster, tmp_path / "one", **settings) as relay:
        for files in (party.ann, chief):
            with contextlib.closing(direct(files)) as theirs:
                found = who(relay, None, {}, theirs)
            expected = {name: found[name] for name in ("username", "groups")}
            for fields in ({}, *SPOOFED):
                assert who(relay, files, fields) == expected
        assert ask(relay, chief, CM).code == 200
        refused = ask(relay, party.ann, CM)
        with contextlib.closing(direct(party.ann)) as theirs:
            theirs.request("GET", CM)
            assert json.loads(theirs.getresponse().read())["message"] == refused.json["message"]
        assert (refused.code, 'User "ann"' in refused.json["message"]) == (403, True)
    for files, why in ((party.stranger, "answers 401"), (chief, "takes it for 'chief'")):
        settings["proxy_certificate"] = files
        with relay_before(cluster, tmp_path / files[0].stem, **settings) as relay:
            refused = ask(relay, party.ann, CM)
            assert (refused.code, why in refused.json["message"]) == (403, True)
            assert name_of(relay, None, {"Authorization": SECRET["authorization"]}) == "admin"
