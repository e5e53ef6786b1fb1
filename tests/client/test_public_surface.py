"""What a programmer meets before reading a document: names, their docstrings, and errors for
slips.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.running import ROOT, running_plane
from tests.server.serving import Server

import sliceplane
import sliceplane.client
import sliceplane.testing
from sliceplane.client import HttpClient, Informer, Resource, Services, SyncEndpointView
from sliceplane.lab.testing.thread import PlaneThread
from sliceplane.testing import Plane

PACKAGES = (sliceplane.client, sliceplane.testing)


def public() -> list[tuple[str, Any]]:
    return [
        (f"{package.__name__}.{name}", getattr(package, name))
        for package in PACKAGES
        for name in package.__all__
    ]


@pytest.mark.parametrize(("name", "value"), public(), ids=[name for name, _ in public()])
def test_every_public_name_and_its_members_have_a_docstring(name: str, value: Any) -> None:
    if isinstance(value, Resource):
        return
    assert vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__, name
    members = vars(value).items() if inspect.isclass(value) else ()
    for member, found in members:
        function = found.fget if isinstance(found, property) else found
        if not member.startswith("_") and inspect.isfunction(function):
            assert inspect.getdoc(function), f"{name}.{member}"


def test_dir_shows_the_public_names() -> None:
    assert dir(sliceplane) == ["__version__", "client", "testing"]
    for package in PACKAGES:
        assert dir(package) == sorted(package.__all__)
    program = (
        "import sliceplane; print(sliceplane.client.connect.__name__, "
        "sliceplane.testing.Plane.__name__)"
    )
    done = subprocess.run(
        (sys.executable, "-c", program), capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "connect Plane\n"
    with pytest.raises(
        AttributeError,
        match="no attribute 'clients': its public names are __version__, client, testi",
    ):
        _ = sliceplane.clients  # type: ignore[attr-defined]


def test_connect_finds_the_plane_that_the_command_finds(tmp_path: Path) -> None:
    program = """
import asyncio, sliceplane.client as c
async def main():
    async with c.connect() as client:
        print((await client.list(c.Namespaces)).items != ())
asyncio.run(main())
"""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT / "src"),
        "HOME": str(tmp_path),
    }

    def run() -> subprocess.CompletedProcess[str]:
        command = (sys.executable, "-c", program)
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=60, env=environment
        )

    with running_plane(tmp_path, data_dir=str(tmp_path / ".local/share/sliceplane")):
        done = run()
        assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert "nor does 'sliceplane up' run from this user's data folder" in run().stderr


async def test_slips_are_told_in_a_sentence(client: HttpClient) -> None:
    async with Informer(
        client, Services, indexes={"by-ip": lambda service: (service.spec.cluster_ip,)}
    ) as services:
        with pytest.raises(
            ValueError, match=r"^no index is called 'ip': Informer\(indexes=...\) declared by-ip$"
        ):
            services.by_index("ip", "10.0.0.1")
    with pytest.raises(ValueError, match="an informer is started once, and not after its end"):
        services.start()
    with pytest.raises(ValueError, match="get of services needs a name"):
        await client.get(Services, "default", "")
    with pytest.raises(
        ValueError,
        match=r"^patch_type is 'jsonpatch', it must be one of json, merge, strategic, apply$",
    ):
        await client.patch(Services, "default", "web", b"{}", patch_type="jsonpatch")  # type: ignore[arg-type]


def test_a_synchronous_view_is_started_once(live: Server) -> None:
    with (
        SyncEndpointView("web", path=live.plane.kubeconfig) as view,
        pytest.raises(ValueError, match="a view is started once"),
    ):
        view.start()


def test_a_plane_is_started_once_and_not_used_from_its_own_thread() -> None:
    with Plane(controllers=False) as plane:
        with pytest.raises(ValueError, match="this plane runs already"):
            plane.start()
        thread = plane._thread
        assert isinstance(thread, PlaneThread)

        async def question() -> None:
            plane.list("services")

        with pytest.raises(ValueError, match="a Plane is not used from its own thread"):
            thread.call(question())
    assert asyncio.iscoroutinefunction(question)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"nodes": -1}, "nodes is -1, it must be 0 or more"),
        ({"nodes": 1, "ready_delay": -0.5}, "ready_delay is -0.5, it must be 0 or more"),
        ({"port": 70_000}, "port is 70000, it must be 0 .a free one. to 65535"),
    ],
)
def test_a_plane_that_cannot_be_is_refused_before_it_starts(
    options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        Plane(**options)


def test_a_plane_that_was_not_started_says_so() -> None:
    plane = Plane()
    for use in (
        lambda: plane.url,
        lambda: plane.kubeconfig,
        lambda: plane.list("pods"),
        plane.client,
    ):
        with pytest.raises(
            ValueError, match="this plane is not running: use it inside its with block"
        ):
            use()
