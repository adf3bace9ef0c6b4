"""Two machines over TLS: set up with one command, wrong certificates said in words, renewed under load."""

import asyncio
import http.client
import logging
import signal
import socket
import ssl
import stat
import threading
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from blindopt import wire
from blindopt.certificates import look_again
from blindopt.client import Owner, Vendor
from blindopt.errors import BlindoptError
from curator_service import link_file
from curator_service.context import open_context as open_curator
from curator_service.links import Links
from curator_service.settings import Settings as CuratorSettings
from modeler_service.context import open_context
from modeler_service.runs.addresses import NO_CURATOR
from modeler_service.settings import Settings
from modeler_service.use_cases.connections import try_connection
from service_kit.cli import tls
from tests.conftest import Service
from tests.docs.snippets import run_by
from tests.system.forward_proxy import ForwardProxy

CLIENTS, RENEWALS = 8, 3


@dataclass
class SecureService(Service):
    """A curator over TLS, which requires client certificates."""

    certificates: Path = Path()

    @property
    def url(self):
        return f"https://curator.localhost:{self.port}"

    def await_ready(self):
        while not (self.listens() and self._is_ready()):
            assert self.process.poll() is None, self.log
        return self

    def _is_ready(self):
        context = ssl.create_default_context(cafile=self.certificates / "ca.crt")
        context.load_cert_chain(self.certificates / "client.crt", self.certificates / "client.key")
        context.check_hostname = False
        with suppress(OSError):
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=context)
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        return False

    def client(self):
        own = (str(self.certificates / "client.crt"), str(self.certificates / "client.key"))
        return Owner(self.url, self.token, verify=str(self.certificates / "ca.crt"), client_cert=own)

    def served(self):
        """The certificate that a new connection gets."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with (
            socket.create_connection(("127.0.0.1", self.port)) as plain,
            context.wrap_socket(plain, server_hostname="curator.localhost") as secured,
        ):
            return ssl.DER_cert_to_PEM_cert(secured.getpeercert(binary_form=True))

    def hang_up(self, until):
        """SIGHUP; returns once new connections get what the files hold."""

        self.process.send_signal(signal.SIGHUP)
        until(lambda: self.served() == (self.certificates / "server.crt").read_text())


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """The owner's machine after tls init."""
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "tls"
    service = SecureService("curator", folder, certificates=files)
    done = service.run_in_process("tls", "init", "curator.localhost", "curator.example", "--folder", str(files))
    assert done.returncode == 0, done.stderr
    settings = dict(line.split("=") for line in done.stdout.split() if line.startswith("BLINDOPT_CURATOR_TLS_"))
    service.settings = {name.removeprefix("BLINDOPT_CURATOR_"): value for name, value in settings.items()}
    assert service.settings.keys() == {"TLS_CERT", "TLS_KEY", "TLS_CLIENT_CA"}, "as the command printed"
    return service


@pytest.fixture(scope="module")
def curator(machine):
    machine.start()
    yield machine
    machine.stop()


@pytest.fixture(scope="module")
def opened(curator, small, open_study):
    with curator.client() as owner:
        return open_study(owner, owner.register("small", small.csv, public=True))


@pytest.fixture(scope="module")
def copied(machine, tmp_path_factory):
    """What the command says is copied to the vendor's machine."""
    folder = tmp_path_factory.mktemp("vendor")
    for name in ("ca.crt", "client.crt", "client.key"):
        (folder / name).write_bytes((machine.certificates / name).read_bytes())
    return folder


@pytest.fixture(scope="module")
def expired(machine, tmp_path_factory):
    """Certificates of the same authority that have expired."""
    folder = tmp_path_factory.mktemp("expired")
    for name in ("ca.crt", "ca.key"):
        (folder / name).write_bytes((machine.certificates / name).read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tls, "_BACKDATED", timedelta(days=9))
        tls.issue(folder, "client", None, -1)
        tls.issue(folder, "server", tls.alternatives(["curator.localhost"]), -1)
    return folder


