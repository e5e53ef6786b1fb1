"""Files of strangers: recordings, snapshots, manifests, kubeconfigs and configurations that
multiply when they are read, that are no files, that are malformed, or that carry control
characters; and secrets in recordings.

A command of an administrator reads them: ``recorder show``, ``proxy render -f``, ``status
--kubeconfig``. Measured are the memory and the time of its process, tracebacks, and bytes that a
terminal obeys. A command may take 2 GiB of addresses, so the machine survives an attack that
succeeds.
"""

from __future__ import annotations

import base64
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import msgspec
from benchmarks.tools.process import child_environment
from tests.attack.harness import Attack, Figure

from sliceplane.api.codec import decode, encode
from sliceplane.api.requests import Write
from sliceplane.api.scheme import (
    ControllerRevisions,
    Deployments,
    Events,
    Pods,
    ReplicaSets,
    StatefulSets,
)
from sliceplane.watch.cache import Change
from sliceplane.watch.controller.base import Done, Job, Work
from sliceplane.watch.recorder.file import Header, read_lines, write_lines
from sliceplane.watch.recorder.recorder import Recorder

_ADDRESSES_MAX: Final = 2 << 30
_TIMEOUT_S: Final = 15.0
#: of a command that reads a hostile file: the interpreter with its modules has 45 MiB
_MIB_MAX: Final = 256
_SECONDS_MAX: Final = 5.0
#: what a terminal obeys: C0 but for ends of lines and tabs, DEL, and C1 in UTF-8
_OBEYED: Final = re.compile(
    rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xa8-\xae]|\xe2\x81[\xa6-\xa9]"
)


class _Ran(NamedTuple):
    code: int
    output: bytes
    mib: float
    seconds: float

    @property
    def crashed(self) -> bool:
        return b"Traceback (most recent call last)" in self.output or self.code < 0


def _run(folder: Path, *arguments: str | Path, program: str = "sliceplane") -> _Ran:
    """One command; killed after ``_TIMEOUT_S``, which counts as a crash."""
    out = folder / "output"
    began = time.monotonic()
    with out.open("wb") as written:
        process = subprocess.Popen(
            [sys.executable, "-m", program, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=child_environment() | {"COLUMNS": "100"},
            preexec_fn=lambda: resource.setrlimit(  # noqa: PLW1509
                resource.RLIMIT_AS, (_ADDRESSES_MAX, _ADDRESSES_MAX)
            ),  # no thread runs yet
        )
    killing = threading.Timer(_TIMEOUT_S, os.kill, (process.pid, signal.SIGKILL))
    killing.start()
    _, status, usage = os.wait4(process.pid, 0)
    killing.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    return _Ran(
        process.returncode, out.read_bytes(), usage.ru_maxrss / 1024, time.monotonic() - began
    )


# -- recordings


def _line(part: Any) -> bytes:
    text = msgspec.json.encode(part)
    return b'{"crc":%d,"part":%b}\n' % (zlib.crc32(text), text)


def _recording(*parts: Any, **header: Any) -> bytes:
    """A file with good checksums, whatever *parts* are; ``bytes`` in them are blocks."""
    first = msgspec.json.encode({**msgspec.to_builtins(Header(component="x", host="h")), **header})
    segment = ("segment", 0, 1.0, True, [])
    lines = [
        _line(part) for part in (segment, *([kind, 0, _block(block)] for kind, block in parts))
    ]
    total = 0
    for line in lines:
        total = zlib.crc32(line, total)
    return first + b"\n" + b"".join(lines) + b'{"end":%d,"crc":%d}\n' % (len(lines), total)


def _block(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw, 9)).decode()


def _lines(*lines: Any) -> bytes:
    return msgspec.json.Encoder().encode_lines(lines)


def _array(count: int, element: bytes) -> bytes:
    return b"[" + b",".join([element] * count) + b"]"


_NAMES: Final = msgspec.json.encode([1.0, [["pods", "shop", "a", ""]], ["shop/a", ""]])


def _lists() -> bytes:
    return _recording(("names", _NAMES), ("entries", b"[9," + _array(30_000_000, b"[]") + b"]"))


def _names() -> bytes:
    names = b"[0.0," + _array(4_000_000, b'["","","",""]') + b",[]]"
    return _recording(("names", names), ("entries", _lines()))


def _endpoints() -> bytes:
    form = b'{"endpoints":' + _array(20_000_000, b"{}") + b"}"
    line = b'["endpointslices.discovery.k8s.io","shop","a",' + form + b"]"
    return _recording(("objects", line), ("names", _NAMES), ("entries", _lines()))


