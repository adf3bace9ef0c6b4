"""What all objects of the library share: a table, a bar, retries under one key."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import blindopt as bo
from blindopt import display, wire
from blindopt.client.connection import PATIENCE_S, ServiceClient
from blindopt.errors import ExtraMissing, Invalid, StateConflict


class Vendors(ServiceClient):
    def reply(self, run_id: str) -> wire.TokenReplacement:
        """Any request with a key."""
        return self._post(f"/{run_id}", wire.TokenReplacement)


@pytest.fixture
def service():
    """A service that is busy twice, then answers; ``seen`` holds key and user agent of each request."""
    seen: list[tuple[str | None, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append((self.headers["Idempotency-Key"], self.headers["User-Agent"]))
            refused = self.path == "/refused"
            busy = {"code": "busy", "status": 503, "detail": "wait", "retryable": True}
            final = {"code": "state_conflict", "status": 409, "detail": "it ended", "retryable": False}
            problem = final if refused else busy
            more = {"type": "urn:x", "title": "t", "instance": "/", "request_id": "0" * 32}
            ok = len(seen) > 2 and not refused
            body = json.dumps({"token": "t" * 20} if ok else problem | more).encode()
            self.send_response(200 if ok else problem["status"])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", seen
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_request_is_repeated_under_one_key_while_that_helps(service):
    url, seen = service
    with Vendors(url, "x", patience_s=PATIENCE_S) as vendors:
        assert vendors.reply("run").token == "t" * 20
    assert len(seen) == 3
    assert len({key for key, _ in seen}) == 1
    assert seen[0][1] == f"blindopt/{bo.__version__}"


def test_without_patience_and_when_a_repetition_cannot_help_a_request_is_sent_once(service):
    url, seen = service
    with Vendors(url, "x", patience_s=0.0) as vendors, pytest.raises(bo.Remote) as busy:
        vendors.reply("run")
    assert (busy.value.code, len(seen)) == ("busy", 1)
    with Vendors(url, "x", patience_s=PATIENCE_S) as vendors, pytest.raises(bo.Remote) as refused:
        vendors.reply("refused")
    assert (refused.value.code, len(seen)) == ("state_conflict", 2)
    assert refused.value.__notes__ == [refused.value.what_to_do] == [StateConflict.what_to_do]


def test_each_thread_has_a_connection_of_its_own(service):
    url, seen = service
    with Vendors(url, "x", patience_s=PATIENCE_S) as vendors, ThreadPoolExecutor(2) as pool:
        assert [reply.token for reply in pool.map(vendors.reply, ["run"] * 6)] == ["t" * 20] * 6
    assert len(seen) >= 8


def test_a_repr_has_no_token():
    assert repr(Vendors("https://a/", "secret")) == "Vendors(https://a)"


def test_a_token_is_not_sent_over_plain_http_to_another_machine():
    with pytest.raises(Invalid, match="use https"):
        Vendors("http://a.example", "x")
    assert Vendors("http://a.example", "x", plain_http=True).url == "http://a.example"


def test_a_table_escapes_what_it_shows():
    shown = "".join(
        map(display._html, (display.Table(["<a>"], [["<b>", None, 0.1234567]], "&"), display.facts({"<c>": ["<d>"]})))
    )
    assert not {"<a>", "<b>", "<c>", "<d>", ">&<"} & {shown[i : i + 3] for i in range(len(shown))}
    assert "0.123457" in shown


def test_progress_without_a_bar_is_a_line_for_each_change(monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "rich.progress", None)
    with display.progress("run") as report:
        for _ in range(2):
            report(1, 3, "best 2")
        report(3, 8, "")
    assert capsys.readouterr().err == "run: 1 of 3, best 2\nrun: 3 of 8\n"


def test_a_frame_without_pandas_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(ExtraMissing, match=r"pip install './shared\[pandas\]'"):
        display.frame([], ["y"])
