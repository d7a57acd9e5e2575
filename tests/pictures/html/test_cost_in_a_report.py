"""A report of a sweep that states tokens and a price: what a training takes, and the price as it was stated."""

import shlex

import pytest
from pictures.html.pages import parsed
from verbs.small import SWEEP

import dsx

TOKENS = {"train_tokens": "2B", "strategy": "1d", "limit": {"tp": "<=4"}}


def of_settings(page):
    """Heading -> cells of the table of the best plans."""
    (table,) = [one for one in page.all("table") if "The best plan of each setting" in one.text]
    heading = [one.text for one in table.all("thead")[0].all("th")]
    rows = [[cell.text for cell in row.all("th") + row.all("td")] for row in table.all("tbody")[0].all("tr")]
    return dict(zip(heading, zip(*rows, strict=True), strict=True))


@pytest.fixture(scope="module")
def priced(tmp_path_factory):
    return dsx.sweep(SWEEP | TOKENS, tmp_path_factory.mktemp("priced") / "set", set={"cluster.price": "2.5 USD/h"})


def test_days_and_dollars_of_each_setting(priced):
    page = parsed(dsx.report(priced.folder).html)
    found = of_settings(page)
    best = priced.frame[priced.frame["reject"] == 0]
    best = best.loc[best.groupby(["num_gpus", "device.hbm_capacity"])["step_time_s"].idxmin()]
    assert len(found["training"]) == len(best)
    assert {float(text.removesuffix(" days")) for text in found["training"]} == {
        float(f"{days:.3g}") for days in best["training_days"]
    }
    assert {float(text.removesuffix(" USD").replace(",", "")) for text in found["cost"]} == {
        float(f"{cost:.3g}") if cost < 999.5 else round(cost) for cost in best["cost_usd"]
    }
    assert [one.text for one in page.by_id("assumptions").all("tr") if one.text.startswith("price")] == [
        "price2.50 USD/hstated by the sweep"
    ]
    commands = [shlex.split(one.text) for one in page.by_id("rerun").all("pre")[:2]]
    assert all("cluster.price=2.5 USD/h" in words for words in commands)


def test_gpu_hours_without_a_price_and_nothing_without_tokens(tmp_path, page):
    dsx.sweep(SWEEP | TOKENS, tmp_path / "set")
    found = of_settings(parsed(dsx.report(tmp_path / "set").html))
    assert "cost" not in found
    assert all(text.endswith(" h") for text in found["GPU hours"])
    assert not of_settings(page).keys() & {"training", "cost", "GPU hours"}
