"""A client of ``pardbg mcp``: the ``mcp`` package's own, over the server's real streams."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp

from tests.processes import rank_env


class Client:
    """Asks, and counts what it asks."""

    def __init__(self, client: mcp.Client) -> None:
        self.client = client
        self.calls = 0

    async def names(self) -> set[str]:
        return {tool.name for tool in (await self.client.list_tools()).tools}

    async def text(self, name: str, **arguments: Any) -> tuple[bool, str]:
        """Whether a tool answered, and what."""
        self.calls += 1
        result = await self.client.call_tool(name, arguments)
        (content,) = result.content
        return not result.is_error, getattr(content, "text", "")

    async def __call__(self, name: str, **arguments: Any) -> dict[str, Any]:
        good, text = await self.text(name, **arguments)
        assert good, text
        answer: dict[str, Any] = json.loads(text)
        return answer


@asynccontextmanager
async def asking(*words: str) -> AsyncIterator[Client]:
    """A server of these words, and its client."""
    argv = ["-m", "pardbg", "mcp", *words]
    server = mcp.StdioServerParameters(command=sys.executable, args=argv, env=rank_env())
    async with mcp.Client(mcp.stdio_client(server)) as client:
        yield Client(client)
