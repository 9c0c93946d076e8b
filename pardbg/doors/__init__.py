"""Doors for programs: tools for coding agents (MCP), and metrics."""
