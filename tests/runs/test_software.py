"""The stack of a run: by word, release and year."""

import pytest

from dsx.runs.machines import described, known_stacks, software_of

STACKS = known_stacks()


@pytest.mark.parametrize(
    ("software", "framework", "year", "stack"),
    [
        (None, "Megatron-LM", 2021, "megatron-2019"),
        (None, "megatron-lm", 2023, "megatron-2023"),
        (None, "NeMo/Megatron-Core", 2024, "megatron-2024-mid"),  # the middle of the year
        ("24.05", "NeMo/Megatron-Core", 2024, "megatron-2024"),
        ("24.06", "NeMo/Megatron-Core", 2024, "megatron-2024-mid"),
        ("NeMo 25.04", "NeMo/Megatron-Core", 2024, "megatron-2025"),  # a release wins over the year
        ("ngc23.09 NeMo", None, 2025, "megatron-2023"),
        ("release of 2023-10", "PaxML/JAX", 2024, "xla-2023"),
        (None, "Megatron-DeepSpeed", 2024, "deepspeed-2023"),  # the longer word
        (None, "Megatron-DeepSpeed (Habana)", 2024, "graph-compiler-2023"),
        (None, "torchtitan FSDP2", 2024, "torchtitan-2024"),
        (None, "PyTorch FSDP2", 2024, "fsdp-2024"),
        ("fsdp-2022", "torchtitan", 2025, "fsdp-2022"),  # the name of a stack
        (None, "Megatron-LM", None, "megatron-lm-2025"),  # as new as the newest
        (None, "Megatron-LM", 1999, "megatron-2019"),  # all are later
    ],
)
def test_the_stack_of_known_software(software, framework, year, stack):
    found = software_of(software, framework, year, STACKS)
    assert (found.stack.name, found.unknown) == (stack, None)


@pytest.mark.parametrize(("year", "stack"), [(2018, "generic-2019"), (2023, "generic-2023"), (2026, "generic-2024")])
def test_unknown_software_has_the_stack_of_its_year_and_is_reported(year, stack):
    found = software_of("3.1", "Megatrn", year, STACKS)
    assert (found.stack.name, found.unknown) == (stack, "3.1 Megatrn")
    remark = described("Megatrn 3.1", found.stack, STACKS)
    assert remark == f"software 'Megatrn 3.1' is not known; did you mean 'megatron'?; the stack {stack!r} is assumed"


def test_a_run_that_states_no_software_is_no_unknown_one():
    assert software_of(None, None, 2024, STACKS).unknown is None
    assert software_of("anything", None, 2024, []) is None
