"""Optimizer whose step ends a training step.

Programs with several optimizers (GANs, one per model part) call them in a fixed order: the one that
comes last before the first-seen one comes again ends the step; in the first round, the one after
which every optimizer has stepped. One that is last only now and then (DiLoCo's outer one, a WGAN's
generator) ends none. One that is new between two rounds, or comes again and again without the
first-seen one, makes rounds of its own (a second stage, another fold) until they take turns."""

from __future__ import annotations

import weakref
from typing import Any

from pardbg_agent.hooks.tensors import parameters_of


class Cycle:
    """Finder of the optimizer whose step ends a training step."""

    def __init__(self) -> None:
        self._first: Any = None
        self._last: Any = None
        self._closer: Any = None
        self._tail: Any = None
        """Optimizer that came last in the round before."""
        self._known = False
        """Whether a whole round of optimizers was seen."""
        self._round: Any = weakref.WeakSet()
        """Optimizers that stepped since a step ended."""
        self._members: Any = weakref.WeakSet()
        """Optimizers that the rounds consist of."""
        self._left: Any = None
        """First-seen optimizer of the rounds before, when one optimizer has stepped since."""
        self.to_come: Any = weakref.WeakSet()
        """Optimizers made that have not stepped yet."""
        self._only: Any = None
        """Sole optimizer of each round so far: its steps would change nothing below."""

    @property
    def only(self) -> Any:
        """Return a weak reference to the optimizer each of whose steps ends a training step; None
        if there is no such optimizer."""
        return None if self.to_come else self._only

    def stepped(self, optimizer: Any) -> bool:
        """Note an optimizer's step. Return whether it ends the training step."""
        if self._only is not None and self._only() is optimizer and not self.to_come:
            return True
        ends = self._stepped(optimizer)
        alone = ends and self._known and len(self._members) == 1 and not self.to_come
        self._only = self._last if alone and self._left is None else None
        return ends

    def _stepped(self, optimizer: Any) -> bool:
        first = self._first() if self._first is not None else None
        left, self._left = self._left() if self._left is not None else None, None
        self.to_come.discard(optimizer)
        if first is None:
            self._alone(optimizer)
            self._known = False
            return not self.to_come
        if optimizer is first:
            left_out = first in self._round and self._closer() not in self._round
            if not self._known or left_out or self._last is self._tail:
                self._closer = self._last  # the optimizer before it closed the round
            self._tail, self._known = self._last, True
        elif optimizer is left:  # it had only not stepped for the first time yet
            self._first = weakref.ref(optimizer)
        elif not self._known:
            self._closer = weakref.ref(optimizer)
        elif self._is_new(optimizer):
            self._members.clear()
            self._left = self._first
            self._alone(optimizer)
        elif optimizer in self._round and first not in self._round:
            self._first = self._closer = weakref.ref(optimizer)
        self._last = weakref.ref(optimizer)
        self._round.add(optimizer)
        self._members.add(optimizer)
        if (not self._known and self.to_come) or self._closer() is not optimizer:
            return False
        self._round.clear()
        return True

    def _is_new(self, optimizer: Any) -> bool:
        """Return whether an optimizer is new between two rounds, and not an outer one (DiLoCo)."""
        members = self._members
        return not (self._round or optimizer in members or is_outer(optimizer, members))

    def _alone(self, optimizer: Any) -> None:
        self._first = self._last = self._closer = weakref.ref(optimizer)
        self._members.add(optimizer)

    @property
    def expected(self) -> bool:
        """Return whether an optimizer was seen, or was made and has not stepped."""
        return self._first is not None or bool(self.to_come)

    @property
    def used(self) -> bool:
        """Return whether any optimizer has stepped."""
        return self._first is not None


def is_outer(optimizer: Any, others: Any) -> bool:
    """Return whether an optimizer steps parameters of one of ``others``, now and then (DiLoCo)."""
    mine = parameters_of(optimizer)[:1]
    return any(p is one for one in mine for other in others for p in parameters_of(other))
