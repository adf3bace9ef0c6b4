"""Which curators a vendor may name, and what failures there reveal of the house's network."""

import socket

import pytest

from blindopt.errors import Invalid, Unreachable
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

    def look_up(host, port, **options):
        requests.append(host)
        if host.endswith((".example", ".invalid")) and host not in resolved:
            raise socket.gaierror
        return resolve(resolved.get(host, host), port, **options)

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
    assert addresses.shows_failures(chosen, "link://lnk_0123456789abcdef")
    assert names == []
    addresses.check_curator(chosen, "https://curator.example", "curator_url")
    addresses.shows_failures(settings(host="10.0.0.5"), "https://curator.example")
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
        with pytest.raises(Unreachable) as raised, addresses.plain_failures(settings(**chosen), url):
            raise Unreachable(reason)
        said.add(str(raised.value))
    assert (len(said) == 3) is shown
    assert shown or said == {addresses.NO_CURATOR}
