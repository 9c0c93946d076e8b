"""Kinds of findings about wrong numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pardbg.analysis.findings.finding import Candidate, Facts, Label, Severity
from pardbg.analysis.findings.kinds.difference_words import (
    difference_text,
    settings_text,
    sides_text,
)
from pardbg.analysis.findings.kinds.kind import kinds
from pardbg.analysis.findings.wording import word
from pardbg.analysis.same.hypotheses import Hypothesis
from pardbg.sentences import filled
from pardbg.words import agreed, ranks_text, size


@dataclass(frozen=True, slots=True)
class NotFinite(Facts):
    """The first non-finite value: a rank's loss, or its input to an op."""

    what: str
    """Name of the value: ``loss``, or ``input to send to r1``."""
    step: int
    parameter: str
    since: tuple[int, ...]
    """Ranks that have non-finite values in later steps."""
    lasts: bool
    everywhere: bool
    """Whether all ranks had the first non-finite value at once."""
    hidden: bool = False
    """Whether another rank may have made the value: not all that it sends and sums is looked at."""
    steps: tuple[int, ...] = ()
    """All steps with non-finite values, if there were several and each time the next was finite."""
    before: tuple[int, ...] = ()
    """Ranks that sent to the culprit before and whose messages may have been checked only in
    part."""
    mixed: bool = False
    """Ranks had exchanged in that step what they computed, and not all of that is looked at."""
    spoilt: tuple[int, ...] = ()
    """Ranks whose parameter was not finite when they computed the loss."""
    unseen: bool = False
    """Not all that the loss may come from and ranks sum on devices is looked at."""

    def severity(self) -> Severity:
        return "error" if self.lasts else "info"

    def text(self, about: Candidate) -> str:
        text = f"first non-finite {self.what}: {ranks_text(about.culprits)}, step {self.step}."
        if self.hidden:
            text = (
                f"{ranks_text(about.ranks)} had the first non-finite {self.what}, in step "
                f"{self.step}. Which rank made it is not known: not all that they send and "
                f"sum on their devices is looked at."
            )
        elif self.everywhere:
            text = f"on all ranks at once the {self.what} is not finite in step {self.step}."
            if self.mixed:
                text += (
                    " They exchange what they compute before that: which rank made it is not known."
                )
            elif self.unseen:
                text += (
                    " It may be one rank's: not all that they sum on their devices is looked at."
                )
        if self.before and not self.hidden:
            text += (
                f" It may come from {ranks_text(self.before)} in few values: not all that ranks "
                f"send is looked at."
            )
        if self.spoilt:
            own = f" on {ranks_text(self.spoilt)}" if self.everywhere else ""
            text += f" Before that loss was made, {self.parameter} was not finite already{own}."
        elif self.parameter:
            text += f" The parameter closest to it: {self.parameter}."
        first = about.ranks if self.hidden else about.culprits
        others = tuple(rank for rank in self.since if rank not in first)
        if others and not self.everywhere:
            text += f" Since then {ranks_text(others)} {agreed('has', others)} it too."
        if self.steps:
            return f"{text} {len(self.steps)} steps had some, the last {self.steps[-1]}: it passes."
        return text if self.lasts else f"{text} No later step has any."

    def advice(self) -> str:
        cases = {
            "hidden": self.hidden or self.before,
            "first": not self.step and (self.spoilt or self.everywhere),
            "spoilt": self.spoilt, "mixed": self.mixed, "unseen": self.unseen,
            "everywhere": self.everywhere,
        }  # fmt: skip
        return self.tries(next((case for case, holds in cases.items() if holds), "rank"))


