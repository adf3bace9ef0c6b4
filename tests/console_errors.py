"""What no error on a page of a console may show: names of the API, ids, and its ways of saying where."""

import re
from html import unescape

_SHOWN = re.compile(r'<(div|p) class="(?:notice bad|error|lead)"[^>]*>(.*?)</\1>', re.DOTALL)
_CHOSEN = re.compile(r'type="(hidden|radio|checkbox|file)"')
_WRONG = {
    "a name of the API": re.compile(r"\b[a-z]+(_[a-z0-9]+)+\b"),
    "a path of fields": re.compile(r"\b[a-z]+\.[0-9]+(\.[a-z]+)?\b"),
    "an id": re.compile(r"\b[a-z]{2,3}_[0-9a-f]{16}\b"),
    "where errors are": re.compile(r"errors says"),
    "a term of a schema": re.compile(r"Input should|String should|Field required|does not fit the schema"),
    "the number of a field": re.compile(r"\b(lower|upper|use|value|scale|reason) [0-9a-f]+\b"),
}


def faults_of(text):
    """Every fault of the errors that a page shows, with the error."""
    shown = (
        re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", match[2]))).strip() for match in _SHOWN.finditer(text)
    )
    return [(name, error) for error in shown for name, wrong in _WRONG.items() if wrong.search(error)]


def drive(browser, paths, garbage):
    """Send every form of these pages with ``garbage`` in all fields that can be typed in; the faults, by page."""
    faults, sent = {}, 0
    for path in paths:
        browser.get(path)
        for action in dict.fromkeys(re.findall(r'<form [^>]*action="/console([^"]*)"', browser.text)):
            browser.get(path)
            typed, kept = seen(browser.text), browser.form(action)
            filled = {name: garbage for name in kept if name in typed}
            if not filled:  # a button, which would do what it says
                continue
            browser.send("POST", "/console" + action, data=kept | filled)
            sent += browser.status == 422
            if wrong := faults_of(browser.text):
                faults[f"{path} {action} {garbage!r}"] = wrong
    return faults, sent


def seen(text):
    """The names of inputs and text areas that are seen."""
    tags = re.findall(r"<(?:input|textarea)[^>]*>", text)
    names = (re.search(r' name="([^"]*)"', tag) for tag in tags if not _CHOSEN.search(tag))
    return {unescape(name[1]) for name in names if name}
