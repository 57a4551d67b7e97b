#!/usr/bin/env python3
"""Opens a report of `plan` in a headless browser, does what a reader does, and looks at the page.

    tests/trace/report_in_browser.py PLAN

Exit status 77, with a note, where Chromium, its driver or python3-selenium is missing.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
except ImportError:
    # Debian's package serves Debian's Python, which need not be the first one.
    debian = "/usr/bin/python3"
    if os.access(debian, os.X_OK) and "TIDEPOOL_AGAIN" not in os.environ:
        os.environ["TIDEPOOL_AGAIN"] = "1"
        os.execv(debian, [debian, *sys.argv])
    print("no python3-selenium: the report was not opened")
    sys.exit(77)

SIZES = ((1400, 900), (390, 800))
failures = []


def expect(right, what):
    if not right:
        failures.append(what)


def open_browser(work, driver, browser):
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage",
                 f"user-data-dir={work}/profile"):
        options.add_argument("--" + flag)
    return webdriver.Chrome(service=Service(driver), options=options)


def view(page):
    """The part of the step that is seen, in the picture's units: start and width."""
    box = page.execute_script("return document.querySelector('#frame svg svg').getAttribute('viewBox')")
    start, _, width, _ = map(float, box.split())
    return start, width


def lane_names(page):
    """[(text, left, right, height of the letters)] of the words at the left of the lanes."""
    return page.execute_script("""
        const left = Number(svg.dataset.axis.split(" ")[1]);
        return [...document.querySelectorAll("#frame .words text")].filter((each) =>
            Number(each.getAttribute("x")) < left && /^(passes|offload|reload|compute)/.test(each.textContent))
          .map((each) => [each.textContent, each.getBoundingClientRect().left,
                          each.getBoundingClientRect().right, each.getBoundingClientRect().height]);""")


def check_zoom(page, size):
    before = lane_names(page)
    whole = view(page)
    expect(len(before) >= 3, f"{size}: lanes without names: {before}")
    for _ in range(6):
        page.find_element(By.ID, "in").click()
    start, width = view(page)
    expect(width < whole[1] / 10, f"{size}: + does not zoom: {whole} to {start, width}")
    expect(lane_names(page) == before, f"{size}: zoom moves lane names: {before} to {lane_names(page)}")
    expect(all(0 <= left and right <= size[0] for _, left, right, _ in before),
           f"{size}: lane names out of view: {before}")
    letters = page.execute_script("""return [...document.querySelectorAll("#frame .captions text")]
        .map((each) => each.getBoundingClientRect().height)""")
    ActionChains(page).move_to_element(page.find_element(By.ID, "frame")).click_and_hold().move_by_offset(
        -40, 0).release().perform()
    expect(view(page)[0] > start and abs(view(page)[1] - width) < 0.01, f"{size}: dragging shows {view(page)}")
    expect(letters and all(8 < height < 20 for height in letters), f"{size}: captions as zoomed: {letters}")
    page.find_element(By.ID, "all").click()
    expect(abs(view(page)[1] - whole[1]) < 0.01, f"{size}: 'all' shows {view(page)}, not {whole}")


def check_wheel(page, size):
    picture = page.find_element(By.ID, "frame")
    page.execute_script("window.scrollTo(0, 0)")
    over = ScrollOrigin.from_element(picture)
    whole = view(page)
    ActionChains(page).scroll_from_origin(over, 0, 200).perform()
    for _ in range(40):  # it scrolls smoothly
        if page.execute_script("return window.scrollY") > 0:
            break
        time.sleep(0.05)
    else:
        expect(False, f"{size}: the wheel does not scroll the page")
    time.sleep(0.3)
    expect(view(page) == whole, f"{size}: the wheel zooms")
    page.execute_script("window.scrollTo(0, 0)")
    ActionChains(page).key_down(Keys.CONTROL).scroll_from_origin(over, 0, -100).key_up(
        Keys.CONTROL).perform()
    expect(view(page)[1] < whole[1], f"{size}: Ctrl and the wheel do not zoom")
    expect(page.execute_script("return window.scrollY") == 0, f"{size}: Ctrl and the wheel scroll")
    page.find_element(By.ID, "all").click()


def check_click(page, size):
    row = page.find_element(By.CSS_SELECTOR, "#stalls tr[data-times]")
    times = [tuple(map(float, each.split(","))) for each in row.get_attribute("data-times").split()]
    _, left, right, first, last = map(float, page.execute_script("return svg.dataset.axis").split())
    for start, end in times[:2]:
        page.execute_script("arguments[0].scrollIntoView()", row)
        row.find_element(By.TAG_NAME, "td").click()
        x = [left + (each - first) / (last - first) * (right - left) for each in (start, end)]
        seen, width = view(page)
        expect(seen <= x[0] + 0.1 and x[1] <= seen + width + 0.1,
               f"{size}: a click shows {seen} to {seen + width}, and its stall is at {x}")
        mark = page.find_element(By.ID, "mark")
        expect(abs(float(mark.get_attribute("x")) - x[0]) < 0.1, f"{size}: the mark is not at {x}")
        middle = page.execute_script("return frame.getBoundingClientRect().top")
        expect(-1 <= middle < size[1], f"{size}: after a click the picture is at {middle}")
        striped = page.execute_script("""
            const box = document.getElementById("mark").getBoundingClientRect();
            return bars.some((each) => each.stall && Math.abs(seenAt(each.x) + svg.getBoundingClientRect().left
                - box.left) < 2)""")
        expect(striped, f"{size}: no stall under the mark of {start} to {end}")
    expect("chosen" in row.get_attribute("class"), f"{size}: the row is not marked")
    page.find_element(By.ID, "all").click()


def main():
    plan = sys.argv[1]
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if not browser or not driver:
        print("no Chromium with its driver (Debian: chromium-driver): the report was not opened")
        return 77
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        file = pathlib.Path(work, "report.html")
        subprocess.run([plan, "--set", "layers=2", "--set", "microbatches=2", "--budget", "1.6GiB",
                        "--report", str(file)], check=True, stdout=subprocess.DEVNULL)
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        expect(not re.search(r"https?://|src=|<link", text), "the page asks for another file")
        page = open_browser(work, driver, browser)
        try:
            for size in SIZES:
                page.set_window_size(*size)
                if page.execute_script("return window.innerWidth") > size[0] + 20:
                    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
                        "width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False})
                page.get(file.as_uri())
                expect(page.execute_script("return document.body.dataset.ready") == "yes", "the script failed")
                advice = page.find_element(By.ID, "advice").text
                expect(re.search(r" waits [\d.]+ \S+ ", advice), f"the first line says: {advice}")
                check_zoom(page, size)
                check_wheel(page, size)
                check_click(page, size)
                wide = page.execute_script("return document.documentElement.scrollWidth - innerWidth")
                expect(wide <= 0, f"{size}: the page is {wide} pixels too wide")
        finally:
            page.quit()
    print("\n".join(failures) or "the report does what a reader asks of it")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
