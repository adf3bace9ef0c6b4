"""Templates and static files: those of the service first, then those of both services."""

import hashlib
import mimetypes
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from blindopt.errors import NotFound
from blindopt.version import VERSION
from service_kit.console import words

if TYPE_CHECKING:
    from jinja2 import Environment

_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".png": "image/png"}
_FOR_EVER = "public, max-age=31536000, immutable"


@cache
def renderer(service: str, folders: tuple[Path, ...]) -> "Renderer":
    """The renderer of a service, whose templates are compiled once in a process."""
    return Renderer(service, folders)


class Renderer:
    """Renders templates. Everything is escaped, and an undefined name is an error."""

    def __init__(self, service: str, folders: Sequence[Path]) -> None:
        self._files = {
            path.relative_to(folder / "static").as_posix(): path.read_bytes()
            for folder in reversed(folders)
            for path in sorted((folder / "static").rglob("*"))
            if path.suffix in _TYPES
        }
        self._digests = {name: hashlib.sha256(body).hexdigest()[:16] for name, body in self._files.items()}
        self._service, self._folders = service, folders

    @cached_property
    def templates(self) -> "Environment":
        """All templates. The first page loads their engine, and not the start of a service that may show none."""
        from jinja2 import Environment, FileSystemLoader, StrictUndefined

        templates = Environment(
            loader=FileSystemLoader([folder / "templates" for folder in self._folders]),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        templates.filters |= words.FILTERS
        templates.globals |= {"service": self._service, "version": VERSION, "asset": self.asset}
        return templates

    @cached_property
    def _ui(self) -> Any:
        return self.templates.get_template("ui.html").module

    def asset(self, name: str) -> str:
        """The address of a static file, which changes with its content."""
        return f"/console/static/{name}?{self._digests[name]}"

    def static(self, request: Request) -> Response:
        """A static file. Browsers may cache it for ever if its address has its digest."""
        name: str = request.path_params["path"]
        if name not in self._files:
            raise NotFound("there is no such file")
        media = _TYPES.get(Path(name).suffix) or mimetypes.guess_type(name)[0]
        etag = f'"{self._digests[name]}"'
        caching = _FOR_EVER if request.url.query == self._digests[name] else "no-cache"
        headers = {"cache-control": caching, "etag": etag}
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        return Response(self._files[name], 200, headers, media_type=media)

    def page(self, page: object | None, template: str, status: int, **context: Any) -> Response:
        filled: dict[str, Any] = {"trail": (), "flashes": (), "form": None, "page": page, "ui": self._ui, **context}
        html = self.templates.get_template(template).render(filled)
        return Response(html, status, media_type="text/html")

    def part(self, page: object, template: str, **context: Any) -> Response:
        html = self.templates.get_template(template).render({"form": None, "page": page, "ui": self._ui, **context})
        return Response(html, 200, media_type="text/html")

    def error(self, page: object | None, status: int, headers: Mapping[str, str], **fields: object) -> Response:
        """An error page; ``fields`` are title, detail, request_id, and the problem of a refusal."""
        response = self.page(page, "error.html", status, **{"problem": None, **fields})
        response.headers.update(headers)
        return response
