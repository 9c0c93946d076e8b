"""The frame around every recipe's training: options, the process group, a clean end.

torchrun --nproc-per-node 4 -m pardbg.lab.recipes.ddp --steps 20
torchrun --nproc-per-node 4 -m pardbg.lab.recipes.pipeline 1f1b --steps 20
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from pardbg.lab.recipes import watched
from pardbg.lab.recipes.catalogue import RECIPES, Recipe, RecipeError

PACE_MS = 5.0
"""Default pace of a block, ms. 8 blocks over 4 stages: a forward sleeps 10 ms and a backward 20."""


@dataclass(frozen=True, slots=True)
class Options:
    steps: int
    seed: int
    pace_ms: float
    """Additional time of a block's forward, ms; its backward takes twice as much. 0: full speed."""
    lr: float
    own: Mapping[str, Any] = field(default_factory=dict)
    """The recipe's own options, by name; the catalogue lists them."""
    device: str = "auto"
    """``auto``, ``cuda``, or ``sim``: the simulated accelerator."""


@dataclass(frozen=True, slots=True)
class World:
    rank: int
    size: int
    device: torch.device

    def say(self, text: str) -> None:
        """Print with the rank in front, in one write, so that ranks do not mix within a line."""
        sys.stdout.write(f"[rank{self.rank}] {text}\n")
        sys.stdout.flush()

    def report(self, step: int, loss: float) -> None:
        """Report a step's loss, to people and pardbg. Nine digits tell any two float32 apart."""
        self.say(f"step {step} loss {loss:.9g}")
        watched.log(loss=loss)

    def report_mean(self, step: int, loss: Tensor) -> None:
        """Report the mean of the ranks' losses, each of its own share, for people: 4 more bytes."""
        mean = loss.detach()
        dist.all_reduce(mean)
        if self.rank == 0:
            self.report(step, mean.item() / self.size)


Train = Callable[[World, Options], None]


def main_of(recipes: Mapping[str, Train]) -> None:
    """Run the recipe of a module that the command line names first."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in recipes:
        stop(f"no recipe {name!r} in this module: name one of {', '.join(recipes)} first")
    main(name, recipes[name])


def main(name: str, train: Train) -> None:
    """Run a recipe on this rank: join the group, train, leave it."""
    recipe = RECIPES[name]
    options = parse(recipe)
    size = check(recipe, options)
    # Ctrl-C and SIGTERM end a rank where it stands, without four tracebacks on top of each other.
    # Python's own handler would not run anyway while the rank waits for a peer inside gloo.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)  # the ranks share this machine's cores; also: same sums every time

    device = choose_device(recipe, options)
    on_gloo = device.type == "cpu" and options.own.get("backend", "gloo") == "gloo"
    if on_gloo and (misfit := recipe.misfit_on_gloo()):
        stop(misfit)
    join(device, size, options)
    world = World(dist.get_rank(), size, device)
    watched.note("recipe", name)
    if device.type == "sim" and world.rank == 0:
        world.say("the device is simulated: what kernels and communication cost is stated")
    if options.pace_ms > 0:
        watched.note("paced", f"{options.pace_ms:g} ms per block forward, twice that backward")
        if world.rank == 0:
            world.say(f"compute is paced: each block takes {options.pace_ms:g} ms in forward")

    train(world, options)
    # train() has returned, so model and buffers can go. A DDP reducer that outlives its group
    # can abort the process, so they go first; only then is the group left, by all together.
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def parse(recipe: Recipe) -> Options:
    parser = argparse.ArgumentParser(prog=recipe.module, description=recipe.summary)
    if recipe.arguments:  # which of a module's recipes it is: its module has read that
        parser.add_argument("which", nargs=len(recipe.arguments), help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=recipe.steps)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--pace", type=float, default=PACE_MS, metavar="MS",
        help="each block's forward sleeps MS milliseconds, its backward twice that; 0: do not",
    )  # fmt: skip
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument(
        "--device", choices=("auto", "cuda", "sim"), default="auto",
        help="auto: a GPU per rank where there are as many, else the CPU; cuda: GPUs, shared by "
        "ranks where there are fewer; sim: simulated ones",
    )  # fmt: skip
    group = parser.add_argument_group(f"options of {recipe.name}") if recipe.options else None
    for option in recipe.options:
        assert group is not None
        said = f"{option.help} (default: {option.default})"
        group.add_argument(
            f"--{option.name}", dest=option.name, default=argparse.SUPPRESS, help=said
        )
    given = parser.parse_args()
    words = [
        f"--{option.name}={getattr(given, option.name)}"
        for option in recipe.options
        if hasattr(given, option.name)
    ]
    try:
        own = recipe.read(words)
    except RecipeError as error:
        stop(str(error))
    return Options(given.steps, given.seed, given.pace, given.lr, own, given.device)


def check(recipe: Recipe, options: Options) -> int:
    """Return the world's size if the recipe fits; else one line from rank 0, and exit code 2."""
    size = os.environ.get("WORLD_SIZE")
    if size is None:
        stop(f"start {recipe.name} with `pardbg demo {recipe.name}`, or: torchrun --nproc-per-node"
             f" {recipe.nproc} -m {recipe.module}")  # fmt: skip
    misfit = recipe.misfit(int(size), {"steps": options.steps, **options.own})
    if misfit is not None:
        stop(misfit)
    return int(size)


