"""What the list knows of a recipe: ranks that fit, options of its own, the screen it is for."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import import_module, metadata
from typing import Any, Final

from pardbg.lab.recipes.shape import BATCH


class RecipeError(ValueError):
    """A wish no recipe can fulfil: one line that says what and what to do."""


class Kind(str, Enum):
    """The heading a recipe stands under in ``pardbg demo --list``, in this order."""

    DATA = "data parallel"
    PIPELINE = "model and pipeline"
    TENSOR = "tensor and sequence"
    SHARDED = "sharded state"
    EXPERTS = "experts and recomputation"
    HYBRID = "hybrids"
    TOUR = "every operation"
    FAULT = "faults"


@dataclass(frozen=True, slots=True)
class Option:
    """An option of one recipe alone: ``pardbg demo ps-async --staleness 2`` passes it on."""

    name: str
    """Without the dashes; ``Options.own[name]`` in the recipe."""
    default: Any
    help: str
    """One line: what it does, with its unit."""
    type: Callable[[str], Any] = int
    choices: tuple[Any, ...] = ()
    least: int | None = None
    """The smallest number that makes sense."""
    most: int | None = None
    """The largest; goes with ``least``."""

    def read(self, text: str) -> Any:
        """Return the value that ``text`` means; RecipeError if it means none."""
        try:
            value = self.type(text)
        except ValueError:
            raise RecipeError(f"--{self.name} {text}: {self.wants()}") from None
        # Not <, for a NaN is neither too small nor large enough.
        beyond = (self.least is not None and not value >= self.least) or (
            self.most is not None and not value <= self.most
        )
        if beyond or (self.choices and value not in self.choices):
            raise RecipeError(f"--{self.name} {text}: {self.wants()}")
        return value

    def wants(self) -> str:
        if self.choices:
            return f"take one of {', '.join(map(str, self.choices))}"
        noun = "number" if self.type in (int, float) else "value"
        if self.most is not None:
            return f"it needs a {noun} from {self.least} to {self.most}"
        return f"it needs a {noun}" + ("" if self.least is None else f" of {self.least} or more")


Fits = Callable[[str, int], str | None]
"""Recipe's name and number of ranks in; why it cannot run on so many, in one line, or None."""
Able = Callable[[int, Mapping[str, Any]], str | None]
"""Ranks, and own options with ``steps``, in; why this machine or this torch cannot do it, or the
options cannot be meant, in one line, or None."""


def takes(numbers: Container[int], why: str) -> Fits:
    """Allow these numbers of ranks. ``why``, with ``{}`` for another, follows the recipe's name."""
    return lambda name, nproc: None if nproc in numbers else f"{name} {why.format(nproc)}"


def divisors(whole: int) -> list[int]:
    """Return all divisors, the smallest first."""
    return [n for n in range(1, whole + 1) if whole % n == 0]


def _release(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


def _torch() -> str | None:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def listed(numbers: Iterable[int]) -> str:
    """Return text such as ``1, 2, 4``."""
    return ", ".join(map(str, numbers))


ANY_RANKS: Final = takes(range(1 << 31), "")
"""It depends on the options."""
ANY_SHARE: Final = takes(range(1, BATCH + 1), f"has {BATCH} sequences: take 1 to {BATCH} ranks")
"""Each rank takes some sequences of the batch, not all as many."""
EQUAL_SHARES: Final = takes(
    divisors(BATCH),
    f"cuts a batch of {BATCH} and cannot use {{}} ranks: take {listed(divisors(BATCH))}",
)
"""Each rank takes as many sequences of the batch as every other."""


def able(nproc: int, own: Mapping[str, Any]) -> str | None:
    """Nothing but a CPU is needed."""
    return None


@dataclass(frozen=True, slots=True)
class Recipe:
    """A program that trains the small GPT in one kind of parallelism."""

    name: str
    kind: Kind
    summary: str
    """One line for ``pardbg demo --list``."""
    fits: Fits = EQUAL_SHARES
    able: Able = able
    nproc: int = 4
    """Ranks by default."""
    steps: int = 300
    """Training steps by default: some minutes to watch when compute is paced."""
    screen: str = "overview"
    """The screen that shows what is special here; `pardbg demo` starts with it."""
    options: tuple[Option, ...] = ()
    file: str = ""
    """Module that several recipes share; without it the one of the recipe's own name."""
    code: str = ""
    """``module:name`` of what trains, (World, Options) in, where the file does not import it."""
    since: str = "2.4"
    """The first torch release that has its parts."""
    not_on_gloo: tuple[str, ...] = ()
    """Torch releases whose gloo lacks an op of it, or whose parts hang or fail on gloo."""
    on_cpu: bool = False
    """Needs what only gloo on CPUs has, also where there are GPUs."""

    @property
    def module(self) -> str:
        """Return the module to run, as in ``torchrun -m MODULE``."""
        return f"pardbg.lab.recipes.{self.file or self.name.replace('-', '_')}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """Return what stands before the options, where a module serves several recipes."""
        return (self.name,) if self.file else ()

    def load(self) -> Callable[[Any, Any], Any]:
        """Return the function that trains; imports torch."""
        path, _, name = (self.code or f"{self.module}:train").partition(":")
        module = import_module(path)
        shared = self.file and not self.code
        found: Callable[[Any, Any], Any] = (
            module.RECIPES[self.name] if shared else getattr(module, name)
        )
        return found

    def misfit(self, nproc: int, own: Mapping[str, Any] | None = None) -> str | None:
        """Why this recipe cannot run on that many ranks here, in one line; None: it can."""
        own = self.defaults() if own is None else own
        return self._too_old() or self.fits(self.name, nproc) or self.able(nproc, own)

    def misfit_on_gloo(self) -> str | None:
        """Why it cannot run on gloo with the torch that is here, in one line; None: it can."""
        here = _torch()
        if here is None or _release(here) not in map(_release, self.not_on_gloo):
            return None
        why = f"{self.name} hangs or fails on gloo with torch {here}, without pardbg, too"
        return f"{why}: take another torch, or a GPU for each rank"

    def _too_old(self) -> str | None:
        here = _torch()
        if here is None or _release(here) >= _release(self.since):
            return None
        return f"{self.name} needs torch {self.since} or newer, and {here} is installed"

    def defaults(self) -> dict[str, Any]:
        """Return its own options' values when nothing is said."""
        return {option.name: option.default for option in self.options}

    def read(self, words: Sequence[str]) -> dict[str, Any]:
        """Own options out of ``--name value`` or ``--name=value`` words; RecipeError with one line
        if there is no such option or its value means nothing."""
        known, values, rest = {o.name: o for o in self.options}, self.defaults(), list(words)
        while rest:
            word, given, text = rest.pop(0).partition("=")
            option = known.get(word.removeprefix("--")) if word.startswith("--") else None
            if option is None:
                has = ", ".join(f"--{name}" for name in known) or "none of its own"
                raise RecipeError(f"{self.name} has no option {word}: it has {has}")
            if not given:
                if not rest:
                    raise RecipeError(f"{word} of {self.name}: {option.wants()}")
                text = rest.pop(0)
            values[option.name] = option.read(text)
        return values
