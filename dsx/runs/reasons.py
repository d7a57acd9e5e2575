"""Why a row cannot be modelled: the rule that it breaks, and the values that break it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dsx.runs.run_table import TIMES


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a row cannot be modelled; reports count rows by `rule`."""

    rule: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.rule} ({self.detail})" if self.detail else self.rule


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on the columns of a row, which its message shows with their values."""

    reason: str  # if it does not hold
    columns: tuple[str, ...]
    holds: Callable[[Mapping[str, Any]], bool]


NEEDED = ("layers", "hidden", "seq", "gpu", "n_gpus", "global_batch")  # they have no default


def _divides(part: int, whole: int) -> bool:
    return whole % part == 0


# Embedding and head count as layers of a pipeline here, since stages may be uneven.
RULES = (
    Rule(
        "tp * pp * cp * dp is not n_gpus",
        ("tp", "pp", "cp", "dp", "n_gpus"),
        lambda v: v["tp"] * v["pp"] * v["cp"] * v["dp"] == v["n_gpus"],
    ),
    Rule(
        "ep does not divide tp * cp * dp",
        ("ep", "tp", "cp", "dp"),
        lambda v: _divides(v["ep"], v["tp"] * v["cp"] * v["dp"]),
    ),
    Rule("etp is neither 1 nor tp", ("etp", "tp"), lambda v: v["etp"] in (1, v["tp"])),
    Rule(
        "ep * etp does not divide tp * cp * dp",
        ("ep", "etp", "tp", "cp", "dp"),
        lambda v: _divides(v["ep"] * v["etp"], v["tp"] * v["cp"] * v["dp"]),
    ),
    Rule("ep without experts", ("ep", "experts"), lambda v: v["ep"] == 1 or v["experts"] > 1),
    Rule("ep does not divide experts", ("ep", "experts"), lambda v: _divides(v["ep"], v["experts"])),
    Rule("experts without a topk", ("topk", "experts"), lambda v: not v["experts"] or v["topk"] > 0),
    Rule("topk is more than experts", ("topk", "experts"), lambda v: not v["experts"] or v["topk"] <= v["experts"]),
    Rule(
        "microbatch * dp does not divide global_batch",
        ("microbatch", "dp", "global_batch"),
        lambda v: _divides(v["microbatch"] * v["dp"], v["global_batch"]),
    ),
    Rule(
        "pp * vpp is more than layers with embedding and head",
        ("pp", "vpp", "layers"),
        lambda v: v["pp"] * v["vpp"] <= v["layers"] + 2,
    ),
    Rule("vpp without pp", ("vpp", "pp"), lambda v: v["vpp"] == 1 or v["pp"] > 1),
    Rule("kv_heads does not divide heads", ("kv_heads", "heads"), lambda v: _divides(v["kv_heads"], v["heads"])),
    Rule("tp does not divide heads", ("tp", "heads"), lambda v: _divides(v["tp"], v["heads"])),
    Rule(
        "neither of tp and kv_heads divides the other",
        ("tp", "kv_heads"),
        lambda v: _divides(v["tp"], v["kv_heads"]) or _divides(v["kv_heads"], v["tp"]),
    ),
    Rule(
        "tp does not divide ffn_hidden",
        ("tp", "ffn_hidden"),
        lambda v: bool(v["experts"]) or _divides(v["tp"], v["ffn_hidden"]),
    ),
    Rule("cp does not divide seq", ("cp", "seq"), lambda v: _divides(v["cp"], v["seq"])),
    Rule(
        "tp * cp does not divide seq, with sp",
        ("tp", "cp", "seq"),
        lambda v: not v["sp"] or _divides(v["tp"] * v["cp"], v["seq"]),
    ),
    Rule(
        "tp * cp does not divide the tokens that are routed to experts",
        ("tp", "cp", "microbatch", "seq"),
        lambda v: v["experts"] <= 1 or _divides(v["tp"] * v["cp"], v["microbatch"] * v["seq"]),
    ),
    Rule(
        "out of memory, but with a time",
        ("oom", *TIMES),
        lambda v: not v["oom"] or all(v[column] is None for column in TIMES),
    ),
)


def impossible(values: Mapping[str, Any]) -> Reason | None:
    """Return why a filled row cannot be a training run; None if it can."""
    blank = [column for column in NEEDED if values[column] is None]
    if blank:
        return Reason("a column without a default is blank", ", ".join(blank))
    for rule in RULES:
        if not rule.holds(values):
            return Reason(rule.reason, ", ".join(f"{column}={values[column]}" for column in rule.columns))
    return None
