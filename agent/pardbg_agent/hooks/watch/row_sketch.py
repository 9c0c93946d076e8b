"""Sketches of activations, which have a row for each sample: on any rank, in any microbatch and
place, a sample's row adds the same.

A row's own sketch (tensor_sketch) is rotated by a number of buckets, with a sign, given by a hash
of the sample. So the sketches of all rows of a step add up to one that does not depend on how the
batch was divided. The hash is of the sample's contents, as the model got it, or, for the later
stages of a pipeline, which do not get it, of the row's place in the step."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch

from pardbg_agent.hooks.watch.tensor_sketch import Maps, Seen, mixed, sketch_rows, turned


class Cut(NamedTuple):
    """Possible cut of the rank's rows: the ``at``-th of ``parts`` equal slices along ``dim``."""

    dim: int
    parts: int
    at: int


WHOLE: Final = Cut(0, 1, 0)


class Samples(NamedTuple):
    """Rows of a model's call."""

    by_contents: torch.Tensor
    """Hash of each row's contents, int64."""
    by_place: torch.Tensor
    """Hash of each row's place among those of the step on this rank."""
    first: int
    """Place of the first row."""

    def places(self) -> range:
        """Return the places of the rows."""
        return range(self.first, self.first + len(self.by_contents))


def samples_at(hashes: torch.Tensor, first: int) -> Samples:
    """Return the samples of a call, given the hashes of their contents and the number before it."""
    places = torch.arange(first, first + len(hashes), device=hashes.device)
    return Samples(hashes, mixed(places), first)


def by_sample(out: torch.Tensor, num_rows: int) -> torch.Tensor | None:
    """Return an activation with a row for each of ``num_rows`` samples, given (samples, …),
    (positions, samples, …) or (samples · positions, …); None: it has another layout."""
    if not out.dim() or not num_rows:
        return None
    if out.shape[0] == num_rows:
        return out
    if out.dim() > 1 and out.shape[1] == num_rows:
        return out.transpose(0, 1)
    if out.shape[0] % num_rows == 0:
        return out.reshape(num_rows, -1, *out.shape[1:])
    return None


def row_sketches(
    maps: Maps, rows: torch.Tensor, samples: Samples, cut: Cut
) -> tuple[torch.Tensor, Seen | None]:
    """Return the sketches of (samples, …) by contents and by place: float64, (2, SKETCH); and the
    Seen of ``sketch_rows``."""
    size = tuple(rows.shape[1:])
    shape = [n * (cut.parts if dim == cut.dim else 1) for dim, n in enumerate(size)]
    offset = [n * cut.at if dim == cut.dim else 0 for dim, n in enumerate(size)]
    own, seen = sketch_rows(maps, rows, shape, offset)
    return torch.stack([turned(own, hashes) for hashes in samples[:2]]), seen
