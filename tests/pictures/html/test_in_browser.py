"""A report in headless Chromium: nothing fails, the filter filters, keys suffice, and it is narrow where the window is.

It needs the packages chromium and chromium-driver, and selenium from PyPI.
"""

import os
import shutil

import pytest

pytestmark = pytest.mark.external

WIDE, NARROW = (1280, 1000), (390, 844)


@pytest.fixture(scope="module")
def browser():
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not program or not driver:
        pytest.skip("chromium or chromium-driver is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for option in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield started
    started.quit()


@pytest.fixture(scope="module")
def file(report, tmp_path_factory):
    """The report; that in the file DSX_REPORT if it is set."""
    if given := os.environ.get("DSX_REPORT"):
        return given
    path = tmp_path_factory.mktemp("page") / "report.html"
    report.save(path)
    return path


@pytest.fixture
def show(browser, file):
    """Open the report in a window of a size, light or dark."""

    def opened(size=WIDE, scheme="light", **media):
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
        browser.get_log("browser")  # empties it
        browser.get(f"file://{file}")
        return Page(browser)

    return opened


class Page:
    """An open report."""

    def __init__(self, browser):
        self.browser = browser

    def all(self, selector):
        return self.browser.find_elements("css selector", selector)

    def one(self, selector):
        return self.browser.find_element("css selector", selector)

    def text(self, selector):
        return self.run(f"return document.querySelector({selector!r}).textContent")

    def run(self, script):
        return self.browser.execute_script(script)

    def ranks(self):
        return self.run(
            "return [...document.querySelectorAll('#plans-table tbody tr')].map((r) => +r.cells[0].textContent)"
        )

    def column(self, name):
        """The shown values of a column."""
        return self.run(
            "const rows = [...document.querySelectorAll('#plans-table tr')];"
            f"const at = [...rows[0].cells].findIndex((cell) => cell.textContent.split(' ')[0] === {name!r});"
            "return rows.slice(1).map((row) => row.cells[at].textContent)"
        )

    def type(self, text):
        from selenium.webdriver.common.keys import Keys

        self.one("#filter").send_keys(Keys.CONTROL, "a")
        self.one("#filter").send_keys(text, Keys.ENTER)

    def press(self, *keys):
        """Type keys to whatever has the focus."""
        self.browser.switch_to.active_element.send_keys(*keys)

    def draw(self):
        """Go through the pictures, which are drawn as they come near."""
        from selenium.webdriver.support.wait import WebDriverWait

        for place in self.all(".picture"):
            self.browser.execute_script("arguments[0].scrollIntoView()", place)
            WebDriverWait(self.browser, 60).until(
                lambda _, place=place: place.find_elements("css selector", ".main-svg")
            )
        self.run("window.scrollTo(0, 0)")

    def picture(self, name):
        """Keep a screenshot of the whole page in the folder DSX_SCREENSHOTS, if it is set."""
        if folder := os.environ.get("DSX_SCREENSHOTS"):
            import base64
            from pathlib import Path

            shot = self.browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
            Path(folder, f"{name}.png").write_bytes(base64.b64decode(shot["data"]))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_it_opens_without_a_fault(show, size, scheme):
    page = show(size, scheme)
    page.draw()
    assert page.browser.get_log("browser") == []
    assert page.ranks()[:3] == [1, 2, 3]
    # The page does not scroll sideways; wide tables do so themselves.
    assert page.run("return document.documentElement.scrollWidth <= window.innerWidth")
    page.picture(f"{'wide' if size is WIDE else 'narrow'}-{scheme}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(show, scheme):
    page = show(WIDE, scheme)
    for selector in ("body", "dt", "a", ".small", "#filter"):
        ratio = page.run(CONTRAST.replace("SELECTOR", selector))
        assert ratio >= 4.5, f"{selector}: {ratio}"


CONTRAST = """
const light = (text) => {
  const linear = (part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  const [r, g, b] = text.match(/[\\d.]+/g).map((part) => linear(part / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ink = light(getComputedStyle(document.querySelector("SELECTOR")).color);
const paper = light(getComputedStyle(document.body).backgroundColor);
return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
"""


def test_a_typed_filter_leaves_the_rows_that_hold(show):
    page = show()
    total = page.text("#filter-status").split(" of ")[1]
    page.type("tp<=2 pp=1,2")
    assert {*page.column("tp")} == {"1", "2"}
    assert {*page.column("pp")} <= {"1", "2"}
    kept, of = page.text("#filter-status").split(" of ")
    assert of == total
    assert 0 < int(kept.replace(",", "")) < int(total.split()[0].replace(",", ""))
    page.type("feasible mfu>10")
    assert {*page.column("reject")} == {"feasible"}
    assert all(float(share) > 10 for share in page.column("mfu"))
    page.type("tp=0")
    assert page.ranks() == []
    assert page.text("#page-text") == "no rows"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("microbatchsize<=8", "no column 'microbatchsize'; the nearest is 'microbatch_size'"),
        ("step_time<3", "no column 'step_time'; the nearest is 'step_time_s'"),
        ("tp<=many", "'tp<=many': <= needs a column of numbers, and one number"),
        ("tp=", "'tp=': a value is missing, as in tp=8"),
        ("tp", "'tp' is a column; write a condition, as in tp<=8"),
        ("<8", "'<8' is no condition; write one as in tp<=8"),
    ],
)
def test_a_wrong_filter_is_explained_and_keeps_the_rows(show, typed, said):
    page = show()
    page.type("tp=2")
    before = page.ranks()
    page.type(typed)
    assert page.text("#filter-status") == said
    assert page.one("#filter").get_attribute("aria-invalid") == "true"
    assert page.ranks() == before
    page.type("pp=1")
    assert page.one("#filter").get_attribute("aria-invalid") is None
    assert {*page.column("pp")} == {"1"}


