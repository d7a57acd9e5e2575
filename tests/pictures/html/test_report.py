"""A report of a result set: its text, numbers, pictures and costs."""

import base64
import dataclasses
import hashlib
import importlib.util
import re
import shlex

import numpy as np
import pytest
import yaml
from pictures.html.conftest import NAME
from pictures.html.pages import column_of, data_of, parsed
from verbs.small import SWEEP

import dsx
from dsx.errors import InputError, StoreError
from dsx.pictures.html import ranked_rows as ranked_rows_module
from dsx.pictures.html.ranked_rows import table_data
from dsx.results.frames import read_manifest


@pytest.fixture(scope="module")
def df(result_set):
    return dsx.load(result_set)


@pytest.fixture(scope="module")
def ordered(df):
    """The rows in the order that a report has them."""
    return df.iloc[np.lexsort((df["candidate"], -df["tokens_per_s_per_gpu"], df["reject"] != 0))]


@pytest.mark.slow
def test_the_question_and_names_are_text(report, page):
    assert page.all("h1")[0].text.startswith(NAME)
    question = next(one for one in page.all("p") if one.attributes.get("class") == "question").text
    assert question == report.question
    assert all(part in question for part in (NAME, "8 to 16 GPUs", "b200-nvs8", "32 sequences of 2,048 tokens"))
    # Names are text.
    scripts = [one for one in page.all("script") if one.attributes.get("type") != "application/json"]
    assert len(scripts) == 3
    assert not page.all("img")
    assert not page.all("b")
    assert "alert(" not in "".join(script.text for script in scripts)
    blocks = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', report.html, re.DOTALL)
    assert len(blocks) == 1 + len(page.all("figure"))
    assert not any("<" in block for block in blocks)


@pytest.mark.slow
def test_only_its_own_scripts_run_and_nothing_is_loaded(page):
    policy = next(one for one in page.all("meta") if one.attributes.get("http-equiv") == "Content-Security-Policy")
    rules = dict(rule.split(" ", 1) for rule in policy.attributes["content"].split("; "))
    assert rules["default-src"] == "'none'"
    scripts = [one.text for one in page.all("script") if one.attributes.get("type") != "application/json"]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    assert rules["script-src"].split() == [f"'sha256-{digest}'" for digest in hashes]
    links = {one.attributes.get(name) for one in page.every() for name in ("src", "href")} - {None}
    assert all(link.startswith(("#", "data:")) for link in links)
    assert {link[1:] for link in links if link.startswith("#")} <= {one.attributes.get("id") for one in page.every()}


@pytest.mark.parametrize("name", ["candidate", "step_time_s", "peak_bytes", "mfu", "tp", "num_gpus", "compute_s"])
def test_the_table_has_the_numbers_of_the_set(page, ordered, name):
    assert column_of(page, name) == ordered[name].tolist()


def test_the_table_of_a_page(page, ordered, df, result_set):
    reasons = [reason["name"] for reason in df.attrs["reject_reasons"]]
    stated = [
        {name for bit, name in enumerate(reasons) if value >> bit & 1} or {"feasible"} for value in ordered.reject
    ]
    assert [set(text.split(", ")) for text in column_of(page, "reject")] == stated
    # A column is in the table or stated once.
    data = data_of(page, "plans-data")
    named = [*(column["name"] for column in data["columns"]), *data["constant"]]
    empty = {name for name in df.columns if df[name].isna().all()}
    assert sorted(named) == sorted(set(df.columns) - empty)
    # Rejected candidates are counted.
    counts = read_manifest(result_set).counts
    rows = _rows(page, "A candidate counts under each reason")
    found = {row.all("th")[0].text: row.all("td")[0].text for row in rows}
    assert found == {name.replace("_", " "): f"{n:,}" for name, n in counts.rejected.items() if n}
    # Values have their sources.
    rows = {row.all("th")[0].text: [cell.text for cell in row.all("td")] for row in page.by_id("assumptions").all("tr")}
    value, source = rows["device.hbm_bandwidth"]
    assert value == "8.00 TB/s"
    assert "B200: hbm_bandwidth" in source
    # The sweep file gives the set again.
    stated = yaml.safe_load(page.by_id("sweep-file").text)
    again = dsx.sweep(stated | {"model": df.attrs["spec"]["resolved"]["model"]}).frame
    assert again["candidate"].tolist() == df["candidate"].tolist()
    assert again["step_time_s"].tolist() == df["step_time_s"].tolist()


def test_rows_beyond_the_table_are_counted(result_set, ordered, monkeypatch):
    monkeypatch.setattr(ranked_rows_module, "MOST_ROWS", 10)
    table = table_data(ranked_rows_module.ranked_rows(result_set, read_manifest(result_set)))
    assert (table.rows, table.left_out) == (10, len(ordered) - 10)
    (candidates,) = [column for column in table.columns if column["name"] == "candidate"]
    assert np.frombuffer(base64.b64decode(candidates["data"]), "<i8").tolist() == ordered["candidate"].tolist()[:10]


