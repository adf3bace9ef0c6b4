"""What no error on a page of a console may show: names of the API, ids, and its ways of saying where."""

import re
from html import unescape
from itertools import product

_SHOWN = re.compile(r'<(div|p) class="(?:notice bad|error|lead)"[^>]*>(.*?)</\1>', re.DOTALL)
_CHOSEN = re.compile(r'type="(hidden|radio|checkbox|file)"')
_ACTION = re.compile(r'<form [^>]*action="/console([^"?]*)"')
NOT_SAID = re.compile(
    r"errors says|says where|function-|should be|should have|Input |Extra inputs|Field required|Value error"
    r"|discriminator|\bunion\b|\[0-9|\^|\\x|is not of this kind|is not written as it must be|does not fit the schema"
)
"""What no error says: a validator's words, its patterns, and that the fault stands elsewhere."""
_WRONG = {
    "a name of the API": re.compile(r"\b[a-z]+(_[a-z0-9]+)+\b"),
    "a path of fields": re.compile(r"\b[a-z]+\.[0-9]+(\.[a-z]+)?\b"),
    "an id": re.compile(r"\b[a-z]{2,3}_[0-9a-f]{16}\b"),
    "a term of a schema": NOT_SAID,
    "the number of a field": re.compile(r"\b(lower|upper|use|value|scale|reason) [0-9a-f]+\b"),
}


_COUNTED = "records|rows|columns|measurements|answers|candidates|queries|studies|groups|persons|lines|trials|calls"
_MISCOUNTED = re.compile(rf"(?<![\d.,] )(?<![\d.,-])(?:1 (?:{_COUNTED})|\d{{4,}} (?:{_COUNTED}))\b")


def miscounted(text):
    """What a page counts wrongly: "1 records", or "1161 records" in place of "1,161 records"."""
    shown = re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", re.sub(r"<(script|pre|code).*?</\1>", "", text))))
    return [match[0] for match in _MISCOUNTED.finditer(shown)]


MADE_UP = {
    "dataset_id": "ds_0123456789abcdef",
    "study_id": "std_0123456789abcdef",
    "forecast_id": "fct_0123456789abcdef",
    "grant_id": "grt_0123456789abcdef",
    "kid": "0123456789abcdef",
    "measurement_id": "msr_0123456789abcdef",
    "message_id": "msg_0123456789abcdef",
    "run_id": "run_0123456789abcdef",
    "tuning_id": "tun_0123456789abcdef",
    "upload_id": "upl_0123456789abcdef",
}
"""Ids of what does not exist."""


def faults_of(text):
    """Every fault of the errors that a page shows, with the error."""
    shown = (
        re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", match[2]))).strip() for match in _SHOWN.finditer(text)
    )
    return [(name, error) for error in shown for name, wrong in _WRONG.items() if wrong.search(error)]


def drive(browser, entries, ids, garbage, more=()):
    """Send every form of every page of a console with ``garbage`` in all fields that can be typed in.

    ``ids``: values of each name in a path; others are made up. ``more``: further pages. Where ``garbage`` is
    nothing, every target of a form also gets an empty form, about what does not exist. Returns faults by page and
    form, and the targets that no form with a field to type in led to.
    """
    faults, pages = {}, [path for e in entries if e.method == "GET" for path in _paths(e.path, ids)]
    targets = {e.path: re.compile(re.sub(r"{\w+}", "[^/:]+", e.path)) for e in entries if e.method == "POST"}
    driven = set()
    for path in [*(path for path in pages if not path.endswith("/events")), *more]:
        browser.get(path)
        if wrong := miscounted(browser.text):
            faults[path] = wrong
        for number, action in enumerate(dict.fromkeys(_ACTION.findall(browser.text))):
            if number:
                browser.get(path)
            typed, kept = seen(browser.text), browser.form(action)
            filled = {name: garbage for name in kept if name in typed}
            if not filled:  # a button, which would do what it says
                continue
            browser.send("POST", "/console" + action, data=kept | filled)
            driven |= {target for target, pattern in targets.items() if pattern.fullmatch(action)}
            if wrong := faults_of(browser.text):
                faults[f"{path} {action} {garbage!r}"] = wrong
    browser.get("/")
    session = browser.form("/logout")
    for target in [] if garbage else targets:
        (path,) = _paths(target, {})
        browser.send("POST", "/console" + path, data=session)
        if wrong := faults_of(browser.text):
            faults[f"{path} empty"] = wrong
    return faults, set(targets) - driven


def _paths(path, ids):
    names = re.findall(r"{(\w+)}", path)
    values = product(*(ids.get(name, [MADE_UP.get(name, "1")]) for name in names))
    return [path.format(**dict(zip(names, chosen, strict=True))) for chosen in values]


def seen(text):
    """The names of inputs and text areas that are seen."""
    tags = re.findall(r"<(?:input|textarea)[^>]*>", text)
    names = (re.search(r' name="([^"]*)"', tag) for tag in tags if not _CHOSEN.search(tag))
    return {unescape(name[1]) for name in names if name}
