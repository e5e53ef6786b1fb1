"""The parts of a release that need neither network nor root: equal bytes, layouts, documents, and
the agent's file.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tools.release import agent_file, checking, documents, installing, preflight
from tools.release.documents import changes, debian_components, sbom
from tools.release.oci import INDEX, MANIFEST, Layout
from tools.release.running import ROOT, VERSION, tar_of

from sliceplane.testing import Plane

CHANGELOG = "# Changelog\n\n## 1.2.0 - 2026-05-04\n\n### New\n- a\n\n## Unreleased\n\n- b\n"


def test_an_entry_of_the_changelog_ends_where_the_next_begins() -> None:
    assert changes(CHANGELOG, "1.2.0", dated=True) == "## 1.2.0 - 2026-05-04\n\n### New\n- a\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            CHANGELOG.replace("1.2.0", "1.2.01"),
            "has no entry of 1.2.0: write one, ## 1.2.0 - YYYY-MM-DD",
        ),
        (
            CHANGELOG.replace("2026-05-04", "not released"),
            "has no day of release: make it ## 1.2.0 - YYYY-MM-DD",
        ),
        (CHANGELOG.replace("- a\n", "- a\n" * 70), "has 73 lines, and a page has 60: shorten it"),
    ],
)
def test_a_release_without_a_page_or_a_day_is_refused(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        changes(text, "1.2.0", dated=True)


def test_the_changelog_has_a_page_for_this_version() -> None:
    assert changes((ROOT / "CHANGELOG.md").read_text(), VERSION, dated=False).startswith(
        f"## {VERSION} - "
    )


def test_links_of_the_released_entry_are_whole() -> None:
    entry = documents.with_whole_links(
        "[a](docs/agent.md#runs), [b](https://example.org/x), [c](#d)"
    )
    assert entry == (
        f"[a]({documents.SOURCE_URL}/blob/v{VERSION}/docs/agent.md#runs), "
        "[b](https://example.org/x), [c](#d)"
    )


def test_a_clean_tree_at_the_tag_has_no_problem() -> None:
    assert preflight.working_tree("") == []
    assert preflight.tag(["other", f"v{VERSION}"], "", "1" * 40) == []


def test_a_changed_tree_is_refused_with_its_files_and_the_remedy() -> None:
    (problem,) = preflight.working_tree(" M README.md\n?? new.py\n")
    assert problem.endswith("git commit or git stash -u\n     M README.md\n    ?? new.py")
    (problem,) = preflight.working_tree("".join(f" M {number}\n" for number in range(12)))
    assert problem.endswith(" M 9\n    ... and 2 more")


def test_a_head_without_the_tag_is_refused_with_both_ways_out() -> None:
    (problem,) = preflight.tag([], "", "1" * 40)
    rehearsal = "to build HEAD as a rehearsal: make release RELEASE=--untagged"
    assert problem == f"there is no tag v{VERSION}: git tag -s v{VERSION}; {rehearsal}"
    (problem,) = preflight.tag(["v0"], "2" * 40, "1" * 40)
    command = f"git checkout v{VERSION}"
    assert (
        problem
        == f"HEAD ({'1' * 12}) is not the tag v{VERSION} ({'2' * 12}): {command}; {rehearsal}"
    )


def test_lines_under_unreleased_belong_to_the_version_that_is_released() -> None:
    entry = f"## {VERSION} - 2026-05-04\n\n- a\n"
    (problem,) = preflight.changelog(f"# Changelog\n\n## Unreleased\n\n- b\n\n{entry}", dated=True)
    assert problem.startswith("CHANGELOG.md has lines under Unreleased")
    renamed = f"# Changelog\n\n## Unreleased\n\n{entry}\n## {VERSION} in detail\n\n- b\n"
    assert preflight.changelog(renamed, dated=True) == []
    assert preflight.changelog((ROOT / "CHANGELOG.md").read_text(), dated=False) == []


def test_documents_that_say_that_nothing_is_published_are_named_with_their_lines() -> None:
    texts = {
        "README.md": "# A\n\nOnce 0.1.0 is published, `uvx` runs it.\n",
        "docs/agent.md": "A published page.\n",
    }
    (problem,) = preflight.documents_of_a_clone(texts)
    assert problem.endswith("\n    README.md:3: Once 0.1.0 is published, `uvx` runs it.")
    assert preflight.documents_of_a_clone({"docs/agent.md": texts["docs/agent.md"]}) == []


def test_a_machine_that_cannot_build_is_told_from_one_that_can_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preflight, "interpreters", dict)
    monkeypatch.setattr(preflight.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(preflight.shutil, "which", lambda _: None)
    monkeypatch.setattr(preflight, "IMAGES_BYTES", 10**18)
    problems = preflight.machine(["agent", "images"])
    remedies = [
        "apt-get install python3.11",
        "run as root",
        "use Debian or Ubuntu",
        "rm -rf build/image*",
    ]
    assert len(problems) == len(remedies)
    for problem, remedy in zip(problems, remedies, strict=True):
        assert remedy in problem
    assert preflight.machine(["packages", "chart"]) == []


def test_every_problem_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = {
        "status": " M README.md\n",
        "tag": "",
        "ls-files": "",
        "for-each-ref": "",
        "rev-parse": "1" * 40,
    }
    monkeypatch.setattr(preflight, "run", lambda _, command, *__: printed[command])
    monkeypatch.setattr(preflight, "changelog", lambda *_, dated: ["no day"] if dated else [])
    with pytest.raises(SystemExit) as ended:
        preflight.check(["chart"], tagged=True)
    lines = [line for line in str(ended.value).splitlines() if line.startswith("release: ")]
    assert len(lines) == 3
    monkeypatch.setitem(printed, "status", "")
    preflight.check(["chart"], tagged=False)


def test_an_archive_depends_on_content_alone(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for path, mode in ((one, 0o600), (other, 0o755)):
        path.write_bytes(b"same")
        path.chmod(mode)
        os.utime(path, ns=(mode, mode))
    made = [tar_of([("a", path), ("b", b"more")], compressed=True) for path in (one, other)]
    assert made[0] == made[1]


def test_a_layout_holds_what_its_descriptors_name(tmp_path: Path) -> None:
    layout = Layout()
    config = layout.blob(b"{}", "application/vnd.example.config+json")
    image = layout.manifest(config, [layout.blob(b"layer", "application/vnd.example.layer")])
    layout.list_as(layout.index([image], {}), "1.0")
    layout.refer(image, b'{"about": 1}', "application/vnd.example.sbom+json")
    (tmp_path / "a.tar").write_bytes(layout.archive())
    subprocess.run(("tar", "-xf", tmp_path / "a.tar", "-C", tmp_path), check=True)
    listed = json.loads((tmp_path / "index.json").read_text())["manifests"]
    assert [item["mediaType"] for item in listed] == [INDEX, MANIFEST]
    about = json.loads((tmp_path / "blobs" / listed[1]["digest"].replace(":", "/")).read_text())
    assert about["subject"] == image
    assert about["artifactType"] == listed[1]["artifactType"] == "application/vnd.example.sbom+json"
    for path in (tmp_path / "blobs" / "sha256").iterdir():
        done = subprocess.run(("sha256sum", path), capture_output=True, text=True, check=True)
        assert done.stdout.split()[0] == path.name


def test_an_sbom_lists_installed_packages_alone() -> None:
    status = (
        "Package: nftables\nStatus: install ok installed\nArchitecture: arm64\nVersion: "
        "1.0.6-2+deb12u2\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nArchitecture: all\nVersion: 1\n"
    )
    (component,) = debian_components(status, "debian-12")
    assert (
        component["purl"] == "pkg:deb/debian/nftables@1.0.6-2%2Bdeb12u2?arch=arm64&distro=debian-12"
    )
    document = json.loads(sbom("image", "container", [component], "ab" * 32))
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    assert document["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": "ab" * 32}]
    assert document["dependencies"] == [{"ref": "image", "dependsOn": [component["purl"]]}]
    assert sbom("image", "container", [component]) == sbom("image", "container", [component])


def test_an_sbom_is_valid_by_the_schema_of_cyclonedx() -> None:
    components = [
        documents.python_component("Ours", "1.0+b", "MIT OR Apache-2.0"),
        documents.python_component("b", "2"),
    ]
    document = json.loads(sbom("image", "container", components, "ab" * 32))
    assert checking.sbom_errors(document) == []
    document["components"][0]["licenses"] = [{"expression": 1}]
    document["metadata"]["component"]["type"] = "image"
    errors = checking.sbom_errors(document)
    assert sorted(error.partition(":")[0] for error in errors) == [
        "$.components[0].licenses",
        "$.metadata.component.type",
    ]


def test_checksums_are_those_of_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "DIST", tmp_path)
    (tmp_path / "b").write_bytes(b"b")
    (tmp_path / "a.cdx.json").write_bytes(sbom("a", "application", []))
    (tmp_path / documents.SUMS).write_text("of before")
    checking.check_folder()
    lines = (tmp_path / documents.SUMS).read_text().splitlines()
    assert [line.split()[1] for line in lines] == ["a.cdx.json", "b"]
    (tmp_path / "a.cdx.json").write_text(
        '{"bomFormat": "SPDX", "specVersion": "1.6", "components": []}'
    )
    with pytest.raises(SystemExit, match="bomFormat"):
        checking.check_folder()
    assert (tmp_path / documents.SUMS).read_text().splitlines() == lines


def test_a_rehearsal_does_not_claim_the_tag() -> None:
    statement = json.loads(documents.provenance({}, "https://builder.example", tagged=False))
    source = statement["predicate"]["buildDefinition"]["resolvedDependencies"][0]
    assert "refs/tags" not in source["uri"]
    assert source["uri"].endswith(f"@{source['digest']['gitCommit']}")


def test_provenance_names_the_commit_and_each_file() -> None:
    statement = json.loads(
        documents.provenance({"b": "2" * 64, "a": "1" * 64}, "https://builder.example", tagged=True)
    )
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert [subject["name"] for subject in statement["subject"]] == ["a", "b"]
    (source, *locks) = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert re.fullmatch(r"[0-9a-f]{40}", source["digest"]["gitCommit"])
    assert source["uri"].endswith(f"@refs/tags/v{VERSION}")
    assert "requirements.lock" in {lock["name"] for lock in locks}


def test_every_package_of_the_agents_file_is_pinned() -> None:
    assert set(agent_file.vendored()) == set(agent_file.VENDORED)
    assert "--hash=sha256:" in agent_file.pins()


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file, made of this tree and of the packages that the tests have, without bytecode."""
    folder = tmp_path_factory.mktemp("agent")
    import click

    agent_file.gather(ROOT, Path(click.__file__).parents[1], folder / "content")
    agent_file.pack(folder / "content", folder / agent_file.NAME)
    return folder / agent_file.NAME


