"""A curator as a process, people logged in at its console, and what a browser does of a page."""

import re
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser

import httpx
import pytest
from argon2 import PasswordHasher

from curator_service.desk import open_desk
from curator_service.settings import Settings
from shared.serving import users_cli

PASSWORD = "correct horse battery staple"
ROLES = ("owner", "measurer", "auditor")


class _Forms(HTMLParser):
    """The forms of a page: what each would send if nothing were touched."""

    def __init__(self):
        super().__init__()
        self.forms = []
        self._text = self._select = None

    def handle_starttag(self, tag, attrs):
        a = dict(attrs)
        if tag == "form":
            self.forms.append((a.get("action", ""), {}))
        if not self.forms:
            return
        kept = self.forms[-1][1]
        if tag == "input" and a.get("name") and a.get("type") != "file":
            if a.get("type") not in ("checkbox", "radio") or "checked" in a:
                kept[a["name"]] = a.get("value", "")
        elif tag == "textarea" and a.get("name"):
            self._text = a["name"]
            kept[self._text] = ""
        elif tag == "select" and a.get("name"):
            self._select = a["name"]
        elif tag == "option" and self._select and ("selected" in a or self._select not in kept):
            kept[self._select] = a.get("value", "")

    def handle_data(self, data):
        if self._text:
            self.forms[-1][1][self._text] += data.removeprefix("\n")

    def handle_endtag(self, tag):
        if tag == "textarea":
            self._text = None
        elif tag == "select":
            self._select = None


@dataclass
class Browser:
    """Keeps cookies, follows redirects, sends forms with all that is in them."""

    url: str
    client: httpx.Client = field(repr=False)
    cookies: dict[str, str] = field(default_factory=dict)
    text: str = field(default="", repr=False)
    status: int = 0
    path: str = ""

    def send(self, method, path, **more):
        origin = {"origin": self.url, "sec-fetch-site": "same-origin"} if method == "POST" else {}
        headers = origin | {"cookie": "; ".join(f"{k}={v}" for k, v in self.cookies.items())}
        reply = self.client.request(method, path, headers=headers, **more)
        self.client.cookies.clear()
        for told in reply.headers.get_list("set-cookie"):
            name, _, value = told.partition(";")[0].partition("=")
            self.cookies[name] = value
            if "Max-Age=0" in told:
                del self.cookies[name]
        if reply.status_code == 303:
            return self.send("GET", reply.headers["location"])
        self.text, self.status, self.path = reply.text, reply.status_code, reply.url.path
        return reply

    def get(self, path):
        return self.send("GET", "/console" + path)

    def form(self, action):
        """What the form with this action would send."""
        reader = _Forms()
        reader.feed(self.text)
        return next(dict(kept) for where, kept in reader.forms if where == "/console" + action)

    def submit(self, action, *, files=None, drop=(), **filled):
        """Fill in and send the form with this action."""
        sent = {k: v for k, v in (self.form(action) | filled).items() if k not in drop}
        return self.send("POST", "/console" + action, data=sent, files=files)

    @property
    def shown(self):
        """The page without its markup."""
        return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", self.text)))


@pytest.fixture(scope="module")
def settings():
    """More settings of the service, for a module to say."""
    return {}


@pytest.fixture(scope="module")
def service(make_service, tmp_path_factory, settings):
    made = make_service("curator", tmp_path_factory.mktemp("console"), logins_per_minute="1000", **settings)
    cheap = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1).hash(PASSWORD)
    with open_desk(Settings(data_dir=made.data)) as desk:
        for role in ROLES:
            desk.database.write(lambda db, role=role: users_cli.add_user(db, desk, role, role, cheap))
    return made.start()


@pytest.fixture(scope="module")
def people(service):
    """A browser for each role, logged in."""
    # Without cookies of its own: those of the console are for TLS, and browsers take a loopback address for that.
    nothing = httpx.Cookies()
    with httpx.Client(base_url=service.url, trust_env=False, timeout=60, verify=False, cookies=nothing) as client:
        found = {role: Browser(service.url, client) for role in ROLES}
        for role, person in found.items():
            person.send("POST", "/console/login", data={"name": role, "password": PASSWORD})
            assert person.path == "/console/"
        yield found


@pytest.fixture
def owner(people):
    return people["owner"]


@pytest.fixture
def measurer(people):
    return people["measurer"]


@pytest.fixture
def auditor(people):
    return people["auditor"]
