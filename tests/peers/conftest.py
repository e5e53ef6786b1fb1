"""Programs that several modules of tests run."""

from __future__ import annotations

import pytest
from benchmarks.tools.peers import OPTIMISED
from tests.peers import kubernetes
from tests.peers.programs import build, dependency


@pytest.fixture(scope="session")
def manager(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of kube-controller-manager."""
    return build(
        kubernetes.MODULE,
        tmp_path_factory.mktemp("manager"),
        "./kube-controller-manager",
        OPTIMISED,
    )


@pytest.fixture(scope="session")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of kube-scheduler."""
    return build(
        kubernetes.MODULE, tmp_path_factory.mktemp("scheduler"), "./kube-scheduler", OPTIMISED
    )


@pytest.fixture(scope="session")
def kube_apiserver(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of kube-apiserver, which says its version as a release does: helm reads it."""
    version = dependency(kubernetes.MODULE, "k8s.io/kubernetes")
    major, minor, _ = version.removeprefix("v").split(".")
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    words = [f"-X k8s.io/component-base/version.{name}={value}" for name, value in values.items()]
    flags = (*OPTIMISED[:-1], " ".join([OPTIMISED[-1], *words]))
    folder = tmp_path_factory.mktemp("kube-apiserver")
    return build(kubernetes.MODULE, folder, "./kube-apiserver", flags)


@pytest.fixture(scope="session")
def kube_proxy(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build(
        kubernetes.MODULE, tmp_path_factory.mktemp("kube-proxy"), "./kube-proxy", OPTIMISED
    )
