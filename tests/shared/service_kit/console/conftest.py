"""A small service with a console, in process; people logged in at it."""

import asyncio
import re
from dataclasses import dataclass, field

import httpx
import pytest

from tests.shared.service_kit.console import sample_service

HOST = "http://127.0.0.1:8410"
FROM_HERE = {"origin": HOST, "sec-fetch-site": "same-origin"}


@dataclass
class Browser:
    """A browser that keeps cookies, and sends forms with their hidden fields."""

    app: object
    address: str = "127.0.0.1"
    cookies: dict[str, str] = field(default_factory=dict)
    text: str = ""

    def send(self, method, path, *, headers=None, **more):
        async def request():
            transport = httpx.ASGITransport(self.app, client=(self.address, 1234))
            async with httpx.AsyncClient(transport=transport, base_url=HOST) as client:
                kept = "; ".join(f"{k}={v}" for k, v in self.cookies.items())
                return await client.request(method, path, headers={"cookie": kept} | (headers or {}), **more)

        reply = asyncio.run(request())
        for header in reply.headers.get_list("set-cookie"):
            name, _, value = header.partition(";")[0].partition("=")
            self.cookies[name] = value
            if "Max-Age=0" in header:
                del self.cookies[name]
        self.text = reply.text
        return reply

    def get(self, path, **more):
        return self.send("GET", path, **more)

    def hidden(self, name):
        return re.findall(rf'name="{name}" value="([^"]*)"', self.text)[-1]

    def post(self, path, data=None, *, headers=FROM_HERE, page="/console/samples", keep=False, **more):
        """Load a page with a form, and send the form. ``keep`` sends the form that was loaded before."""
        if not keep:
            self.get(page)
        sent = {"_csrf": self.hidden("_csrf"), "_key": self.hidden("_key")} | (data or {})
        before = self.text
        reply = self.send("POST", path, data=sent, headers=headers, **more)
        if keep:
            self.text = before
        return reply

    def login(self, name, password=sample_service.PASSWORD, headers=FROM_HERE, **more):
        return self.send("POST", "/console/login", data={"name": name, "password": password, **more}, headers=headers)


@pytest.fixture
def clock():
    return sample_service.Clock()


@pytest.fixture
def app(tmp_path, clock):
    app = sample_service.build(tmp_path, clock)
    yield app
    app.state.context.database.close()


@pytest.fixture
def browser(app):
    return Browser(app)


@pytest.fixture
def owner(browser):
    assert browser.login("ann").status_code == 303
    return browser