@dataclass(frozen=True, slots=True)
class ReplicaDivergence(Facts):
    """Parameters that DistributedDataParallel replicates are not bit-identical."""

    parts: tuple[str, ...]
    """Names of the parameters that differ."""
    step: int
    equal_step: int | None
    """Last earlier step in which the replicas were equal; None: none is known."""
    again_step: int | None
    """Step since which the replicas are equal again; None: they are not."""
    averaged: bool
    """Whether the replicas are averaged outside backward at times (local SGD)."""
    sure: bool
    skipped: tuple[int, ...]
    """Ranks whose optimizer stepped less or more often than the others'."""
    steps: tuple[int, int]
    """(optimizer steps of the ranks in ``skipped``, optimizer steps of the other ranks)"""
    rates: tuple[tuple[int, float], ...] = ()
    """(rank, learning rate) where the rates first differed; empty: they were equal until then."""
    settings: tuple[int, ...] = ()
    """Ranks whose optimizer has settings unlike the others' (learning rate, weight decay,
    clipping)."""
    unfinished: int = 0
    """Number of recent steps whose optimizer began before the sum of gradients was complete."""

    def severity(self) -> Severity:
        if self.again_step is not None or self.averaged:
            return "info"
        return "error" if self.sure else "warning"

    def text(self, about: Candidate) -> str:
        of, since = about.culprits, f"in step {self.step}"
        if self.equal_step is not None:
            since = f"after step {self.equal_step} and by step {self.step}"
        more = f" and {len(self.parts) - 1} more parts" if self.parts[1:] else ""
        parts = f"{self.parts[0]}{more}" if self.parts else ""
        differ = f"They differ in {parts}, without a majority" if parts else "There is no majority"
        if of:
            differ = f"{ranks_text(of).capitalize()} {agreed('differs', of)} from the others"
            differ += f": {parts}" if parts else ""
        text = (
            f"the replicas of the model on {ranks_text(about.ranks)} are no longer equal, bit by "
            f"bit, {since}. {differ}."
        )
        if self.again_step is not None:
            text += f" They are equal again in step {self.again_step}."
        if self.averaged:
            text += " They are averaged outside backward at times (local SGD): else they differ."
        if self.skipped:
            text += (
                f" The optimizer of {ranks_text(self.skipped)} has stepped {self.steps[0]} times "
                f"so far, that of the others {self.steps[1]}: "
            )
            text += (
                "steps were skipped there, as a gradient scaler does on its own."
                if self.steps[0] < self.steps[1]
                else "its ops are not those of the same step of the others."
            )
        if self.unfinished:
            text += (
                f" In {self.unfinished} of the last steps the optimizer began before the sum of "
                f"the gradients was complete: nobody had waited for it."
            )
        return text + settings_text(self.rates, self.settings, about.ranks)

    def advice(self) -> str:
        return self.tries(
            "unfinished" if self.unfinished else "settings" if self.settings else "replicas"
        )


@dataclass(frozen=True, slots=True)
class NotAveraged(Facts):
    """Ranks average their gradients, but not those of some parameters, which drift apart."""

    parts: tuple[str, ...]
    """Names of the parameters that are not averaged."""
    step: int
    """Step of the first look in which only parameters that are not averaged differed."""
    last: bool
    """Whether these are the model's last parameters, perhaps meant as each rank's own head."""

    @property
    def named(self) -> str:
        """Return the name of the first parameter in ``parts``, and the number of further ones."""
        more = len(self.parts) - 1
        return f"{self.parts[0]} and {more} more" if more else self.parts[0]

    def severity(self) -> Severity:
        return "info" if self.last else "warning"


@dataclass(frozen=True, slots=True)
class _InLooks(Facts):
    """Facts found in some of the looks at the numbers of a step."""

    step: int
    """Step of the first look that found the facts."""
    number: int
    """Number of looks that found the facts."""
    looks: int
    """Number of all looks."""


@dataclass(frozen=True, slots=True)
class UnequalSettings(_InLooks):
    """Ranks that shard one model step their parts of it with other settings."""

    rates: tuple[tuple[int, float], ...]
    """(rank, learning rate); empty: the rates are equal."""
    settings: tuple[int, ...]
    """Ranks whose optimizer's settings are unlike most ranks'; all, if there is no majority."""

    def text(self, about: Candidate) -> str:
        differ = settings_text(self.rates, self.settings, about.ranks)
        return (
            f"{ranks_text(about.ranks)} shard one model, and each steps its part with other "
            f"settings, in {self.number} of {self.looks} steps looked at, first in step "
            f"{self.step}.{differ}"
        )


@dataclass(frozen=True, slots=True)
class ClipsParts(Facts):
    """Ranks with parts of one model clip their parts of the gradients, each by its own norm."""

    step: int
    """Step of the first look in which parts were clipped apart."""
    of: Literal["shards", "stages"]
    """What the parts are: FSDP1's shards, or a pipeline's stages."""

    def advice(self) -> str:
        return self.tries(self.of)


