"""Every way to wait for a rank that sleeps, seen in Python and in C++: it is named with its place,
and nobody who waits is. A contract, so that no way to wait can be left out."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import FunctionType
from typing import Any, Final

import pytest
import torch
import torch.distributed._functional_collectives as functional
import torch.distributed.distributed_c10d as c10d

from tests.diagnosis.waits.cells import COVERS, ROWS
from tests.diagnosis.waits.table import Cell, lacking, run
from tests.hook_ways import WHY_NO_NATIVE

WAYS: Final = ("dispatcher", *(() if WHY_NO_NATIVE else ("native",)))


@pytest.fixture(scope="module")
def cells() -> Iterator[dict[tuple[str, str], Cell]]:
    """(way, row) -> what came of it. All ways at once: they sleep most of the time."""
    with ThreadPoolExecutor(len(WAYS)) as pool:
        jobs: dict[str, Future[list[Cell]]] = {
            way: pool.submit(run, list(ROWS), way) for way in WAYS
        }
        yield {(way, cell.name): cell for way, job in jobs.items() for cell in job.result()}


@pytest.fixture(scope="module")
def lacks(cells: dict[tuple[str, str], Cell]) -> set[str]:
    """Rows that this torch cannot run, pardbg or not."""
    raised = {name for (_, name), cell in cells.items() if cell.lacks}
    return lacking(sorted(raised)) if raised else set()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("way", WAYS)
def test_who_sleeps_is_named_and_nobody_who_waits(
    way: str, name: str, cells: dict[tuple[str, str], Cell], lacks: set[str]
) -> None:
    if (why := cells[way, name].lacks) and name in lacks:
        pytest.skip(f"not in this torch: {why}")
    assert not why and not cells[way, name].wrong


NO_WAIT: Final[dict[str, tuple[str, ...]]] = {
    "asks, and waits for nobody": (
        "get_backend", "get_backend_config", "get_debug_level", "get_default_backend_for_device",
        "get_global_rank", "get_group_rank", "get_node_local_rank", "get_pg_count",
        "get_process_group_ranks", "get_rank", "get_world_size", "is_backend_available",
        "is_gloo_available", "is_initialized", "is_mpi_available", "is_nccl_available",
        "is_torchelastic_launched", "is_ucc_available", "is_xccl_available", "supports_complex",
        "record_comm",
        "Work.boxed", "Work.unbox", "Work.exception", "Work.is_completed", "Work.is_success",
        "Work.result", "Work.source_rank", "Future.done", "Future.add_done_callback",
        "Future.set_result", "Work.get_future_result",
    ),
    "issues the op of its namesake, and is waited for as that": (
        "functional.all_gather_single", "functional.all_gather_single_autograd",
        "functional.all_gather_tensor_autograd", "functional.all_to_all_single_autograd",
        "functional.reduce_scatter_single", "functional.reduce_scatter_single_autograd",
        "functional.reduce_scatter_tensor_autograd",
    ),
    "what Dynamo puts in the place of torch.distributed's own": (
        "functional.all_gather_inplace", "functional.all_gather_tensor_inplace",
        "functional.all_reduce_inplace", "functional.all_to_all_inplace",
        "functional.reduce_scatter_tensor_inplace",
    ),
    "on the host it returns at once": ("Work.synchronize", "Work.block_current_stream"),
    "a call of the set-up: cases of tests.diagnosis.setup_programs": (
        "init_process_group", "destroy_process_group", "new_subgroups",
        "new_subgroups_by_enumeration",
    ),
    "NCCL alone": ("shrink_group", "split_group"),
}  # fmt: skip
"""Why a public name has no row."""


def public() -> Iterator[str]:
    """Whatever of torch.distributed a program can call that may wait for other ranks."""
    for name in c10d.__all__:
        if type(getattr(c10d, name)) is FunctionType:
            yield name
    classes: tuple[tuple[str, Any], ...] = (("Work", c10d.Work), ("Future", torch._C.Future))
    for word, kind in classes:
        yield from (f"{word}.{name}" for name in vars(kind) if not name.startswith("_"))
    yield from (f"futures.{name}" for name in torch.futures.__all__ if name != "Future")
    for name, value in vars(functional).items():
        if type(value) is not FunctionType or name.startswith("_"):
            continue
        parameters = inspect.signature(value).parameters
        if value.__module__ == functional.__name__ and parameters.keys() & {"group", "group_name"}:
            yield f"functional.{name}"


def test_each_public_way_to_wait_has_a_row_or_a_reason() -> None:
    rows = {name for names in COVERS.values() for name in names}
    reasons = {name for names in NO_WAIT.values() for name in names}
    assert not rows & reasons
    assert not sorted(set(public()) - rows - reasons)
