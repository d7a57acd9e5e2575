"""The tables of docs/choices.md: every choice of a plan and every rule, from their records.

python benchmarks/choices.py --write docs/choices.md
"""

import argparse
from pathlib import Path

from sections import table, write_section

from dsx.plans.choices import CHOICES, Choice
from dsx.plans.features import FeatureCost, feature_costs
from dsx.plans.rules import RULES
from dsx.plans.violations import HOST_MEMORY, MEMORY, VANISHES
from dsx.schedules.schedules import SCHEDULES, Schedule


def values(choice: Choice) -> str:
    """Return the values of a choice, as text."""
    if choice.name == "strategy":
        return "`dsx list strategies`"
    known = ", ".join(filter(None, (*map(str, choice.main), choice.rest)))
    return known or f"from {choice.least}"


def of_schedule(schedule: Schedule) -> list[str]:
    """Return the row of a schedule."""
    known = {True: "yes", False: "no"}
    aliases = ", ".join(schedule.aliases) or "-"
    launched = known[schedule.megatron_lm is not None]
    can = [schedule.exact, schedule.interleaved, schedule.optimal_cut]
    return [f"`{schedule.name}`", *(known[each] for each in can), launched, aliases]


def of_feature(named: tuple[str, FeatureCost]) -> list[str]:
    """Return the row of a feature."""
    name, known = named
    each = known.cost if isinstance(known.cost, dict) else {}
    points = ", ".join(f"{value}: {cost}" for value, cost in each.items()) or str(known.cost)
    return [f"`{name}`", points, f"+{known.across_domains}" if known.across_domains else "-", known.source]


def text() -> str:
    """Return the tables."""
    choices = [
        [
            f"`{choice.name}`",
            choice.level,
            values(choice),
            str(choice.default) if choice.level != "job" and choice.name != "strategy" else "-",
            choice.description,
            ", ".join(f"`{word}`" for word in choice.also_called) or "-",
        ]
        for choice in CHOICES
    ]
    reasons = [MEMORY, VANISHES, HOST_MEMORY, *RULES]
    return "\n".join(
        [
            "## Choices\n",
            table(["column", "level", "values", "default", "what it is", "elsewhere"], choices),
            "## Schedules\n",
            table(
                ["name", "as a replay", "chunks", "optimal cut", "Megatron-LM", "also called"],
                map(of_schedule, SCHEDULES),
            ),
            "## Features\n",
            table(["feature", "points", "across fast domains", "why"], map(of_feature, feature_costs().items())),
            "## Rules\n",
            table(["reason", "a plan is rejected where"], [[f"`{one.name}`", one.description] for one in reasons]),
        ]
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables into the section of this document")
    document = parser.parse_args().write
    if document:
        write_section(document, "choices", text())
    else:
        print(text())
