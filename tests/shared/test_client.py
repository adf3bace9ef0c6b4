"""What a client refuses to believe of the other party."""

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from shared.client import StudyClient
from shared.errors import ProtocolViolated, Unreachable

STUDY = "std_0123456789abcdef"


@pytest.fixture
def party():
    """A server that answers every GET with ``party.headers`` and ``party.body``."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            party.asked.append(dict(self.headers))
            self.send_response(200)
            for name, value in party.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(party.body)

        def log_message(self, *args):
            pass

    party = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    party.headers, party.body, party.asked = {}, b"{}", []
    thread = threading.Thread(target=party.serve_forever)
    thread.start()
    yield party
    party.shutdown()
    thread.join()
    party.server_close()


def client_of(party, **options):
    return StudyClient(f"http://127.0.0.1:{party.server_address[1]}", "t", STUDY, **options)


def test_an_encoded_reply_is_refused_unread(party):
    """A few bytes of gzip inside gzip unfold to gigabytes."""
    party.headers = {"Content-Encoding": "gzip, gzip"}
    party.body = gzip.compress(gzip.compress(bytes(1 << 24)))
    with client_of(party) as client, pytest.raises(ProtocolViolated, match="encoded"):
        client.study()
    assert party.asked[0]["Accept-Encoding"] == "identity"


def test_an_encoded_download_is_refused_and_leaves_no_file(party, tmp_path):
    party.headers = {"Content-Encoding": "gzip", "ETag": f'"sha256-{"0" * 64}"'}
    party.body = gzip.compress(bytes(1 << 24))
    with client_of(party) as client, pytest.raises(ProtocolViolated, match="encoded"):
        client.download(tmp_path / "z.npy", "0" * 64, max_bytes=1 << 30)
    assert list(tmp_path.iterdir()) == []


def test_a_reply_without_end_is_cut_at_the_limit(party):
    party.body = bytes(9 << 20)
    with client_of(party) as client, pytest.raises(ProtocolViolated, match="larger"):
        client.study()


@pytest.mark.parametrize("etag", ["", "x", '"sha256-xyz"', f'"sha256-{"0" * 63}\x85"'])
def test_candidates_without_a_digest_are_refused(etag, party, tmp_path):
    party.headers = {"ETag": etag}
    with client_of(party) as client, pytest.raises(ProtocolViolated, match="digest"):
        client.download(tmp_path / "z.npy", "0" * 64, max_bytes=1 << 20)
    assert list(tmp_path.iterdir()) == []


def test_a_reply_that_is_no_study_is_refused_and_told(party):
    told = []
    with client_of(party, observe=lambda exchange, _: told.append(exchange)) as client, pytest.raises(ProtocolViolated):
        client.study()
    assert [exchange.status for exchange in told] == [200]


@pytest.mark.parametrize("host", ["0" * 100, "xn--a.b", "a..b"])
def test_a_name_that_cannot_be_looked_up_is_unreachable(host):
    with pytest.raises(Unreachable), StudyClient(f"https://{host}", "t", STUDY) as client:
        client.study()


def test_nobody_there_is_unreachable_and_no_proxy_of_the_environment_is_asked(party, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{party.server_address[1]}")
    with StudyClient("http://127.0.0.1:9", "t", STUDY) as client, pytest.raises(Unreachable):
        client.study()
    assert party.asked == []