def _as_much_as_is_let_in() -> bytes:
    """Maps up to the bound of values, and text that does not deflate, for the bound of the
    ratio.
    """
    text = Random(1).randbytes(40_000).hex().encode()
    return _recording(
        ("names", _NAMES), ("entries", b"[9," + _array(950_000, b"{}") + b',"' + text + b'"]')
    )


async def _recording_bomb(folder: Path) -> Sequence[Figure]:
    mib = seconds = 0.0
    crashed = 0
    size = 0
    for number, make in enumerate((_lists, _names, _endpoints, _as_much_as_is_let_in)):
        content = make()
        file = folder / f"{number}.recording"
        file.write_bytes(content)
        size = max(size, len(content))
        for command in (
            ("recorder", "show"),
            ("recorder", "replay"),
            ("timeline", "service", "web", "--from"),
        ):
            ran = _run(folder, *command, file)
            mib, seconds, crashed = (
                max(mib, ran.mib),
                max(seconds, ran.seconds),
                crashed + ran.crashed,
            )
    return (
        Figure("memory of a command", round(mib), "MiB", _MIB_MAX),
        Figure("time of a command", round(seconds, 1), "s", _SECONDS_MAX),
        Figure("tracebacks and killed commands", crashed, "of 12", 0),
        Figure("size of the largest file", round(size / 1000), "kB", 400),
    )


def malformed_recordings() -> dict[str, bytes]:
    """Nine files with good checksums that no recorder writes."""
    names = ("names", _NAMES)
    return {
        "a block that is not deflated": _recording(names)[:-1].replace(
            _block(_NAMES).encode(), b"AAAA"
        ),
        "a part of an unknown kind": _recording(("strange", b"")),
        "lines that are numbers": _recording(names, ("entries", _lines(1, 2))),
        "a line with an unknown code": _recording(names, ("entries", _lines([99, 1.0]))),
        "a line that refers to nothing": _recording(names, ("entries", _lines([5, 1.0, 0, 7]))),
        "a time that is no number": _recording(names, ("entries", _lines([9, "soon", "x", "y"]))),
        "a header with a time beyond all calendars": _recording(names, saved=1e300),
        "settings of another type": _recording(
            names, settings={"discovery": [1], "emulation": 3, "authority": {}}
        ),
        "a header that is deep": _recording(names, settings={})[:-1].replace(
            b'"settings":{}', b'"settings":{"a":' + b"[" * 5000 + b"]" * 5000 + b"}"
        ),
    }


def with_good_checksums(content: bytes) -> bytes:
    """The same lines with checksums as they are now."""
    first, *lines = content.splitlines()
    made, total = [first], 0
    for line in lines:
        start = line.find(b'"part":')
        if start >= 0:
            part = line[start + len(b'"part":') : -1]
            line = b'{"crc":%d,"part":%b}' % (zlib.crc32(part), part)
            total = zlib.crc32(line + b"\n", total)
            made.append(line)
    return b"\n".join([*made, b'{"end":%d,"crc":%d}' % (len(made) - 1, total)]) + b"\n"


async def _malformed_recordings(folder: Path) -> Sequence[Figure]:
    commands = (
        ("recorder", "show"),
        ("recorder", "replay"),
        ("recorder", "export"),
        ("timeline", "service", "web", "--from"),
        ("simulate", "--seed", "1", "--steps", "1", "--from"),
    )
    crashed = 0
    for number, content in enumerate(malformed_recordings().values()):
        file = folder / f"{number}.recording"
        file.write_bytes(with_good_checksums(content))
        # The first command sees all of them, the others one form each: a start takes a third of a
        # second.
        for command in commands if number in (2, 4, 5) else commands[:2]:
            ran = _run(folder, *command, file)
            crashed += ran.crashed
    return (Figure("tracebacks of commands that read nine files", crashed, "of 27", 0),)


async def _recording_escapes(folder: Path) -> Sequence[Figure]:
    """Also in names, texts and marks, in a kubeconfig, in manifests and in names of Services."""
    steer = "\x1b]0;owned\x07\x9b31m\u202e\r\x7f"
    file = folder / "steering.recording"
    names = msgspec.json.encode([1.0, [["pods", steer, steer, ""]], [f"shop/{steer}"]])
    mark = [9, 1.0, "event", f"{steer}\x1b[2J"]
    header = {"component": steer, "host": steer, "reason": steer, "program": steer}
    file.write_bytes(
        _recording(("names", names), ("entries", _lines(mark, [2, 1.0, 0, steer])), **header)
    )
    config = folder / "kubeconfig"
    config.write_text(json.dumps({"current-context": steer, "contexts": [], "clusters": []}))
    manifest = folder / "objects.json"
    manifest.write_text(json.dumps({"kind": steer, "apiVersion": "v1"}))
    strange = folder / "strange.yaml"
    strange.write_text(f'kind: "{"".join(f"{chr(92)}u{ord(one):04x}" for one in steer)}"\n')
    found = 0
    for arguments in (
        ("recorder", "show", file),
        ("recorder", "show", "-o", "json", file),
        ("recorder", "replay", file),
        ("timeline", "service", "web", "--from", file),
        ("status", "--kubeconfig", config),
        ("proxy", "render", "-f", manifest),
        ("proxy", "render", "-f", strange),
        ("up", "--emulate", "--emulate-file", strange),
        ("proxy", "--config", strange),
    ):
        found += len(_OBEYED.findall(_run(folder, *arguments).output))
    return (Figure("control characters that came out", found, "characters", 0),)


