"""``pardbg serve``: the real server and app, over a real websocket."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

aiohttp = pytest.importorskip("aiohttp")
pytest.importorskip("textual_serve")

SESSIONS = Path(__file__).parents[3] / "sessions"
ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    words = [sys.executable, "-m", "pardbg", "serve", str(SESSIONS / "1f1b.mcap")]
    folder = tmp_path_factory.mktemp("served")
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=folder) as server:
        assert server.stderr is not None
        said = server.stderr.readline()
        yield said.split()[3]
        server.terminate()


def client() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))


async def get(session: aiohttp.ClientSession, url: str, **headers: str) -> int:
    for _ in range(100):
        try:
            async with session.get(url, headers=headers) as answer:
                return int(answer.status)
        except aiohttp.ClientConnectorError:  # it says its address before it listens
            await asyncio.sleep(0.1)
    raise AssertionError("nobody listens")


async def seen(socket: aiohttp.ClientWebSocketResponse, *words: bytes) -> bytes:
    """Return what was drawn, once it has all of these words."""
    drawn = b""
    async with asyncio.timeout(60):
        async for message in socket:
            drawn += message.data if isinstance(message.data, bytes) else b""
            if all(word in ESCAPES.sub(b"", drawn) for word in words):
                return drawn
    raise AssertionError(ESCAPES.sub(b"", drawn)[-2000:])


async def test_the_address_needs_its_token_and_its_host(address: str) -> None:
    base = address.partition("/?")[0]
    async with client() as session:
        assert await get(session, address, Host="elsewhere.example") == 403
        assert await get(session, f"{address}x") == 403
        for path in ("/", "/ws", "/static/css/xterm.css", "/download/1"):
            assert await get(session, base + path, Origin=base) == 403, path
        assert await get(session, address, Origin="http://elsewhere.example") == 403
        assert await get(session, address) == 200
        assert await get(session, base + "/static/css/xterm.css") == 200, "the cookie is known"
    assert base.startswith("http://127.0.0.1:")


async def test_a_browser_fetches_nothing_from_elsewhere(address: str) -> None:
    """What the page links to is of this server, or its own policy has the browser leave it."""
    async with client() as session:
        assert await get(session, address) == 200
        async with session.get(address) as answer:
            page, policy = await answer.text(), answer.headers["Content-Security-Policy"]
    links = re.findall(r'<(link|script|img)\b[^>]*?(?:href|src)="([^"]+)"', page)
    elsewhere = {tag for tag, url in links if not url.startswith(address.partition("/?")[0])}
    assert elsewhere <= {"link"}
    for kind in ("style-src", "font-src"):
        assert f"{kind} 'self'" in policy and "*" not in policy


async def test_the_terminal_has_the_keys_without_a_click(address: str) -> None:
    async with client() as session:
        assert await get(session, address) == 200
        async with session.get(address) as answer:
            assert ".xterm-helper-textarea" in await answer.text()


async def test_a_websocket_of_another_page_is_refused(address: str) -> None:
    base = address.partition("/?")[0]
    async with client() as session:
        assert await get(session, address) == 200
        for headers in ({"Origin": "http://elsewhere.example"}, {}):
            with pytest.raises(aiohttp.WSServerHandshakeError):
                await session.ws_connect(f"{base}/ws", headers=headers)


async def test_the_app_is_there_and_view_only(address: str) -> None:
    base = address.partition("/?")[0]
    async with client() as session:
        assert await get(session, address) == 200
        where = f"{base}/ws?width=120&height=40"
        async with session.ws_connect(where, headers={"Origin": base}) as socket:
            await seen(socket, b"1 Overview", b"Nothing wrong")
            await socket.send_json(["stdin", "2"])
            await seen(socket, b"bubble by step")
            await socket.send_json(["stdin", "\x13"])  # ctrl s would write a picture here
            await seen(socket, b"view only")
