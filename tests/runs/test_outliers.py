"""What an outlier is, by numbers alone, and that the rows of the packaged fit have none."""

import numpy as np
import pytest

from dsx.runs.outliers import outliers


def rows_of(*ratios):
    """The positions of the outliers of rows that are so many times as slow as predicted."""
    ratios = np.array(ratios, dtype=float)
    return sorted(outliers([f"r{row}" for row in range(len(ratios))], 2 * ratios, np.full(len(ratios), 2.0)))


@pytest.mark.parametrize(
    ("ratios", "wanted"),
    [
        ((), []),
        ((1000,), []),  # one row is not unlike others
        ((1, 1.02, 1000), [2]),
        ((1, 1.02, 0.001), [2]),
        ((1000, 1010, 990), []),  # all alike
        ((1, 1.02, 0.99, 2.5), []),  # less than three times
        ((1, 1.02, 0.99, 3.5), [3]),
        ((0.5, 1, 2, 3.5), []),  # rows that are spread wide
        ((0.5, 1, 2, 4, 40), [4]),
        ((1, 1000), [0, 1]),  # either may be the wrong one
        ((1, np.nan, 1.02, 1000), [3]),
    ],
)
def test_what_is_an_outlier(ratios, wanted):
    assert rows_of(*ratios) == wanted


def test_an_outlier_says_what_it_is():
    (found,) = outliers(["a", "b", "c"], np.array([9.1, 9.2, 9100.0]), np.array([9.0, 9.0, 9.0])).values()
    assert (found.id, found.measured_s, found.predicted_s) == ("c", 9100, 9)
    assert (found.factor, found.usual) == (pytest.approx(9100 / 9), pytest.approx(9.2 / 9))
    assert str(found) == "c: measured 9100 s, predicted 9 s: 1.01e+03 times, the median of the table is 1.02 times"
