"""The web server of ``pardbg serve``: on loopback, for whoever has its token.

The address opens the page with ``?token=…``, which becomes a cookie of this port; every other
request, the websocket's above all, must bring it. A page of elsewhere that a browser shows can
reach loopback, too: so the Host must be ours, whatever name was resolved to it, and a websocket's
Origin.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web
from textual_serve.server import Server

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_TOKEN_BYTES: Final = 24
HOST: Final = "127.0.0.1"
_NOTHING_FROM_ELSEWHERE: Final = "style-src 'self' 'unsafe-inline'; font-src 'self' data:"
"""Content security policy against textual-serve's font of another host, which blocks the page."""


_FOCUS: Final = """<script>const seeks = setInterval(() => {
  const keys = document.querySelector(".xterm-helper-textarea");
  if (keys) { keys.focus(); clearInterval(seeks); }
}, 100);</script>"""
"""Gives the terminal the keys as soon as it is there, which took a click."""


class Guarded(Server):
    """textual-serve's server behind a token."""

    def __init__(self, command: str, port: int) -> None:
        super().__init__(command, HOST, port, "pardbg")
        self._token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._cookie = f"pardbg-{port}"

    @property
    def address(self) -> str:
        """Return the page's address."""
        return f"{self.public_url}/?token={self._token}"

    def initialize_logging(self) -> None:
        """Log only errors: the line of a request contains the token."""
        logging.getLogger("textual-serve").setLevel(logging.ERROR)

    async def on_startup(self, app: web.Application) -> None:
        """Print nothing: the command has printed the address."""

    async def _make_app(self) -> web.Application:
        app: web.Application = await super()._make_app()
        app.middlewares.append(self._guard())
        return app

    def _guard(self) -> Any:
        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            asked = request.query.get("token", "")
            if request.host != f"{HOST}:{self.port}":
                raise web.HTTPForbidden(text="not this host")
            origin = request.headers.get("Origin")
            if origin not in ((self.public_url,) if request.path == "/ws"
                              else (None, self.public_url)):  # fmt: skip
                raise web.HTTPForbidden(text="not from this page")
            known = any(
                secrets.compare_digest(word.encode(), self._token.encode())
                for word in (asked, request.cookies.get(self._cookie, ""))
            )
            if not known:
                raise web.HTTPForbidden(text="the address needs its token")
            response = await handler(request)
            if isinstance(response, web.Response) and response.content_type == "text/html":
                response.text = (response.text or "").replace("</head>", f"{_FOCUS}</head>")
            if asked and not response.prepared:
                response.set_cookie(self._cookie, self._token, httponly=True, samesite="Strict")
            if not response.prepared:
                response.headers["Referrer-Policy"] = "no-referrer"
                response.headers["X-Frame-Options"] = "DENY"
                response.headers["Content-Security-Policy"] = _NOTHING_FROM_ELSEWHERE
            return response

        return guard


def free_port() -> int:
    with socket.socket() as one:
        one.bind((HOST, 0))
        found: int = one.getsockname()[1]
    return found