@dataclass(frozen=True, slots=True)
class UnequalComputation(Facts):
    """Ranks average gradients, or shard one model, but compute them by unlike modules or ops."""

    what: Literal["modules", "loss"]
    """Difference: a model's modules, or the ops that made the loss."""
    of: tuple[tuple[int, str], ...]
    """(rank, modules that not all ranks have; or the newest op that differs)"""
    step: int
    """Step of the first look in which modules or ops were unlike."""

    @property
    def sides(self) -> str:
        by_text: dict[str, list[int]] = {}
        for rank, text in self.of:
            by_text.setdefault(text or "none of these", []).append(rank)
        return "; ".join(f"{ranks_text(of)}: {text}" for text, of in by_text.items())

    def severity(self) -> Severity:
        return "info" if self.what == "loss" else "warning"  # ranks may have tasks of their own

    def text(self, about: Candidate) -> str:
        return filled(word(UnequalComputation, f"text {self.what}"), self, about)

    def advice(self) -> str:
        return self.tries(self.what)


@dataclass(frozen=True, slots=True)
class NoGradientExchange(Facts):
    """Ranks began with the same parameters, step an optimizer, and exchange no gradients."""

    parameters_bytes: int
    num_steps: int


@dataclass(frozen=True, slots=True)
class Unaveraged(NoGradientExchange):
    """Ranks train on parts of the same samples, each by itself."""


@dataclass(frozen=True, slots=True)
class NoGradient(Facts):
    """An optimizer whose parameters never had a gradient: it changes nothing."""

    optimizer: str


@dataclass(frozen=True, slots=True)
class OnlyZeros(_InLooks):
    """A rank gives only zeros to the sums of gradients, though it has a loss."""


@dataclass(frozen=True, slots=True)
class UnequalStart(Facts):
    """Ranks that average their gradients began with different parameters."""


@dataclass(frozen=True, slots=True)
class UnequalMode(Facts):
    """Replicas of a model train with other numbers of modules in training mode."""

    training: tuple[tuple[int, int], ...]
    """(rank, modules in training mode)"""
    modules: int
    step: int
    """Step of the first look in which the modes were unlike."""
    never: tuple[int, ...] = ()
    """Ranks that never called eval() on the model, which is all in eval mode elsewhere."""

    @property
    def sides(self) -> str:
        return sides_text(self.training)

    @property
    def others(self) -> str:
        return ranks_text(self.never)

    def text(self, about: Candidate) -> str:
        return filled(word(UnequalMode, "text never" if self.never else "text"), self, about)


@dataclass(frozen=True, slots=True)
class GradientsKept(_InLooks):
    """A rank's backward adds to gradients that an optimizer has stepped by, where others cleared
    theirs."""

    lasts: bool

    def severity(self) -> Severity:
        return "warning" if self.lasts else "info"


@dataclass(frozen=True, slots=True)
class GradientsAdded(_InLooks):
    """Backward adds to gradients that the optimizer has stepped by, on all ranks or where ranks are
    not compared, and the next step takes both."""


@dataclass(frozen=True, slots=True)
class UnequalAccumulation(Facts):
    """Ranks that average their gradients add up those of unlike numbers of backwards."""

    backwards: tuple[tuple[int, int], ...]
    """(rank, number of backwards in each step)"""
    num_steps: int

    def text(self, about: Candidate) -> str:
        return (
            f"{ranks_text(about.ranks)} average gradients of unlike numbers of backwards: "
            f"{sides_text(self.backwards)} in each of the last {self.num_steps} steps."
        )


@dataclass(frozen=True, slots=True)
class UnequalScale(_InLooks):
    """Ranks multiply their losses by unlike numbers, and average the gradients."""

    scales: tuple[tuple[int, float], ...]
    """(rank, factor of its loss) in the newest look."""

    @property
    def sides(self) -> str:
        return sides_text(self.scales)


