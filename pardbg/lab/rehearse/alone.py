"""torch.distributed for a single rank: torch's fake backend, and the messages that a rank needs.

Every process group is a fake one: an op returns at once, with the rank's own tensor or the previous
contents as its result. But programs decide by received data: shapes, sizes, pickled objects. So
integers of a known sender are passed on (``Mail``), from a rank that has run, or runs meanwhile, to
the receiver. Floating-point values stay arbitrary.
"""

from __future__ import annotations

import os
import socket
import sys
from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import msgpack
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from pardbg_agent import autostart, core
from pardbg_agent.hooks.ops import works
from pardbg_agent.wire import Kind

MAX_CONTROL_BYTES: Final = 1 << 16
"""Maximum bytes of integers in a message that is passed on."""
MAX_DEPTH: Final = 40
_OP_ISSUE, _STEP = int(Kind.OP_ISSUE), int(Kind.STEP)
Moments = list[tuple[CodeType, int]]
"""(code, instruction) of each frame, innermost first"""
_OWN: Final = (os.sep + "pardbg_agent" + os.sep, os.sep + "rehearse" + os.sep)


class AnotherWorld(RuntimeError):
    """The program requires another number of ranks than it is rehearsed with."""


class Mail:
    """Integers sent from rank to rank, through the process that forks them."""

    def __init__(self, server: socket.socket, before_wait: Callable[[], None]) -> None:
        self._server, self._before_wait = server, before_wait
        self._counts: Counter[str] = Counter()

    def number(self, what: str) -> str:
        """Return the name of a stream's next message; sender and receiver count alike."""
        self._counts[what] += 1
        return f"{what}.{self._counts[what]}"

    def post(self, name: str, tensor: torch.Tensor) -> None:
        """Leave a message."""
        data = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        self._server.send(msgpack.packb((name, -1, data)))

    def take(self, name: str, source: int, tensor: torch.Tensor) -> None:
        """Wait for a message and copy it into the tensor: zeros if the sender ended without it."""
        self._before_wait()
        self._server.send(msgpack.packb((name, source, b"")))
        data = self._server.recv(2 * MAX_CONTROL_BYTES)
        tensor.zero_()
        if data and len(data) == tensor.numel() * tensor.element_size():
            sent = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            tensor.copy_(sent.view(tensor.dtype).view(tensor.shape))


class Alone:
    """State of this process in the rehearsal, once it has been forked as a rank."""

    def __init__(self) -> None:
        self.rank, self.world, self.steps = -1, 0, 0
        self.mail: Mail | None = None
        self.end: Callable[[int], None] = lambda code: None
        """Function that leaves this rank; called after its last step."""
        self.stacks: dict[tuple[tuple[int, int], ...], int] = {}
        self._frames: list[Moments] = []
        """Frames of each stack; they keep the code objects alive whose ids are the keys."""
        self._own: dict[int, bool] = {}
        self.places: list[int] = []
        """Number of the stack of each op that the rank issued, in order."""
        self._due: dict[int, tuple[Any, Callable[[], None]]] = {}
        """id of a Work -> the Work, and the function that delivers at its wait."""
        self._ranks: dict[int, tuple[Any, list[int]]] = {}
        self._num_steps = 0

    def begin(self, rank: int, world: int, steps: int, mail: Mail) -> None:
        """Become this rank."""
        self.rank, self.world, self.steps, self.mail = rank, world, steps, mail

    def write_places(self, path: Path) -> None:
        """Write the place of each op: {"stacks": [[[file, line, function], ...]], "ops": []}"""
        said: dict[tuple[int, int], tuple[str, int, str]] = {}
        for code, at in chain.from_iterable(self._frames):
            if (id(code), at) not in said:
                said[id(code), at] = code.co_filename, _line(code, at), code.co_name
        stacks = [[said[id(code), at] for code, at in reversed(frames)] for frames in self._frames]
        path.write_bytes(msgpack.packb({"stacks": stacks, "ops": self.places}))

    def observe(self, made: core.Core) -> core.Core:
        """Watch the rank's own records: its ops' places in the program, the ends of its steps."""
        record = made.record

        def seen(kind: int, *fields: Any) -> None:
            if kind == _OP_ISSUE:
                self.places.append(self._stack(sys._getframe(1)))
            record(kind, *fields)
            if kind == _STEP:
                self._num_steps += 1
                if self._num_steps == self.steps:
                    self.end(0)

        made.record = seen
        return made

    def _stack(self, frame: FrameType | None) -> int:
        """Return the number of the present stack, without pardbg's own frames."""
        own, innermost = self._own, frame
        key: list[tuple[int, int]] = []
        while frame is not None and len(key) < MAX_DEPTH:
            number = id(frame.f_code)
            ours = own.get(number)
            if ours is None:
                file = frame.f_code.co_filename
                ours = own[number] = any(part in file for part in _OWN)
            if not ours:
                key.append((number, frame.f_lasti))
            frame = frame.f_back
        known = self.stacks.setdefault(tuple(key), len(self.stacks))
        if known == len(self._frames):
            codes = {}
            while innermost is not None and innermost is not frame:
                codes[id(innermost.f_code)] = innermost.f_code
                innermost = innermost.f_back
            self._frames.append([(codes[number], at) for number, at in key])
        return known

    # -- torch's functions, as this rank has them

    def init(self, original: Any) -> Any:
        def init_process_group(
            backend: Any = None, init_method: Any = None, timeout: Any = None, world_size: int = -1,
            rank: int = -1, store: Any = None, group_name: str = "", *args: Any, **kwargs: Any,
        ) -> None:  # fmt: skip
            if world_size not in (-1, self.world):
                raise AnotherWorld(f"it wants {world_size} ranks, not {self.world}")
            original(
                "fake", store=FakeStore(), rank=self.rank, world_size=self.world, timeout=timeout
            )

        return init_process_group

    def send(self, original: Any) -> Any:
        def send(group: Any, tensors: Any, to: int, tag: int = 0) -> Any:
            work = original(group, tensors, to, tag)
            if (one := _control(tensors)) is not None and self.mail is not None:
                name = f"p2p.{self.rank}.{self._members(group)[to]}.{tag}"
                self.mail.post(self.mail.number(name), one)
            return work

        return send

    def recv(self, original: Any) -> Any:
        def recv(group: Any, tensors: Any, source: int, tag: int = 0) -> Any:
            work = original(group, tensors, source, tag)
            if (one := _control(tensors)) is not None and source >= 0:
                sender = self._members(group)[source]
                self._later(work, f"p2p.{sender}.{self.rank}.{tag}", sender, one)
            return work

        return recv

    def broadcast(self, original: Any) -> Any:
        def broadcast(group: Any, tensors: Any, opts: Any = None, *args: Any, **kw: Any) -> Any:
            rest = () if opts is None else (opts, *args)
            work = original(group, tensors, *rest, **kw)
            root = getattr(opts, "rootRank", None)
            if root is not None and (one := _control(tensors)) is not None and self.mail:
                source, name = self._members(group)[root], f"all.{group.group_name}"
                if source == self.rank:
                    self.mail.post(self.mail.number(name), one)
                else:
                    self._later(work, name, source, one)
            return work

        return broadcast

    def wait(self, original: Any) -> Any:
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            done = original(work, *args, **kwargs)
            _, bring = self._due.pop(id(work), (None, None))
            if bring is not None:
                bring()
            return done

        return wait

    def _later(self, work: Any, stream: str, source: int, tensor: torch.Tensor) -> None:
        """Receive at the wait, not before: the other side may first need a message of this one."""
        mail = self.mail
        if mail is not None:
            name = mail.number(stream)
            self._due[id(work)] = work, lambda: mail.take(name, source, tensor)

    def _members(self, group: Any) -> list[int]:
        known = self._ranks.get(id(group))
        if known is None or known[0] is not group:
            known = self._ranks[id(group)] = group, dist.get_process_group_ranks(group)
        return known[1]


