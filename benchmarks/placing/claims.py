"""The claims of the sources beside what the other tables find."""

from collections.abc import Mapping, Sequence
from statistics import mean

from sections import table

from placing.answers import gains
from placing.bandwidths import gain
from placing.cases import Row, percent

Measured = Mapping[str, Sequence[Row]]


def text(measured: Measured) -> str:
    """Return a row for each claim whose tables were measured."""
    answers = [row for row in measured.get("answers", ()) if row["reference"]]
    rows = [
        *(_shorter(answers) if answers else ()),
        *(_bandwidth(measured["bandwidth"]) if "bandwidth" in measured else ()),
        *(_faster(measured["seconds"]) if "seconds" in measured else ()),
        *(_colocrl(measured["schemes"]) if "schemes" in measured else ()),
    ]
    return table(("claim", "found here", "holds"), rows)


def _holds(yes: bool) -> str:
    return "yes" if yes else "no"


def _shorter(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    ways = {"METIS": gains(rows, "metis"), "MCMC": gains(rows, "mcmc")}
    told = "; ".join(
        f"than {way} {percent(mean(own), '')} % in the mean, {percent(max(own), '')} % at most"
        for way, own in ways.items()
    )
    return [
        (
            f"steps are {claimed} % shorter",
            told,
            "; ".join(f"{way}: {_reached(own, claimed / 100)}" for way, own in ways.items()),
        )
        for claimed in (35, 22)
    ]


def _reached(gains: Sequence[float], claimed: float) -> str:
    """Return whether gains reach what is claimed, in the mean or at least once."""
    return "in the mean" if mean(gains) >= claimed else "in the best case" if max(gains) >= claimed else "no"


def _bandwidth(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    found = [gain(row) for row in rows]
    many = sum(one >= 0.02 for one in found)
    told = f"{percent(mean(found), '')} % in the mean, {percent(max(found), '')} % at most; 2 % or more in {many}"
    return [
        (
            "joint bandwidth takes 11 % more off the step",
            f"{told} of {len(found)} cases",
            _reached(found, 0.11),
        )
    ]


def _faster(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    most = max(map(int, rows[0]["mcmc_s"]))
    own = [row["fusion_s"] + row["solver_s"] for row in rows]
    batched = [row["mcmc_s"][str(most)] / seconds for row, seconds in zip(rows, own, strict=True)]
    plain = [most * row["python_step_s"] / seconds for row, seconds in zip(rows, own, strict=True)]
    told = (
        f"{most:,} schedules in plain Python take {min(plain):.0f} to {max(plain):.0f} times as long as fusion and "
        f"solver, MCMC with the simulator {min(batched):.1f} to {max(batched):.1f} times"
    )
    return [
        (f"the search is {claimed:,} times faster than MCMC", told, _holds(min(batched) >= claimed))
        for claimed in (2000, 650)
    ]


def _colocrl(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    parts, losses = [], []
    for name in dict.fromkeys(row["graph"] for row in rows):
        own = {row["scheme"]: row["annealed_s"] for row in rows if row["graph"] == name}
        losses.append(own["iterated, distribution, groups"] / own["ColocRL"] - 1)
        parts.append(f"{name} {percent(losses[-1])} %")
    return [
        ("reduced graphs give steps at most 7 % longer than ColocRL's", "; ".join(parts), _holds(max(losses) <= 0.07))
    ]
