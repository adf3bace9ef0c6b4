"""A real browser, Debian's chromium, whose every error, breach of the policy and request off loopback is found.

``visitor`` opens pages as a person would. At its end it holds that there was no console error, no error of a script, no
breach of the Content-Security-Policy, and no request to another host. ``audit`` runs axe over a page, light and dark.
"""

import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import uvicorn
from axe_playwright_python.base import AxeResults
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Page, Response, expect, sync_playwright

from tests.browser.two_services import BothServices, opened
from tests.conftest import Service

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
LOOPBACK = ("127.0.0.1", "localhost", "::1", "")
PATIENCE_MS = 240_000
"""The machine may be busy; nothing here is about speed."""
SCREENSHOTS = os.environ.get("BLINDOPT_SCREENSHOTS", "")
"""1: the pictures that docs/ shows, into docs/screenshots. all: every page too, into tests/browser/screenshots."""
IN_BOTH = {"resultTypes": ["violations"], "preload": False}
IN_DARK = IN_BOTH | {"runOnly": ["color-contrast", "link-in-text-block"]}
"""What of axe can differ between light and dark."""
AXE = Axe()
CONTRAST_ONCE = """() => {
  const rule = axe._audit.rules.find((rule) => rule.id === "color-contrast"), matches = rule.matches;
  const FONT = ["fontSize", "fontWeight", "textShadow", "webkitTextStrokeColor", "webkitTextFillColor"];
  const GROUND = ["color", "backgroundColor", "backgroundImage", "opacity", "filter", "mixBlendMode", "position"];
  let digests = new Map(), measured = new Set();
  const read = (element, names) => {
    const style = getComputedStyle(element);
    return names.map((name) => style[name]);
  };
  const digest = (parts) => {
    let high = 0xdeadbeef, low = 0x41c6ce57;
    for (const character of parts.join()) {
      const code = character.charCodeAt(0);
      high = Math.imul(high ^ code, 2654435761);
      low = Math.imul(low ^ code, 1597334677);
    }
    return 2097152 * (high >>> 0) + ((low ^ low >>> 15) >>> 11);
  };
  const chain = (element) => {
    if (element !== null && !digests.has(element)) {
      const own = [element.localName, element.getAttribute("class"), element.disabled, ...read(element, GROUND)];
      digests.set(element, digest([chain(element.parentElement), ...own]));
    }
    return digests.get(element) ?? 0;
  };
  rule.matches = (element, ...others) => {
    const looks = digest([chain(element), ...read(element, FONT)]);
    if (measured.has(looks) || !matches.call(rule, element, ...others)) return false;
    measured.add(looks);
    return true;
  };
  window.axeViolations = async (options, before) => {
    digests = new Map();
    measured = new Set(before);
    const { violations } = await axe.run(options);
    return [violations, [...measured].slice(before.length)];
  };
}"""
"""Lets axe measure a contrast once: it takes most of its time, and rows of a table look alike. Texts look alike if they
and all that they stand in have the same names, classes, colours, grounds and fonts."""
CONTRASTS: list[int] = []
"""Digests of looks that were measured."""
HOW = "tests in a browser need Debian's chromium (apt-get install chromium): README says so"
# Nothing of the browser's own goes out: no updates, no metrics, no look-ups.
QUIET = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-gpu",  # there is none: what stands in for it costs more than pages do
    "--disable-features=OptimizationHints,MediaRouter,Translate,AutofillServerCommunication",
    "--disable-sync",
    "--metrics-recording-only",
    "--no-first-run",
    "--no-sandbox",  # in a container, as root
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost, EXCLUDE *.localhost",
)


@pytest.fixture(scope="module")  # while it is open, its event loop runs here: no other module's asyncio.run would
def browser() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "chromium-browser"))), None)
    assert path is not None, HOW
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(QUIET))
        yield browser
        browser.close()


