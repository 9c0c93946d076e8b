"""Data parallel recipes, and the tour of every operation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from pardbg.lab.recipes.catalogue.recipe import (
    ANY_SHARE,
    Kind,
    Option,
    Recipe,
    divisors,
    listed,
    takes,
)
from pardbg.lab.recipes.shape import BATCH

_SERVER_AND_WORKERS = takes(
    range(2, BATCH + 2),
    f"has a server and at least one worker, and {BATCH} sequences to share:"
    f" take 2 to {BATCH + 1} ranks",
)
_ONE = takes((1,), "is one process that drives all GPUs and cannot use {}: take 1 rank")
_TWO_OR_MORE = takes(range(2, 1 << 31), "needs somebody to talk to: take 2 ranks or more")


def _two_gpus(_: int, __: Mapping[str, Any]) -> str | None:
    import torch

    found = torch.cuda.device_count()
    if found >= 2:
        return None
    return (
        f"dp (nn.DataParallel) needs 2 GPUs and there are {found} here:"
        " `pardbg demo ps` does the same between processes"
    )


def _pieces(nproc: int, own: Mapping[str, Any]) -> str | None:
    share, pieces = BATCH // nproc, own["pieces"]
    if share % pieces == 0:
        return None
    return (
        f"ddp-accum with {nproc} ranks has {share} sequences on each and cannot cut them into"
        f" {pieces} pieces: take --pieces {listed(divisors(share))}"
    )


def _reachable(nproc: int, own: Mapping[str, Any]) -> str | None:
    """Return whether this torch can join a group by this method on this machine."""
    return _backend(nproc, own["backend"]) or _init_method(own["init-method"])


def _backend(nproc: int, name: str) -> str | None:
    import torch
    import torch.distributed as dist

    if not getattr(dist, f"is_{name}_available")():
        built = [n for n in ("gloo", "nccl", "mpi") if getattr(dist, f"is_{n}_available")()]
        return f"this torch is built without {name}: take --backend {' or '.join(built)}"
    found = torch.cuda.device_count()
    if name == "nccl" and found < nproc:
        return f"nccl needs a GPU per rank, {nproc}, and there are {found} here: take gloo"
    return None


def _init_method(text: str) -> str | None:
    url = urlsplit(text)
    if url.scheme == "env":
        return None
    if url.scheme == "tcp":
        try:
            fits = bool(url.hostname and url.port)
        except ValueError:
            fits = False
        return None if fits else f"--init-method {text}: it needs tcp://HOST:PORT"
    if url.scheme == "file":
        if not url.path.startswith("/") or url.netloc:
            return f"--init-method {text}: it needs file:///a/path, the same for all ranks"
        # Once ranks run, one of them has made it.
        if "RANK" not in os.environ and os.path.exists(url.path):
            return f"{url.path} exists: ranks meet in a new file; remove it or name another"
        return None
    return f"--init-method {text}: take env://, tcp://HOST:PORT or file:///a/path"


RECIPES = (
    Recipe("dp", Kind.DATA, "nn.DataParallel: one process, all GPUs (needs 2)",
           fits=_ONE, able=_two_gpus, nproc=1),
    Recipe("ps", Kind.DATA,
           "parameter server: workers push gradients and pull weights, all in step",
           fits=_SERVER_AND_WORKERS, screen="traffic"),
    Recipe("ps-async", Kind.DATA, "parameter server without a common step; bounded staleness",
           fits=_SERVER_AND_WORKERS, screen="traffic",
           options=(Option("staleness", 4, "updates between a pull and its push, at most",
                           least=0),), on_cpu=True),
    Recipe("ddp", Kind.DATA, "a replica per rank, gradients averaged while backward runs"),
    Recipe("ddp-accum", Kind.DATA, "several backwards per step, gradients sent once", able=_pieces,
           options=(Option("pieces", 2, "pieces that a rank cuts its share into", least=1),)),
    Recipe("ddp-syncbn", Kind.DATA, "batch norm over all ranks' inputs"),
    Recipe("ddp-ring", Kind.DATA,
           "all_reduce written out: a ring of sends and receives, chunk by chunk",
           fits=ANY_SHARE, screen="traffic"),
    Recipe("tour", Kind.TOUR, "every collective, p2p call and reduction, each result checked",
           fits=_TWO_OR_MORE, able=_reachable, steps=20, screen="collectives",
           not_on_gloo=("2.4", "2.5", "2.6", "2.7", "2.8", "2.9", "2.10", "2.11"),
           options=(Option("backend", "gloo", "gloo, nccl or mpi", type=str,
                           choices=("gloo", "nccl", "mpi")),
                    Option("init-method", "env://",
                           "env://, tcp://HOST:PORT or file:///PATH: how ranks meet", type=str))),
)  # fmt: skip
