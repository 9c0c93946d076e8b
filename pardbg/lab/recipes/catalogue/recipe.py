"""A recipe's entry in the catalogue: ranks that fit, options of its own, the screen it is for."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import import_module, metadata
from typing import Any, Final

from pardbg.lab.recipes.shape import BATCH


class RecipeError(ValueError):
    """A request that no recipe can fulfil: one line with the reason and advice."""


class Kind(str, Enum):
    """Heading of a recipe in ``pardbg demo --list``, in this order."""

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
    """An option of a single recipe: ``pardbg demo ps-async --staleness 2`` passes it on."""

    name: str
    """Name without dashes; ``Options.own[name]`` in the recipe."""
    default: Any
    help: str
    """Help in one line: the effect, with the option's unit."""
    type: Callable[[str], Any] = int
    choices: tuple[Any, ...] = ()
    least: int | None = None
    """The smallest valid number; None: no minimum."""
    most: int | None = None
    """The largest valid number; needs ``least``, too."""

    def read(self, text: str) -> Any:
        """Return the value of ``text``; RecipeError if the text is not a valid value."""
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
"""(recipe's name, number of ranks) -> why it cannot run on so many ranks, in one line, or None."""
Able = Callable[[int, Mapping[str, Any]], str | None]
"""(ranks, own options with ``steps``) -> reason, in one line, why this machine or torch cannot run
it, or why the options are invalid, or None."""


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
"""Any number of ranks; limits depend on the options."""
ANY_SHARE: Final = takes(range(1, BATCH + 1), f"has {BATCH} sequences: take 1 to {BATCH} ranks")
"""Ranks may take different numbers of the batch's sequences."""
EQUAL_SHARES: Final = takes(
    divisors(BATCH),
    f"cuts a batch of {BATCH} and cannot use {{}} ranks: take {listed(divisors(BATCH))}",
)
"""Each rank takes the same number of the batch's sequences."""


def able(nproc: int, own: Mapping[str, Any]) -> str | None:
    """Return None: any machine with a CPU can run it."""
    return None


@dataclass(frozen=True, slots=True)
class Recipe:
    """A program that trains the small GPT with one kind of parallelism."""

    name: str
    kind: Kind
    summary: str
    """Description in one line for ``pardbg demo --list``."""
    fits: Fits = EQUAL_SHARES
    able: Able = able
    nproc: int = 4
    """Default number of ranks."""
    steps: int = 300
    """Default number of training steps: some minutes to watch when compute is paced."""
    screen: str = "overview"
    """Screen that shows what is special about the recipe; `pardbg demo` starts with it."""
    options: tuple[Option, ...] = ()
    file: str = ""
    """Module shared by several recipes; empty: the module of the recipe's name."""
    code: str = ""
    """``module:name`` of the training function of (World, Options), unless ``file`` imports it."""
    since: str = "2.4"
    """First torch release that has the parts of the recipe."""
    not_on_gloo: tuple[str, ...] = ()
    """Torch releases whose gloo lacks an op of the recipe, or fails or hangs in it."""
    on_cpu: bool = False
    """Whether the recipe needs gloo on CPUs, even on a machine with GPUs."""

    @property
    def module(self) -> str:
        """Return the module to run, as in ``torchrun -m MODULE``."""
        return f"pardbg.lab.recipes.{self.file or self.name.replace('-', '_')}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """Return the arguments before the options, if a module serves several recipes."""
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
        """Return why the recipe cannot run on that many ranks here, in one line; None: it can."""
        own = self.defaults() if own is None else own
        return self._too_old() or self.fits(self.name, nproc) or self.able(nproc, own)

    def misfit_on_gloo(self) -> str | None:
        """Return why the recipe cannot run on gloo with this torch, in one line; None: it can."""
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
        """Return the default values of the recipe's own options."""
        return {option.name: option.default for option in self.options}

    def read(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the values of own options in ``--name value`` or ``--name=value`` words;
        RecipeError with one line for an unknown option or an invalid value."""
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
