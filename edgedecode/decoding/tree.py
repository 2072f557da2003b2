"""The shape of a draft tree: each node's parent, parents first; -1 is the context."""

from __future__ import annotations

from collections.abc import Sequence


def chain(length: int) -> tuple[int, ...]:
    """Return the parents of a chain: -1, 0, 1, …"""
    return tuple(range(-1, length - 1))


def is_chain(parents: Sequence[int]) -> bool:
    """Return whether every node continues the one before it."""
    return all(parent == index - 1 for index, parent in enumerate(parents))


def check_parents(parents: Sequence[int], *, length: int) -> None:
    """Raise ValueError unless `parents` describes a tree of `length` nodes, parents first."""
    if len(parents) != length:
        raise ValueError(f"{len(parents)} parents for {length} tokens")
    for index, parent in enumerate(parents):
        if not -1 <= parent < index:
            raise ValueError(f"node {index} has parent {parent}: parents come before their children, -1 is the root")


def depths(parents: Sequence[int]) -> list[int]:
    """Return each node's depth; children of -1 have depth 0."""
    result: list[int] = []
    for parent in parents:
        result.append(0 if parent < 0 else result[parent] + 1)
    return result


def children(parents: Sequence[int]) -> list[list[int]]:
    """Return the children of every node, the root's in the last place (so that index -1 finds them)."""
    result: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for index, parent in enumerate(parents):
        result[parent].append(index)
    return result
