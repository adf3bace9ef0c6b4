"""The text of a curator's refusal is kept short, and the token that it was shown is masked in it."""

import json

from blindopt import wire
from blindopt.client import Vendor
from blindopt.client.connection import DETAIL_MAX
from tests.modeler_service.lying_curator import FakeCurator

TOKEN = f"blindopt_{'0123456789abcdef'}.{'S' * 43}"


class Talkative(FakeCurator):
    """Refuses every request with this text."""

    words = ""

    def exchange(self, request, path):
        problem = {"type": "about:blank", "title": "no", "status": 403, "detail": self.words, "instance": path}
        problem |= {"code": "forbidden", "retryable": False, "request_id": "0" * 32}
        return 403, json.dumps(problem).encode(), {}


def _refused(modeler, study, words):
    """The run as a viewer sees it, after such a refusal."""
    viewer = modeler.run("token", "create", "--role", "viewer", "--name", "v").stdout.strip()
    with Talkative(study) as curator, Vendor(modeler.url, modeler.token) as vendor:
        curator.words = words
        settings = {
            "curator_url": curator.url,
            "study_id": curator.study_id,
            "token": TOKEN,
            "iterations": 1,
            "seed": 1,
        }
        run = vendor.start(wire.RunCreate.model_validate(settings | {"algorithm": {"name": "random"}})).id
        vendor.wait(run, timeout_s=30)
    with modeler.http(viewer) as http:
        return http.get(f"/v1/runs/{run}").text


def test_a_curator_that_quotes_the_token_is_not_quoted_to_a_viewer(modeler, study):
    shown = _refused(modeler, study, f"the header was 'Bearer {TOKEN}', and it is good")
    assert json.loads(shown)["problem"]["detail"].startswith("forbidden (403): the header was 'Bearer blindopt_***")
    assert "S" * 10 not in shown


def test_a_long_refusal_is_kept_short(modeler, study):
    detail = json.loads(_refused(modeler, study, "no " * (1 << 14)))["problem"]["detail"]
    assert detail.startswith("forbidden (403): no no")
    assert len(detail) <= DETAIL_MAX + len("forbidden (403): ")
