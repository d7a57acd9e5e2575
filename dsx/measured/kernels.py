"""Which operators ran as several kernels, by the names of the fused kernels that a row states.

Most software has one kernel for a norm and one for a softmax, and a row that names no kernels is taken to have had
both. A row that names some had those alone.
"""

# Operators whose cost depends on it, and words of which one is in the name of a kernel for them. "fused" alone is a
# fused softmax, as Megatron-LM calls it; fused attention has the softmax inside.
WORDS = {"norm": ("norm", "rms"), "softmax": ("softmax", "fused", "flash")}
ALL = "norm, softmax"  # kernels of which nothing runs as several


def unfused_operators(kernels: str) -> frozenset[str]:
    """Return the operators of `WORDS` for which there is no kernel among `kernels`."""
    names = kernels.lower()
    return frozenset(operator for operator, words in WORDS.items() if not any(word in names for word in words))
