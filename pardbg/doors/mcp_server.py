"""``pardbg mcp``: the tools over the Model Context Protocol, on standard input and output."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import wraps
from typing import Final

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from pardbg.doors.tools import Tools
from pardbg.errors import UserError
from pardbg.plain_text import plain_lines
from pardbg.version import __version__

INSTRUCTIONS: Final = """\
pardbg looks into PyTorch distributed training. Ranks are global, times nanoseconds of the run's \
clock, sizes bytes. Answers are pages: ask again with offset=next_offset. target is a session \
file, a live run or a log; without it, what this server was started with, or the only live run. \
Begin with findings: the first one with culprits names the ranks at fault.
"""


def serve(tools: Tools, control: bool) -> None:
    """Answer a client until it leaves; ``control``: offer tools that change a live run, too."""
    server = MCPServer("pardbg", instructions=INSTRUCTIONS, version=__version__,
                       log_level="ERROR")  # fmt: skip
    looks = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    for tool in tools.reading():
        server.add_tool(_told(tool), annotations=looks, structured_output=False)
    if control:
        changes = ToolAnnotations(read_only_hint=False, destructive_hint=True)
        server.add_tool(_told(tools.control), annotations=changes, structured_output=False)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            server.run("stdio")
    finally:
        tools.close()


def _told(tool: Callable[..., str]) -> Callable[..., str]:
    """Return the tool with invalid questions answered in one line."""

    @wraps(tool)
    def answer(*args: object, **named: object) -> str:
        try:
            return tool(*args, **named)
        except UserError as error:
            raise ToolError(plain_lines(str(error))) from None

    return answer
