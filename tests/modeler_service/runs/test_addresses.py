"""Which curators a vendor may name, and what failures there reveal of the house's network."""

import http.server
import itertools
import socket
import threading
from contextlib import suppress
from urllib.parse import urlsplit

import pytest

from blindopt.client import StudyClient
from blindopt.errors import BlindoptError, Invalid, Unreachable
from modeler_service.runs import addresses
from modeler_service.settings import Settings

LOOPBACKS = [
    "https://127.0.0.1:8410",
    "https://127.1",
    "https://0x7f000001",
    "https://[::1]:443/x",
    "https://[::ffff:127.0.0.1]",
    "https://0.0.0.0",
    "https://curator.localhost",
]


def settings(**chosen):
    return Settings(data_dir="unused", **chosen)


@pytest.fixture(autouse=True)
def names(monkeypatch):
    """Two names, one of this machine; addresses resolve to themselves, as the system reads them. Those looked up."""
    resolved = {"curator.example": "93.184.215.14", "here.example": "127.0.0.1", "inside.example": "10.1.2.3"}
    resolve, requests = socket.getaddrinfo, []

    def look_up(host, port, *args, **options):
        requests.append(host)
        if host.endswith((".example", ".invalid")) and host not in resolved:
            raise socket.gaierror
        return resolve(resolved.get(host, host), port, *args, **options)

    monkeypatch.setattr(addresses.socket, "getaddrinfo", look_up)
    return requests


@pytest.mark.parametrize("url", [*LOOPBACKS, "https://here.example"])
def test_a_modeler_on_a_network_queries_its_own_machine_only_if_that_is_listed(url):
    with pytest.raises(Invalid, match="its operator has not allowed it"):
        addresses.check_curator(settings(host="10.0.0.5"), url, "curator_url")
    addresses.check_curator(settings(host="127.0.0.1"), url, "curator_url")  # the demo: nobody else reaches it
    addresses.check_curator(settings(host="10.0.0.5"), "https://inside.example", "curator_url")


@pytest.mark.parametrize(
    ("pattern", "url", "allowed"),
    [
        ("curator.example", "https://curator.example/prefix", True),
        ("curator.example", "https://CURATOR.example.", True),
        ("curator.example", "https://curator.example.other.example", False),
        ("curator.example", "https://127.0.0.1", False),
        ("*.example, 10.0.0.7:8410", "https://a.b.example", True),
        ("*.example, 10.0.0.7:8410", "https://10.0.0.7:8410", True),
        ("*.example, 10.0.0.7:8410", "https://10.0.0.7:22", False),
        ("curator.example:443", "https://curator.example", True),
        ("localhost:8410", "http://localhost:8410", True),
        ("curator.example", "http://curator.example", False),  # plain http is another setting's
    ],
)
def test_a_list_of_curators_is_kept_to(pattern, url, allowed):
    chosen = settings(allowed_curators=pattern)
    if allowed:
        addresses.check_curator(chosen, url, "curator_url")
        return
    with pytest.raises(Invalid) as refused:
        addresses.check_curator(chosen, url, "curator_url")
    assert refused.value.errors[0]["field"] == "curator_url"


def test_a_link_of_the_operator_is_allowed_and_looked_up_nowhere(names):
    chosen = settings(host="10.0.0.5", allowed_curators="curator.example")
    addresses.check_curator(chosen, "link://lnk_0123456789abcdef", "curator_url")
    assert addresses.Reached(chosen, "link://lnk_0123456789abcdef").shows_failures()
    assert names == []
    addresses.check_curator(settings(host="10.0.0.5"), "https://curator.example", "curator_url")
    assert names  # the control


