"""A real browser, Debian's chromium, whose every error, breach of the policy and request off loopback is found.

``visitor`` opens pages as a person would. At its end it holds that there was no console error, no error of a script, no
breach of the Content-Security-Policy, and no request to another host. ``audit`` runs axe over a page, light and dark.
"""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import uvicorn
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, Response, sync_playwright

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
LOOPBACK = ("127.0.0.1", "localhost", "::1", "")
HOW = "tests in a browser need Debian's chromium (apt-get install chromium): README says so"
# Nothing of the browser's own goes out: no updates, no metrics, no look-ups.
QUIET = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-features=OptimizationHints,MediaRouter,Translate,AutofillServerCommunication",
    "--disable-sync",
    "--metrics-recording-only",
    "--no-first-run",
    "--no-sandbox",  # in a container, as root
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)


@pytest.fixture(scope="module")  # while it is open, its event loop runs here: no other module's asyncio.run would
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    assert path is not None, HOW
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
        self.found: list[str] = []
        self.context: BrowserContext = browser.new_context(
            base_url=url,
            locale="en-GB",
            timezone_id="Europe/Berlin",
            reduced_motion="reduce",
            viewport={"width": 1200, "height": 860},
            **more,
        )
        self.context.set_default_timeout(20_000)
        self.context.on("request", self._request)
        self.context.on("weberror", lambda error: self.found.append(f"error of a script: {error.error}"))
        self.context.on("console", self._said)
        self.page: Page = self.context.new_page()

    def _request(self, request: object) -> None:
        host = urlsplit(request.url).hostname or ""
        if not request.url.startswith("data:") and host not in LOOPBACK:
            self.found.append(f"a request left: {request.url}")

    def _said(self, message: object) -> None:
        if message.type in ("error", "warning"):
            self.found.append(f"{message.type}: {message.text}")

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

    def shoot(self, name: str) -> Path:
        """A picture of the whole page: into docs/screenshots where BLINDOPT_SCREENSHOTS is set."""
        folder = ROOT / "docs/screenshots" if os.environ.get("BLINDOPT_SCREENSHOTS") else HERE / "screenshots"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.png"
        self.page.screenshot(path=path, full_page=True, animations="disabled")
        return path

    def audit(self, *, dark: bool = True) -> None:
        """axe finds nothing on the page that is open, as it is now; light, and dark."""
        for scheme in ("light", "dark") if dark else ("light",):
            self.page.emulate_media(color_scheme=scheme)
            found = Axe().run(self.page)
            assert found.violations_count == 0, f"{self.page.url} ({scheme}): {found.generate_report()[:6000]}"
        self.page.emulate_media(color_scheme="light")

    def close(self) -> None:
        self.context.close()
        left = [text for text in self.found if not any(word in text for word in self._expected)]
        assert left == [], left


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
    deadline = time.monotonic() + 30
    while not server.started:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(timeout=20)
