"""One tree of errors: each with its own code and a status that HTTP knows."""

import http
import re
from pathlib import Path

from blindopt import errors
from blindopt.errors import TABLE, BlindoptError, DatasetInvalid, Invalid, Remote


def test_every_error_is_in_the_table_with_a_status_a_title_advice_and_a_code_of_its_own():
    """Except the root, and Remote, which carries the code of the other party."""
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BlindoptError)}
    assert kinds - {BlindoptError, Remote} == set(TABLE)
    assert [kind for kind in kinds if not 400 <= http.HTTPStatus(kind.status) <= 599 or not kind.title] == []
    assert [kind for kind in kinds if not kind.what_to_do.endswith(".")] == []
    codes = [kind.code for kind in TABLE]
    assert [code for code in codes if not re.fullmatch(r"[a-z]+(_[a-z]+)*", code)] == []
    assert len(errors.BY_CODE) == len(codes) + 1


ROOT = Path(__file__).resolve().parents[3]


def source_of(*folders, but):
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py") if path != but]
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def test_the_product_makes_every_error_and_a_test_expects_it():
    """Found by hand: codes were documented that nothing could reply with."""
    product = source_of("curator_service", "modeler_service", "shared", but=Path(errors.__file__))
    tests = source_of("tests", but=Path(__file__))

    def is_used(name, code):
        is_made = re.search(rf"\b{name}(?:\.of)?\(|\({name}, ", product)
        return bool(is_made and re.search(rf'raises\(.*\b{name}\b|"{code}"', tests))

    assert [kind.code for kind in TABLE if not is_used(kind.__name__, kind.code)] == []
    assert not is_used("Draining", "draining")
    assert not is_used("Unsupported", "invalid")


def test_an_invalid_request_says_where():
    assert Invalid("no").extra() == {}
    assert Invalid("no", [{"field": "r"}]).extra() == {"errors": [{"field": "r"}]}
    assert DatasetInvalid("no", [{"row": 1}], 70).extra() == {"errors": [{"row": 1}], "errors_total": 70}


def test_a_remote_error_keeps_what_the_other_party_said():
    error = Remote(code="unknown_row", status=404, detail="row 9", retryable=False)
    assert (error.remote_code, error.remote_status, error.remote_retryable) == ("unknown_row", 404, False)
    assert str(error) == "unknown_row (404): row 9"
