"""The site builds without a warning, and asks nothing of another host."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urldefrag, urlsplit

import pytest

ROOT = Path(__file__).parent.parent.parent

# Elements that load something by themselves, and the attribute with its address.
LOADED = dict.fromkeys(("script", "img", "source", "iframe", "embed", "video", "audio"), "src")
LOADED |= dict.fromkeys(("use", "image", "link"), "href") | {"object": "data"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does; a warning is an error (which --quiet would pass over)."""
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Loads(HTMLParser):
    """What a page loads, links to, and can be linked to by."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.classes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors.add(given.get("id", ""))
        self.classes |= set(given.get("class", "").split())
        if tag == "a":
            self.links.append(given.get("href", ""))
        elif tag in LOADED and LOADED[tag] in given:
            self.loaded.append(given[LOADED[tag]])
        self.loaded += [part.split()[0] for part in given.get("srcset", "").split(",") if part.strip()]
        self.loaded += from_styles(given.get("style", ""))

    def handle_data(self, data: str) -> None:
        if self.lasttag == "style":
            self.loaded += from_styles(data)


def from_styles(text: str) -> list[str]:
    """What a style sheet loads."""
    found = re.findall(r"url\(\s*['\"]?([^'\")]+)", text) + re.findall(r"@import\s+['\"]([^'\"]+)", text)
    return [target for target in found if not target.startswith("data:")]


def pages(site: Path) -> dict[Path, Loads]:
    return {path: Loads(path.read_text()) for path in site.rglob("*.html")}


def is_foreign(target: str) -> bool:
    parts = urlsplit(target)
    return bool(parts.netloc) or parts.scheme not in ("", "data")


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    for path, page in pages(site).items():
        assert not [target for target in page.loaded if is_foreign(target)], path
        assert "mermaid" not in page.classes, f"{path}: the theme fetches what draws diagrams"
    for path in site.rglob("*.css"):
        assert not [target for target in from_styles(path.read_text()) if is_foreign(target)], path


def test_what_pages_load_and_link_to_is_there(site: Path) -> None:
    found = pages(site)
    assert len(found) > 25
    for path, page in found.items():
        for target in page.loaded + page.links:
            name, anchor = urldefrag(target)
            if is_foreign(target) or path.name == "404.html":
                continue
            wanted = (path.parent / name).resolve() if name else path
            assert wanted.is_file(), f"{path}: {target}"
            if anchor and wanted.suffix == ".html":
                assert anchor in found[wanted].anchors | {"__top"}, f"{path}: {target}"


def test_formulas_are_mathml_and_doctests_are_code(site: Path) -> None:
    formulas = (site / "equations.html").read_text()
    assert formulas.count("<math") > 25
    assert "arithmatex" not in formulas
    assert not [path for path in site.rglob("*.html") if re.search(r"<blockquote>\s*<blockquote>", path.read_text())]
    assert "&gt;&gt;&gt; " in (site / "api" / "measure.html").read_text()


def test_options_in_running_text_stay_on_one_line(site: Path) -> None:
    page = (site / "howto" / "pretrain.html").read_text()
    assert '<code><span class="option">--data.size</span></code>' in page
    assert '<code>ldreg pretrain <span class="option">--resume</span> runs/first</code>' in page
    assert ".option { white-space: nowrap; }" in (site / "site.css").read_text()


def test_every_public_name_is_on_the_site(site: Path) -> None:
    import ldreg
    from ldreg import methods, regularizers

    anchors = {anchor.rpartition(".")[2] for page in pages(site).values() for anchor in page.anchors}
    for package in (ldreg, regularizers, methods):
        missing = set(package.__all__) - anchors - {"METHODS", "MethodEntry"}
        assert not missing, package.__name__
