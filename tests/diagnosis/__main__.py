"""`make diagnosis`: fault × found × culprit right × seconds × false alarms, as a table.

python -m tests.diagnosis [NAME …] [--drawn NUMBER --seed N [--after CASES]] [--beside]
                          [--healthy SECONDS] [--device NUMBER] [--list]
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.diagnosis import beside, cases, device_drawn, drawn, healthy, score
from tests.diagnosis.cases import Case
from tests.diagnosis.live import Outcome, watch

HEAD = ("fault", "found", "culprit", "after", "false alarms", "place in the code")


def chosen(names: list[str]) -> list[Case]:
    everything = [*cases.faults(), *cases.healthy()]
    if not names:
        return everything
    return [case for case in everything if any(name in case.name for name in names)]


def row(outcome: Outcome) -> tuple[str, ...]:
    """The table's cells of one case."""
    case, right, named = outcome.case, outcome.right, outcome.named
    false = ", ".join(f"{kind} {list(who)}" for kind, who in outcome.false) or "none"
    if not case.kinds:
        return case.name, "–", "–", f"{outcome.lasted_s:.0f} s healthy", false, ""
    said = right or named
    found = said.kind if said is not None else "NOT FOUND"
    cause = f" {outcome.cause}" if case.causes else ""
    culprit = f"right{cause}" if right else f"WRONG {list(named.culprits)}" if named else "–"
    seconds = "" if outcome.seconds is None else f"{outcome.seconds:.1f} s"
    return case.name, found, culprit, seconds, false, (right.where or "") if right else ""


def show(cells: tuple[str, ...]) -> None:
    name, found, culprit, seconds, false, where = cells
    line = f"{name:32} {found:16} {culprit:10} {seconds:>12}  {false:14} {where}"
    print(line.rstrip(), flush=True)


def beside_it(case: Case) -> None:
    """What torch's own tools say of the same job."""
    recorder, server = beside.says(case)
    print(f"    torchfrtrace: {recorder}\n    debug server: {server}", flush=True)
    print(f"    debug detail: {beside.detail(case)}", flush=True)


def run(todo: list[Case], with_torch: bool) -> int:
    """Print the table and what it comes to; how many are not as they should be."""
    show(HEAD)
    bad, begun, outcomes = 0, time.monotonic(), []
    for case in todo:
        outcome = watch(case)
        outcomes.append(outcome)
        show(row(outcome))
        if outcome.right is not None:
            print(f"    {outcome.right.severity}: {outcome.right.text}", flush=True)
        for finding in outcome.false.values():
            print(f"    FALSE {finding.kind}: {finding.text} {outcome.kept}", flush=True)
        for finding in outcome.warned.values() if case.causes or not case.kinds else ():
            print(f"    besides {finding.kind}: {finding.text}", flush=True)
        if with_torch:
            beside_it(case)
        bad += not outcome.as_it_should_be
    minutes = (time.monotonic() - begun) / 60
    print(f"{len(todo) - bad} of {len(todo)} as they should be, in {minutes:.0f} min")
    print("\n".join(score.summary(outcomes)))
    return bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of case names; none: all")
    parser.add_argument("--list", action="store_true", help="the cases, without running any")
    parser.add_argument("--beside", action="store_true", help="run torch's own tools on each, too")
    parser.add_argument("--healthy", type=float, metavar="SECONDS",
                        help="watch healthy jobs for so long, drawn from --seed (those with NAME"
                        " in their names): is any error or warning said?")  # fmt: skip
    parser.add_argument("--drawn", type=int, metavar="NUMBER",
                        help="so many cases drawn from --seed: classes in turn, rank count, rank"
                        " and step by chance")  # fmt: skip
    parser.add_argument("--device", type=int, metavar="NUMBER",
                        help="so many cases of each fault of a device, drawn from --seed, on"
                        " simulated accelerators, and half as many healthy jobs")  # fmt: skip
    parser.add_argument("--seed", type=int, default=13)
    parser.add_argument("--after", type=int, default=0, metavar="CASES",
                        help="leave out so many of those drawn: a drill goes on")  # fmt: skip
    parser.add_argument("--only-beside", action="store_true", help="torch's own tools alone")
    arguments = parser.parse_args()
    todo = [] if arguments.healthy else chosen(arguments.names)
    if number := arguments.drawn or arguments.device:
        of = drawn if arguments.drawn else device_drawn
        everything = of.cases(arguments.seed, number)[arguments.after :]
        names = arguments.names or [""]
        todo = [case for case in everything if any(name in case.name for name in names)]
    if arguments.list:
        print("\n".join(case.name for case in todo))
        return 0
    if arguments.healthy:
        found = healthy.run(arguments.healthy, arguments.seed, arguments.names, arguments.after)
        return 1 if found else 0
    if arguments.only_beside:
        for case in todo:
            print(case.name)
            beside_it(case)
        return 0
    return 1 if run(todo, arguments.beside) else 0


if __name__ == "__main__":
    sys.exit(main())
