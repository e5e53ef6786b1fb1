"""A relay as a front proxy: requests of clients with a certificate are those clients' at the server,
through one relay and two, and nobody else's.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port
from tests.relay.relaying import ADMIN, SLICES, RelayServer, kubeconfig, relaying
from tests.server.serving import CM, Server, config_map, endpoint_slice, run_plane
from tests.server.test_certificates_over_time import DAY, Authority
from tests.server.test_front_proxies import (
    BOB,
    CUT,
    REVIEWS,
    SPOOFED,
    Files,
    Party,
    connect,
    name_of,
    party,
    who,
)
from tests.waiting import until

from sliceplane.kit.io.start_error import StartError
from sliceplane.kit.io.tls.acceptor import FrontProxies
from sliceplane.relay.io import passing
from sliceplane.server.io.config import PlaneConfig
from sliceplane.watch.io.connection import Connection, Fixed
from sliceplane.watch.io.kubeconfig import from_file
from sliceplane.watch.io.tls import Pem, Tls

__all__ = ["party"]

IN_DEFAULT = "/api/v1/namespaces/default"
UPGRADE = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1"}


@dataclass
class Tree:
    """A server, a relay of it, and one of this."""

    party: Party
    server: Server
    levels: tuple[RelayServer, RelayServer]
    #: of the administrators' group
    chief: Files


def showing(server: Server, url: str, files: Files) -> Connection:
    """A way to *url* with a client certificate."""
    pki = server.plane.pki
    certificate, key = (Pem(path=path) for path in files)
    tls = Tls(authority=Pem(path=pki.ca_file), certificate=certificate, key=key)
    return Connection(
        server=url, ssl_context=tls.current()[1], credentials=Fixed(), tls=tls, account="chief"
    )


@pytest.fixture(scope="module")
def tree(party: Party, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    folder = tmp_path_factory.mktemp("tree")
    tokens = folder / "tokens.csv"
    tokens.write_text(f'{ADMIN},admin,1,"system:masters"\nbob-token,bob,2\n')
    settings = party.settings("relay")
    config = PlaneConfig(data_dir="memory:", secure_port=0, token_auth_file=tokens, **settings)
    plane, end = run_plane(config)
    server = Server(plane)
    chief = party.users.client("chief", DAY)
    settings["proxy_certificate"] = party.proxy
    try:
        with relaying(server, **settings) as first:
            # The relay itself has no token either.
            way = showing(server, first.relay.url, chief)
            with relaying(server, connection=way, **settings) as second:
                yield Tree(party, server, (first, second), chief)
    finally:
        end()


def ask(
    server: Server, files: Files | None, method: str, path: str, body: Any = None, **headers: str
) -> Any:
    with contextlib.closing(connect(server, files)) as opened:
        return server.request(method, path, body, connection=opened, **headers)


def test_requests_with_a_certificate_are_their_users(tree: Tree) -> None:
    expected = who(tree.server, tree.party.ann)
    assert expected == {"username": "ann", "groups": ["team", "system:authenticated"]}
    for number, relay in enumerate(tree.levels):
        assert who(relay, tree.party.ann) == expected
        made = ask(relay, tree.chief, "POST", CM, config_map(f"level-{number}"))
        assert made.code == 201
        path = f"{CM}/level-{number}"
        assert ask(relay, tree.chief, "GET", path).body == made.body
        assert ask(relay, tree.chief, "DELETE", path).code == 200
        slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
        written = ask(relay, tree.chief, "POST", slices, endpoint_slice(f"slice-{number}"))
        assert written.code == 201
        read = ask(relay, tree.chief, "GET", f"{slices}/slice-{number}")
        assert (read.code, read.body) == (200, written.body), "a read with no version"


@pytest.mark.parametrize(("method", "path"), [("POST", CM), ("GET", CM), ("GET", SLICES)])
def test_a_refusal_names_the_client(tree: Tree, method: str, path: str) -> None:
    body = config_map("never") if method == "POST" else None
    theirs = ask(tree.server, tree.party.ann, method, path, body)
    assert theirs.code == 403
    assert 'User "ann" cannot' in theirs.json["message"]
    for relay in tree.levels:
        ours = ask(relay, tree.party.ann, method, path, body)
        assert (ours.code, ours.json["message"]) == (403, theirs.json["message"])


@pytest.mark.parametrize("fields", [*SPOOFED, {"X_Remote_User": "root", "X-Remote-": "root"}])
def test_headers_of_clients_are_dropped(tree: Tree, fields: dict[str, str]) -> None:
    assert not list(
        passing.passed((name.lower().encode(), b"root") for name in fields if "_" not in name)
    )
    for relay in tree.levels:
        for files, credentials in (
            (tree.party.ann, {}),
            (tree.party.ann, {"Authorization": "Basic cm9vdDpyb290"}),
            (None, BOB),
            (None, {}),
            (tree.party.namesake, {}),
            (tree.party.stranger, {}),
            (tree.party.stranger, BOB),
        ):
            direct = who(tree.server, files, credentials)
            assert who(relay, files, {**credentials, **fields}) == direct, (files, credentials)
            named = {**credentials, **fields, "Connection": f"close, {', '.join(fields)}"}
            assert who(relay, files, named) == direct, "named as of one connection alone"
        # What the relay answers itself.
        spoofed = {name.replace("-", "_"): value for name, value in fields.items()}
        for path in (SLICES, f"{SLICES}?resourceVersion=0", "/metrics"):
            assert ask(relay, tree.party.ann, "GET", path, **spoofed).code == 403


def test_a_certificate_of_a_front_proxy_at_a_relay(tree: Tree) -> None:
    """A relay of ours is told whom the next one serves; so is it by any other front proxy."""
    for relay in tree.levels:
        with contextlib.closing(connect(relay, tree.party.proxy)) as opened:
            for name in ("eve", "mallory"):
                assert name_of(relay, None, {"X-Remote-User": name}, opened) == name
            assert name_of(relay, None, {}, opened) == 401
        assert name_of(relay, tree.party.proxy, BOB) == "bob"
        extra = {"X-Remote-User": "eve", "X-Remote-Extra-A%2fB": "c", "X-Remote-Uid": "9"}
        assert who(relay, tree.party.proxy, extra) == {
            "username": "eve",
            "uid": "9",
            "groups": ["system:authenticated"],
            "extra": {"a/b": ["c"]},
        }


def test_impersonation_is_the_servers_decision(tree: Tree) -> None:
    for relay in tree.levels:
        assert name_of(relay, tree.chief, {"Impersonate-User": "eve"}) == "eve"
        assert name_of(relay, tree.party.ann, {"Impersonate-User": "eve"}) == 403


def test_clients_at_the_same_time_are_not_mixed_up(tree: Tree) -> None:
    expected = [
        (tree.party.ann, {}, "ann"),
        (tree.chief, {}, "chief"),
        (None, BOB, "bob"),
        (None, {}, 403),
        (tree.party.ann, BOB, "bob"),
    ] * 20

    def one(case: tuple[Files | None, dict[str, str], Any]) -> None:
        files, fields, name = case
        assert name_of(tree.levels[1], files, fields) == name

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, expected))


def test_streams_and_upgrades(tree: Tree) -> None:
    for relay in tree.levels:
        with contextlib.closing(connect(relay, tree.chief)) as opened:
            opened.request("GET", f"{CM}?watch=true&resourceVersion=0&timeoutSeconds=30")
            answer = opened.getresponse()
            assert answer.status == 200
            ask(relay, tree.chief, "POST", CM, config_map("watched"))
            while b'"watched"' not in answer.readline():
                pass
        ask(relay, tree.chief, "DELETE", f"{CM}/watched")
        path = f"{IN_DEFAULT}/pods/a/exec"
        assert ask(relay, tree.chief, "GET", path, **UPGRADE).code == 501


def test_names_that_no_header_can_carry(tree: Tree) -> None:
    """Behind a proxy "root " would be root, and a line break the next header."""
    for name in ("root ", "root\r\nX-Remote-Group: system:masters"):
        files = tree.party.users.client(name, DAY, "team")
        assert name_of(tree.server, files) == name
        for relay in tree.levels:
            refused = ask(relay, files, "POST", REVIEWS, {})
            assert (refused.code, "no header can have" in refused.json["message"]) == (403, True)


@pytest.fixture
def child(tree: Tree, tmp_path: Path) -> Path:
    """The file of authorities of a relay's clients."""
    return Path(shutil.copy(tree.party.users.file, tmp_path / "users.crt"))


