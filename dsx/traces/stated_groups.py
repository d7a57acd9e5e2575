"""Process groups that a node of a trace states, as PyTorch's profiler records them when a process starts.

The node has a text of its inputs: a list with one text, which is JSON and lists the groups of the process. A group
without ranks is that of all ranks.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

NODE_OF_GROUPS = "## process_group:init ##"  # its name
_LIST = re.compile(r"\[\s*\{.*\}\s*\]", re.DOTALL)
_MOST_RANKS = 10**9


def stated_groups(values: str) -> dict[str, Sequence[int]]:
    """Return the ranks of each process group in the inputs of such a node; none if they have another form."""
    listed = _LIST.search(values)
    if listed is None:
        return {}
    try:
        groups = json.loads(listed[0].replace('\\"', '"'))  # quotes in a text are escaped by some
    except (ValueError, RecursionError):
        return {}
    return {str(group["pg_name"]): tuple(group["ranks"]) for group in groups if _is_group(group)}


def _is_group(group: Any) -> bool:
    if not isinstance(group, dict) or not isinstance(group.get("pg_name"), str | int):
        return False
    ranks = group.get("ranks")
    if not isinstance(ranks, list):
        return False
    whole = all(isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < _MOST_RANKS for rank in ranks)
    return whole and len({*ranks}) == len(ranks)
