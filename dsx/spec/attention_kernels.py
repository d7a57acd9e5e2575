"""Generations of fused attention kernels: which of them a software has, and what each reaches on a device.

| generation | kernels |
|---|---|
| flash-1 | FlashAttention (arXiv 2205.14135), and others that tile without sharing a head's work among blocks |
| flash-2 | FlashAttention-2 (arXiv 2307.08691), Composable Kernel of AMD, splash attention of JAX on TPU |
| flash-3 | FlashAttention-3 (arXiv 2407.08608), cuDNN 9, AITER of AMD: asynchronous multiplies and copies |
| flash-4 | FlashAttention-4: exponentials in part on the multiply units, for Blackwell |

A software that has a generation has those before it, and a device runs those that its file lists; the fastest counts.

Not modelled: kernels that a framework cannot use for a mask or a head dimension.
"""

from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, PlainSerializer

from dsx.errors import did_you_mean
from dsx.spec.load import Spec
from dsx.spec.value_types import Fraction, unsourced

Generation = Literal["flash-1", "flash-2", "flash-3", "flash-4"]
GENERATIONS: tuple[Generation, ...] = get_args(Generation)  # in order: a device lists some of them
_WORDS = ("none", *GENERATIONS)


class ReachedSpec(Spec):
    """Shares of the data sheet's 16-bit peak that a kernel reaches at head dimension 128 and long sequences.

    As the papers count: four multiply-adds per pair of query, key and element in the forward under a mask of no
    effect, half of them under a causal mask, and 2.5 times as many in the backward.
    """

    forward: Fraction
    backward: Fraction


def _number(value: object) -> float:
    plain = unsourced(value)
    if isinstance(plain, int | float) and not isinstance(plain, bool) and plain in range(len(_WORDS)):
        return float(plain)
    if not isinstance(plain, str) or plain not in _WORDS:
        raise ValueError(f"{plain!r} is none of {', '.join(_WORDS)}{did_you_mean(str(plain), _WORDS)}")
    return float(_WORDS.index(plain))


# The newest generation that a software has, "none" to "flash-4", as a number from 0: rows of different software are
# priced together, so it is a leaf like every other number.
AttentionKernels = Annotated[
    float, BeforeValidator(_number), PlainSerializer(lambda value: _WORDS[int(value)], when_used="json")
]