class Visitor:
    """One person at one browser. ``expects`` takes a word of a console error that a test means to cause."""

    def __init__(self, browser: Browser, url: str, **more: object) -> None:
        self._browser = browser
        self._url = url
        self._expected: list[str] = []
        self.faults_seen: list[str] = []
        self.context: BrowserContext = browser.new_context(
            base_url=url,
            locale="en-GB",
            timezone_id="Europe/Berlin",
            reduced_motion="reduce",
            viewport={"width": 1200, "height": 860},
            **more,
        )
        self.context.set_default_timeout(PATIENCE_MS)
        self.context.on("request", self._request)
        self.context.on("weberror", lambda error: self.faults_seen.append(f"error of a script: {error.error}"))
        self.context.on("console", self._said)
        self.page: Page = self.context.new_page()

    def _request(self, request: object) -> None:
        host = urlsplit(request.url).hostname or ""
        if not request.url.startswith("data:") and host not in LOOPBACK and not host.endswith(".localhost"):
            self.faults_seen.append(f"a request left: {request.url}")

    def _said(self, message: object) -> None:
        if message.type in ("error", "warning"):
            self.faults_seen.append(f"{message.type}: {message.text}")

    def expects(self, word: str) -> None:
        self._expected.append(word)

    def open(self, path: str) -> Response:
        reply = self.page.goto(path, wait_until="load")
        assert reply is not None
        return reply

    def login(self, name: str, password: str) -> None:
        self.open("/console/login")
        self.page.get_by_label("Name").fill(name)
        self.page.get_by_label("Password").fill(password)
        self.page.get_by_role("button", name="Log in").click()
        self.page.get_by_role("button", name="Log out").wait_for()

    def press(self, name: str, role: str = "button") -> None:
        """Press a button, or follow a link, that leads to another page."""
        with self.page.expect_navigation():
            self.page.get_by_role(role, name=name, exact=True).click()

    def again_until(self, address: str, text: str) -> None:
        """Open a page again and again until it holds ``text``."""
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while text not in self.open(address).text():
            assert time.monotonic() < deadline, text
            time.sleep(0.3)

    def html(self) -> str:
        """The content of the page, without what differs in each reply: the keys of its forms."""
        script = "document.getElementById('main').innerHTML"
        return re.sub(r'(name="_key" value=")[^"]*', r"\1", self.page.evaluate(script))

    def shoot(self, name: str) -> None:
        """A picture of the whole page, for whoever works on pages."""
        if SCREENSHOTS == "all":
            self._picture(FOLDER / "screenshots", name, full_page=True)

    def picture(self, name: str, height: int = 900, *, at: str = "body", hidden: str = ".never") -> None:
        """A picture that docs/ shows, from the top of ``at`` on, in few colours: it stays small."""
        if SCREENSHOTS:
            self.page.set_viewport_size({"width": 1200, "height": height})
            self.page.locator(at).first.evaluate("e => scrollTo(0, e.getBoundingClientRect().top + scrollY - 16)")
            self._picture(ROOT / "docs/screenshots", name, mask=[self.page.locator(hidden)], mask_color="#9aa5a0")
            path = ROOT / "docs/screenshots" / f"{name}.png"
            with Image.open(path) as whole:
                few = whole.convert("RGB").quantize(96)
            few.save(path, optimize=True)
            self.page.set_viewport_size({"width": 1200, "height": 860})

    def _picture(self, folder: Path, name: str, **more: object) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=folder / f"{name}.png", animations="disabled", **more)

    def faults(self, *, dark: bool = True) -> list[str]:
        """What axe finds wrong with the page that is open, as it is now; light, and dark."""
        violations = []
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE.axe_script)
            self.page.evaluate(CONTRAST_ONCE)
        for scheme, options in (("light", IN_BOTH), ("dark", IN_DARK))[: 1 + dark]:
            self.page.emulate_media(color_scheme=scheme)
            call = "([options, before]) => axeViolations(options, before)"
            violated, measured = self.page.evaluate(call, [options, CONTRASTS])
            CONTRASTS.extend(measured)
            if violated:
                results = AxeResults({"violations": violated, "url": self.page.url})
                violations.append(f"{self.page.url} ({scheme}): {results.generate_report()[:3000]}")
        self.page.emulate_media(color_scheme="light")
        return violations

    def look(self, name: str) -> None:
        """The page holds to what axe finds, light and dark, and is no wider than a phone; with pictures of each."""
        self.audit()
        for width in (1440, 390):
            self.page.set_viewport_size({"width": width, "height": 900})
            assert self.page.evaluate("document.documentElement.scrollWidth") <= width
            self.shoot(f"{name}-{width}")
        self.page.emulate_media(color_scheme="dark")
        self.shoot(f"{name}-dark")
        self.page.emulate_media(color_scheme="light")
        self.page.set_viewport_size({"width": 1200, "height": 860})

    def audit(self, *, dark: bool = True) -> None:
        """axe finds nothing."""
        violations = self.faults(dark=dark)
        assert violations == [], "\n".join(violations)

    def leave(self) -> None:
        """The end of a test after which this person stays: nothing unexpected was seen, and nothing is expected now."""
        self.page.goto("about:blank")  # ends what the page has open; what it said until now has then been heard
        unexpected = self._unexpected()
        self.faults_seen.clear()
        self._expected.clear()
        assert unexpected == [], unexpected

    def close(self) -> None:
        self.context.close()
        unexpected = self._unexpected()
        assert unexpected == [], unexpected

    def _unexpected(self) -> list[str]:
        return [text for text in self.faults_seen if not any(word in text for word in self._expected)]


@pytest.fixture(scope="module")
def services(make_service: Callable[..., Service], tmp_path_factory: pytest.TempPathFactory) -> Iterator[BothServices]:
    """Both services of a module, from an empty folder."""
    with opened(make_service, tmp_path_factory.mktemp("services")) as services:
        yield services


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Visitor]]:
    """``visit(url)``: a new person; with ``java_script_enabled=False`` one without scripts."""
    made: list[Visitor] = []

    def open_(url: str, **more: object) -> Visitor:
        made.append(Visitor(browser, url, **more))
        return made[-1]

    yield open_
    for visitor in made:
        visitor.close()


@contextmanager
def served(app: object) -> Iterator[str]:
    """An application on a port of loopback, in a thread."""
    server = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, access_log=False, timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 240
    while not server.started:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(timeout=240)