def prepare() -> Alone:
    """Prepare this process's torch for rehearsals; ranks are forked from this process."""
    autostart.start()
    if "pardbg_agent.hooks" not in sys.modules:
        autostart.install_hooks()
    torch.set_num_threads(1)
    works.SHORT_NS = -1  # type: ignore[misc]  # each wait counts here, however short
    alone = Alone()
    start = core.start
    core.start = lambda run: alone.observe(start(run))
    init = alone.init(c10d.init_process_group)
    dist.init_process_group = c10d.init_process_group = init
    make = c10d._new_process_group_helper
    c10d._new_process_group_helper = lambda size, rank, ranks, backend, *args, **kwargs: make(
        size, rank, ranks, "fake", *args, **kwargs
    )
    group, work = torch._C._distributed_c10d.ProcessGroup, torch._C._distributed_c10d.Work
    for name in ("send", "recv", "broadcast"):
        setattr(group, name, getattr(alone, name)(getattr(group, name)))
    kinds: list[Any] = [work, *work.__subclasses__()]
    for kind in kinds:
        if "wait" in vars(kind):
            kind.wait = alone.wait(kind.wait)
    _hook_replicas()
    return alone


def _hook_replicas() -> None:
    """Give each DDP replica a hook that issues the same all_reduce: DDP's own takes the result from
    the Work's future, and a fake one's is empty. The program's own hook is called by it."""
    replicas: Any = DistributedDataParallel
    made, register = replicas.__init__, replicas.register_comm_hook

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        self.own_hook = None
        register(self, self, lambda replica, bucket: _reduced(replica, bucket))

    def own(self: Any, state: Any, hook: Any) -> None:
        self.own_hook = state, hook

    replicas.__init__, replicas.register_comm_hook = init, own


def _reduced(replica: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    if replica.own_hook is not None:
        state, hook = replica.own_hook
        return hook(state, bucket)  # type: ignore[no-any-return]
    dist.all_reduce(bucket.buffer(), group=replica.process_group, async_op=True)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def _control(tensors: Any) -> torch.Tensor | None:
    """Return a message's tensor if a program may decide by it: few integers."""
    if not isinstance(tensors, list) or len(tensors) != 1 or not torch.is_tensor(tensors[0]):
        return None
    one: torch.Tensor = tensors[0]
    fits = one.is_cpu and not one.is_floating_point() and not one.is_complex()
    return one if fits and one.numel() * one.element_size() <= MAX_CONTROL_BYTES else None


def _line(code: CodeType, at: int) -> int:
    """Return the line of an instruction."""
    lines = (line for begin, end, line in code.co_lines() if begin <= at < end)
    return next(lines, None) or code.co_firstlineno
