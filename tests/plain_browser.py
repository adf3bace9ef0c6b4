"""What a browser without JavaScript does of a page: keeps cookies, follows redirects, sends forms."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser

import httpx

from service_kit.cli import users
from service_kit.identity import passwords

PASSWORD = "correct horse battery staple"


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
                before, value = kept.get(a["name"]), a.get("value", "")
                kept[a["name"]] = value if before is None or a.get("type") == "radio" else [*_listed(before), value]
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


def _listed(value):
    return value if isinstance(value, list) else [value]


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
        for header in reply.headers.get_list("set-cookie"):
            name, _, value = header.partition(";")[0].partition("=")
            self.cookies[name] = value
            if "Max-Age=0" in header:
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


def add_people(context, roles):
    """A user of each role, of its name."""
    cheap = passwords.hash_of(PASSWORD, "minimal")
    for role in roles:
        context.database.write(lambda db, role=role: users.add_user(db, context, role, role, cheap))


@contextmanager
def logged_in(url, roles) -> Iterator[dict[str, Browser]]:
    """A browser for each role."""
    # Without cookies of its own: those of the console are for TLS, and browsers take a loopback address for that.
    nothing = httpx.Cookies()
    with httpx.Client(base_url=url, trust_env=False, timeout=60, verify=False, cookies=nothing) as client:
        browsers = {role: Browser(url, client) for role in roles}
        for role, browser in browsers.items():
            browser.send("POST", "/console/login", data={"name": role, "password": PASSWORD})
            assert browser.path == "/console/"
        yield browsers
