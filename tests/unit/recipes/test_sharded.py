"""Tensor, sharded and expert recipes without ranks: what fits, and how heads go to ranks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pardbg.lab.recipes.catalogue import RECIPES, Option, RecipeError, command
from pardbg.lab.recipes.model import Attention
from pardbg.lab.recipes.shape import HEADS, WIDTH
from pardbg.lab.recipes.tp import heads_to_ranks

FITS = {
    "tp": [2, 4],  # 4 heads; one rank has nobody to share with
    "tp-sp": [2, 4],
    "zero1": [1, 2, 4, 8, 16],  # 16 sequences
    "zero2": [1, 2, 4, 8, 16],
    "zero3": [1, 2, 4, 8, 16],
    "hsdp": [4, 8, 16],  # pairs, and more than one of them
    "moe": [1, 2, 4, 8],  # 8 experts
    "recompute": [1, 2, 4, 8, 16],
}


@pytest.mark.parametrize("name", FITS)
def test_worlds_that_fit(name: str) -> None:
    assert [n for n in range(20) if RECIPES[name].misfit(n) is None] == FITS[name]


@pytest.mark.parametrize(
    ("name", "nproc", "says"),
    [
        ("tp", 8, "tp deals 4 attention heads to the ranks and cannot use 8: take 2 or 4 ranks"),
        ("tp-sp", 3,
         "tp-sp deals 4 attention heads and 64 positions to the ranks and cannot use 3:"
         " take 2 or 4 ranks"),
        ("hsdp", 3,
         "hsdp shards over 2 ranks and replicates that, so cannot use 3: take 4, 8 or 16"),
        ("moe", 3, "moe deals 8 experts to the ranks and cannot use 3: take 1, 2, 4 or 8 ranks"),
        ("zero3", 3, "zero3 cuts a batch of 16 and cannot use 3 ranks: take 1, 2, 4, 8, 16"),
    ],
)  # fmt: skip
def test_what_does_not_fit_says_what_does(name: str, nproc: int, says: str) -> None:
    with pytest.raises(RecipeError) as caught:
        command(name, nproc)
    assert str(caught.value) == says


def test_recompute_says_when_it_may() -> None:
    (when,) = RECIPES["recompute"].options
    assert isinstance(when, Option) and RECIPES["recompute"].read([]) == {"when": "alternate"}
    with pytest.raises(RecipeError, match="take one of alternate, always, never"):
        command("recompute", own=["--when", "sometimes"])


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_each_ranks_share_of_qkv_computes_its_own_heads(num_ranks: int) -> None:
    """Rank r's rows, as a smaller qkv, give the values of heads r · 4/n … of the whole one."""
    torch.manual_seed(0)
    whole = Attention()
    x = torch.randn(2, 5, WIDTH)
    seen: dict[str, torch.Tensor] = {}
    whole.out.register_forward_pre_hook(lambda _, args: seen.update(whole=args[0]))
    whole(x)

    heads_to_ranks(whole.qkv, num_ranks)
    rows, found = 3 * WIDTH // num_ranks, []
    for rank in range(num_ranks):
        part = Attention()
        part.qkv = nn.Linear(WIDTH, rows)
        part.out = nn.Identity()  # type: ignore[assignment]
        mine = slice(rank * rows, (rank + 1) * rows)
        part.qkv.weight.data, part.qkv.bias.data = whole.qkv.weight[mine], whole.qkv.bias[mine]
        found.append(part(x))
    assert found[0].shape[-1] == WIDTH // num_ranks and HEADS % num_ranks == 0
    torch.testing.assert_close(torch.cat(found, -1), seen["whole"])
