"""One tree of errors: each with its own code and a status that HTTP knows."""

import http
import re

from blindopt import errors
from blindopt.audit import merkle_log
from blindopt.errors import BlindoptError, DatasetInvalid, Invalid, Remote


def descendants(kind: type[BlindoptError]) -> list[type[BlindoptError]]:
    return [kind, *(d for child in kind.__subclasses__() for d in descendants(child))]


KINDS = [kind for kind in descendants(BlindoptError) if kind.__module__ in (errors.__name__, merkle_log.__name__)]


def test_every_error_has_a_status_a_title_and_a_code_of_its_own():
    """Except Remote, which carries the code of the other party."""
    assert len(KINDS) > 30
    assert [kind for kind in KINDS if not 400 <= http.HTTPStatus(kind.status) <= 599 or not kind.title] == []
    assert [kind.code for kind in KINDS if not re.fullmatch(r"[a-z]+(_[a-z]+)*", kind.code)] == []
    codes = [kind.code for kind in KINDS if kind is not Remote]
    assert len(codes) == len(set(codes))


def test_an_invalid_request_says_where():
    assert Invalid("no").extra() == {}
    assert Invalid("no", [{"field": "r"}]).extra() == {"errors": [{"field": "r"}]}
    assert DatasetInvalid("no", [{"row": 1}], 70).extra() == {"errors": [{"row": 1}], "errors_total": 70}


def test_a_remote_error_keeps_what_the_other_party_said():
    error = Remote(code="unknown_row", status=404, detail="row 9", retryable=False)
    assert (error.remote_code, error.remote_status, error.remote_retryable) == ("unknown_row", 404, False)
    assert str(error) == "unknown_row (404): row 9"
