"""A link's client certificate is renewed while the link is connected, and no exchange is interrupted."""

import asyncio
import logging
import ssl

from blindopt import wire
from blindopt.certificates import look_again
from blindopt.client.link import LinkConnection
from service_kit.cli import tls

HEAD = wire.LinkReply(request="0" * 32, part=0, last=True, status=200, headers={})


class Modeler:
    """The modeler's end of a link: it keeps the serial number of each certificate that it is shown."""

    def __init__(self):
        self.shown, self.began, self.may_answer = [], asyncio.Event(), asyncio.Event()

    async def __call__(self, reader, writer):
        serial = writer.get_extra_info("peercert")["serialNumber"]
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(
                    int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
                )
                await reader.readexactly(length)
                is_pull = b":pull" in head.splitlines()[0]
                self.shown.append(("pull" if is_pull else "reply", serial))
                if not is_pull:
                    self.began.set()
                    await self.may_answer.wait()
                body = b'{"requests":[]}' if is_pull else b'{"next_part":1}'
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        except asyncio.IncompleteReadError:
            writer.close()


def _served(folder):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    context.load_verify_locations(folder / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def test_a_renewed_client_certificate_is_shown_by_the_next_pull_and_replies_under_way_end(tmp_path, caplog):
    tls.make_authority(tmp_path)
    tls.issue(tmp_path, "server", tls.alternatives(["modeler.localhost"]), 9)
    tls.issue(tmp_path, "client", None, 9)
    caplog.set_level(logging.INFO)

    async def exchange():
        modeler = Modeler()
        server = await asyncio.start_server(modeler, "127.0.0.1", 0, ssl=_served(tmp_path))
        files = {"ca": "ca.crt", "cert": "client.crt", "key": "client.key"}
        link = wire.LinkFile(
            format="blindopt-link-1",
            id=f"usr_{'0' * 16}",
            name="x",
            url=f"https://modeler.localhost:{server.sockets[0].getsockname()[1]}",
            token=f"blindopt_{'0' * 16}.{'A' * 43}",
            **{name: str(tmp_path / file) for name, file in files.items()},
        )
        async with LinkConnection(link) as connection:
            assert await connection.pull([]) == []
            reply = asyncio.create_task(connection.reply(HEAD, b"a"))
            await modeler.began.wait()
            for content in ("neither certificate nor key", None):  # unusable files leave the old ones
                if content is None:
                    tls.issue(tmp_path, "client", None, 9)
                else:
                    (tmp_path / "client.crt").write_text(content)
                look_again()
                assert await connection.pull([]) == []
            modeler.may_answer.set()
            assert await reply
            assert await connection.reply(HEAD, b"b")
        server.close()
        return modeler.shown

    shown = asyncio.run(exchange())
    old, new = shown[0][1], shown[-1][1]
    assert old != new
    assert shown == [("pull", old), ("reply", old), ("pull", old), ("pull", new), ("reply", new)]
    assert "the old ones stay: it is no certificate" in caplog.text
