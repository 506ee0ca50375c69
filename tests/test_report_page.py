"""The page in a real browser: no error, no request, tables that sort, curves that answer, no sideways scrolling."""

import json
import re
import shutil
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from report_runs import fake_log_run, fake_run
from uhm import report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run"),
)
AGENTS = {"uhm": 0.9, "dtd": 0.4, "rebrac-dagger": 0.6}
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on the PATH")


def png() -> bytes:
    """One grey pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0\x80")) + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    for agent, level in AGENTS.items():
        # Task 1 is the hardest for all; every seed adds a point, every evaluation two.
        fake_run(
            runs / agent,
            agent,
            ["cube-double-play-task1", "cube-double-play-task2"],
            lambda i, s, p, _, level=level: level * (i + 1) / 3 - 0.2 + 0.02 * p + 0.01 * s,
            seeds=2,
            session=True,
            milliseconds=10.0 * level,
            values=lambda task, seed, place: (-200.0 - place, -100.0 - task),
        )
    fake_run(runs / "noisy", "uhm", ["scene-noisy-task1"], lambda *_: 0.5, beta=[0.0, 1.0], finished=False)
    # Of a long name, in a range far from 0.
    logged = lambda m, step: {"q_mean": -1234.5 - m.seed - step / 1000, "critic_loss": 0.5 * m.hyper[0][1]}  # noqa: E731
    fake_log_run(runs / "own", "uhm", f"{'long-' * 12}name.npz", logged, seeds=2, steps=1000, alpha=[0.1, 0.3])
    imagined = runs / "uhm" / "imagine"
    imagined.mkdir()
    (imagined / "calibration.json").write_text(json.dumps({"n": [1, 2], "uhm": [0.1, 0.3], "unit": "distance"}))
    (imagined / "futures.png").write_bytes(png())
    return report.write([runs], tmp_path_factory.mktemp("out"))


def test_the_page_holds_everything_itself(page: Path) -> None:
    text = page.read_text()
    assert len(text) < 300_000
    assert not re.search(r"""(?:src|href)=["'](?!data:|#)""", text)
    assert not re.search(r"@import|url\((?!data:)", text)
    # What a run's files say is text, never markup.
    assert "<b>&'" not in text and "&lt;b&gt;&amp;" in text
    for word in ("ReBRAC†", "not run", "A Processor, 2 cores", "0123456789ab with changes", "jax <b>0.10.2</b>"):
        assert word in text
    assert "λ scheduling</b>: no runs differ in schedule alone" in text


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=list(QUIET))
        yield browser
        browser.close()


class Visit:
    """The opened page, and everything that should not have happened."""

    def __init__(self, browser: Any, page: Path, width: int, scheme: str):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.tab = self.context.new_page()
        self.wrong: list[str] = []
        self.tab.on("console", lambda message: self.wrong.append(message.text))
        self.tab.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.context.route("**/*", self._guard)
        self.tab.goto(page.as_uri())
        self.tab.wait_for_selector("svg path")

    def _guard(self, route: Any) -> None:
        if route.request.url.startswith(("file:", "data:")):
            route.continue_()
        else:
            self.wrong.append(f"request: {route.request.url}")
            route.abort()


@pytest.fixture(params=[(1280, "light"), (390, "dark")], ids=["wide", "phone"])
def visit(browser: Any, page: Path, request: pytest.FixtureRequest) -> Iterator[Visit]:
    visit = Visit(browser, page, *request.param)
    yield visit
    visit.context.close()
    assert visit.wrong == []


@needs_browser
def test_tables_sort(visit: Visit) -> None:
    table = visit.tab.locator("table.details").first  # per environment: three methods and their averages
    names = lambda: table.locator("tbody tr td:nth-child(2)").all_inner_texts()  # noqa: E731
    average = table.locator("tfoot").inner_text()
    assert names() == ["ReBRAC†", "DTD(λ)", "UHM"]
    mean = table.get_by_role("button", name="mean", exact=True)
    mean.click()
    assert names() == ["UHM", "ReBRAC†", "DTD(λ)"]
    assert mean.locator("xpath=..").get_attribute("aria-sort") == "descending"
    mean.click()
    assert names() == ["DTD(λ)", "ReBRAC†", "UHM"]
    table.get_by_role("button", name="method").click()
    assert names() == ["DTD(λ)", "ReBRAC†", "UHM"]
    assert table.locator("tfoot").inner_text() == average

    matrix = visit.tab.locator("#standard-task")
    matrix.get_by_role("button", name="UHM").click()
    first = matrix.locator("tbody th").all_inner_texts()
    # What was not run is last whichever way; of the others the easier task comes first.
    assert first[:2] == ["cube-double-play-task2", "cube-double-play-task1"]
    matrix.get_by_role("button", name="UHM").click()
    first = matrix.locator("tbody th").all_inner_texts()
    assert first[:2] == ["cube-double-play-task1", "cube-double-play-task2"]
    assert len(first) == 50