def of_vendor(folder):
    return {"curator_ca": folder / "ca.crt"} | own(folder)


def own(folder):
    return {"curator_client_cert": folder / "client.crt", "curator_client_key": folder / "client.key"}


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """Certificates of another authority."""
    folder = tmp_path_factory.mktemp("stranger")
    tls.make_authority(folder)
    tls.issue(folder, "client", None, 9)
    return folder


@pytest.fixture
def trying(opened, curator, tmp_path):
    """Test the connection as a modeler with these settings; returns the step that failed, in words, or None."""

    def attempt(url=curator.url, **settings):
        chosen = Settings(data_dir=tmp_path, **settings)
        access = wire.StudyAccess(curator_url=url, study_id=opened.id, token=opened.token)
        with open_context(chosen) as context:
            report = try_connection(context, chosen, access, "usr_0123456789abcdef")
        return next((step.detail for step in report.steps if step.state == "failed"), None)

    return attempt


def test_the_keys_are_private_and_nothing_is_written_over(machine):
    before = {path.name: path.read_bytes() for path in machine.certificates.iterdir()}
    assert before.keys() == set(tls.FILES)
    for path in machine.certificates.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    done = machine.run_in_process("tls", "init", "another.example", "--folder", str(machine.certificates))
    assert (done.returncode, "nothing is written over" in done.stderr) == (4, True)
    assert before == {path.name: path.read_bytes() for path in machine.certificates.iterdir()}


@pytest.mark.parametrize("name", ["https://curator.example", "curator.example:8410", "a/b"])
def test_what_is_no_name_of_a_machine_makes_nothing(machine, tmp_path, name):
    done = machine.run_in_process("tls", "init", name, "--folder", str(tmp_path / "tls"))
    assert (done.returncode, "leave out https:// and the port" in done.stderr) == (2, True)
    assert not (tmp_path / "tls" / "ca.key").exists()


def test_a_run_over_tls_with_client_certificates_completes(curator, copied, opened, run_of, make_service, tmp_path):
    settings = {name.upper(): str(path) for name, path in of_vendor(copied).items()}
    modeler = make_service("modeler", tmp_path, **settings).start()
    with Vendor(modeler.url, modeler.token) as vendor:
        run = vendor.start(run_of(curator.url, opened, iterations=3))
        assert vendor.wait(run.id, timeout_s=60).state == "completed"


def test_what_is_wrong_with_certificates_is_said_at_the_side_that_can_act(trying, copied, expired, stranger, curator):
    assert trying(**of_vendor(copied)) is None
    said = {
        "CURATOR_CLIENT_CERT and _KEY": trying(curator_ca=copied / "ca.crt"),
        "which has expired: it was valid until": trying(curator_ca=copied / "ca.crt", **own(expired)),
        "ask its owner which authority must sign it": trying(curator_ca=copied / "ca.crt", **own(stranger)),
        "ask its owner for the CA, and set BLINDOPT_MODELER_CURATOR_CA": trying(**of_vendor(stranger)),
        "for another name": trying(f"https://127.0.0.1:{curator.port}", **of_vendor(copied)),
    }
    assert {words: words in (detail or "") for words, detail in said.items()} == dict.fromkeys(said, True), said


def test_health_needs_no_certificate_and_anything_else_does(curator):
    context = ssl.create_default_context(cafile=curator.certificates / "ca.crt")
    statuses = {}
    for path in ("/healthz", "/readyz", "/v1/meta", "/", "/console/", "/healthz/../v1/meta"):
        with (
            socket.create_connection(("127.0.0.1", curator.port)) as plain,
            context.wrap_socket(plain, server_hostname="curator.localhost") as secured,
        ):
            secured.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            statuses[path] = int(secured.recv(99).split()[1])
    assert statuses == dict.fromkeys(statuses, 403) | {"/healthz": 200, "/readyz": 200}


