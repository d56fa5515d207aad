"""The page, in a real browser where there is one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from browser import CHROMIUM, DRIVER, chromium
from made_runs import write_grid, write_run

from fedsparsify.report import environments_of, load_runs
from fedsparsify.report.page import page_of, write_page

needs_browser = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs Chromium and chromedriver on the PATH")


def data_of(page: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_nothing_is_fetched(tmp_path):
    page = page_of(environments_of(load_runs([write_grid(tmp_path / "grid")])[0]), [])
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert "default-src 'none'" in page
    assert "{{" not in page


def test_text_from_files_cannot_become_markup(tmp_path):
    write_run(tmp_path / "<img src=x>", sparsity=0.9)
    runs, _ = load_runs([tmp_path])
    page = page_of(environments_of(runs), ["</script><script>alert(1)</script>"])
    assert "<img" not in page
    assert data_of(page)["notes"] == ["</script><script>alert(1)</script>"]


def test_what_is_no_number_is_null(tmp_path):
    history = write_run(tmp_path / "a", sparsity=0.9) / "history.jsonl"
    history.write_text(re.sub(r'"accuracy": [\d.]+', '"accuracy": NaN', history.read_text()))
    page = page_of(environments_of(load_runs([tmp_path])[0]), [])
    assert data_of(page)["environments"][0]["runs"][0]["accuracy"] == [None] * 6


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium, opened once."""
    with chromium() as driver:
        yield driver


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A sweep's page, a single run's, a page of nothing, and one of damaged runs."""
    folder = tmp_path_factory.mktemp("pages")
    write_run(folder / "one" / "run", sparsity=0.9, evaluate="both")
    (folder / "none").mkdir()
    history = write_run(folder / "cut" / "run", sparsity=0.9) / "history.jsonl"
    history.write_text(history.read_text()[:-100])
    write_run(folder / "cut" / "short", sparsity=0.9, seed=1, played=1)
    write_grid(folder / "grid")
    for name in ("one", "none", "cut", "grid"):
        runs, notes = load_runs([folder / name])
        write_page(environments_of(runs), notes, folder / f"{name}.html")
    return folder


def opened(browser, page: Path, width: int = 1200, dark: bool = False):
    colours = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [colours]})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(page.as_uri())
    return browser


def find(browser, selector: str):
    return browser.find_elements("css selector", selector)


def complaints(browser) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser")]


@needs_browser
@pytest.mark.parametrize("name", ["one", "none", "cut", "grid"])
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (1200, True), (390, False)])
def test_it_opens_without_a_complaint_and_fits(browser, pages, name, width, dark):
    opened(browser, pages / f"{name}.html", width, dark)
    assert complaints(browser) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    asked = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = {one["params"]["request"]["url"] for one in asked if one["method"] == "Network.requestWillBeSent"}
    assert all(url.startswith(("file:", "data:")) for url in urls)
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 23, 26)" if dark else "rgb(255, 255, 255)")
    notes = find(browser, "#notes")[0]
    assert notes.is_displayed() == (name in ("none", "cut"))
    if name == "cut":
        assert "line 6 of history.jsonl" in notes.text
        assert "stopped after round 1 of 6" in notes.text
    if name == "none":
        assert "holds no run" in notes.text
    else:
        assert find(browser, "#rounds-chart path.line") or find(browser, "#rounds-chart path.dot")


@needs_browser
def test_the_clients_own_view_is_drawn_where_clients_evaluated(browser, pages):
    opened(browser, pages / "one.html")
    names = [one.get_attribute("data-name") for one in find(browser, "#views-chart .series")]
    assert names == ["mean over clients", "worst client"]
    assert find(browser, "#views-chart path.band")
    before = find(browser, "#views-chart svg")[0].get_attribute("innerHTML")
    find(browser, "#views-metric option[value='loss']")[0].click()
    assert find(browser, "#views-chart svg")[0].get_attribute("innerHTML") != before
    header = [one.text for one in find(browser, "#table thead th")]
    assert header[2:5] == ["Accuracy", "Worst client", "Spread"]
    assert find(browser, "#table tbody td:nth-child(4)")[0].text == "0.5000"
    assert "worst client\n0.5000" in find(browser, "#summary")[0].text
    find(browser, "#table thead button")[4].send_keys(" ")
    assert find(browser, "#table thead th")[4].get_attribute("aria-sort") == "descending"
    assert complaints(browser) == []
    opened(browser, pages / "grid.html")
    assert not find(browser, "#views-figure")[0].is_displayed()
    assert "Spread" not in [one.text for one in find(browser, "#table thead th")]


@needs_browser
def test_toggling_a_method_changes_figures_and_table(browser, pages):
    opened(browser, pages / "grid.html")
    named = "#sparsity-chart [data-name='Random'], #rounds-chart [data-name='Random']"
    rows = len(find(browser, "#table tbody tr"))
    assert len(find(browser, named)) == 2
    button = next(one for one in find(browser, "#methods button") if one.text == "Random")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert find(browser, named) == []
    assert len(find(browser, "#table tbody tr")) == rows - 2
    button.send_keys(" ")  # and back, by the keyboard
    assert len(find(browser, named)) == 2
    assert complaints(browser) == []


@needs_browser
def test_the_table_sorts_both_ways(browser, pages):
    opened(browser, pages / "grid.html")

    def column(i: int) -> list[str]:
        return [one.text for one in find(browser, f"#table tbody td:nth-child({i})")]

    before = column(3)
    header = find(browser, "#table thead button")[2]
    assert header.text == "Accuracy"
    header.click()
    down = [float(text.split()[0]) for text in column(3)]
    assert down == sorted(down, reverse=True)
    assert find(browser, "#table th[aria-sort='descending']")[0].text.startswith("Accuracy")
    browser.switch_to.active_element.send_keys("\n")
    assert [float(text.split()[0]) for text in column(3)] == sorted(down)
    assert sorted(before) == sorted(column(3))
    find(browser, "#table thead button")[0].click()
    assert column(1) == sorted(column(1), key=str.lower)
    assert complaints(browser) == []


@needs_browser
def test_log_axes_other_costs_and_other_environments(browser, pages):
    opened(browser, pages / "grid.html")

    def curve() -> str:
        return find(browser, "#rounds-chart path.line")[0].get_attribute("d")

    seen = {curve()}
    for control in ("rounds-x-log", "rounds-y-log"):
        find(browser, f"#{control}")[0].click()
        seen.add(curve())
    for select, value in (("rounds-x", "mbit"), ("rounds-x", "bytes"), ("rounds-y", "nonzero"), ("rounds-at", "0.8")):
        browser.execute_script(
            "const s = document.getElementById(arguments[0]); s.value = arguments[1];"
            "s.dispatchEvent(new Event('change'))",
            *(select, value),
        )
        seen.add(find(browser, "#rounds-chart svg")[0].get_attribute("innerHTML"))
    assert len(seen) == 7
    assert not find(browser, "#theorem-figure")[0].is_displayed()
    find(browser, "#environment option")[1].click()
    assert find(browser, "#theorem-figure")[0].is_displayed()
    assert find(browser, "#theorem-chart path.line")
    find(browser, "#rounds-set option[value='F']")[0].click()
    names = [one.get_attribute("data-name") for one in find(browser, "#rounds-chart .series")]
    assert names == ["FedSparsify-Global", "FedSparsify-Global (F = 2)", "FedSparsify-Global (F = 3)"]
    assert "classes:2" in find(browser, "#toml")[0].text
    assert complaints(browser) == []


@needs_browser
def test_hover_and_arrow_keys_say_values(browser, pages):
    from selenium.webdriver import ActionChains, Keys

    opened(browser, pages / "grid.html")
    chart, tip = find(browser, "#rounds-chart svg")[0], find(browser, "#tip")[0]
    assert not tip.is_displayed()
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    points = find(browser, "#rounds-chart path.line")[0].get_attribute("d")[1:].split("L")
    x, y = map(float, points[len(points) // 2].split(","))
    middle = chart.size["width"] / 2, chart.size["height"] / 2
    ActionChains(browser).move_to_element_with_offset(chart, round(x - middle[0]), round(y - middle[1])).perform()
    dot = find(browser, "#rounds-chart circle.ring")[0]
    assert tip.is_displayed()
    assert "test accuracy: 0." in tip.text
    assert dot.get_attribute("visibility") == "visible"
    chart.send_keys(Keys.ESCAPE)
    assert not tip.is_displayed()
    chart.send_keys(Keys.ARROW_RIGHT)
    chart.send_keys(Keys.ARROW_RIGHT)
    assert "round: 2" in tip.text
    assert "round: 2" in find(browser, "#live")[0].get_attribute("textContent")
    chart.send_keys(Keys.ARROW_DOWN)
    assert find(browser, "#live")[0].get_attribute("textContent").startswith("FedSparsify-Global")
    find(browser, "#data-chart svg")[0].send_keys(Keys.ARROW_RIGHT)
    assert "class 0: 3 samples" in tip.text
    assert complaints(browser) == []


@needs_browser
def test_the_settings_shown_repeat_the_run(browser, pages, tmp_path):
    from fedsparsify.config import load_config

    opened(browser, pages / "one.html")
    (tmp_path / "again.toml").write_text(find(browser, "#toml")[0].get_attribute("textContent"))
    again = load_config(tmp_path / "again.toml")
    assert again.differences(load_config(pages / "one" / "run" / "config.toml")) == []


@needs_browser
def test_the_button_turns_the_colours(browser, pages):
    opened(browser, pages / "one.html")
    button = find(browser, "#theme")[0]
    grounds = []
    for _ in range(3):
        button.click()
        grounds.append(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))
    assert grounds == ["rgb(20, 23, 26)", "rgb(255, 255, 255)", "rgb(255, 255, 255)"]


@needs_browser
def test_clients_that_stood_out_come_first_and_private_runs_say_epsilon(browser, tmp_path):
    history = write_run(tmp_path / "a", sparsity=0.9) / "history.jsonl"
    lines = []
    for number, line in enumerate(map(json.loads, history.read_text().splitlines()), 1):
        line["updates"] = {"client": [0, 1, 2], "samples": [9, 9, 9], "loss": [1, None, 1], "norm": [1, 1, 9]}
        line["updates"]["cosine"], line["epsilon"] = [0.9, 0.9, -0.9], 0.5 * number
        lines.append(json.dumps(line) + "\n")
    history.write_text("".join(lines))
    write_page(environments_of(load_runs([tmp_path])[0]), [], tmp_path / "page.html")
    opened(browser, tmp_path / "page.html")
    assert complaints(browser) == []
    rows = [row.text for row in find(browser, "#clients tbody tr")]
    assert len(rows) == 3 and rows[0].startswith("client 2 updates 9 times as long as the median; pulls away")
    assert "ε = 3" in find(browser, "#summary")[0].text
    assert "ε" in [cell.text for cell in find(browser, "#table thead th")]
    find(browser, "#rounds-x option[value='epsilon']")[0].click()
    assert find(browser, "#rounds-chart path.line")


@needs_browser
def test_seconds_per_round_are_shown_beside_the_sparsity(browser, tmp_path):
    from selenium.webdriver import Keys

    write_run(tmp_path / "a", sparsity=0.9)
    write_page(environments_of(load_runs([tmp_path])[0]), [], tmp_path / "page.html")
    opened(browser, tmp_path / "page.html")
    find(browser, "#rounds-y option[value='took']")[0].click()
    assert complaints(browser) == []
    assert find(browser, "#rounds-chart path.line")
    assert "seconds per round" in find(browser, "#rounds-chart")[0].text
    find(browser, "#rounds-chart svg")[0].send_keys(Keys.ARROW_RIGHT)
    assert "sparsity 0." in find(browser, "body")[0].text


@needs_browser
def test_one_run_has_no_chart_of_one_mark(browser, pages):
    hidden = "return document.getElementById('sparsity-figure').hidden"
    assert opened(browser, pages / "one.html").execute_script(hidden)
    assert not opened(browser, pages / "grid.html").execute_script(hidden)
