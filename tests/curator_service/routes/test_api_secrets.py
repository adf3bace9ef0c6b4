"""No value that was sent comes back in an error or reaches the log; no secret lies where it can be read.

The name of an unknown field does come back: it is where the request is wrong.
"""

import json
import re
import stat

import pytest
from typer.testing import CliRunner

from blindopt import wire
from blindopt.client import StudyClient
from curator_service.cli import app as curator_cli
from service_kit.identity.tokens import mint
from tests import beside

CANARY = "canary7f3a9c"
NUMBER = "77123456789.25"
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def spec(opened):
    return opened.view.spec.model_dump(mode="json")


def _check_silent(service, reply, *, at_least=400, but=()):
    """The reply is a problem, and neither it nor the log of the process repeats what was sent.

    ``but``: the fields of its errors that quote a cell to the owner.
    """
    assert reply.status_code >= at_least, reply.text
    shown = reply.text
    for fault in (reply.json().get("errors") or []) if but else []:
        for field in but:
            shown = shown.replace(json.dumps(fault.get(field), ensure_ascii=False), "")
    shown += repr(reply.headers.items())
    for canary in (CANARY, NUMBER, NUMBER.split(".")[0], "77123456789"):
        assert canary not in shown, shown
        assert canary not in service.log


def _file(content, filename="data.csv", **said):
    return {"files": {"file": (filename, content)}, "data": {"name": "n"} | said}


@pytest.mark.parametrize(
    "sent",
    [
        _file(f"a,b\n1,{CANARY}\n".encode()),
        _file(f"a,b\n{NUMBER},text\n".encode()),
        _file(f"a,b\n{NUMBER},2,3\n".encode()),
        _file(f"a,b\n{NUMBER}\n".encode()),
        _file(f'a,b\n"{NUMBER}"{CANARY},1\n'.encode()),
        _file(f'a,b\n1,"{CANARY}\n'.encode()),
        _file(f"a,b\n1,{CANARY}é\n".encode("latin-1")),
        _file(f"a,b\n1,{CANARY}\x00\n".encode()),
        _file(f"a,b\n1,{NUMBER}e999\n".encode()),
        _file(f"a,b\n1,{NUMBER.replace('5', chr(0x665))}\n".encode()),
        _file(f"{NUMBER},{NUMBER}\n1,2\n".encode()),  # no header: its first record is read as one
        _file(f"{NUMBER},x\n{NUMBER},x\n".encode()),
        _file(CANARY.encode(), f"{CANARY}.parquet"),
        _file(f"PAR1{CANARY}PAR1".encode(), "x.parquet"),
        _file(b"a,b\n1,x\n", f"{CANARY}.csv"),
        _file(b"a,b\n1,2\n", name=CANARY * 20),
        _file(b"a,b\n1,2\n", public=CANARY),
        _file(b"a,b\n1,2\n", columns=CANARY),
        _file(b"a,b\n1,2\n", columns=json.dumps([CANARY])),
        _file(b"a,b\n1,2\n", columns=json.dumps(["a", {"x": CANARY}])),
        {"data": {"name": "n", "import_name": f"{CANARY}.csv"}},
        {"data": {"name": "n", "import_name": f"../{CANARY}.csv"}},
        {"content": f"--{CANARY}\r\n".encode(), "headers": {"Content-Type": f"multipart/form-data; boundary={CANARY}"}},
    ],
    ids=lambda sent: repr(sent.get("files", {"file": ("", "")})["file"][1])[:40] + repr(sent.get("data", ""))[:40],
)
def test_a_refused_file_is_not_echoed(sent, curator):
    headers = {"Idempotency-Key": "canary file"} | sent.get("headers", {})
    with curator.http() as http:
        _check_silent(curator, http.post("/v1/datasets", **(sent | {"headers": headers})), but=["cell"])


