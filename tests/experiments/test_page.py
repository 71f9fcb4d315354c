"""The report's page in a browser: what a reader sees on a desk and on a phone, by day and by night.

Debian's chromium and chromedriver, both found on the path; nothing is downloaded.
"""

import shutil
import time
from dataclasses import make_dataclass

import fake_figures as fake
import pytest

import dd_jax as dd
from experiments.page import Table

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER),
    reason="no chromium and chromedriver; install Debian's chromium and chromium-driver",
)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
LONG = "an_unbroken_name_that_is_wider_than_any_telephone_" * 2
WIDE = Table(
    "Wide",
    ("name", *(f"column {k}" for k in range(20))),
    [("row", *range(20)), (LONG, *range(20))],
)
# As text they would be sorted otherwise, and the empty cell would not come last.
NUMBERS = Table(
    "Numbers",
    ("name", "value"),
    [("b", 9.0), ("a", 10.0), ("d", None), ("c", -1e3), ("e", 2e-7), ("f", 5e-8)],
)
Config = make_dataclass(
    "Config", [("points", int, 4), ("seed", int, 0), (LONG, str, LONG)], frozen=True
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    problem = dd.Problem(dd.losses.logistic(), 0.05)
    plan = dd.plan_convex(problem, n=267, dim=64, order=2, eps_dp=1.0, eps_dd=0.1)
    rows = [*fake.CLAIMS.rows, (LONG, 1.4, 1.2, 1.0, "refuted")]
    drawn = fake.figure(
        "drawn",
        Config=Config,
        plot=fake.plot,
        tables=lambda *_: [fake.CLAIMS._replace(rows=rows), WIDE, NUMBERS],
        certificate=lambda config: plan.certificate(1, 1),
        CAPTION=f"A caption with {LONG}.",
        NOTE=f"A note with {LONG}.",
    )
    absent = fake.raising(dd.MissingData(f"no {LONG}", f"dd-jax data fetch {LONG}"))
    broken = fake.raising(ValueError(LONG))
    with pytest.MonkeyPatch.context() as patch:
        figures = (drawn, fake.figure("absent", compute=absent), fake.figure("bad", compute=broken))
        fake.install(patch, *figures)
        return fake.write(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=Service(executable_path=DRIVER))
    yield opened
    opened.quit()


def show(browser, made, width: int, theme: str) -> None:
    """Open the page as on a screen of that width whose system prefers that theme."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(made.path.resolve().as_uri())


def lightness(browser) -> int:
    """Red of the page's background, 0 to 255."""
    colour = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    return int(colour.split("(")[1].split(",")[0])


@pytest.mark.parametrize(("width", "theme"), [(1400, "light"), (390, "dark")])
def test_nothing_overflows_is_broken_or_complains(browser, made, width, theme):
    show(browser, made, width, theme)
    # What is folded away must fit as well.
    browser.execute_script("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    shown, available = browser.execute_script(
        "const root = document.documentElement; return [root.scrollWidth, root.clientWidth]"
    )
    assert shown <= available <= width
    pictures = browser.execute_script(
        "return [...document.images].map((i) => [i.complete, i.naturalWidth, i.width])"
    )
    assert len(pictures) == 1
    assert all(done and natural > 0 and drawn > 300 for done, natural, drawn in pictures)
    assert browser.get_log("browser") == []
    assert (lightness(browser) > 127) == (theme == "light")


def test_a_click_or_a_key_sorts_a_table_by_numbers(browser, made):
    show(browser, made, 1400, "light")
    table = browser.find_element("css selector", "table[aria-label=Numbers]")
    name, value = table.find_elements("css selector", "thead button")
    for press, names, state in (
        (lambda: None, "badcef", ["none", "none"]),
        (value.click, "cfebad", ["none", "ascending"]),
        (value.click, "abefcd", ["none", "descending"]),
        (lambda: name.send_keys("\ue007"), "abcdef", ["ascending", "none"]),  # the enter key
        (lambda: name.send_keys(" "), "fedcba", ["descending", "none"]),
    ):
        press()
        cells = table.find_elements("css selector", "tbody td:first-child")
        headings = table.find_elements("css selector", "thead th")
        assert "".join(cell.text for cell in cells) == names
        assert [heading.get_attribute("aria-sort") for heading in headings] == state


def test_the_theme_is_chosen_and_remembered(browser, made):
    show(browser, made, 390, "dark")
    button = browser.find_element("id", "theme")
    assert lightness(browser) < 127
    picture = "return getComputedStyle(document.images[0]).filter"
    assert "invert" in browser.execute_script(picture)
    button.click()
    assert lightness(browser) > 127
    assert browser.execute_script(picture) == "none"
    for _ in range(50):  # what is stored reaches the process of the next page a little later
        show(browser, made, 390, "dark")
        if lightness(browser) > 127:
            break
        time.sleep(0.1)
    assert lightness(browser) > 127
    browser.execute_script("localStorage.clear()")
