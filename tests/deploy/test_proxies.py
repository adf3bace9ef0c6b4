"""The recipes of deploy/proxies, run by Debian's nginx and Caddy, which `make deploy-check` brings."""

import json
import os
import shutil
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from blindopt import wire
from blindopt.client import Owner, Vendor
from blindopt.client.transport import _Transport as LocalhostTransport
from tests.conftest import _free_port

RECIPES = Path(__file__).parents[2] / "deploy" / "proxies"
TOOLS = os.environ.get("BLINDOPT_DEPLOY")
CLIENT = "127.0.0.2"
"""An address of this machine, from which the tests connect to a proxy, which itself connects from 127.0.0.1."""
NGINX = """
daemon off; pid nginx.pid; error_log stderr; worker_processes 1; {module}
events {{ }}
{body}
"""
HTTP = (
    "http {{ access_log off; client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; "
    "scgi_temp_path t5;\n{recipe}\n}}"
)
pytestmark = pytest.mark.skipif(TOOLS is None, reason="make deploy-check brings nginx and caddy")


def _tool(path):
    own = Path(TOOLS, path)
    return str(own) if own.exists() else shutil.which(own.name)


def _recipe(name, folder, port, to):
    """A recipe with the names, files and ports of this machine."""
    text = (RECIPES / name).read_text()
    changes = {
        "curator.hospital.example {": f"https://curator.localhost:{port} {{",
        "curator.hospital.example": "curator.localhost",
        "listen 443 ssl": f"listen {port} ssl",
        "listen 8410": f"listen {port}",
        "/etc/blindopt/tls": str(folder / "tls"),
        "127.0.0.1:8410": f"127.0.0.1:{to}",
        "10.0.0.5:8410": f"127.0.0.1:{to}",
    }
    for line, changed in changes.items():
        text = text.replace(line, changed)
    return text


def _command(kind, folder, port, to):
    if kind == "caddy":
        # Its administration has a port, which two of them would share; so would redirects from http.
        options = "{\n\tadmin off\n\tauto_https disable_redirects\n}\n"
        (folder / "Caddyfile").write_text(options + _recipe("Caddyfile", folder, port, to))
        return [_tool("usr/bin/caddy"), "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]
    if kind == "nginx":
        module, body = "", HTTP.format(recipe=_recipe("nginx.conf", folder, port, to))
    else:
        own = Path(TOOLS, "usr/lib/nginx/modules/ngx_stream_module.so")
        path = own if own.exists() else Path("/usr/lib/nginx/modules") / own.name
        module, body = f"load_module {path};", _recipe("nginx-passthrough.conf", folder, port, to)
    (folder / "nginx.conf").write_text(NGINX.format(module=module, body=body))
    return [_tool("usr/sbin/nginx"), "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")]


@contextmanager
def proxied(kind, folder, to, until):
    """A proxy of a kind before a port, while the block lasts; returns its address."""
    port = _free_port()
    environment = os.environ | {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with (folder / f"{kind}.log").open("wb") as log:
        process = subprocess.Popen(_command(kind, folder, port, to), stderr=log, stdout=log, env=environment)
    try:

        def listens():
            assert process.poll() is None, (folder / f"{kind}.log").read_text()
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        until(listens)
        yield f"https://curator.localhost:{port}"
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="module")
def machine(make_service, tmp_path_factory):
    """A curator and a modeler that trust a proxy on this machine, and certificates for it."""
    folder = tmp_path_factory.mktemp("proxies")
    folder.chmod(0o755)  # nginx works as another user
    curator = make_service("curator", folder, trusted_proxies="127.0.0.1", bad_tokens_per_minute="20").start()
    done = curator.run_in_process("tls", "init", "curator.localhost", "--folder", str(folder / "tls"))
    assert done.returncode == 0, done.stderr
    settings = {"trusted_proxies": "127.0.0.1", "curator_ca": str(folder / "tls" / "ca.crt")}
    return folder, curator, make_service("modeler", folder, **settings).start()


def _client(url, token):
    transport = LocalhostTransport(proxy=None, reach=None, verify=False, local_address=CLIENT)
    return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, transport=transport, timeout=60)


