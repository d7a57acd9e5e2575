"""What a report of a large result set takes: seconds to make it, its size, and seconds until a browser has opened it.

python benchmarks/report.py results/gpt3-1t-b200

The browser is headless Chromium with a wide window, started for the first opening. "load" is the load event: all
scripts have run, and the table is made. "pictures" is how long all of them take to draw, which they do one by one when
they come near the window. The table is filtered too, as by typing. It needs the packages chromium and chromium-driver,
and selenium from PyPI.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from selenium import webdriver

import dsx

_FILTER = """
const box = document.getElementById("filter"), begun = performance.now();
box.value = "tp<=4 pp>=16 strategy=2d";
box.dispatchEvent(new Event("change"));
document.body.offsetHeight;
return [performance.now() - begun, document.getElementById("filter-status").textContent];
"""
_DRAW = """
const begun = performance.now();
dispatchEvent(new Event("beforeprint"));
document.body.offsetHeight;
return performance.now() - begun;
"""
_TIMES = """
const [load] = performance.getEntriesByType("navigation");
const [paint] = performance.getEntriesByName("first-contentful-paint");
return [paint ? paint.startTime : NaN, load.loadEventEnd];
"""


def opened() -> Any:
    """Return a browser that has been started."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for option in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,1000"):
        options.add_argument(option)
    browser = webdriver.Chrome(options, webdriver.ChromeService(str(shutil.which("chromedriver"))))
    browser.get("about:blank")
    return browser


def measure(folder: Path, repeats: int) -> None:
    """Print the figures of the report of a result set."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "report.html"
        begun = time.perf_counter()
        made = dsx.report(folder, file)
        print(f"{made.rows + made.left_out:,} rows, {made.rows:,} of them in the table")
        print(f"made in {time.perf_counter() - begun:.1f} s, {file.stat().st_size / 1e6:.1f} MB")
        browser = opened()
        times: list[list[float]] = []
        for _ in range(repeats):
            browser.get(f"file://{file}")
            times.append(browser.execute_script(_TIMES))
        for at, name in enumerate(("first text", "load")):
            seconds = sorted(one[at] / 1e3 for one in times[1:])
            median = statistics.median(seconds)
            first = times[0][at] / 1e3
            print(f"{name}: {first:.2f} s at first, then {median:.2f} s ({seconds[0]:.2f} to {seconds[-1]:.2f} s)")
        print(f"pictures: {browser.execute_script(_DRAW) / 1e3:.2f} s")
        spent, status = browser.execute_script(_FILTER)
        print(f"a filter: {spent / 1e3:.2f} s, {status}")
        browser.quit()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of a result set")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    measure(arguments.folder, arguments.repeats)