@pytest.mark.parametrize(
    ("url", "chosen", "shown"),
    [
        ("https://inside.example:22", {"host": "10.0.0.5"}, False),
        ("https://192.168.1.1", {"host": "0.0.0.0"}, False),
        ("https://inside.example:22", {"host": "10.0.0.5", "allowed_curators": "inside.example"}, True),
        ("https://curator.example", {"host": "10.0.0.5"}, True),
        ("https://missing.invalid", {"host": "10.0.0.5"}, True),
        ("https://inside.example:22", {"host": "127.0.0.1"}, True),
    ],
)
def test_failures_at_an_unlisted_address_of_the_house_all_read_the_same(url, chosen, shown):
    said = set()
    for reason in ("did not answer in time", "the connection failed", "answered with a web page"):
        reached = addresses.Reached(settings(**chosen), url)
        with suppress(OSError):
            reached(urlsplit(url).hostname)
        with pytest.raises(Unreachable) as raised, reached.plain_failures():
            raise Unreachable(reason)
        said.add(str(raised.value))
    assert (len(said) == 3) is shown
    assert shown or said == {addresses.NO_CURATOR}


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://curator.example", True),
        ("https://inside.example:22", False),
        ("https://here.example", False),
        ("https://missing.invalid", False),
        ("https://10.1.2.3", False),
    ],
)
def test_behind_a_proxy_which_connects_the_failures_of_a_public_curator_alone_are_shown(url, shown):
    reached = addresses.Reached(settings(host="10.0.0.5", https_proxy="http://proxy.example:3128"), url)
    with pytest.raises(Unreachable) as raised, reached.plain_failures():
        raise Unreachable("the connection failed")
    assert str(raised.value) == ("the connection failed" if shown else addresses.NO_CURATOR)


# --- a name that means another machine at each question -----------------------------------------------


@pytest.fixture
def local_server():
    """A server on this machine, and the paths that it was asked for."""
    paths = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            paths.append(self.path)
            self.send_error(404)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port, paths
        server.shutdown()


def _answers(monkeypatch, *addresses_in_turn):
    """A resolver that changes its answer between any two questions about one name."""
    real, turns = socket.getaddrinfo, itertools.cycle(addresses_in_turn)

    def look_up(host, port, *args, **options):
        return real(next(turns) if host == "rebound.example" else host, port, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


@pytest.mark.parametrize("first", range(4))
def test_no_request_reaches_this_machine_by_a_name_that_was_public_when_it_was_checked(
    first, local_server, monkeypatch
):
    """The control: without the judgement of each connection, one of the questions is answered with this machine."""
    port, paths = local_server
    url = f"http://rebound.example:{port}"
    turns = ["192.0.2.1", "127.0.0.1", "192.0.2.1", "127.0.0.1"]
    chosen = settings(host="10.0.0.5", allow_plain_http=True)

    def send(reach):
        _answers(monkeypatch, *turns[first:], *turns[:first])
        with suppress(Invalid, Unreachable):
            addresses.check_curator(chosen, url, "curator_url")
        token = "blindopt_0123456789abcdef." + "A" * 43
        for _ in range(3):
            options = {"timeout_s": 0.5, "patience_s": 0.0, "reach": reach}
            with StudyClient(url, token, "std_0123456789abcdef", **options) as client, suppress(BlindoptError):
                client.study()

    send(addresses.Reached(chosen, url))
    assert paths == []
    send(None)
    assert paths


def test_a_failure_is_judged_by_the_address_that_was_connected_to(monkeypatch):
    """A name whose next answer is public does not show what stands in the house's own network."""
    url = "https://rebound.example"
    for first, second, shown in (("10.1.2.3", "93.184.215.14", False), ("93.184.215.14", "10.1.2.3", True)):
        _answers(monkeypatch, first, second)
        reached = addresses.Reached(settings(host="10.0.0.5"), url)
        assert reached("rebound.example") == [first]
        assert reached.shows_failures() is shown
        with pytest.raises(Unreachable) as raised, reached.plain_failures():
            raise Unreachable("the connection failed")
        assert (str(raised.value) == addresses.NO_CURATOR) is not shown