def test_the_answer_is_the_best_row_and_its_terms_add_up(report, ordered, page, result_set, df):
    best = ordered.iloc[0]
    assert report.titles[0].startswith("fastest")
    assert report.priced[0]["plan"]["candidate"] == best["candidate"]
    job = ordered[(ordered["reject"] == 0) & (ordered["num_gpus"] == best["num_gpus"])]
    job = job[job["device.hbm_capacity"] == best["device.hbm_capacity"]]
    lean = report.priced[next(at for at, title in enumerate(report.titles) if "leanest" in title)]
    near = job[job["step_time_s"] <= 1.001 * best["step_time_s"]]  # the set states no resolution
    assert lean["peak_bytes"] == near["peak_bytes"].min()
    # The terms add up on the page.
    shares = [float(row.all("td")[1].text.removesuffix(" %")) for row in _rows(page, "Time of a step")[:-1]]
    assert sum(shares) == pytest.approx(100, abs=0.5)
    assert "one optimizer step" in _rows(page, "Time of a step")[-1].text
    # A picture marks the plans of the answer.
    traces = {trace["name"]: trace for trace in data_of(page, "front-data")["data"]}
    assert {*report.titles} <= {*traces}
    heat = data_of(page, "heat-data")
    assert heat["data"][0]["type"] == "heatmap"
    # The machine of today has the larger memory: it is framed for each number of GPUs, in two lines.
    assert [(shape["x0"], shape["y0"]) for shape in heat["layout"]["shapes"][::2]] == [(-0.5, 0.5), (0.5, 0.5)]
    # A plan can be asked for.
    row = df[df["reject"] != 0].iloc[0]
    made = dsx.report(result_set, candidate=int(row["candidate"]), hardware={"device.hbm_capacity": 2e9})
    assert made.titles[0] == "chosen"
    assert made.priced[0]["reject"] == ["memory"]
    with pytest.raises(InputError, match="no candidate '7'"):
        dsx.report(result_set, candidate=7)


def test_the_plan_is_priced_again_by_its_command(page, report):
    command = page.by_id("rerun").all("pre")[1].text
    words = shlex.split(command)
    given = [word for word in words if "=" in word]
    sets = [word for word in given if word.startswith("cluster.")]
    assert words[:2] == ["dsx", "evaluate"]
    assert sets == ["cluster.device.hbm_capacity=2 GB"] or sets == ["cluster.device.hbm_capacity=192 GB"]
    model = report.manifest.spec["resolved"]["model"]
    size = int(words[words.index("--num-gpus") + 1])
    job = dsx.Job(model, "b200-nvs8", num_gpus=size, global_batch_size=32, assumptions="paper-2410.00273", set=sets)
    priced = dsx.evaluate(job, [word for word in given if word not in sets], strategy="1d")
    assert priced.plan["candidate"] == report.priced[0]["plan"]["candidate"]
    assert priced.step_time_s == pytest.approx(report.priced[0]["step_time_s"], rel=1e-5)
    launched = shlex.split(page.by_id("rerun").all("pre")[2].text)
    assert launched == ["dsx", "launch", *words[2 : words.index(given[len(sets)])], "-o", "launch", *given[len(sets) :]]


def test_without_plotly_the_extra_is_named(result_set, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr("dsx.pictures.html.answer.find_spec", lambda name: None if name == "plotly" else found(name))
    with pytest.raises(InputError, match=r"dsx-explorer\[report\]"):
        dsx.report(result_set)


def test_a_file_that_cannot_be_written_is_said_first(result_set, tmp_path):
    with pytest.raises(StoreError, match="is no folder"):
        dsx.report(result_set, tmp_path / "none" / "report.html")
    with pytest.raises(StoreError, match="is read by this command"):
        dsx.report(result_set, result_set / "manifest.json")


def test_a_set_without_a_feasible_row_says_why(result_set, tmp_path):
    manifest = read_manifest(result_set)
    frame = dsx.load(result_set)
    assert (frame["reject"] != 0).any()
    rows = ranked_rows_module.ranked_rows(result_set, manifest)
    none = dataclasses.replace(rows, every=rows.every[rows.every["reject"] != 0])
    from dsx.pictures.html.answer import answer
    from dsx.pictures.html.figures import pictures

    assert answer(none, None) == []
    assert pictures(none, []) == []


def _rows(page, caption):
    (table,) = [one for one in page.all("table") if one.all("caption") and one.all("caption")[0].text == caption]
    return table.all("tbody")[0].all("tr")


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