def _inside(spec, path, value):
    position = spec
    *inner, last = path
    for part in inner:
        position = position[part]
    position[last] = value
    return spec


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("name",), CANARY * 20),
        (("name",), f"{CANARY}\n"),
        (("name",), [CANARY]),
        (("dataset_id",), CANARY),
        (("measurement", "direction"), CANARY),
        (("measurement", "column"), CANARY),
        (("measurement", "source"), CANARY),
        (("measurement", "noise_variance"), -77123456789.25),
        (("measurement", "noise_variance"), CANARY),
        (("measurement", "more"), CANARY),
        (("features", 0, "column"), CANARY),
        (("features", 0, "lower"), 77123456789.25),
        (("features", 0, "upper"), f"{CANARY}"),
        (("features",), CANARY),
        (("release",), {"mechanism": CANARY}),
        (("release",), {"mechanism": ["identity", CANARY]}),
        (("release",), {"mechanism": "gaussian", "epsilon": CANARY, "delta": 1e-5}),
        (("release",), {"mechanism": "gaussian", "epsilon": NUMBER, "delta": 1e-5}),
        (("release",), {"mechanism": "gaussian", "epsilon": "1", "delta": 77123456789.25}),
        (("release",), CANARY),
        (("answers",), {"mechanism": CANARY}),
        (("kernel", "kind"), CANARY),
        (("kernel", "lengthscale"), -77123456789.25),
        (("more",), {CANARY: [77123456789.25]}),
    ],
    ids=str,
)
def test_a_refused_study_is_not_echoed(path, value, curator, spec):
    with curator.http() as http:
        sent = _inside(spec, path, value)
        _check_silent(curator, http.post("/v1/studies", json=sent, headers={"Idempotency-Key": "canary study"}))


@pytest.mark.parametrize(
    "body",
    [
        f'{{"rows": [{{"row": {NUMBER}}}]}}',
        '{"rows": [{"row": 77123456789}]}',
        f'{{"rows": [{{"row": 1, "plays": {NUMBER}}}]}}',
        '{"rows": [{"row": 1, "plays": 77123456789}]}',
        f'{{"rows": [{{"row": "{CANARY}"}}]}}',
        f'{{"rows": "{CANARY}"}}',
        f'{{"rows": [{{"row": {CANARY}',
        f'"{CANARY}"',
        f"{CANARY}\udcff",
    ],
)
def test_a_refused_query_is_not_echoed(body, curator, opened):
    path = f"/v1/studies/{opened.id}/queries"
    with curator.http(opened.token) as modeler:
        sent = body.encode("utf-8", "surrogateescape")
        _check_silent(curator, modeler.post(path, content=sent, headers=JSON | {"Idempotency-Key": "canary query"}))


@pytest.mark.parametrize(
    ("path", "headers", "params"),
    [
        ("/v1/studies", {"Authorization": f"Bearer {CANARY}"}, {}),
        ("/v1/studies", {"Authorization": f"{CANARY} x"}, {}),
        ("/v1/studies", {"Authorization": f"Bearer blindopt_0123456789abcdef.{CANARY:A<43}"}, {}),
        ("/v1/nothing", {"X-Request-ID": CANARY + "zz"}, {}),
        ("/v1/nothing", {"Accept": CANARY, "User-Agent": CANARY, "Referer": CANARY, "Cookie": f"a={CANARY}"}, {}),
        ("/v1/nothing", {"Host": CANARY}, {}),
        ("/v1/nothing", {}, {"q": CANARY}),
        ("/v1/studies", {}, {"page_size": CANARY}),
        ("/v1/studies", {}, {"page_size": "77123456789"}),
        ("/v1/studies", {}, {"page_token": CANARY}),
        ("/v1/studies/", {"Host": CANARY}, {"q": CANARY}),
        ("/v1/datasets/x", {}, {CANARY: "1"}),
    ],
    ids=str,
)
def test_a_header_or_query_string_of_a_refused_request_is_not_echoed(path, headers, params, curator):
    with curator.http() as http:
        _check_silent(curator, http.get(path, headers=headers, params=params))


