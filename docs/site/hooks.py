"""Hooks of MkDocs: pages from all folders, links to any file, a search without a server.

MkDocs reads one folder of pages. Tidepool's pages lie where GitHub shows them, and link to headers,
examples and results beside them. So the site has the pages of `nav` under the paths that they have in
the repository, the pages and pictures that they link to, and a page with the text of any other linked file.
"""
import json
import logging
import pathlib
import posixpath
import re

from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Link

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOG = logging.getLogger("mkdocs.hooks.tidepool")
logging.getLogger("mkdocs").setLevel(logging.WARNING)
LINK = re.compile(r"\]\((?![a-z]+:)([^)\s#]+)")
SHOWN_AS_THEY_ARE = (".md", ".svg", ".png")
LANGUAGES = {".hpp": "cpp", ".cpp": "cpp", ".cu": "cuda", ".py": "python"}


def named_pages(nav):
    for entry in nav:
        for value in entry.values():
            yield from named_pages(value) if isinstance(value, list) else [value]


def source_of(page, link):
    """The site's source of what `page` links to, or None if the repository has no such file."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    if not (ROOT / path).is_file():
        return None
    return path if path.endswith(SHOWN_AS_THEY_ARE) else path + ".md"


def on_files(files, config):
    found = {}

    def add(name):
        if name is None or name in found:
            return
        found[name] = File(name, str(ROOT), config.site_dir, use_directory_urls=False)
        if name.endswith(".md") and (ROOT / name).is_file():
            for link in LINK.findall((ROOT / name).read_text()):
                add(source_of(name, link))

    for name in [*config.extra_css, *named_pages(config.nav)]:
        add(name)
    of_theme = []
    for file in files:
        if not file.abs_src_path.startswith(config.docs_dir):
            of_theme.append(file)
        elif file.is_documentation_page() and f"docs/{file.src_uri}" not in named_pages(config.nav):
            LOG.warning(f"docs/{file.src_uri} has no place in the nav of docs/site/mkdocs.yml")
    return Files(of_theme + list(found.values()))


def on_nav(nav, config, files):
    nav.items.insert(2, Link("Reference of all names", "reference/index.html"))  # by docs/site.sh


def on_page_read_source(page, config):
    if (ROOT / page.file.src_uri).is_file():
        return None
    source = pathlib.PurePath(page.file.src_uri).with_suffix("")
    language = LANGUAGES.get(source.suffix, "text")
    return f"# {source}\n\n~~~~~~{language}\n{(ROOT / source).read_text()}\n~~~~~~\n"


def on_page_markdown(markdown, page, config, files):
    def to_site(found):
        source = source_of(page.file.src_uri, found[1])
        return f"]({posixpath.relpath(source, posixpath.dirname(page.file.src_uri) or '.')}" if source else found[0]

    if not (ROOT / page.file.src_uri).is_file():
        return markdown
    markdown = re.sub(r"<!--.*?-->\n?", "", markdown, flags=re.S)
    markdown = re.sub(r"^(\s*```\w+) .*", r"\1", markdown, flags=re.M)  # "cpp cuda", as GitHub takes it
    return LINK.sub(to_site, markdown)


def on_post_build(config):
    """A browser lets no page of file:// fetch an index or start a worker: a script brings both."""
    site = pathlib.Path(config.site_dir)
    index = json.loads((site / "search/search_index.json").read_text())
    named = {File(name, "", "", False).url for name in named_pages(config.nav)}
    index["docs"] = [entry for entry in index["docs"] if entry["location"].partition("#")[0] in named]
    worker, = site.glob("assets/javascripts/workers/search.*.js")
    (site / "search/offline.js").write_text(
        f"var __search = {{index: Promise.resolve({json.dumps(index)}),\n"
        f"  worker: URL.createObjectURL(new Blob([{json.dumps(worker.read_text())}]))}};\n")