@dataclass(frozen=True, slots=True)
class UnequalAveraging(Facts):
    """Ranks average their parameters after unlike numbers of steps."""

    every: tuple[tuple[int, int], ...]
    """(rank, steps of its optimizer between two averages)"""
    first: int
    last: int
    """Most steps that a rank had made at the newest average; ``first``: the fewest."""

    def severity(self) -> Severity:
        each = len({number for _, number in self.every}) == len(self.every) > 2
        return "info" if each else "warning"  # a federated average: as many as each has data for

    def text(self, about: Candidate) -> str:
        return (
            f"{ranks_text(about.ranks)} average their parameters after unlike numbers of steps: "
            f"{sides_text(self.every, 'every ')}. The last average is of parameters after "
            f"{self.first} to {self.last} steps."
        )


@dataclass(frozen=True, slots=True)
class StepOrder(Facts):
    """Ranks issue an op on the other side of their optimizer's step than others do."""

    op: Label
    num_bytes: int
    before: tuple[int, ...]
    """Ranks that issue the op before their step."""
    after: tuple[int, ...]
    """Ranks that issue the op after their step."""
    number: int

    def text(self, about: Candidate) -> str:
        one, others = self.before, self.after
        return (
            f"{ranks_text(one)} {agreed('issues', one)} {self.op} ({size(self.num_bytes)}) before "
            f"{agreed('its', one)} optimizer's step, {ranks_text(others)} after "
            f"{agreed('its', others)}, {self.number} times in a row."
        )


Drift = Literal["rate", "skips", "once", "messages"]


@dataclass(frozen=True, slots=True)
class StepDrift(Facts):
    """Ranks are in unlike steps at one reduction of a group, or at one message."""

    group: Label
    how: Drift
    """Kind of drift: ``rate``, unlike numbers of reductions in each step; ``once``, in one step;
    ``skips``, a rank leaves out steps of its optimizer; ``messages``, as ``once``."""
    numbers: tuple[tuple[int, int], ...]
    """(rank, reductions or messages in a step, or steps over the same reductions)"""
    step: int
    """First step that drifted, of a culprit if there is one."""

    @property
    def sides(self) -> str:
        return sides_text(self.numbers)

    def text(self, about: Candidate) -> str:
        return filled(word(StepDrift, f"text {self.how}"), self, about)

    def advice(self) -> str:
        return self.tries(self.how)


@dataclass(frozen=True, slots=True)
class StaleParameters(Facts):
    """Each rank steps a part of the parameters, and parts are exchanged before the step alone."""

    parameters_bytes: int
    """Bytes of the parameters of all parts."""


@dataclass(frozen=True, slots=True)
class LateAverage(Facts):
    """Gradients are averaged after the optimizer's step, and then cleared."""


@dataclass(frozen=True, slots=True)
class SummedTwice(Facts):
    """Gradients are exchanged twice after each backward."""

    parameters_bytes: int


@dataclass(frozen=True, slots=True)
class Diverges(Facts):
    """A captured tensor is not the reference's, or replicas of it differ."""

    step: int
    what: str
    """Kind of tensor: ``grad``, ``out``, … (pardbg.analysis.same)."""
    name: str
    cause: Hypothesis | None
    """Hypothesis that explains the difference."""
    reference: bool
    """Whether a reference was compared; else replicas differ, or a copy lacks an update."""
    through: str
    """Module whose backward computes the gradient of an output; empty for other tensors."""

    def severity(self) -> Severity:
        return "error"

    def text(self, about: Candidate) -> str:
        differs = difference_text(self.step, self.what, self.name, self.cause)
        if not self.reference:
            return f"what ranks keep equal is not: {differs}."
        look = f" Look at the backward of {self.through}." if self.through else ""
        return f"the computation is not the reference's: {differs}.{look}"


KINDS: Final = kinds(
    {
        "nan": NotFinite,
        "diverges": Diverges,
        "replica-divergence": (ReplicaDivergence, NotAveraged),
        "no-gradient-exchange": (NoGradientExchange, Unaveraged),
        "no-gradient": (NoGradient, OnlyZeros),
        "unequal-start": UnequalStart,
        "unequal-settings": (UnequalSettings, UnequalComputation, ClipsParts),
        "unequal-mode": UnequalMode,
        "summed-twice": SummedTwice,
        "gradients-kept": (GradientsKept, GradientsAdded),
        "unequal-accumulation": UnequalAccumulation,
        "unequal-scale": UnequalScale,
        "unequal-averaging": UnequalAveraging,
        "step-order": StepOrder,
        "step-drift": StepDrift,
        "stale-parameters": StaleParameters,
        "late-average": LateAverage,
    }
)
