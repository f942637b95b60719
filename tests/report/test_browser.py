"""The pages as a browser shows them: nothing is asked of the network, nothing is said in the console, all fits."""

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.report.conftest import LONG, PAYLOADS
from tests.report.conftest import _make as make_report
from tests.report.conftest import _run as make_run

from ldreg.report.pages import comparison_page, inspection_page

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium or Chrome is installed")

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-extensions", "--hide-scrollbars", "--remote-debugging-pipe"),
]
# Chromium talks through the descriptors 3 and 4, which a child cannot be given by number.
START = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
PATIENCE = 60


class Browser:
    """Chromium at the other end of a pipe; `events` is all that it told without being asked."""

    def __init__(self, folder: Path) -> None:
        self.events: list[dict[str, Any]] = []
        self._number, self._rest = 0, b""
        to_read, self._out = os.pipe()
        self._in, to_write = os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_read, to_write)]
        words = [sys.executable, "-c", START, *map(str, ends), str(CHROMIUM), *FLAGS, f"--user-data-dir={folder}"]
        self._process = subprocess.Popen(words, pass_fds=ends, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for end in (to_read, to_write, *ends):
            os.close(end)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer of the page."""
        return self.call(method, session=self._session, **parameters)

    def call(self, method: str, *, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        os.write(self._out, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self.events.append(answer)

    def open(self, path: Path, *, width: int, scheme: str = "light") -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self.ask("Page.navigate", url=path.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())
        time.sleep(0.2)  # for what comes after
        self.evaluate("0")  # and has been told by then

    def evaluate(self, expression: str) -> Any:
        return self.ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def complaints(self) -> list[str]:
        """Everything in the console."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(event["params"]) for event in self.events if event["method"] in kinds]

    def requests(self) -> list[str]:
        """Every address that was asked for, other than those that hold their content themselves."""
        sent = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        addresses = [event["params"]["request"]["url"] for event in sent]
        return [address for address in addresses if not address.startswith("data:")]

    def close(self) -> None:
        os.close(self._out)  # which Chromium takes for good-bye
        os.close(self._in)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], PATIENCE)
            part = os.read(self._in, 1 << 20) if ready else b""
            assert part, "Chromium has nothing more to say"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def pages(hostile_pages: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of one and of two sets, of one, two and many runs, and of studies; most names are long."""
    texts = {
        **hostile_pages,
        "set": inspection_page(make_report(title=LONG)),
        "one": comparison_page([make_run("SimCLR", map=[], curves={})], title="One run"),
        "many": comparison_page([make_run(f"{LONG}{i}", map=[]) for i in range(6)], title=LONG),
    }
    folder = tmp_path_factory.mktemp("pages")
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


OPEN_ALL = "document.querySelectorAll('details').forEach(part => part.open = true)"
WIDTH = "document.documentElement.scrollWidth"
CUT = "[...document.querySelectorAll('.card')].filter(card => card.scrollWidth > card.clientWidth).length"


@pytest.mark.parametrize("name", ["set", "inspect", "one", "report", "many", "study"])
@pytest.mark.parametrize("width", [400, 1400])
def test_pages_are_quiet_and_fit(browser: Browser, pages: dict[str, Path], name: str, width: int) -> None:
    browser.open(pages[name], width=width)
    assert browser.requests() == [pages[name].as_uri()]
    assert browser.complaints() == []
    assert browser.evaluate(WIDTH) == width
    browser.evaluate(OPEN_ALL)
    assert browser.evaluate(WIDTH) == width


def test_a_table_that_is_cut_has_a_shadow_at_its_edge(browser: Browser, pages: dict[str, Path]) -> None:
    """The cover of the shadow goes along with the content: it lies over the edge only at the end of the table."""
    browser.open(pages["study"], width=400)
    card = "document.querySelector('.card')"
    assert browser.evaluate(f"{card}.scrollWidth > {card}.clientWidth")
    attached = browser.evaluate(f"getComputedStyle({card}).backgroundAttachment")
    assert attached.split(", ")[:2] == ["local", "scroll"]


def test_thumbnails_are_shown(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["report"], width=400)
    shown = "[...document.images].map(image => [image.naturalWidth, image.getBoundingClientRect().width])"
    assert browser.evaluate(shown) == [[8, 64]] * 2 * len(PAYLOADS)
    assert browser.evaluate("getComputedStyle(document.images[0]).imageRendering") == "pixelated"


def test_colors_follow_the_scheme(browser: Browser, pages: dict[str, Path]) -> None:
    found = {}
    look = "(style => [style.color, style.backgroundColor])(getComputedStyle(document.body))"
    for scheme in ("light", "dark"):
        browser.open(pages["report"], width=1400, scheme=scheme)
        found[scheme] = browser.evaluate(look)
    assert found["light"] == ["rgb(28, 33, 39)", "rgb(246, 247, 249)"]
    assert found["dark"] == ["rgb(230, 233, 237)", "rgb(20, 23, 26)"]


def test_links_of_a_study_lead_to_its_sections(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["study"], width=1400)
    names = "[...document.querySelectorAll('nav a')].map(link => !!document.getElementById(link.hash.slice(1)))"
    assert browser.evaluate(names) == [True] * 4


def test_explanations_are_under_the_numbers_of_two_sets_where_it_is_narrow(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "inspect.html"
    path.write_text(inspection_page(make_report(comparison="other.npy")), encoding="utf-8")
    row = "[...document.querySelectorAll('.both tr')].find(row => row.textContent.startsWith('RankMe'))"
    below = f"(cells => cells[3].top >= cells[1].bottom)([...{row}.children].map(cell => cell.getBoundingClientRect()))"
    for width, narrow in ((400, True), (760, False)):
        browser.open(path, width=width)
        assert (browser.evaluate(CUT), browser.evaluate(below)) == (0, narrow)


FOREIGN = """[...document.querySelectorAll('*')].filter(part => !part.matches('main ~ script')).flatMap(part => [
    ...(['SCRIPT', 'IFRAME', 'OBJECT', 'EMBED', 'BASE', 'LINK', 'FORM', 'INPUT', 'TEXTAREA'].includes(
        part.tagName.toUpperCase()) ? [part.outerHTML.slice(0, 200)] : []),
    ...[...part.attributes].filter(its => /^on|^srcdoc$|^autofocus$/i.test(its.name)
        || (/^(href|src|xlink:href|action)$/i.test(its.name) && !/^(#|data:image\\/png;)/.test(its.value)))
        .map(its => `${part.tagName} ${its.name}=${its.value}`.slice(0, 200)),
])"""


def test_names_that_are_scripts_are_names(browser: Browser, hostile_pages: dict[str, str], tmp_path: Path) -> None:
    """Also where the page's policy, which forbids scripts, is taken out: escaping alone must do."""
    for name, text in hostile_pages.items():
        meta = text[text.index("<meta http-equiv") : text.index("<meta name")]
        assert "Content-Security-Policy" in meta
        for policy in (meta, ""):
            path = tmp_path / f"{name}.html"
            path.write_text(text.replace(meta, policy), encoding="utf-8")
            browser.open(path, width=1400)
            browser.evaluate(OPEN_ALL)
            assert browser.evaluate("typeof window.hit") == "undefined", name
            assert browser.evaluate(FOREIGN) == [], name
            own = browser.evaluate("document.querySelectorAll('main ~ script').length")
            assert own == (0 if name == "study" else 5), name
            assert (browser.requests(), browser.complaints()) == ([path.as_uri()], []), name


def test_what_is_looked_for_would_be_found(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "loud.html"
    wide = '<div style="width: 700px">wide</div><script>console.error("wrong")</script>'
    path.write_text(f'<meta name="viewport" content="width=device-width"><img src="http://127.0.0.1:9/x.png">{wide}')
    browser.open(path, width=400)
    assert browser.requests()[1:] == ["http://127.0.0.1:9/x.png"]
    assert any("wrong" in complaint for complaint in browser.complaints())
    assert browser.evaluate(WIDTH) > 400
    for place in (0, 1, 2, 10, 11):
        path.write_text(f"<!DOCTYPE html><title>a title</title><p>{PAYLOADS[place]}</p>", encoding="utf-8")
        browser.open(path, width=400)
        assert browser.evaluate(FOREIGN) != []
        assert place or browser.evaluate("window.hit") == 1