def test_a_parent_that_does_not_believe_it(tree: Tree, child: Path, tmp_path: Path) -> None:
    """A certificate of a user would make every client this user: nothing is passed on with it."""
    foreign = Authority.make(tmp_path, "foreign").client("relay", DAY)
    for files, why, code in (
        (tree.party.stranger, "which answers 401", 403),
        (tree.chief, "which takes it for 'chief'", 403),
        (foreign, "gives no answer", 503),
    ):
        settings = {"client_ca_file": child, "proxy_certificate": files}
        siblings = [from_file(tree.server.plane.kubeconfig)]
        with relaying(tree.server, siblings=siblings, **settings) as relay:
            moves = relay.relay.siblings.moves
            for method, path, body in (("POST", CM, config_map("x")), ("GET", CM, None)):
                refused = ask(relay, tree.party.ann, method, path, body)
                assert (refused.code, why in refused.json["message"]) == (code, True)
            assert relay.relay.siblings.moves == moves, "the parent is not to blame"
            assert name_of(relay, None, BOB) == "bob"
            assert ask(relay, tree.chief, "GET", f"{SLICES}?resourceVersion=0").code == 200
    assert ask(tree.server, tree.chief, "GET", f"{CM}/x").code == 404


def test_certificates_are_followed(
    tree: Tree, child: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sliceplane.watch.io.tls.FILE_CHECK_PERIOD_S", 0.1)
    files = (tmp_path / "shown.crt", tmp_path / "shown.key")

    def show(others: Files) -> None:
        for target, source in zip(files, others, strict=True):
            shutil.copy(source, target)

    show(tree.party.stranger)
    with relaying(tree.server, client_ca_file=child, proxy_certificate=files) as relay:
        assert name_of(relay, tree.party.ann) == 403
        show(tree.party.proxy)
        until(lambda: name_of(relay, tree.party.ann), lambda found: found == "ann")
        show(tree.chief)
        until(lambda: name_of(relay, tree.party.ann), lambda found: found == 403)


def test_a_parent_that_closes_each_connection(
    tree: Tree, child: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does while it drains."""
    closing = (b"connection", b"close")
    tree.server.plane.listener.state.default_headers.append(closing)
    try:
        settings = {"client_ca_file": child, "proxy_certificate": tree.party.proxy}
        with relaying(tree.server, **settings) as relay:
            monkeypatch.setattr(passing, "VERDICT_S", 0.0)
            for _ in range(3):
                assert name_of(relay, tree.party.ann) == "ann"
    finally:
        tree.server.plane.listener.state.default_headers.remove(closing)


def test_a_passed_watch_ends_with_the_clients_certificate(tree: Tree) -> None:
    files = tree.party.users.client("brief", timedelta(seconds=8))
    with contextlib.closing(connect(tree.levels[1], files)) as opened:
        opened.request("GET", f"{CM}?watch=true&resourceVersion=0&timeoutSeconds=50")
        answer = opened.getresponse()
        assert answer.status == 200
        began = time.monotonic()
        with contextlib.suppress(*CUT):
            answer.read()
        assert time.monotonic() - began < 30
        with contextlib.suppress(*CUT):
            assert name_of(tree.levels[1], None, {}, opened) == 401


def test_a_passed_watch_ends_with_the_clients_authority(
    tree: Tree, child: Path, tmp_path: Path
) -> None:
    settings = {"client_ca_file": child, "proxy_certificate": tree.party.proxy}
    with (
        relaying(tree.server, **settings) as relay,
        contextlib.closing(connect(relay, tree.chief)) as opened,
    ):
        opened.request("GET", f"{CM}?watch=true&resourceVersion=0&timeoutSeconds=50")
        answer = opened.getresponse()
        assert answer.status == 200
        child.write_bytes(Authority.make(tmp_path, "others").pem)
        with pytest.raises(CUT):
            answer.read()


def test_a_loop_ends(tree: Tree, tmp_path: Path) -> None:
    ports = [free_port(), free_port()]
    authority = tree.server.plane.pki.ca_file
    ways = [
        from_file(kubeconfig(tmp_path, f"https://127.0.0.1:{port}", authority, ADMIN))
        for port in reversed(ports)
    ]
    settings = {**tree.party.settings("relay"), "proxy_certificate": tree.party.proxy}
    with (
        relaying(tree.server, connection=ways[0], ready=False, port=ports[0], **settings) as one,
        relaying(tree.server, connection=ways[1], ready=False, port=ports[1], **settings),
    ):
        looped = ask(one, tree.party.ann, "GET", "/version")
        assert (looped.code, "answers 403" in looped.json["message"]) == (403, True)
        assert int(one.relay.front._passage.passed.value) < 20, "a question asks no further one"


@pytest.mark.parametrize("text", ["", "none"])
def test_a_relay_needs_a_certificate_and_tls(tree: Tree, tmp_path: Path, text: str) -> None:
    file = tmp_path / "shown.crt"
    file.write_text(text)
    way = from_file(tree.server.plane.kubeconfig)
    with pytest.raises(StartError, match="cannot use"):
        passing.Passage([way], Any, "relay", proxy_certificate=(file, tmp_path / "missing"))  # type: ignore[arg-type]
    plain = Connection(server="http://server", ssl_context=None, credentials=Fixed())
    with pytest.raises(StartError, match="no TLS"):
        passing.Passage([plain], Any, "relay", proxy_certificate=tree.party.proxy)  # type: ignore[arg-type]


def test_a_relay_without_a_certificate_says_so(tree: Tree, child: Path) -> None:
    proxies = FrontProxies(tree.party.proxies.file)
    with relaying(tree.server, client_ca_file=child, front_proxies=proxies) as relay:
        for files, fields in ((tree.party.ann, {}), (tree.party.proxy, {"X_Remote_User": "eve"})):
            refused = ask(relay, files, "POST", CM, config_map("x"), **fields)
            assert (refused.code, "client certificate" in refused.json["message"]) == (403, True)
        assert ask(relay, tree.party.proxy, "POST", CM, config_map("x")).code == 401
        assert name_of(relay, tree.party.ann, BOB) == "bob"