@pytest.mark.parametrize("kind", ["nginx", "caddy"])
def test_behind_a_proxy_that_ends_tls_all_goes_as_without_it(kind, machine, small, open_study, run_of, until):
    folder, curator, modeler = machine
    with proxied(kind, folder, curator.port, until) as url:
        ca = str(folder / "tls" / "ca.crt")
        with Owner(url, curator.token, verify=ca, timeout_s=120) as owner:
            large = b"a,b,y\n" + b"".join(b"%d.25,%d.5,0.125\n" % (i, i) for i in range(200_000))  # of 4 MB
            assert owner.register(f"large {kind}", large, public=True).rows == 200_000
            opened = open_study(owner, owner.register("small", small.csv, public=True))
        with Vendor(modeler.url, modeler.token) as vendor:
            run = vendor.wait(vendor.start(run_of(url, opened, iterations=5)).id, timeout_s=120)
            assert (run.state, run.problem) == ("completed", None)
        with _client(url, curator.token) as http:
            reply = http.get("/v1/studies")
            assert (reply.status_code, reply.headers["strict-transport-security"]) == (200, "max-age=31536000")
            refused = http.post("/v1/studies", content=b" " * (2 << 20), headers={"Idempotency-Key": "k"})
            assert refused.status_code == 413, refused.text
            assert refused.json()["code"] == "too_large"
            form = {"name": "nobody", "password": "correct horse"}
            origin = {"origin": url, "sec-fetch-site": "same-origin"}
            assert http.post("/console/login", data=form, headers=origin).status_code == 401  # and not another site


@pytest.mark.parametrize("kind", ["nginx", "caddy"])
def test_a_client_of_a_proxy_is_throttled_by_its_address_whatever_it_makes_up(kind, machine, until):
    folder, curator, _ = machine
    with proxied(kind, folder, curator.port, until) as url, _client(url, f"blindopt_{'0' * 16}.x") as http:
        made_up = [{"X-Forwarded-For": f"192.0.2.{n}"} for n in range(40)]
        statuses = [http.get("/v1/studies", headers=headers).status_code for headers in made_up]
        assert statuses.count(429) >= 5
    clients = {json.loads(line).get("client") for line in curator.log.splitlines()}
    assert CLIENT in clients
    assert not any(client.startswith("192.0.2.") for client in clients if client)


@pytest.mark.parametrize("kind", ["nginx", "caddy"])
def test_a_link_holds_its_long_poll_through_the_modeler_s_proxy(kind, machine, small, open_study, run_of, until):
    folder, curator, modeler = machine
    with proxied(kind, folder, modeler.port, until) as url:
        file = folder / f"{kind}.json"
        made = modeler.run_in_process("link", "create", kind, "--url", url, "--save", str(file))
        assert made.returncode == 0, made.stderr
        link = json.loads(file.read_text())
        added = curator.run_in_process("link", "add", str(file), "--ca", str(folder / "tls" / "ca.crt"))
        assert added.returncode == 0, added.stderr
        with curator.http() as http:
            until(lambda: [each["state"] for each in http.get("/v1/links").json()["links"]] == ["connected"])
        with Owner(curator.url, curator.token) as owner, Vendor(modeler.url, modeler.token) as vendor:
            opened = open_study(owner, owner.register("small", small.csv, public=True))
            run = vendor.start(run_of(f"link://{link['id']}", opened, iterations=5))
            assert vendor.wait(run.id, timeout_s=120).state == "completed"
        assert curator.run_in_process("link", "remove", link["id"]).returncode == 0
        with _client(url, link["token"]) as http:  # in its place: the longest pull, with nothing to take
            reply = http.post(f"/v1/links/{link['id']}:pull?wait=30", json=wire.LinkPull(working=[]).model_dump())
        assert (reply.status_code, reply.json()) == (200, {"requests": []})


def test_a_proxy_that_passes_tls_through_leaves_client_certificates_to_the_service(
    machine, make_service, small, open_study, until
):
    folder = machine[0]
    server, key, ca, *own = (
        str(folder / "tls" / name) for name in ("server.crt", "server.key", "ca.crt", "client.crt", "client.key")
    )
    (folder / "through").mkdir()
    curator = make_service("curator", folder / "through", tls_cert=server, tls_key=key, tls_client_ca=ca)
    curator.await_ready = lambda: curator
    curator.start()
    until(lambda: (curator.folder / "first-token").exists())
    with proxied("passthrough", folder, curator.port, until) as url:
        with Owner(url, curator.token, verify=ca, client_cert=tuple(own), patience_s=60) as owner:
            assert owner.studies() == []
        with _client(url, curator.token) as http:  # the control: without a certificate
            refused = http.get("/v1/studies", headers={"X-Forwarded-For": "192.0.2.1"})
        assert (refused.status_code, refused.json()["code"]) == (403, "client_certificate_needed")
    assert "192.0.2.1" not in curator.log
