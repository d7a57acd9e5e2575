"""`dsx.__all__` is what `import dsx` offers, and `import dsx` alone is quick."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dsx


def test_all_is_sorted_complete_and_resolves():
    assert dir(dsx) == dsx.__all__ == sorted(dsx.__all__)
    tree = ast.parse(Path(dsx.__file__).read_text())
    (typed,) = (node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name))
    names = {alias.asname for node in typed.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert names | {"__version__"} == set(dsx.__all__)
    # Every member resolves.
    from dsx import pictures as plot
    from dsx.results import frames as pareto_rows
    from dsx.results import frames as store
    from dsx.verbs import compare as set_comparison

    assert dsx.compare is set_comparison.compare
    assert dsx.load is store.load
    assert dsx.pareto is pareto_rows.pareto
    assert dsx.plot is plot
    assert dsx.__version__.count(".") == 2
    # Unknown member.
    with pytest.raises(AttributeError, match="no attribute 'laod'; did you mean 'load'"):
        dsx.laod  # noqa: B018


def test_import_alone_loads_nothing_heavy():
    code = "import dsx, sys; print(*{'jax', 'numpy', 'pandas', 'pyarrow', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("name", ["Job", "layer", "names", "import_hf"])
def test_what_prices_nothing_loads_no_jax(name):
    done = subprocess.run(
        [sys.executable, "-c", f"import dsx, sys; dsx.{name}; print('jax' in sys.modules)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "False"


def test_no_function_has_the_name_of_a_package():
    """Python would replace the function by the package as soon as something imports that."""
    packages = {path.stem for path in Path(dsx.__file__).parent.iterdir()}
    assert not packages & ({*dsx.__all__} - {"errors"})