# -- YAML, JSON and what is no file


_NOWHERE: Final = {
    "current-context": "a",
    "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
    "clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "a", "user": {}}],
}
#: members that readers look into, of a Service, a kubeconfig, a proxy's configuration, an agent's
#: file
_MEMBERS: Final = (
    "metadata spec users clusters contexts current-context mode iptables nodePortAddresses name "
    "address services zone"
)


def _alias_bomb(levels: int = 9) -> str:
    rows = ['a0: &a0 ["lol","lol","lol","lol","lol","lol","lol","lol","lol"]']
    rows += [
        f"a{level}: &a{level} [{','.join([f'*a{level - 1}'] * 9)}]" for level in range(1, levels)
    ]
    rows += [f"{member}: *a{levels - 1}" for member in _MEMBERS.split()]
    return "\n".join(["apiVersion: v1", "kind: Service", *rows, ""])


def _readers(folder: Path, file: Path) -> Iterator[tuple[str | Path, ...]]:
    """Every command that reads YAML or JSON of a file; those that need a server first have one that
    never answers.
    """
    nowhere = folder / "nowhere"
    nowhere.write_text(json.dumps(_NOWHERE))
    yield "proxy", "render", "-f", file
    yield "status", "--kubeconfig", file
    yield "proxy", "--config", file
    yield "proxy", "--kubeconfig", file
    yield "agent", "-f", file, "--kubeconfig", nowhere
    yield "up", "--data-dir", "memory:", "--emulate", "--emulate-file", file
    yield "what-if", "web", "--set", "rollout=yes", "--snapshot", file
    yield "what-if", "web", "--set", "rollout=yes", "--traffic", f"@{file}"
    yield "snapshot", "inspect", file
    yield "endpoints", "audit", "--audit-log", file, "--kubeconfig", nowhere
    yield "explain", "service", "web", "--shadow", file, "--kubeconfig", nowhere


async def _yaml_bomb(folder: Path) -> Sequence[Figure]:
    mib = seconds = 0.0
    crashed = 0
    file = folder / "bomb.yaml"
    file.write_text(_alias_bomb())
    commands = [*_readers(folder, file)]
    for arguments in commands:
        ran = _run(folder, *arguments)
        mib, seconds, crashed = max(mib, ran.mib), max(seconds, ran.seconds), crashed + ran.crashed
    return (
        Figure("memory of a command", round(mib), "MiB", _MIB_MAX),
        Figure("time of a command", round(seconds, 1), "s", _SECONDS_MAX),
        Figure("tracebacks and killed commands", crashed, f"of {len(commands)}", 0),
    )


async def _deep_and_wide(folder: Path) -> Sequence[Figure]:
    mib = seconds = 0.0
    crashed = 0
    contents: dict[str, bytes] = {
        "deep JSON": b"[" * 1_000_000,
        "deep YAML": b"- " * 100_000,
        "wide JSON": b"[" + b"[]," * 8_000_000 + b"[]]",
        "NUL and bytes": b"a: \x00\xff\xfe",
    }
    count = 0
    for content in contents.values():
        file = folder / "odd"
        file.write_bytes(content)
        for arguments in [*_readers(folder, file)][: 2 if len(content) > 10_000_000 else 6]:
            ran = _run(folder, *arguments)
            count += 1
            mib, seconds, crashed = (
                max(mib, ran.mib),
                max(seconds, ran.seconds),
                crashed + ran.crashed,
            )
    return (
        Figure("memory of a command", round(mib), "MiB", _MIB_MAX),
        Figure("time of a command", round(seconds, 1), "s", _SECONDS_MAX),
        Figure("tracebacks and killed commands", crashed, f"of {count}", 0),
    )


async def _no_files(folder: Path) -> Sequence[Figure]:
    """A pipe without a writer, a device without an end, a folder."""
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    bad = count = 0
    longest = 0.0
    for file in (pipe, Path("/dev/zero"), folder):
        readers = [*_readers(folder, file), ("recorder", "show", file)]
        for arguments in (readers[0], readers[1], readers[2], readers[4], readers[8], readers[10]):
            ran = _run(folder, *arguments)
            count += 1
            bad += ran.crashed
            longest = max(longest, ran.seconds)
    return (
        Figure("commands that hung or crashed", bad, f"of {count}", 0),
        Figure("time of a command", round(longest, 1), "s", _SECONDS_MAX),
    )


