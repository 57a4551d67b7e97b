#!/usr/bin/env python3
"""Builds the site by docs/site.sh, and checks what neither MkDocs nor Doxygen checks.

    docs/site_check.py links [folder]     each link leads to a file and to a place in it; no page shows markup
    docs/site_check.py browser [folder]   opens the site in headless Chromium, as wide as a desk's screen and
                                          as a phone: width of the text, colours, copying, order, search

The folder is build/site if not named. Ends with 77, as tests do that are skipped, where a tool is missing.
"""
import html.parser
import json
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

try:
    from selenium import webdriver
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.support.ui import WebDriverWait
except ImportError:
    webdriver = None  # only `browser` needs it

ROOT = pathlib.Path(__file__).resolve().parents[1]
DESK, PHONE = 1400, 390
PAGES = ("index.html", "docs/index.html", "docs/installing.html", "docs/options.html", "docs/performance.html",
         "examples/cuda_first.cu.html", "reference/index.html", "reference/classtidepool_1_1chunk.html",
         "reference/structtidepool_1_1options.html")
SEARCHED = {"out of memory": "troubleshooting", "MPI": "train_moe", "max_inflight": "options"}


# --- links

class page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.links, self.anchors, self.markup, self.code = [], set(), [], 0
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.code += tag in ("pre", "code", "script", "style")
        self.anchors.update(value for key, value in attributes if key in ("id", "name"))
        self.links += [value for key, value in attributes if key in ("href", "src", "data") and value]

    def handle_endtag(self, tag):
        self.code -= tag in ("pre", "code", "script", "style")

    def handle_data(self, text):
        if not self.code:
            self.markup += re.findall(r"^ *(?:```|\|.*\|).*|\]\([\w./#-]+\)", text, flags=re.M)


def link_errors(folder):
    pages = {path: page(path.read_text()) for path in sorted(folder.rglob("*.html"))
             if path.name != "404.html"}  # a server's; its links begin at the server's root
    for path, read in pages.items():
        name = path.relative_to(folder)
        yield from (f"{name} shows markup: {each}" for each in read.markup)
        for link in read.links:
            if re.match(r"(https?|mailto|javascript|data):", link):
                continue
            file, _, anchor = urllib.parse.unquote(link).partition("#")
            target = (path.parent / file).resolve() if file else path
            if not target.is_file():
                yield f"{name}: {link} is not there"
            elif anchor and target in pages and anchor not in pages[target].anchors:
                yield f"{name}: {link} leads to no place of that page"
    print(f"{len(pages)} pages, {sum(len(read.links) for read in pages.values())} links")


# --- in a browser

def browser_errors(folder, width):
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    driver = webdriver.Chrome(options=options)
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width == PHONE})
    run = driver.execute_script

    def shown(selector):
        return [each for each in driver.find_elements("css selector", selector) if each.is_displayed()]

    def missing(what, condition):
        """No error, or the one that the condition does not become true."""
        try:
            WebDriverWait(driver, 10, ignored_exceptions=[WebDriverException]).until(lambda _: condition())
            return []
        except WebDriverException:
            return [f"at {width} pixels: {what}"]

    def switches(button):
        def colour():
            return run("return getComputedStyle(document.body).backgroundColor")
        before = colour()
        for each in shown(button)[:1]:
            each.click()
        return missing(f"{driver.current_url}: {button} changes no colours", lambda: colour() != before)

    try:
        for name in PAGES:
            driver.get((folder / name).as_uri())
            wide = run("return document.documentElement.scrollWidth")
            text = run("return document.querySelector('article h1, .title')?.clientWidth ?? 0")
            if wide > width:
                yield f"{name}: {wide} pixels wide, scrolls at {width}"
            if width == PHONE and text < 0.8 * width:
                yield f"{name}: {text} of {width} pixels are left for text"
            yield from missing(f"{name} lacks a picture", lambda: run(
                "return [...document.images].every(each => each.naturalWidth > 0)"))

        driver.get((folder / "docs/options.html").as_uri())
        yield from switches(".md-header__option label")
        run("document.querySelector('article pre').scrollIntoView({block: 'center'})")
        yield from missing("docs/options.html has no copy button", lambda: shown("article pre .md-clipboard"))
        yield from missing("docs/options.html has no previous page", lambda: shown("a.md-footer__link--prev"))
        yield from missing("docs/options.html has no next page", lambda: shown("a.md-footer__link--next"))
        for words, found in SEARCHED.items():
            driver.get((folder / "index.html").as_uri())
            if width == PHONE:
                driver.find_element("css selector", "label[for=__search].md-header__button").click()
            yield from missing("no field of the search", lambda: shown(".md-search__input"))
            driver.find_element("css selector", ".md-search__input").send_keys(words)
            yield from missing(f"a search for {words} does not find {found}", lambda: any(
                found in each.get_attribute("href") for each in shown("a.md-search-result__link")))

        driver.get((folder / "reference/index.html").as_uri())
        yield from switches("doxygen-awesome-dark-mode-toggle")
        driver.find_element("id", "MSearchField").send_keys("max_inflight")
        driver.switch_to.frame("MSearchResults")
        yield from missing("the reference does not find max_inflight", lambda: shown("[id^=SR_max_5finflight_]"))

        for entry in driver.get_log("performance"):
            url = json.loads(entry["message"])["message"]["params"].get("request", {}).get("url", "file:")
            if not re.match(r"(file|data|blob|chrome):", url):
                yield f"the site asks the network for {url}"
    except WebDriverException as error:
        yield f"at {width} pixels: {driver.current_url}: {error.msg}"
    finally:
        driver.quit()


def main(arguments):
    if not arguments or arguments[0] not in ("links", "browser") or len(arguments) > 2:
        print(__doc__, file=sys.stderr)
        return 2
    if arguments[0] == "browser" and not (webdriver and shutil.which("chromedriver")):
        print("no Selenium or driver of Chromium (Debian: python3-selenium chromium-driver): the site was not opened")
        return 77
    folder = pathlib.Path(arguments[1] if len(arguments) > 1 else ROOT / "build" / "site").resolve()
    built = subprocess.run([ROOT / "docs" / "site.sh", folder]).returncode
    if built:
        return built
    if arguments[0] == "links":
        errors = list(link_errors(folder))
    else:
        errors = [each for width in (DESK, PHONE) for each in browser_errors(folder, width)]
    print(*errors, f"{len(errors)} errors", sep="\n")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
