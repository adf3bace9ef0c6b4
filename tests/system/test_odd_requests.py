"""Requests that no client of ours makes: they are told like any other, and change nothing."""

import socket
import uuid


def test_a_body_without_end_where_none_is_read_is_answered_and_logged(curator, opened):
    before = curator.rows("SELECT count(*) FROM log")
    name = uuid.uuid4().hex
    with socket.create_connection(("127.0.0.1", curator.port), timeout=120) as wire:
        head = f"GET /v1/studies/{opened.id} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {opened.token}\r\n"
        wire.sendall(f"{head}X-Request-ID: {name}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"
        for _ in range(40):  # 2.5 MiB
            wire.sendall(chunk)
        wire.sendall(b"0\r\n\r\n")
        assert wire.recv(12) == b"HTTP/1.1 200"
    assert curator.rows("SELECT count(*) FROM log") == [(before[0][0] + 1,)]
    assert name in curator.rows("SELECT CAST(body AS TEXT) FROM log ORDER BY seq DESC LIMIT 1")[0][0]


def test_a_path_with_odd_line_ends_does_not_break_an_export(curator, opened, tmp_path):
    with curator.http(opened.token) as http:
        assert http.get("/v1/x%E2%80%A8y%C2%85z").status_code == 404
    (tmp_path / "curator").write_text(curator.run_in_process("audit", "export").stdout)
    key = curator.run_in_process("audit", "key").stdout.strip()
    verified = curator.run_in_process("audit", "verify", str(tmp_path / "curator"), "--key", key)
    assert (verified.returncode, verified.stderr) == (0, "")
    assert "v1/x\\u2028y\\u0085z" in (tmp_path / "curator").read_text()


def test_a_form_field_with_a_typing_error_is_refused_and_nothing_is_stored(curator):
    before = curator.rows("SELECT count(*) FROM datasets")
    with curator.http() as http:
        for fields in ({"column": '["a"]'}, {"public": ["false", "true"]}, {"columns": ""}, {"name": ""}):
            reply = http.post(
                "/v1/datasets",
                data={"name": "n"} | fields,
                files={"file": ("a.csv", b"a,b\n1,2\n3,4\n")},
                headers={"Idempotency-Key": uuid.uuid4().hex},
            )
            assert (reply.status_code, reply.json()["code"]) == (422, "invalid")
    assert curator.rows("SELECT count(*) FROM datasets") == before
