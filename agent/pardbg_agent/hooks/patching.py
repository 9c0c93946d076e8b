"""Reversible patches of classes and modules of others.

A wrapper that is still reachable after ``undo`` (the program bound it or wrapped it again) only
passes calls through, because it asks ``core.CURRENT`` on each call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from pardbg_agent import core as _core
from pardbg_agent.clock import now_ns
from pardbg_agent.hooks.context import LOCAL
from pardbg_agent.life.own_frames import hide_own, uncounted

Before = Callable[..., Any]
"""(core, *args, **kwargs) -> the value ``after`` gets, or None: this call is not watched."""
After = Callable[[Any, Any, int, bool], None]
"""(core, result of ``before``, end time, failed)"""

_ABSENT = object()


def nothing(*_: Any) -> None:
    """Do nothing after a call of which only the begin is hooked."""


class Patches:
    """Attributes we replaced, and how to put them back."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any, Any]] = []
        self.missing: list[str] = []
        """Attributes and hooks that this torch lacks: what they would report is not recorded."""

    def wrap(self, owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
        """Replace ``owner.name`` by ``wrapper(owner.name)``; note it if it is missing."""
        if hasattr(owner, name):
            self.set(owner, name, wrapper(getattr(owner, name)))
        else:
            self.missing.append(f"{getattr(owner, '__name__', owner)}.{name}")

    def attempt(self, what: str, install: Callable[[], Any]) -> Any:
        """Return the result of a hook's ``install``; None, noted, if this torch lacks it."""
        try:
            return install()
        except Exception as error:  # noqa: BLE001 - it costs what this hook tells, no more
            self.missing.append(f"{what} ({type(error).__name__}: {error})"[:200])
            return None

    def set(self, owner: Any, name: str, new: Any) -> None:
        """Replace ``owner.name``; remembers whether it was the owner's own or inherited."""
        uncounted(new)
        old = vars(owner).get(name, _ABSENT)
        setattr(owner, name, new)
        self._undo.append((owner, name, old, new))

    def around(
        self, owner: Any, name: str, hook: str, before: Before, after: After = nothing,
        idle: Callable[[], Any] | None = None,
    ) -> None:  # fmt: skip
        """Replace a function or method by one that calls ``before`` and ``after`` around it."""
        self.wrap(owner, name, lambda original: around(original, hook, before, after, idle))

    def undo(self) -> None:
        """Restore attributes, newest first. Those that others wrapped since stay as they are."""
        while self._undo:
            owner, name, old, new = self._undo.pop()
            if vars(owner).get(name) is not new:
                continue
            if old is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, old)


def around(
    original: Any, hook: str, before: Before, after: After, idle: Callable[[], Any] | None = None
) -> Any:
    """Return ``original`` with hooks around it. An exception of a hook never leaves it; the gate's
    wait is inside ``before``, so KeyboardInterrupt passes. ``before`` gets the arguments by
    position as far as the call's form allows. A true ``idle()``, a cheap check, skips the hooks."""
    names = _names(original)

    @functools.wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        if compiling():  # first: Dynamo must find nothing of ours to guard on
            return original(*args, **kwargs)
        try:
            c = _core.CURRENT
            if c is None or c.level == 0 or hook in c.guard.disabled or (idle and idle()):
                return original(*args, **kwargs)
            begun = now_ns()
            try:
                if kwargs:
                    placed, rest = _placed(names, args, kwargs)
                    what = before(c, *placed, **rest)
                else:
                    what = before(c, *args)
            except Exception as error:  # noqa: BLE001 - the guard
                c.guard.failed(hook, error)
                what = None
            c.hook_ns += now_ns() - begun
            c.hook_calls += 1
            if what is None:
                return original(*args, **kwargs)
            failed = True
            try:
                result = original(*args, **kwargs)
                failed = False
            finally:
                ended = now_ns()
                try:
                    after(c, what, ended, failed)
                except Exception as error:  # noqa: BLE001 - the guard
                    c.guard.failed(hook, error)
                c.hook_ns += now_ns() - ended
                c.hook_calls += 1
            return result
        except BaseException as error:
            hide_own(error)
            raise

    return watched


def _names(function: Any) -> tuple[str, ...]:
    """Return the parameters that may be given by position or by name, in order."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)


def _placed(
    names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    rest = dict(kwargs)
    for name in names[len(args) :]:
        if name not in rest:
            break
        args = (*args, rest.pop(name))
    return args, rest


def unframed(function: Any) -> Any:
    """Wrap a function so that our frames do not appear in exceptions that pass it."""

    uncounted(function)

    @unseen
    @functools.wraps(function)
    def passing(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            hide_own(error)
            raise

    return passing


def spend(c: _core.Core, since: int) -> None:
    """Count the time since ``since`` and one call as the agent's cost."""
    c.hook_ns += now_ns() - since
    c.hook_calls += 1


def wait_gate(c: _core.Core, gate: int, describe: Any, facts: Any = None, look: Any = None) -> None:
    """Pass a closed gate. Being held is not the agent's cost. ``facts`` returns the fields of the
    next action or op, if a breakpoint asks; ``look`` checks it for a watch."""
    if look is None and c.watches.slow is not None:
        LOCAL.state.own_ns = now_ns()
    c.hook_ns -= c.gate.wait(gate, describe, facts, look)


def _never() -> bool:
    return False


compiling: Callable[[], bool] = _never
"""torch.compiler.is_compiling. Dynamo traces through wrappers: there it must see only the
original."""


tracing: Callable[[], bool] = _never
"""torch.compiler.is_dynamo_compiling: True for Dynamo alone; returns False at no cost."""


def use_compiling(compiles: Callable[[], bool], traces: Callable[[], bool]) -> None:
    """Set torch's compiling checks, which exist once torch is imported."""
    global compiling, tracing
    compiling, tracing = compiles, traces


def unseen(function: Any) -> Any:
    """Keep torch.compile's frame evaluation off a function and all functions it calls: our code
    runs between the pieces of compiled programs and must not be compiled as one of them."""
    uncounted(function)  # gives it another code object: before that is known to Dynamo
    frames: Any = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        action, strategy = frames._FrameAction.SKIP, frames._FrameExecStrategy
        frames.set_code_exec_strategy(function.__code__, strategy(action, action))
        return function
    return _frames_off(frames, function)  # before torch 2.7


def _frames_off(frames: Any, function: Any) -> Any:
    """Return a wrapper that switches frame evaluation off while it runs, for a torch that can skip
    one function alone, not its callees."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        before = frames.set_eval_frame(None)
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            hide_own(error)
            raise
        finally:
            frames.set_eval_frame(before)

    wrapper: Any = uncounted(run)
    frames.skip_code(wrapper.__code__)
    return wrapper
