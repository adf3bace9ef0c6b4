"""The addresses that a grant's token may be sent to."""

from blindopt.addresses import is_plain_abroad
from blindopt.errors import Invalid


def check_address(url: str, field: str, *, plain_http: bool) -> None:
    """Raise Invalid, with the ``field`` of the URL, for plain http to another machine unless that is allowed."""
    if not plain_http and is_plain_abroad(url):
        raise Invalid(
            "a grant token is not sent over plain http to another machine",
            [{"field": field, "message": "use https, or set BLINDOPT_MODELER_ALLOW_PLAIN_HTTP"}],
        )
