"""The page at our own server: who gets in, what each one sees, and that nothing stays when a right
is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from tests.ui.cluster import PlaneWithPage, reader_of, service
from tests.ui.test_server import POLICY, SAME
from tests.waiting import eventually

from sliceplane.diagnose.page.io import login_sessions
from sliceplane.diagnose.page.io.rooms import Rooms
from sliceplane.diagnose.page.logins import LINK_TRIES, LOGINS_EACH_MAX
from sliceplane.watch.io.http.pool import watchful_socket
from sliceplane.watch.io.kubeconfig import from_file

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def plane() -> Iterator[PlaneWithPage]:
    with pytest.MonkeyPatch.context() as patch:
        # Whether logins still count is asked all the time.
        patch.setattr(login_sessions, "PERIOD_S", 0.02)
        yield from _plane()


def _plane() -> Iterator[PlaneWithPage]:
    with PlaneWithPage(controllers=False) as running:
        for name in ("red", "blue"):
            running.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
            running.apply(service(f"{name}-web"), namespace=name)
        yield running


@pytest.fixture
async def browser(plane: PlaneWithPage) -> AsyncIterator[Visitor]:
    async with visitor(plane) as made:
        yield made


class Visitor:
    """What a browser does; cookies are kept."""

    def __init__(self, plane: PlaneWithPage, session: aiohttp.ClientSession) -> None:
        self.plane = plane
        self.session = session
        self.post = {**SAME, "Origin": plane.url}

    async def log_in(self, token: str, **form: str) -> aiohttp.ClientResponse:
        return await self.send({"token": token, **form})

    async def follow(self, link: str, **headers: str) -> tuple[int, str]:
        response = await self.send({"link": link.partition("#login=")[2]}, **headers)
        return response.status, await response.text()

    async def send(self, form: dict[str, str], **headers: str) -> aiohttp.ClientResponse:
        url = f"{self.plane.url}/ui/v1/login"
        async with self.session.post(url, headers={**self.post, **headers}, json=form) as response:
            await response.read()
            return response

    @asynccontextmanager
    async def stream(self, view: str = "services") -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        async def lines() -> AsyncIterator[dict[str, Any]]:
            async for text in response.content:
                yield json.loads(text)

        url = f"{self.plane.url}/ui/v1/stream?view={view}"
        async with self.session.get(url, headers=SAME) as response:
            assert response.status == 200
            yield lines()


@asynccontextmanager
async def visitor(plane: PlaneWithPage, *, certificate: bool = False) -> AsyncIterator[Visitor]:
    context: ssl.SSLContext | None = from_file(plane.kubeconfig).ssl_context
    assert context is not None
    if not certificate:
        context = ssl.create_default_context(cafile=plane.kubeconfig.parent / "pki" / "ca.crt")
    sockets: list[socket.socket] = []

    def new_socket(address: tuple[Any, ...]) -> socket.socket:
        sockets.append(watchful_socket(address))
        return sockets[-1]

    jar = aiohttp.CookieJar(unsafe=True)  # of addresses, too
    connector = aiohttp.TCPConnector(ssl=context, socket_factory=new_socket)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=jar) as session:
        yield Visitor(plane, session)
    for opened in sockets:
        with contextlib.suppress(OSError):
            opened.shutdown(socket.SHUT_RDWR)
    await eventually(
        lambda: [opened.fileno() for opened in sockets], lambda numbers: set(numbers) <= {-1}
    )


async def reader(plane: PlaneWithPage, namespace: str) -> str:
    return await asyncio.to_thread(reader_of, plane, namespace)


async def wait_for(lines: AsyncIterator[dict[str, Any]], kind: str) -> dict[str, Any]:
    async for line in lines:
        if line["type"] == kind:
            return line
    raise AssertionError(f"the stream ended without {kind}")


def names(view: dict[str, Any]) -> list[str]:
    column: dict[str, Any] = next(
        part for part in view["tables"]["services"]["columns"] if part["name"] == "name"
    )
    return (
        column["values"]
        if "values" in column
        else [column["words"][index] for index in column["index"]]
    )


async def test_who_is_refused(plane: PlaneWithPage, browser: Visitor) -> None:
    base, post = f"{plane.url}/ui/", browser.post
    cases = [
        ("GET", base, {}, "", 200),
        ("HEAD", base, {}, "", 200),
        ("GET", base, {"Sec-Fetch-Site": "cross-site"}, "", 403),
        ("GET", f"{base}v1/stream?view=now", {}, "", 403),
        (
            "GET",
            f"{base}v1/stream?view=now",
            {"Authorization": "Bearer x", "Sec-Fetch-Site": "none"},
            "",
            403,
        ),
        ("GET", f"{base}v1/trace?from=a&to=b", SAME, "", 401),
        ("GET", f"{base}v1/trace?from={'a' * 700}", SAME, "", 400),
        ("GET", f"{base}v1/trace", {**SAME, "Cookie": f"{login_sessions.COOKIE}=guessed"}, "", 401),
        ("GET", f"{base}v1/trace", {**SAME, "Cookie": 'a="\\'}, "", 401),
        ("PUT", base, SAME, "", 405),
        ("DELETE", f"{base}v1/login", post, "", 405),
        ("POST", f"{base}v1/trace", post, "", 405),
        ("POST", f"{base}v1/login", SAME, '{"token": "x"}', 403),
        (
            "POST",
            f"{base}v1/login",
            {**SAME, "Origin": "https://evil.example"},
            '{"token": "x"}',
            403,
        ),
        (
            "POST",
            f"{base}v1/login",
            {"Origin": plane.url, "Sec-Fetch-Site": "cross-site"},
            '{"token": "x"}',
            403,
        ),
        ("POST", f"{base}v1/login", {"Origin": plane.url}, '{"token": "x"}', 403),
        ("POST", f"{base}v1/logout", SAME, "", 403),
        ("POST", f"{base}v1/login", post, '{"token": "x"}', 401),
        ("POST", f"{base}v1/login", post, '{"token": ""}', 401),
        ("POST", f"{base}v1/login", post, '{"token": 7}', 400),
        ("POST", f"{base}v1/login", post, "[]", 400),
        ("POST", f"{base}v1/login", post, '{"token": "' + "x" * 40_000 + '"}', 400),
        ("POST", f"{base}v1/login", post, '{"link": 7}', 400),
        ("POST", f"{base}v1/login", post, '{"link": "guessed"}', 401),
        ("POST", f"{base}v1/login", post, '{"link": "\\ud800"}', 400),
        ("POST", f"{base}v1/logout", post, "", 204),
        ("GET", f"{base}services", {}, "", 404),
    ]
    for method, url, headers, body, status in cases:
        async with browser.session.request(method, url, headers=headers, data=body) as response:
            assert response.status == status, (method, url, headers, await response.text())
            assert response.headers["Content-Security-Policy"] == POLICY
            assert response.headers["Cache-Control"] == "no-store"
            assert not [name for name in response.headers if name.startswith("Access-Control")]
    async with browser.session.get(f"{plane.url}/ui", allow_redirects=False) as response:
        assert (response.status, response.headers["Location"]) == (308, "/ui/")
    async with browser.stream() as lines:
        assert [line async for line in lines] == [{"type": "ended", "says": "log in"}]


async def test_a_cookie_is_for_this_server_alone_and_no_script_reads_it(
    plane: PlaneWithPage, browser: Visitor
) -> None:
    response = await browser.log_in(await reader(plane, "red"))
    assert response.status == 204
    name, _, rest = response.headers["Set-Cookie"].partition("=")
    secret, _, attributes = rest.partition("; ")
    assert (name, attributes) == (
        "__Host-sliceplane-ui",
        "Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age=28800",
    )
    assert len(secret) >= 43
    assert secret not in repr(list(plane.door.sessions._logins)), "of a secret the digest is kept"
    async with browser.session.post(f"{plane.url}/ui/v1/logout", headers=browser.post) as gone:
        assert (
            gone.headers["Set-Cookie"]
            == f"{name}=; Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age=0"
        )


async def test_two_users_see_each_their_own_and_one_logs_out(
    plane: PlaneWithPage, browser: Visitor
) -> None:
    async with visitor(plane) as other:
        await browser.log_in(await reader(plane, "red"))
        await other.log_in(await reader(plane, "blue"))
        async with browser.stream() as red, other.stream() as blue:
            hello = await wait_for(red, "hello")
            assert (hello["user"], hello["namespace"]) == (
                "system:serviceaccount:red:reader",
                "red",
            )
            assert names(await wait_for(red, "view")) == ["red-web"]
            assert names(await wait_for(blue, "view")) == ["blue-web"]
            troubles = (await wait_for(red, "beat"))["troubles"]
            assert [(each["verb"], each["resource"], each["where"]) for each in troubles] == [
                ("list", "services", "in all namespaces"),
                ("list", "nodes", ""),
            ]
            async with browser.session.post(
                f"{plane.url}/ui/v1/logout", headers=browser.post
            ) as response:
                assert response.status == 204
            assert await wait_for(red, "ended") == {"type": "ended", "says": "you have logged out"}
            plane.apply(service("blue-api"), namespace="blue")
            assert "blue-api" in str(await wait_for(blue, "delta"))
        async with browser.stream() as lines:
            assert [line["says"] async for line in lines] == ["log in"]


async def test_a_right_that_is_taken_takes_what_was_read_with_it(
    browser: Visitor, plane: PlaneWithPage
) -> None:
    await browser.log_in(await reader(plane, "red"))
    async with browser.stream() as lines:
        assert "red-web" in names(await wait_for(lines, "view"))
        plane.delete("rolebinding", "reader", namespace="red")
        assert await wait_for(lines, "dropped") == {"type": "dropped"}
    async with browser.stream() as lines:
        assert names(await wait_for(lines, "view")) == []
        troubles = (await wait_for(lines, "beat"))["troubles"]
        assert {(each["resource"], each["where"]) for each in troubles} >= {
            ("services", "in namespace red")
        }
        await reader(plane, "red")
        await wait_for(lines, "dropped")
    async with browser.stream() as lines:
        assert "red-web" in names(await wait_for(lines, "view")), "and one that is given is used"


@pytest.mark.parametrize("how", ["its account is deleted", "it expires"])
async def test_a_token_that_ends_while_the_page_is_open(
    browser: Visitor, plane: PlaneWithPage, how: str
) -> None:
    await browser.log_in(await reader(plane, "blue"))
    async with browser.stream() as lines:
        await wait_for(lines, "view")
        if how == "it expires":
            plane.advance(3600)
        else:
            plane.delete("serviceaccount", "reader", namespace="blue")
        assert (await wait_for(lines, "ended"))["says"] == "the token is worth nothing any more"
    async with browser.session.get(f"{plane.url}/ui/v1/trace", headers=SAME) as response:
        assert response.status == 401


async def test_a_namespace_that_one_may_not_see_is_named_and_shows_nothing(
    browser: Visitor, plane: PlaneWithPage
) -> None:
    await browser.log_in(await reader(plane, "red"), namespace="blue")
    async with browser.stream() as lines:
        assert names(await wait_for(lines, "view")) == []
        troubles = (await wait_for(lines, "beat"))["troubles"]
        where = [(each["verb"], each["resource"], each["where"]) for each in troubles]
        assert ("list", "services", "in namespace blue") in where
    async with browser.stream("service&service=blue/blue-web") as lines:
        parts = (await wait_for(lines, "view"))["parts"]
        assert parts["service"] is None
        while "explain" not in parts or parts["explain"] is None:
            parts = {**parts, **(await wait_for(lines, "delta"))["parts"]}
        answer = parts["explain"]["answer"]
        assert (answer["services"], answer["missingRights"]) == (
            0,
            ["list services in namespace blue"],
        )


async def test_who_shows_a_certificate_needs_no_token(plane: PlaneWithPage) -> None:
    async with visitor(plane, certificate=True) as admin:
        async with admin.stream() as lines:
            hello = await wait_for(lines, "hello")
            assert not hello["cookie"]
            assert {"red-web", "blue-web", "kubernetes"} <= set(
                names(await wait_for(lines, "view"))
            )
        (login,) = [login for login in plane.door.sessions._logins if login.certificate is not None]
        assert hello["user"] == login.user.name
        shown = next(iter(plane.door.sessions.certificates))
        async with admin.session.get(
            f"{plane.url}/ui/v1/trace?from=a&to=b", headers=SAME
        ) as response:
            assert json.loads(await response.text())["problem"]
    async with visitor(plane) as other:
        async with other.session.get(
            f"{plane.url}/api/v1/nodes", headers={"Authorization": "Bearer x"}
        ) as response:
            assert response.status == 401
        await asyncio.to_thread(plane._call, _ended(plane, login))
        async with other.session.get(
            f"{plane.url}/api/v1/nodes", headers={"Authorization": f"Bearer {shown}"}
        ) as response:
            assert response.status == 401, (
                "what the page's requests show is worth nothing after the login"
            )


async def test_the_link_of_a_start_logs_in_once_as_the_administrator(
    plane: PlaneWithPage, browser: Visitor, capfd: pytest.CaptureFixture[str]
) -> None:
    link = plane.door.sessions.link()
    secret = link.removeprefix(f"{plane.url}/ui/#login=")
    assert len(secret) >= 22
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert (await browser.follow(link, **headers))[0] == 403
    assert (await browser.follow(link[:-1]))[0] == 401
    assert await browser.follow(link) == (204, ""), "neither has used it up"
    async with browser.stream() as lines:
        hello = await wait_for(lines, "hello")
        assert (hello["user"], hello["cookie"]) == ("sliceplane-admin", True)
        assert {"red-web", "blue-web", "kubernetes"} <= set(names(await wait_for(lines, "view")))
        async with visitor(plane) as thief:
            status, says = await thief.follow(link)
            assert (status, says) == (
                401,
                "this link was used already: it logs in once; log in with a token\n",
            )
            async with thief.stream() as refused:
                assert [line["says"] async for line in refused] == ["log in"]
        async with browser.session.post(
            f"{plane.url}/ui/v1/logout", headers=browser.post
        ) as response:
            assert response.status == 204
        await wait_for(lines, "ended")
    out, err = capfd.readouterr()
    assert "this link was used already" in out + err
    sessions = plane.door.sessions
    kept = "".join(repr(vars(each)) for each in (plane.door, sessions, sessions._link))
    assert secret not in out + err + kept, "no log has it"


async def test_a_link_that_is_old_or_guessed_at_logs_nobody_in(
    plane: PlaneWithPage, browser: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_sessions, "LINK_S", -1.0)
    status, says = await browser.follow(plane.door.sessions.link())
    assert (status, says) == (
        401,
        "this link has expired: it counts for 5 minutes; log in with a token\n",
    )
    monkeypatch.undo()
    monkeypatch.setattr("sliceplane.diagnose.page.logins.LINK_TRIES_PER_S", 1e-6)
    link = plane.door.sessions.link()
    answers = [(await browser.follow(f"{link}{guess}"))[0] for guess in range(LINK_TRIES + 3)]
    assert answers == [401] * LINK_TRIES + [429] * 3
    assert (await browser.follow(link))[0] == 429, "a guess that is not compared finds nothing out"
    assert (await browser.log_in(await reader(plane, "red"))).status == 204, (
        "a token is not concerned"
    )


async def _ended(plane: PlaneWithPage, login: Any) -> None:
    plane.door.sessions._end(login, "over")


async def test_a_tab_that_is_closed_is_forgotten(plane: PlaneWithPage, browser: Visitor) -> None:
    await browser.log_in(await reader(plane, "red"))
    async with browser.stream() as lines:
        await wait_for(lines, "view")
        (login,) = [
            login
            for login in plane.door.sessions._logins
            if login.user.name.endswith("red:reader") and login.tabs
        ]
        shown = await asyncio.to_thread(plane._call, _viewer(login))
        assert shown.tabs == 1
    await eventually(lambda: (login.tabs, shown.tabs), lambda tabs: tabs == (0, 0))


async def _viewer(login: Any) -> Any:
    return await login.viewer


async def test_an_account_without_rights_leaves_room_for_others(plane: PlaneWithPage) -> None:
    """One account held all logins for eight hours, each with an open tab, and the administrator got
    503.
    """
    token = await reader(plane, "red")
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(LOGINS_EACH_MAX + 2):
            hog = await stack.enter_async_context(visitor(plane))
            assert (await hog.log_in(token)).status == 204
            lines = await stack.enter_async_context(hog.stream())
            await wait_for(lines, "hello")
        mine = [
            login for login in plane.door.sessions._logins if login.user.name.endswith("red:reader")
        ]
        assert len(mine) == LOGINS_EACH_MAX
        plane.door.sessions._logins.check()
        async with visitor(plane, certificate=True) as admin, admin.stream() as lines:
            await wait_for(lines, "view")


async def test_questions_and_streams_are_shared_by_account(
    plane: PlaneWithPage, browser: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second login of the same account is no second share."""
    await browser.log_in(await reader(plane, "blue"))
    account = "system:serviceaccount:blue:reader"
    for shares, path in (
        (plane.door._streams, "stream?view=now"),
        (plane.door._questions, "trace?from=a&to=b"),
    ):
        taken = 0
        while shares.take(account):
            taken += 1
        url = f"{plane.url}/ui/v1/{path}"
        async with browser.session.get(url, headers=SAME) as response:
            assert response.status == 503
            assert account in await response.text()
        shares.release(account)
        async with browser.session.get(url, headers=SAME) as response:
            assert response.status == 200
        await eventually(lambda shares=shares: shares.used_by(account), (taken - 1).__eq__)
        shares.release(account, taken - 1)


async def test_a_namespace_that_is_no_name_is_refused(
    plane: PlaneWithPage, browser: Visitor
) -> None:
    for namespace in ("a/b", "x" * 64, "../red"):
        assert (await browser.log_in(await reader(plane, "red"), namespace=namespace)).status == 400


async def test_a_tab_that_is_open_at_the_end_is_ended_with_its_loop() -> None:
    """Left to be collected later, its timeout raised in whatever test or program ran by then: its
    loop was closed.
    """
    ended = asyncio.Event()
    rooms = Rooms()
    own = asyncio.get_running_loop()

    async def wait() -> None:
        try:
            async with asyncio.timeout(60):
                await asyncio.Event().wait()
        finally:
            own.call_soon_threadsafe(ended.set)

    waiting = rooms.run(wait())
    await rooms.run(asyncio.sleep(0))
    await rooms.close()
    await ended.wait()
    with pytest.raises(asyncio.CancelledError):
        await waiting