@pytest.mark.parametrize("header", ["Range", "If-Range", "If-None-Match", "Idempotency-Key", "Content-Type"])
def test_headers_of_an_exchange_are_not_echoed(header, curator, opened):
    long = {header: CANARY * 20}
    with curator.http(opened.token) as modeler:
        replies = [
            modeler.get(f"/v1/studies/{opened.id}/candidates", headers={"Range": f"bytes={CANARY}"} | long),
            modeler.get(f"/v1/studies/{opened.id}/candidates", headers={"Range": f"bytes={CANARY}"}),
            modeler.post(f"/v1/studies/{opened.id}/queries", content=b"{}", headers=JSON | long),
        ]
    for reply in replies:
        _check_silent(curator, reply, at_least=200)  # a range in no known unit is ignored, as HTTP wants it
    assert [reply.status_code for reply in replies[1:]] in ([416, 422], [416, 400], [416, 415])


def test_the_log_of_the_process_names_routes_and_never_paths(curator):
    with curator.http() as http:
        for path in (f"/v1/studies/{CANARY}", f"/v1/datasets/{CANARY}", f"/{CANARY}", f"/v1/studies/{CANARY}:release"):
            assert http.get(path).status_code in (404, 405)
    assert CANARY not in curator.log
    lines = [json.loads(line) for line in curator.log.splitlines()]  # every line is one JSON object
    assert {line["route"] for line in lines if line["message"] == "request"} >= {
        "/v1/studies/{study_id}", "/v1/studies", "/v1/datasets", "unmatched",
    }  # fmt: skip
    assert [line for line in lines if line["level"] not in ("info", "warning")] == []


# --- secrets at rest -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def used(curator, modeler, owner, vendor, opened, run_of):
    """A run with a fresh grant, asked for twice, so that its token lies in a stored reply too."""
    with curator.http() as http:
        replies = [
            http.post(f"/v1/studies/{opened.id}/grants", json={"name": "m"}, headers={"Idempotency-Key": "sealed"})
            for _ in range(2)
        ]
    granted = wire.GrantReply.model_validate_json(replies[0].content)
    assert replies[1].content == replies[0].content
    assert replies[1].headers["idempotency-replayed"] == "true"
    with StudyClient(curator.url, granted.token, opened.id) as client:
        client.study()
    rotated = owner.rotate(opened.id, granted.id, wire.Rotation()).token
    spec = run_of(curator.url, opened, iterations=3).model_copy(update={"token": granted.token})
    run = vendor.wait(vendor.start(spec, key="secret run").id, timeout_s=60)
    assert run.state == "completed"
    return granted, run, spec, rotated


def _secret(token):
    assert re.fullmatch(r"blindopt_[0-9a-f]{16}\.[A-Za-z0-9_-]{43}", token)
    return token.partition(".")[2].encode()


def test_no_token_is_in_any_file_of_either_service_but_where_it_was_asked_for(curator, modeler, used, opened):
    """Databases with their write-ahead logs, candidates, logs of the process: read as bytes."""
    secrets = [_secret(token) for token in (curator.token, modeler.token, opened.token, used[0].token, used[3])]
    for service in (curator, modeler):
        files = [path for path in service.folder.rglob("*") if path.is_file() and path.name != "first-token"]
        assert {"service.log", "seal.key"} <= {path.name for path in files}
        contents = {path: path.read_bytes() for path in files}
        contents[service.data] = stored = beside.stored(service.database)
        assert service.token.removeprefix("blindopt_").partition(".")[0].encode() in stored  # the search finds
        for path, content in contents.items():
            for secret in secrets:
                assert secret not in content, path


def test_the_stored_reply_of_a_grant_is_sealed_and_its_record_has_no_token(curator, used):
    stored = curator.rows("SELECT body, sealed FROM replies WHERE idempotency_key = 'sealed'")
    assert len(stored) == 1
    body, sealed = stored[0]
    assert sealed == 1
    assert b"blindopt_" not in body
    exported = curator.run("audit", "export").stdout
    assert used[0].id in exported
    assert _secret(used[0].token).decode() not in exported
    assert _secret(curator.token).decode() not in exported


