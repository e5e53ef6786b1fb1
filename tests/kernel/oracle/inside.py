"""A program that runs inside the network namespace of a node, and does line by line what the test
asks of it: requests to the API server, commands of ``sliceplane``, listings of the kernel.

Commands run in this process: a world has dozens of them, and to start one takes longer than its
work. ``python inside.py KUBECONFIG``.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import json
import os
import ssl
import subprocess
import sys
import tempfile
import urllib.parse
from typing import Any, Final

import yaml

PATHS: Final = {
    "Namespace": ("/api/v1", "namespaces"),
    "Node": ("/api/v1", "nodes"),
    "Pod": ("/api/v1", "pods"),
    "Service": ("/api/v1", "services"),
    "EndpointSlice": ("/apis/discovery.k8s.io/v1", "endpointslices"),
}


class Server:
    """One connection to the API server."""

    def __init__(self, kubeconfig: str) -> None:
        with open(kubeconfig) as text:
            config = yaml.safe_load(text)
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        url = urllib.parse.urlsplit(cluster["server"])
        context = ssl.create_default_context(cafile=_file(cluster, "certificate-authority"))
        context.load_cert_chain(_file(user, "client-certificate"), _file(user, "client-key"))
        self._connection = http.client.HTTPSConnection(
            str(url.hostname), url.port, context=context, timeout=60
        )

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        try:
            status, said = self._exchange(method, path, body, kind)
        except (OSError, http.client.HTTPException):  # the server closes idle connections
            self._connection.close()
            status, said = self._exchange(method, path, body, kind)
        if status >= 400 and status != 404:
            raise RuntimeError(f"{method} {path}: {status} {said.decode()}")
        return json.loads(said)

    def _exchange(self, method: str, path: str, body: Any, kind: str) -> tuple[int, bytes]:
        text = None if body is None else json.dumps(body)
        self._connection.request(method, path, text, {"Content-Type": kind})
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def create(self, document: Any) -> Any:
        return self.ask("POST", path_of(document["kind"], document["metadata"]), document)

    def replace_status(self, document: Any) -> Any:
        metadata = document["metadata"]
        path = f"{path_of(document['kind'], metadata)}/{metadata['name']}/status"
        return self.ask("PUT", path, document)


def path_of(kind: str, metadata: Any) -> str:
    """The collection of *kind* in the namespace of *metadata*."""
    group, plural = PATHS[kind]
    namespace = metadata.get("namespace", "")
    return f"{group}/namespaces/{namespace}/{plural}" if namespace else f"{group}/{plural}"


def _file(member: Any, name: str) -> str:
    if name in member:
        return str(member[name])
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(base64.b64decode(member[f"{name}-data"]))
    return file.name


def command(arguments: list[str]) -> dict[str, Any]:
    """What ``sliceplane`` prints, and its exit code."""
    from sliceplane.cli.main import main

    said, errors = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
        try:
            main(arguments)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return {"code": code, "out": said.getvalue(), "err": errors.getvalue()}


def listed(*program: str) -> str:
    return subprocess.run(program, capture_output=True, text=True, check=False).stdout


def main_loop(kubeconfig: str) -> None:
    from sliceplane.diagnose.io import kernel

    os.environ["KUBECONFIG"] = kubeconfig
    kernel.RECHECK_DELAY_S = 0.0  # type: ignore[misc]  # nothing changes between two looks
    server = Server(kubeconfig)
    print("ready", flush=True)
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        try:
            answer: Any = {
                "create": server.create,
                "status": server.replace_status,
                "ask": server.ask,
                "command": lambda *texts: command(list(texts)),
                "listed": listed,
            }[verb](*arguments)
        except Exception as error:  # the test says which question it was
            answer = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main_loop(sys.argv[1])