def test_the_two_commands_of_the_page_set_up_and_renew(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    curator = Service("curator", tmp_path)
    lines = [line.split() for block in run_by("tests/system/test_tls.py") for line in block.text.splitlines()]
    assert [line[:3] for line in lines] == [["blindopt-curator", "tls", "init"], ["blindopt-curator", "tls", "renew"]]
    seen = set()
    for line in lines:
        done = curator.run_in_process(*line[1:])
        assert done.returncode == 0, done.stderr
        (certificate,) = tmp_path.rglob("server.crt")
        seen.add(certificate.read_text())
    assert len(seen) == 2


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_old_versions_of_tls_are_refused(curator, version):
    context = ssl.create_default_context(cafile=curator.certificates / "ca.crt")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.minimum_version = context.maximum_version = version
    with socket.create_connection(("127.0.0.1", curator.port)) as plain, pytest.raises(ssl.SSLError):
        context.wrap_socket(plain, server_hostname="curator.localhost")


def test_an_expired_certificate_is_served_again_once_it_is_renewed(curator, expired, trying, copied, until):
    kept = {name: (curator.certificates / name).read_bytes() for name in ("server.key", "server.crt")}
    with curator.client() as client:
        client.studies()
        try:
            for name in kept:
                (curator.certificates / name).write_bytes((expired / name).read_bytes())

            curator.process.send_signal(signal.SIGHUP)
            until(lambda: "expired" in curator.log)
            assert "its certificate has expired" in trying(**of_vendor(copied))
            client.studies()  # a connection that was there goes on
        finally:
            for name, content in kept.items():
                (curator.certificates / name).write_bytes(content)
            curator.hang_up(until)
    assert trying(**of_vendor(copied)) is None


def test_certificates_renewed_under_load_fail_no_exchange(curator, until):
    """Each exchange makes a connection of its own, and so a handshake."""
    over, failures, counts = threading.Event(), [], [0] * CLIENTS

    def ask(number):
        with curator.client() as client:
            client._connection.http.headers["Connection"] = "close"
            while not over.is_set():
                try:
                    client.studies()
                except BlindoptError as error:
                    failures.append(error)
                    return
                counts[number] += 1

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    seen = {curator.served()}
    try:
        for _ in range(RENEWALS):
            before = list(counts)
            done = curator.run_in_process("tls", "renew", "--folder", str(curator.certificates))
            assert done.returncode == 0, done.stderr
            look_again()
            curator.hang_up(until)
            seen.add(curator.served())
            until(lambda before=before: failures or all(now > was + 1 for now, was in zip(counts, before, strict=True)))
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert len(seen) == RENEWALS + 1
    assert curator.process.poll() is None


# --- a forward proxy ------------------------------------------------------------------------------------


USER = "ann:zq_secret%21"


@pytest.fixture
def proxy(curator):
    """A forward proxy, which alone knows the name curator.example."""
    with closing(ForwardProxy({f"curator.example:{curator.port}": curator.port}, "ann:zq_secret!")) as proxy:
        proxy.url = f"http://{USER}@127.0.0.1:{proxy.port}"
        yield proxy


def test_a_modeler_reaches_curators_over_its_forward_proxy_which_reads_nothing(
    trying, copied, curator, proxy, opened, monkeypatch
):
    elsewhere = f"https://curator.example:{curator.port}"
    trusted = of_vendor(copied) | {"allowed_curators": "curator.example, curator.localhost"}
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)  # the control: that of the environment is not used
    assert trying(elsewhere, **trusted) is not None
    assert proxy.heads == []
    assert trying(elsewhere, https_proxy=proxy.url, **trusted) is None
    assert {head.splitlines()[0] for head in proxy.heads} == {f"CONNECT curator.example:{curator.port} HTTP/1.1"}
    assert len(proxy.passed_on) > 2_000
    for secret in (opened.token, opened.id, "blindopt_"):
        assert secret.encode() not in proxy.passed_on
        assert secret not in "".join(proxy.heads)
    proxy.heads.clear()
    assert trying(https_proxy=proxy.url, **trusted) is None  # this machine is reached without it
    assert proxy.heads == []


