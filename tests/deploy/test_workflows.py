"""The forge's workflows: two linters find nothing, and what they run and trust is what this
repository names.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from benchmarks.tools.peers import CACHE, wheel
from tests.peers.programs import QUICK, one_at_a_time, run, run_go

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = sorted(FOLDER.glob("*.yml"))
ZIZMOR = "zizmor==1.32.0"
ACTIONLINT = "v1.7.12"
#: rights that a job may have, by workflow and job; all others have none
RIGHTS = {
    ("ci", "test"): {"contents": "read"},
    ("release", "build"): {"contents": "read"},
    ("release", "attest"): {"id-token": "write", "attestations": "write"},
    ("release", "packages"): {"id-token": "write"},
    ("release", "images"): {"packages": "write", "id-token": "write", "attestations": "write"},
    ("release", "publish"): {"contents": "write"},
}


def workflow(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(path.read_text())
    return loaded


def steps() -> list[tuple[str, str, dict[str, Any]]]:
    """Workflow, job and step."""
    return [
        (path.stem, name, step)
        for path in WORKFLOWS
        for name, job in workflow(path)["jobs"].items()
        for step in job["steps"]
    ]


def test_zizmor_finds_nothing() -> None:
    program = wheel(ZIZMOR) / "bin" / "zizmor"
    done = subprocess.run(
        (program, "--offline", "--persona", "pedantic", "--no-progress", FOLDER),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_actionlint_finds_nothing() -> None:
    cache = CACHE / f"actionlint-{ACTIONLINT}"
    with one_at_a_time("actionlint"):
        if not (cache / "actionlint").exists():
            part = cache.with_name(f"{cache.name}.{os.getpid()}")
            run_go(
                "install",
                *QUICK,
                f"github.com/rhysd/actionlint/cmd/actionlint@{ACTIONLINT}",
                GOBIN=str(part),
            )
            part.rename(cache)
    run(str(cache / "actionlint"), "-shellcheck=", "-pyflakes=", *map(str, WORKFLOWS))


def test_every_job_has_the_rights_that_it_needs_and_no_other() -> None:
    assert {path.stem: workflow(path)["permissions"] for path in WORKFLOWS} == {
        "ci": {},
        "release": {},
    }
    found = {
        (path.stem, name): job["permissions"]
        for path in WORKFLOWS
        for name, job in workflow(path)["jobs"].items()
    }
    assert found == RIGHTS


def test_actions_are_pinned_by_commit_with_the_version_beside() -> None:
    lines = [
        line for path in WORKFLOWS for line in path.read_text().splitlines() if "uses:" in line
    ]
    assert len(lines) >= 8
    for line in lines:
        assert re.fullmatch(r"\s+- uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


def test_no_secret_is_stored_for_a_workflow() -> None:
    for path in WORKFLOWS:
        assert "secrets." not in path.read_text()


def test_jobs_run_in_the_base_of_the_image() -> None:
    base = re.search(r"^ARG BASE=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert base is not None
    images = {
        job["container"]["image"]
        for path in WORKFLOWS
        for job in workflow(path)["jobs"].values()
        if "container" in job
    }
    assert images == {base[1]}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_git_reads_the_sources_in_a_container_whose_user_is_not_their_owner(
    path: Path, tmp_path: Path
) -> None:
    """actions/checkout trusts the folder for itself alone; git's own switch plays the other owner
    here.
    """
    sources = tmp_path / "sources"
    subprocess.run(("git", "init", "-q", sources), check=True)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "GITHUB_WORKSPACE": str(sources),
        "GIT_TEST_ASSUME_DIFFERENT_OWNER": "1",
    }
    command = ("git", "-C", sources, "status", "--porcelain")
    refused = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "dubious ownership" in refused.stderr
    jobs = [job for job in workflow(path)["jobs"].values() if "container" in job]
    assert jobs
    for job in jobs:
        (line,) = (step["run"] for step in job["steps"] if "safe.directory" in step.get("run", ""))
        subprocess.run(("sh", "-e", "-c", line), env=environment, cwd=tmp_path, check=True)
        subprocess.run(command, env=environment, check=True)
        (tmp_path / ".gitconfig").unlink()


def test_credentials_of_the_registry_are_where_attestations_are_pushed_with_them() -> None:
    (push,) = (step for _, _, step in steps() if step.get("id") == "push")
    assert re.search(
        r"^export REGISTRY_AUTH_FILE=\$HOME/\.docker/config\.json\n.*skopeo login",
        push["run"],
        re.M | re.S,
    )


def test_every_image_gets_a_signed_sbom() -> None:
    from tools.release import images

    attested = {
        step["with"]["subject-digest"]: step["with"]["sbom-path"]
        for _, _, step in steps()
        if "sbom-path" in step.get("with", {})
    }
    assert attested == {
        f"${{{{ steps.push.outputs.{architecture} }}}}": f"${{{{ steps.push.outputs.sbom }}}}-{architecture}.cdx.json"
        for architecture in images.ARCHITECTURES
    }


@pytest.mark.parametrize("target", ["test", "release"])
def test_workflows_run_targets_of_the_makefile(target: str) -> None:
    lines = [step["run"] for _, _, step in steps() if "run" in step]
    assert any(re.search(rf"^make {target}\b", line, re.MULTILINE) for line in lines)
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_what_is_published_is_what_a_release_builds() -> None:
    from tools.release import chart, images
    from tools.release.documents import CHANGES, SUMS

    text = (FOLDER / "release.yml").read_text()
    for name in (chart.ARCHIVE, images.ARCHIVE):
        assert name.replace(chart.VERSION, "$version") in text
    for name in (CHANGES, SUMS):
        assert f"dist/{name}" in text
