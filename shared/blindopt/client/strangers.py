"""Replies that the other party did not write: those of proxies, filters and login pages in between.

Nothing in such a reply is signed, so it is no word of the other party: the request is repeated under the same key.
"""

import httpx
from pydantic_core import from_json

from blindopt.errors import ClientCertificateNeeded, Unreachable

_JSON = ("application/json", "application/problem+json")


def check_writer(status: int, headers: httpx.Headers, body: bytes, party: str, *, always_json: bool) -> None:
    """Raise Unreachable, in plain words, for a reply that no service of this project writes, or its listener alone.

    ``party`` is who was asked, in words. ``always_json``: whether every body must be JSON, whatever its type says.
    """
    media = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if 300 <= status < 400:
        raise _unreachable(party, f"a redirect ({status}), perhaps to a login page")
    if media in ("text/html", "application/xhtml+xml") or body[:200].lstrip()[:1] == b"<":
        raise _unreachable(party, f"a web page ({status})", ": a login page, a filter or the error page of a proxy")
    if not body:
        raise _unreachable(party, f"an empty reply ({status})")
    if not (always_json or media in _JSON):
        return
    try:
        document = from_json(body, allow_inf_nan=False)
    except ValueError:
        detail = f"the reply of {party} ({status}) did not arrive as it was sent: it is not the JSON of the protocol"
        raise Unreachable(f"{detail}; something on the way cut or changed it") from None
    code = document.get("code") if isinstance(document, dict) else None
    if (status, code) == (ClientCertificateNeeded.status, ClientCertificateNeeded.code):
        needed = ClientCertificateNeeded(f"{party} requires a client certificate, and got none")
        raise Unreachable(str(needed)) from needed


def _unreachable(party: str, what: str, more: str = "") -> Unreachable:
    return Unreachable(f"something between you and {party} answered with {what}{more}")
