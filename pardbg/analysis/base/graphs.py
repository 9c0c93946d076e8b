"""Directed graphs of ranks: strongly connected components and reachability."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

Edges = Mapping[int, set[int]]


def terminal(edges: Edges) -> list[tuple[int, ...]]:
    """Return the strongly connected components without an edge out of them, as sorted ranks."""
    part = components(edges)
    leaves = {part[r] for r, others in edges.items() if any(part[s] != part[r] for s in others)}
    members: dict[int, list[int]] = {}
    for rank, number in part.items():
        members.setdefault(number, []).append(rank)
    return sorted(tuple(sorted(ranks)) for number, ranks in members.items() if number not in leaves)


def components(edges: Edges) -> dict[int, int]:
    """Return rank -> number of its strongly connected component (Kosaraju, without recursion)."""
    back: dict[int, set[int]] = {}
    nodes = set(edges)
    for rank, others in edges.items():
        nodes |= others
        for other in others:
            back.setdefault(other, set()).add(rank)
    order: list[int] = []
    walked: set[int] = set()
    for node in sorted(nodes):
        _walk(node, lambda n: edges.get(n, ()), walked, order.append)
    part: dict[int, int] = {}
    walked = set()
    for node in reversed(order):
        if node not in walked:
            found: list[int] = []
            _walk(node, lambda n: back.get(n, ()), walked, found.append)
            part.update(dict.fromkeys(found, node))
    return part


def _walk(
    start: int,
    following: Callable[[int], Iterable[int]],
    walked: set[int],
    leave: Callable[[int], None],
) -> None:
    """Walk depth first from ``start``; ``leave`` gets each node after all its successors."""
    if start in walked:
        return
    walked.add(start)
    stack = [(start, iter(sorted(following(start))))]
    while stack:
        node, rest = stack[-1]
        after = next((n for n in rest if n not in walked), None)
        if after is None:
            stack.pop()
            leave(node)
        else:
            walked.add(after)
            stack.append((after, iter(sorted(following(after)))))


def reaching(edges: Edges, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Return the ranks outside ``ranks`` that can reach one of them."""
    known = set(ranks)
    while True:
        more = {r for r, others in edges.items() if r not in known and others & known}
        if not more:
            return tuple(sorted(known - set(ranks)))
        known |= more