def join(device: torch.device, size: int, options: Options) -> None:
    """Join the process group. torchrun gives RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT by
    environment variables, and env:// reads them; with other methods rank and size are arguments."""
    if device.type == "cuda":
        share_gpus()
    usual = {"cuda": "nccl", "sim": "cpu:gloo,sim:sim"}.get(device.type, "gloo")
    backend = options.own.get("backend", usual)
    method = options.own.get("init-method", "env://")
    limit_s = options.own.get("timeout-s")  # None: torch's own, half an hour
    try:
        dist.init_process_group(
            backend,
            init_method=method,
            rank=int(os.environ["RANK"]),
            world_size=size,
            timeout=None if limit_s is None else timedelta(seconds=limit_s),
        )
    except (OSError, RuntimeError, ValueError) as error:
        stop(f"the ranks cannot meet at {method}: {str(error).splitlines()[0]}")


def share_gpus() -> None:
    """Let NCCL take ranks for ranks of different hosts if they outnumber this host's GPUs: it
    refuses two of one host on one GPU ("Duplicate GPU detected"). Bytes then go through sockets."""
    if torch.cuda.device_count() < local_ranks():
        os.environ.setdefault("NCCL_HOSTID", f"rank{os.environ['RANK']}")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")


def stop(text: str) -> NoReturn:
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)
    sys.exit(2)


def local_ranks() -> int:
    """Return the number of ranks on this host."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def choose_device(recipe: Recipe, options: Options) -> torch.device:
    """Return this rank's own GPU if this host has one for each of its ranks; the CPU otherwise."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if options.device == "sim":
        return simulated(local_rank)
    if options.device == "cuda":
        if not torch.cuda.is_available():
            stop("this torch sees no GPU: leave out --device, or simulate them: --device sim")
        index = local_rank % torch.cuda.device_count()
        torch.cuda.set_device(index)
        return torch.device("cuda", index)
    if recipe.on_cpu or options.own.get("backend", "nccl") != "nccl":
        return torch.device("cpu")
    if torch.cuda.device_count() < local_ranks():
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def simulated(local_rank: int) -> torch.device:
    """Return this rank's simulated accelerator. A kernel takes 10 us, an op 50 us plus its bytes at
    10 GB/s."""
    from pardbg.lab.sim import device as sim

    sim.settings.launch_ns = 10_000
    sim.settings.comm_default_ns, sim.settings.comm_byte_ns = 50_000, 0.1
    torch.accelerator.set_device_index(local_rank)
    return torch.device(sim.NAME, local_rank)