# -- what a recording has


def _planted() -> dict[str, Any]:
    """A template with a secret in each place where users put them."""
    container = {
        "name": "web",
        "image": "nginx",
        "args": ["--password=SECRETargs"],
        "command": ["sh", "-c", "SECRETcommand"],
        "workingDir": "/SECRETdir",
        "env": [{"name": "A", "value": "SECRETenv"}],
        "envFrom": [{"prefix": "SECRETprefix", "secretRef": {"name": "SECRETref"}}],
        "lifecycle": {"preStop": {"exec": {"command": ["SECREThook"]}}},
        "livenessProbe": {"exec": {"command": ["SECRETprobe"]}},
        "readinessProbe": {
            "httpGet": {
                "path": "/?token=SECRETpath",
                "port": 80,
                "httpHeaders": [{"name": "Authorization", "value": "SECRETheader"}],
            }
        },
    }
    volume = {
        "name": "v",
        "csi": {
            "driver": "SECRETdriver",
            "volumeAttributes": {"password": "SECRETcsi"},
            "nodePublishSecretRef": {"name": "SECRETpublish"},
        },
    }
    pulls = [{"name": "SECRETpull"}]
    return {
        "metadata": {
            "labels": {"app": "web"},
            "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "SECRETapplied",
                "nginx.ingress.kubernetes.io/configuration-snippet": "SECRETsnippet",
            },
        },
        "spec": {
            "containers": [container],
            "ephemeralContainers": [{**container, "args": ["SECRETephemeral"]}],
            "volumes": [volume],
            "imagePullSecrets": pulls,
        },
    }


def secrets_in_a_recording() -> set[str]:
    """Those that are there after kinds with templates were seen and written."""
    template = _planted()
    recorder = Recorder(1 << 22, b"0123456789abcdef", 1.0)
    record = recorder.begin("one", 1.0)
    documents = [
        (Pods, {"spec": template["spec"]}),
        (Deployments, {"spec": {"template": template}}),
        (ReplicaSets, {"spec": {"template": template}}),
        (StatefulSets, {"spec": {"template": template}}),
        (ControllerRevisions, {"data": {"spec": {"template": template}}, "revision": 1}),
        (Events, {"message": "SECRETmessage"}),
    ]
    for kind, document in documents:
        meta = {
            "name": "a",
            "namespace": "shop",
            "annotations": template["metadata"]["annotations"],
        }
        body = encode(
            {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, **document}
        )
        record.change(Change(kind.key, None, decode(body, kind.projection)), 1.0)
        job = Job(
            key=kind.key, writes=(Write(verb="create", resource=kind, namespace="shop", body=body),)
        )
        record.batch_taken(Work(jobs=(job,)), 5, 1.0)
        record.done(Done(job, (body,)), 1.0)
    recording = read_lines(list(write_lines(Header(), recorder.segments())))
    blocks = [
        block
        for part in recording.segments
        for block in (*part.checkpoint, *part.names, *part.blocks)
    ]
    assert blocks, "something was recorded"
    return {
        found.decode()
        for block in blocks
        for found in re.findall(rb"SECRET[a-z]+", zlib.decompress(block))
    }


async def _recorded_secrets(_: Path) -> Sequence[Figure]:
    planted = len(set(re.findall(rb"SECRET[a-z]+", encode(_planted())))) + 1
    return (
        Figure("planted secrets in a recording", len(secrets_in_a_recording()), f"of {planted}", 0),
    )


_STORIES: Final[tuple[tuple[str, str, Callable[..., Any]], ...]] = (
    (
        "recording-bomb",
        "a recording of 150 kB that inflates to lists, names and objects without end",
        _recording_bomb,
    ),
    (
        "recording-malformed",
        "nine recordings with good checksums that no recorder writes",
        _malformed_recordings,
    ),
    (
        "file-escapes",
        "control characters in recordings, kubeconfigs and manifests",
        _recording_escapes,
    ),
    (
        "file-alias-bomb",
        "a YAML file of 600 bytes whose aliases expand to 387 million values, for each -f",
        _yaml_bomb,
    ),
    ("file-deep-and-wide", "files that are deep, wide, or no text", _deep_and_wide),
    ("file-is-no-file", "a pipe without a writer, an endless device, a folder", _no_files),
    (
        "recorded-secrets",
        "secrets in each place of Pod templates where users put them",
        _recorded_secrets,
    ),
)
ATTACKS: Final = tuple(Attack(name, story, run) for name, story, run in _STORIES)
