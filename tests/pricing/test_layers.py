"""Pricing keys that share their work equals pricing each alone, in batches of any length and at any points."""

import jax
import numpy as np
import pytest
from laws.spaces import assert_rows_equal, problem_of, space_of
from search.sweeps import POINTS, STRATEGIES, at_one_point, searched

from dsx.cost.layer import TUPLES, LayerCosts, layer_costs
from dsx.cost.layer_work import layer_work
from dsx.plans.choices import KEY_COLUMNS
from dsx.pricing import compiled
from dsx.pricing import keys as layers_module
from dsx.pricing.keys import power_of_two, price_keys
from dsx.pricing.problem import pad
from dsx.pricing.row_costs import Rows, price_rows
from dsx.search.spaces import at_points

REL = 1e-13
OF_GROUPS = ("weight_bytes", "group_size", "group_share")


def leaves(table):
    # There are two tiers.
    assert all(getattr(table, name) == () for name in TUPLES if name not in ("tied_bytes", "rank_placement"))
    names = [name for name in LayerCosts.__dataclass_fields__ if name not in (*TUPLES, "modes", "without", "lacked")]
    return {name: np.asarray(getattr(table, name)) for name in names}


@pytest.fixture
def works(monkeypatch):
    """The numbers of works, and of distinct ones, that are evaluated together."""
    seen = []

    def counted(layer, dimensions, assumptions, sequence_length, keys, modes):
        made = layer_work(layer, dimensions, assumptions, sequence_length, keys, modes)
        distinct = np.unique(np.stack([keys[name] for name in KEY_COLUMNS if not name.endswith("_nvs")]), axis=1)
        seen.append((made.matrix.shape[-1], distinct.shape[1]))
        return made

    monkeypatch.setattr(layers_module, "layer_work", counted)
    return seen


@pytest.mark.slow
def test_keys_that_share_their_work_are_priced_as_keys_of_their_own(works):
    problem, space = problem_of("default", STRATEGIES), space_of("default", strategies=STRATEGIES)
    costs, *_ = space.table(problem)
    table = leaves(costs)
    shared = sum(distinct for _, distinct in works)
    assert shared < len(space.keys["tp"])
    for code, layer in enumerate(problem.layers):
        here = np.flatnonzero(space.keys["strategy"] == code)
        keys = {name: column[here] for name, column in space.keys.items()}
        sizes = problem.model.dimensions, problem.assumptions_spec, problem.sequence_length
        work = layer_work(layer, *sizes, keys, costs.modes)
        assert work.which is None
        with jax.enable_x64(True):
            own = leaves(layer_costs(work, *problem.at_point(0)))
        groups = own["weight_bytes"].shape[0]
        assert_rows_equal(
            {n: (c[0, :groups] if n in OF_GROUPS else c[0])[..., here] for n, c in table.items()}, own, REL
        )
        assert not table["weight_bytes"][0, groups:, here].any()


@pytest.mark.slow
def test_keys_points_and_none_are_priced_alike():
    problem, space = problem_of("default", STRATEGIES), space_of("default", strategies=STRATEGIES)
    table = leaves(space.table(problem)[0])
    for key in range(0, len(space.keys["tp"]), 23):
        alone = leaves(price_keys(problem, {name: column[[key]] for name, column in space.keys.items()})[0])
        groups = alone["weight_bytes"].shape[1]
        expected = {n: (c[:, :groups] if n in OF_GROUPS else c)[..., [key]] for n, c in table.items()}
        assert_rows_equal(alone, expected, REL)
    # Points together are points alone.
    problem, space, (table,) = searched()
    assert table.forward_s.shape == (problem.num_points, len(space.keys["tp"]))
    assert table.weight_bytes.shape[::2] == table.forward_s.shape
    for point in range(problem.num_points):
        alone = leaves(space.table(at_one_point(point))[0])
        assert_rows_equal(alone, {name: leaf[point : point + 1] for name, leaf in leaves(table).items()}, REL)
    # No keys rows and lengths.
    problem = at_points(problem_of("default", STRATEGIES), POINTS)
    nothing = {name: np.zeros(0, dtype=np.int64) for name in KEY_COLUMNS}
    table = price_keys(problem, nothing)
    assert all(leaf.shape[-1] == 0 for leaf in leaves(table[0]).values())
    none = np.zeros(0, dtype=np.int64)
    assert len(price_rows(problem, table, Rows(none, none, {})).step_time_s) == 0
    # Lengths.
    assert [power_of_two(count) for count in (1, 64, 65, 1000, 1024, 1025)] == [64, 64, 128, 1024, 1024, 2048]
    assert pad(np.array([3, 5]), 4).tolist() == [3, 5, 5, 5]


@pytest.mark.parametrize(("lengths", "most"), [((4, 40), 33)])
@pytest.mark.slow
def test_keys_and_works_in_compiled_batches_of_any_length(monkeypatch, works, lengths, most):
    problem, space = problem_of("default", ("2d",)), space_of("default", (24,), strategies=("2d",))
    expected = leaves(space.table(problem)[0])
    assert all(count == distinct for count, distinct in works)  # each is evaluated once
    total = sum(count for count, _ in works)
    works.clear()
    priced = []
    price = compiled._price_layers

    def seen(work, hardware, assumptions):
        priced.append((work.which.shape[-1], work.matrix.shape[-1]))
        assert work.which.max() < work.matrix.shape[-1]
        return price(work, hardware, assumptions)

    monkeypatch.setattr(layers_module, "_COMPILED", 0)
    monkeypatch.setattr(compiled, "_LENGTHS", lengths)
    monkeypatch.setattr(layers_module, "_WORKS", most)
    monkeypatch.setattr(compiled, "_price_layers", seen)
    assert_rows_equal(leaves(space.table(problem)[0]), expected, REL)
    assert all(count <= most for count, _ in works)
    assert sum(count for count, _ in works) == total
    assert set(priced) <= {*((length, length) for length in lengths[:-1]), (lengths[-1], lengths[-1] // 4)}
    assert len(priced) >= len(space.keys["tp"]) / lengths[-1]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("most", [7, 1, 50])
def test_keys_on_numpy_in_batches_of_any_length(monkeypatch, most):
    problem, space = problem_of("default", ("2d",)), space_of("default", (24,), strategies=("2d",))
    expected = leaves(space.table(problem)[0])
    monkeypatch.setattr(layers_module, "_ON_NUMPY", most)
    assert_rows_equal(leaves(space.table(problem)[0]), expected, REL)


def test_rows_at_any_points_in_any_order():
    problem, space, table = searched()
    positions, choices = space.blocks.rows(0, space.size)
    random = np.random.default_rng(0)
    rows = random.integers(0, space.size, 500)
    points = random.integers(0, problem.num_points, 500)
    some = {name: column[rows] for name, column in choices.items()}
    mixed = price_rows(problem, table, Rows(points, positions[rows], some))
    for point in range(problem.num_points):
        alone = at_one_point(point)
        own = space.table(alone)
        expected = price_rows(alone, own, Rows(np.zeros_like(points), positions[rows], some))
        for name in ("step_time_s", "peak_bytes", "dp_comm_s", "mfu"):
            found = getattr(mixed, name)[points == point]
            np.testing.assert_allclose(found, getattr(expected, name)[points == point], rtol=REL)