def test_keys_suffice(show):
    from selenium.webdriver.common.keys import Keys

    page = show()
    page.press(Keys.TAB)
    assert page.browser.switch_to.active_element.text == "Skip to the table of plans"
    page.run("document.getElementById('filter').focus()")
    page.press("pp=1", Keys.ENTER)
    assert {*page.column("pp")} == {"1"}
    for _ in range(40):
        page.press(Keys.TAB)
        if page.browser.switch_to.active_element.text.startswith("peak_bytes"):
            break
    heading = page.browser.switch_to.active_element
    assert heading.text.startswith("peak_bytes")
    assert page.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    for keys, order, reverse in ((Keys.ENTER, "ascending", False), (Keys.SPACE, "descending", True)):
        page.press(keys)
        active = page.browser.switch_to.active_element
        assert active.text.startswith("peak_bytes")
        assert active.find_element("xpath", "..").get_attribute("aria-sort") == order
        shown = [float(value) for value in page.column("peak_bytes")]
        assert shown == sorted(shown, reverse=reverse)
    page.press(Keys.ENTER)
    assert page.ranks() == sorted(page.ranks())


def test_columns_turn_and_print_is_black(show):
    page = show()
    assert "compute_s" not in page.text("#plans-table thead")
    for box in page.all("#groups input"):
        box.click() if not box.is_selected() else None
    assert "compute_s" in page.text("#plans-table thead")
    page.one("#page-after").click()
    assert page.ranks()[0] == 101
    page.one("#page-before").click()
    assert page.ranks()[0] == 1
    # Print shows text in black.
    page = show(WIDE, "dark")
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": []})
    assert page.run("return getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert not page.one("#filter").is_displayed()


def test_a_point_shows_its_plan(show, report):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.support.wait import WebDriverWait

    page = show()
    page.draw()
    page.run("document.getElementById('front').scrollIntoView()")
    # Traces of points are in the order of the figure, the plans of the answer last.
    point = page.all("#front .scatterlayer .trace")[2].find_element("css selector", ".point")
    ActionChains(page.browser).move_to_element(point).perform()
    WebDriverWait(page.browser, 20).until(lambda _: page.all("#front .hoverlayer .hovertext"))
    said = "".join(page.text("#front .hoverlayer").split())
    assert "".join(report.plans[0].text.split()) in said