def test_what_a_forward_proxy_refuses_is_said_without_its_password(trying, copied, curator, proxy):
    trusted = of_vendor(copied) | {"allowed_curators": "curator.example"}
    elsewhere = f"https://curator.example:{curator.port}"
    wrong = trying(elsewhere, https_proxy=proxy.url.replace("ann", "bob"), **trusted)
    assert "the forward proxy refused it (407)" in wrong
    unknown = trying("https://curator.example:9", https_proxy=proxy.url, **trusted)
    assert "the forward proxy refused it (403)" in unknown
    assert "zq_secret" not in f"{wrong} {unknown} {Settings(data_dir=copied, https_proxy=proxy.url)!r}"


def test_where_a_proxy_reaches_more_than_this_machine_vendors_learn_nothing_of_unlisted_hosts(trying, copied, proxy):
    trusted = of_vendor(copied) | {"host": "192.0.2.1", "https_proxy": proxy.url}
    words = {trying(f"https://{name}.invalid", **trusted) for name in ("a", "b")}
    assert words == {NO_CURATOR}
    listed = trying("https://a.invalid", allowed_curators="*.invalid", **trusted)
    assert "the forward proxy refused it (403)" in listed


def test_an_exchange_over_a_forward_proxy_can_be_cut_at_its_deadline(curator, copied, proxy):
    files = of_vendor(copied)
    own_files = str(files["curator_client_cert"]), str(files["curator_client_key"])
    url = f"https://curator.example:{curator.port}"
    with Owner(url, curator.token, verify=str(files["curator_ca"]), client_cert=own_files, proxy=proxy.url) as owner:
        owner.studies()
        (sock,) = [sock for sock in owner._connection.sockets._open if sock.fileno() >= 0]
        owner.cut()
        assert sock.recv(1) == b""


@pytest.fixture
def link(curator, copied, tmp_path):
    """Runs a curator's link to an address, here of another curator, for a block; returns what it says meanwhile."""

    @asynccontextmanager
    async def running(url, **settings):
        chosen = CuratorSettings(data_dir=tmp_path, **settings)
        files = of_vendor(copied)
        own_files = {"ca": "curator_ca", "cert": "curator_client_cert", "key": "curator_client_key"}
        paths = {name: str(files[setting]) for name, setting in own_files.items()}
        made = wire.LinkFile(
            format="blindopt-link-1", id=f"usr_{'0' * 16}", name="x", url=url, token=curator.token, **paths
        )
        link_file.write(chosen.links_path, [made])
        with open_curator(chosen) as context:
            links = Links(None, context, [], chosen)
            links.start()
            try:
                yield links
            finally:
                await links.stop()

    return running


def test_a_link_goes_over_the_forward_proxy_too(link, curator, proxy, caplog):
    async def said(**settings):
        async with link(f"https://curator.example:{curator.port}", **settings) as links:
            while not (status := links.status()) or status[0].problem is None:
                await asyncio.sleep(0.01)
            return status[0].problem

    caplog.set_level(logging.INFO)
    assert "the modeler answered 404" in asyncio.run(said(https_proxy=proxy.url))  # it is none
    assert [head.splitlines()[0] for head in proxy.heads] == [f"CONNECT curator.example:{curator.port} HTTP/1.1"]
    wrong = proxy.url.replace("ann", "bob")
    assert "the forward proxy refused it (407)" in asyncio.run(said(https_proxy=wrong))
    assert "zq_secret" not in caplog.text + str([record.__dict__ for record in caplog.records])