@needs_browser
def test_curves_show_values_on_hover(visit: Visit) -> None:
    plot = visit.tab.locator("#curves-cube-double-play .plot").nth(1)  # task 1
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert visit.tab.locator(".tip:visible").count() == 0
    visit.tab.mouse.move(box["x"] + box["width"] - 14, box["y"] + 60)  # the last evaluation
    tip = plot.locator(".tip").inner_text().split("\n")
    assert tip[0] == "step 1,000,000"
    # 0.9 * 2 / 3 - 0.2 + 0.18 + a half of 0.01: best first.
    assert tip[1:3] == ["UHM", "58.5 [58.0, 59.0]"]
    assert [word for word in tip if word.startswith(("DTD", "ReBRAC"))] == ["ReBRAC†", "DTD(λ)"]
    visit.tab.locator("#curves-cube-double-play .legend button", has_text="DTD").click()
    visit.tab.mouse.move(box["x"] + box["width"] - 16, box["y"] + 62)
    assert "DTD" not in plot.locator(".tip").inner_text()


@needs_browser
def test_what_was_expected_is_dashed_and_below_what_was_obtained(visit: Visit) -> None:
    """-200 and -100: both inside the plot, whose top is 0, the first further down."""
    plot = visit.tab.locator("#values-cube-double-play .plot").nth(1)
    places = plot.evaluate(
        """(plot) => [...plot.querySelectorAll("path")].map((path) => [
            path.hasAttribute("stroke-dasharray"),
            path.getBoundingClientRect().top - plot.getBoundingClientRect().top,
            plot.getBoundingClientRect().bottom - path.getBoundingClientRect().bottom])"""
    )
    dashed, solid = ([place for place in places if place[0] is kind] for kind in (True, False))
    assert len(dashed) == len(solid) == len(AGENTS)
    assert all(top > 0 and below > 0 for _, top, below in places)
    assert min(top for _, top, _ in dashed) > max(top for _, top, _ in solid)


@needs_browser
def test_metrics_of_own_logs_fill_their_plots(visit: Visit) -> None:
    """From -1236.5 to -1234.6: with 0 in sight the curves would be one flat line at the bottom."""
    plot = visit.tab.locator("#logs .plot").first
    plot.scroll_into_view_if_needed()
    heights = plot.evaluate(
        """(plot) => [...plot.querySelectorAll("path")].map((path) => path.getBoundingClientRect().height)"""
    )
    assert len(heights) == 4  # two lines, two ranges
    assert max(heights) > 100
    rows = visit.tab.locator("#logs table.members tbody tr")
    assert rows.count() == 4
    seeds = lambda: [row.split()[2] for row in rows.all_inner_texts()]  # noqa: E731
    for expected in (["0", "0", "1", "1"], ["1", "1", "0", "0"]):  # -1235.5 of the one and -1236.5 of the other
        visit.tab.locator("#logs").get_by_role("button", name="q_mean").click()
        assert seeds() == expected


@needs_browser
def test_nothing_is_wider_than_the_window(visit: Visit) -> None:
    visit.tab.evaluate("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    width, seen = visit.tab.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width <= seen
    assert visit.tab.locator("#calibration svg path").count() == 1
    assert visit.tab.evaluate("[...document.images].every((image) => image.naturalWidth > 0)")


@needs_browser
def test_light_and_dark(visit: Visit) -> None:
    ground = lambda: visit.tab.evaluate("getComputedStyle(document.body).backgroundColor")  # noqa: E731
    colours = {"light": "rgb(251, 251, 250)", "dark": "rgb(20, 23, 28)"}
    scheme = "dark" if visit.tab.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") else "light"
    assert ground() == colours[scheme]
    visit.tab.locator("#theme").click()
    assert ground() == colours["light" if scheme == "dark" else "dark"]


@needs_browser
def test_what_was_not_run_can_be_shown_and_hidden(visit: Visit) -> None:
    missing = visit.tab.locator("#standard-task .missing").first
    assert not missing.is_visible()
    visit.tab.locator(".unfold[data-for=standard-task]").check()
    assert missing.is_visible()
    idle = visit.tab.locator("#standard-environment td.idle").first
    box = visit.tab.locator(".idlers[data-for=standard-environment]")
    assert idle.is_visible() == box.is_checked() == (visit.tab.viewport_size["width"] > 640)
    box.click()
    assert idle.is_visible() == box.is_checked()


@needs_browser
def test_a_request_or_an_error_would_be_noticed(browser: Any, page: Path, tmp_path: Path) -> None:
    """The guard itself: a page that asks for something and stumbles is caught doing it."""
    bad = tmp_path / "bad.html"
    text = page.read_text().replace("img-src data:", "img-src data: http:")
    bad.write_text(text.replace("</main>", '<img src="http://example.invalid/x.png"><script>nothing()</script></main>'))
    visit = Visit(browser, bad, 1280, "light")
    visit.tab.wait_for_timeout(200)
    visit.context.close()
    assert any(line.startswith("request: http://example.invalid") for line in visit.wrong)
    assert any("nothing is not defined" in line for line in visit.wrong)
