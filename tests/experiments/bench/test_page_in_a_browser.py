"""The HTML page in headless Chromium, driven by selenium."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments.bench.page.render import Figure, render
from experiments.sddmm.objective import SDDMM
from tests.experiments.bench.test_page import HOSTILE, environment
from tests.experiments.records import record

SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'


def programs() -> tuple[str, str]:
    """Chromium and its driver. In continuous integration they must be there."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium and driver:
        return chromium, driver
    missing = "chromium and chromedriver are not installed (Debian: apt install chromium-driver)"
    if os.environ.get("CI") == "true":
        pytest.fail(missing)
    pytest.skip(missing)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    from selenium import webdriver

    chromium, driver = programs()
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{argument}")
    options.add_argument(f"--user-data-dir={tmp_path / 'profile'}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=driver)
    started = webdriver.Chrome(options=options, service=service)
    yield started
    started.quit()


def page(tmp_path: Path) -> str:
    records = [
        record("ours", ms, matrix=name, k=k, environment=environment(), key=f"{name}{k}")
        for name, k, ms in (("a", 8, 2.0), ("b", 16, 10.0), ("b", 8, 9.0), (HOSTILE, 16, 1000.0))
    ]
    records.append(record("cusparse", None, matrix="a", environment=environment()))
    path = tmp_path / "a page & more.html"
    path.write_text(render(SDDMM, records, [Figure("t", "c", SVG)]), encoding="utf-8")
    return path.as_uri()


def test_a_browser_sorts_filters_and_folds_the_page_and_asks_the_network_for_nothing(
    browser: Any, tmp_path: Path
) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.select import Select

    browser.get(page(tmp_path))
    table = browser.find_element(By.ID, "measurements")

    def column(name: str) -> list[str]:
        """The shown cells of a column, from top to bottom."""
        return browser.execute_script(
            """const [section, name] = arguments;
            const heads = [...section.querySelectorAll("thead th")];
            const at = heads.findIndex((head) => head.textContent === name);
            if (getComputedStyle(heads[at]).display === "none") return null;
            return [...section.querySelectorAll("tbody tr:not([hidden])")]
                .map((row) => row.cells[at].textContent);""",
            table, name,
        )  # fmt: skip

    def header(name: str) -> Any:
        return table.find_element(By.XPATH, f".//thead//th[.='{name}']")

    # A hostile name is text, and nothing of it runs.
    assert column("matrix") == ["a", "b", "b", HOSTILE, "a"]
    assert browser.title == "SDDMM: report"

    # A click sorts by the number, and the cell without one comes last both times; so does a key.
    header("median_ms").find_element(By.TAG_NAME, "button").click()
    assert column("median_ms") == ["4.000", "18.00", "20.00", "2,000", ""]
    assert header("median_ms").get_attribute("aria-sort") == "ascending"
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert column("median_ms") == ["2,000", "20.00", "18.00", "4.000", ""]
    assert header("median_ms").get_attribute("aria-sort") == "descending"
    header("matrix").find_element(By.TAG_NAME, "button").send_keys(Keys.SPACE)
    assert column("matrix")[1:] == ["a", "a", "b", "b"]
    assert header("median_ms").get_attribute("aria-sort") is None

    # Words and choices narrow the rows, and the page says to how many.
    search = table.find_element(By.CSS_SELECTOR, "input[type=search]")
    search.send_keys("B 18.00")
    assert column("median_ms") == ["18.00"]
    assert table.find_element(By.TAG_NAME, "output").text == "1 of 5 rows, ascending by matrix"
    search.clear()
    choice = table.find_element(By.XPATH, ".//label[starts-with(normalize-space(), 'k')]/select")
    Select(choice).select_by_visible_text("16")
    assert column("matrix") == [HOSTILE, "b"]

    # Folded columns unfold by their group, and are searched only while they are shown.
    assert column("session") is None
    search.send_keys("a1a1a1")  # the commit
    assert column("matrix") == []
    table.find_element(By.CSS_SELECTOR, "fieldset label:last-of-type input").click()
    assert column("commit") == ["a1" * 20] * 2

    # The picture is there; light and dark differ; a narrow page does not scroll sideways.
    assert browser.execute_script("return document.querySelector('figure img').naturalWidth") == 9

    def paper() -> str:
        return browser.find_element(By.TAG_NAME, "body").value_of_css_property("background-color")

    papers = []
    for theme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": theme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        papers.append(paper())
    browser.find_element(By.ID, "theme").click()
    assert papers[0] == paper() != papers[1]
    size = {"width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 360

    # Nothing went wrong, and nothing was asked of a network.
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
    own = [e["request"]["url"] for e in asked if e["documentURL"].startswith("file:")]
    assert {url.partition(":")[0] for url in own} == {"file", "data"}