def run_agent(agent: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-I", "-S", str(agent), *words)
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={"HOME": str(agent.parent)},
    )


@pytest.mark.parametrize(
    "words",
    [("--help",), ("run", "--help"), ("agent", "list", "--help"), ("status", "nobody")],
    ids=" ".join,
)
def test_the_agents_file_runs_without_packages(agent: Path, words: tuple[str, ...]) -> None:
    done = run_agent(agent, *words)
    assert "Traceback" not in done.stderr
    assert (done.returncode, bool(done.stdout)) == (
        (2, False) if "status" in words else (0, True)
    ), done.stderr


def test_the_agents_file_has_nothing_compiled_and_no_other_program(agent: Path) -> None:
    content = agent.with_name("content")
    assert not [path for path in content.rglob("*") if path.suffix in (".so", ".pyd", ".pyc")]
    assert not (content / "sliceplane" / "cli" / "run" / "up.py").exists()
    assert not (content / "uvloop").exists()


def test_the_agents_file_keeps_an_endpoint_and_ends_its_child_when_it_is_killed(
    agent: Path, tmp_path: Path
) -> None:
    """What stands by to end the child has no file of its own: its text comes out of the archive."""
    with Plane() as plane:
        plane.apply(
            "{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {ports: [{port: 80}]}}"
        )
        flags = (
            "--name",
            "one",
            "--address",
            "192.0.2.9",
            "--port",
            "80",
            "--notify",
            "--on-orphan",
            "end",
        )
        command = (
            sys.executable,
            "-I",
            "-S",
            agent,
            "run",
            "web",
            *flags,
            "--kubeconfig",
            plane.kubeconfig,
        )
        ready = "import os, socket, time; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); "
        ready += (
            "s.sendto(b'READY=1', os.environ['NOTIFY_SOCKET']); print(os.getpid(), flush=True); "
            "time.sleep(600)"
        )
        home = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path), "PATH": os.environ["PATH"]}
        with subprocess.Popen(
            (*command, "--", sys.executable, "-c", ready),
            stdout=subprocess.PIPE,
            text=True,
            env=home,
        ) as process:
            assert process.stdout is not None
            try:
                child = next(int(line) for line in process.stdout if line.strip().isdecimal())
                plane.wait_for(
                    lambda: [each.ready for each in plane.endpoints("web")] == [True], timeout=60
                )
            finally:
                process.kill()
        plane.wait_for(lambda: not Path(f"/proc/{child}/cmdline").exists(), timeout=60)


_SLOW_AGENT = """
import pathlib, sys, time
asked = pathlib.Path(sys.argv[0]).with_name("asked")
if sys.argv[1] == "run":
    time.sleep(600)
elif asked.exists():
    print("default/one  outside  192.0.2.9:80  passing  1s ago")
else:
    asked.touch()
    print("default/one  outside  192.0.2.9:80  unknown  1s ago")
    sys.exit(1)
"""


def test_an_endpoint_whose_check_has_not_run_yet_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(installing, "DIST", tmp_path)
    (tmp_path / agent_file.NAME).write_text(_SLOW_AGENT)
    installing.become_endpoint(sys.executable, os.environ, tmp_path)
    assert "passing" in capsys.readouterr().out