def test_the_token_of_a_run_is_not_shown_again(modeler, used):
    granted, run, spec, _ = used
    secret = _secret(granted.token).decode()
    with modeler.http() as http:
        paths = ("/v1/runs", f"/v1/runs/{run.id}", f"/v1/runs/{run.id}/export", f"/v1/runs/{run.id}/export?format=csv")
        shown = [http.get(path) for path in (*paths, f"/v1/runs/{run.id}/trials", "/v1/audit/entries?page_size=1000")]
        shown.append(
            http.post(
                "/v1/runs", content=spec.model_dump_json().encode(), headers=JSON | {"Idempotency-Key": "secret run"}
            )
        )
    assert [reply.is_success for reply in shown] == [True] * 7
    assert shown[-1].headers["idempotency-replayed"] == "true"
    for reply in shown:
        assert secret not in reply.text
        assert '"token"' not in reply.text
    exported = modeler.run("audit", "export").stdout
    assert run.id in exported
    assert secret not in exported


def test_no_repr_shows_a_secret(used):
    granted, _, spec, _ = used
    token = mint()
    for shown in (repr(granted), str(granted), repr(spec), str(spec), repr(token), str(token), f"{token}"):
        assert _secret(granted.token).decode() not in shown
        assert token.secret not in shown
    assert token.kid in repr(token)


def test_the_listing_of_tokens_names_them_without_secrets(curator, used):
    listed = curator.run("token", "list")
    assert listed.returncode == 0
    assert used[0].id in listed.stdout
    for token in (curator.token, used[0].token):
        assert _secret(token).decode() not in listed.stdout


def test_what_lies_in_the_data_folder_is_for_its_user_alone(curator, modeler):
    for service in (curator, modeler):
        assert stat.S_IMODE((service.folder / "first-token").stat().st_mode) == 0o600
        assert stat.S_IMODE(service.data.stat().st_mode) == 0o700
        for path in service.data.rglob("*"):
            mode = stat.S_IMODE(path.stat().st_mode)
            if path.is_dir():
                assert mode == 0o700, path
            elif path.name.endswith((".key", ".sqlite", "-wal", "-shm")) or "files" in path.parts:
                assert mode == 0o600, path


def test_a_folder_that_was_open_to_others_still_holds_nothing_for_them(make_service, tmp_path, small):
    """An operator's own folder, or a container's volume, is made with another mode than ours."""
    service = make_service("curator", tmp_path)
    service.data.mkdir(parents=True)
    service.data.chmod(0o755)
    service.start()
    with service.http() as http:
        upload = http.post("/v1/datasets", **_file(small.csv), headers={"Idempotency-Key": "k"})
        assert upload.status_code == 201
    closed = stat.S_IMODE(service.data.stat().st_mode) == 0o700
    for path in service.data.iterdir():
        assert closed or path.name == "lock" or stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    service.stop()


def test_a_token_of_the_command_line_works_until_it_is_revoked(curator):
    made = curator.run("token", "create", "--name", "second owner", "--days", "1")
    assert (made.returncode, made.stderr) == (0, "")
    token = made.stdout.strip()
    with curator.http(token) as http:
        assert http.get("/v1/studies").status_code == 200
        kid = token.removeprefix("blindopt_")[:16]
        assert curator.run("token", "revoke", kid).stdout == f"revoked {kid}\n"
        assert http.get("/v1/studies").status_code == 401
    (principal,) = curator.rows("SELECT principal FROM tokens WHERE kid = ?", kid)[0]
    assert f"{kid}  {principal}  owner     revoked" in curator.run("token", "list").stdout


@pytest.mark.parametrize("role", ["vendor", "modeler", "root"])
def test_the_command_line_makes_no_token_of_a_role_that_is_not_its_own(role, curator):
    command = ["token", "create", "--name", "x", "--role", role]
    before = curator.rows("SELECT count(*) FROM tokens")
    made = CliRunner().invoke(curator_cli, command, env=curator.environment)
    assert (made.exit_code, made.stdout) == (2, "")
    assert curator.rows("SELECT count(*) FROM tokens") == before
