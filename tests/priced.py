"""Plans priced from the words of a command line."""

from dataclasses import replace

from dsx.plans.plan import Setting, filled_shares
from dsx.pricing.one_plan import price_plan, stated_plan


def evaluate_plan(problem, words, num_gpus, global_batch_size):
    settings = [*map(Setting.of, words)]
    plan = stated_plan(problem, settings, num_gpus, global_batch_size)
    return replace(price_plan(problem, plan), filled=filled_shares(plan, settings))
