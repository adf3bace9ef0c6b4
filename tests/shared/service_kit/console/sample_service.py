"""A small service with a console, to test what both consoles share: it lists, makes, uploads and streams samples."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, FastAPI, File, Form, Request, UploadFile
from pydantic import BaseModel
from starlette.responses import Response, StreamingResponse

from blindopt import wire
from blindopt.errors import BudgetExhausted, Invalid, NotFound
from curator_service.settings import Settings
from service_kit import app as serving
from service_kit.console import ApiProblem, Console, Page, Pages
from service_kit.console import Form as Sent
from service_kit.console.charts import Bar, Level, Points, Series, bars, line, scatter
from service_kit.context.context import ServiceContext
from service_kit.context.keys import Seal, signer
from service_kit.context.request import Effect
from service_kit.identity import passwords
from service_kit.store import audit_log, users
from service_kit.store.base import APPEND_ONLY, METADATA, moment, stamp
from service_kit.store.database import Connection, Database
from service_kit.store.users import User
from service_kit.web.dependencies import RecordedReply, RequestContextDep, allowed, api_router
from service_kit.web.listings import PagingDep
from service_kit.web.server_sent_events import event
from tests import postgres

PASSWORD = "correct horse battery staple"
MARKUP = "<script>alert(1)</script>\"><img src=x onerror=alert(2)> =cmd|'/c calc'!A1"
HOSTILE = f"{MARKUP} \u202egnitide\u202c {'9' * 60}"
WHO = {"ann": "owner", "moe": "measurer", "aud": "auditor"}


class Sample(BaseModel):
    name: str
    size: float


class SamplePage(BaseModel):
    samples: list[Sample]
    next_page_token: str | None = None


class Clock:
    """A clock that is put forward by hand."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def forward(self, **by: float) -> None:
        self.now += timedelta(**by)


def router(stored: list[Sample]) -> APIRouter:
    routes = api_router("samples", prefix="/v1/samples")

    @routes.get("", dependencies=[allowed("owner", "measurer")])
    def listed(paging: PagingDep) -> SamplePage:
        samples, token = paging.read(lambda after, limit: list(enumerate(stored, start=1))[after : after + limit])
        return SamplePage(samples=samples, next_page_token=token)

    @routes.post("", dependencies=[allowed("owner")], status_code=201)
    def create(request: Request, sample: Sample, caller: RequestContextDep) -> Response:
        if sample.size < 0:
            raise Invalid("a size is not negative", [{"field": "size", "message": "must not be negative"}])
        if sample.size > 1e6:
            raise BudgetExhausted("size", requested="many", spent="0", limit="1000000")
        context: ServiceContext = request.app.state.context

        def effect(db: object) -> Effect:
            stored.append(sample)
            return Effect(sample, "sample.made", {"size": sample.size})

        return RecordedReply(context.idempotency.once(caller, effect))

    @routes.post("/file", dependencies=[allowed("owner")], status_code=201)
    def upload(
        request: Request, caller: RequestContextDep, name: Annotated[str, Form()], file: Annotated[UploadFile, File()]
    ) -> Response:
        context: ServiceContext = request.app.state.context

        def effect(db: object) -> Effect:
            stored.append(Sample(name=f"{name}/{file.filename}", size=len(file.file.read())))
            return Effect(stored[-1], "sample.uploaded", {})

        return RecordedReply(context.idempotency.once(caller, effect))

    @routes.get("/events", dependencies=[allowed("owner")])
    async def events(last: int = 0) -> Response:
        async def changes():
            sent = last
            while sent < last + 50:
                if len(stored) != sent:
                    sent = len(stored)
                    yield event("change", str(sent), sent)
                await asyncio.sleep(0.05)

        return StreamingResponse(changes(), media_type="text/event-stream")

    @routes.get("/whoami", dependencies=[allowed("owner", "measurer", "auditor", "modeler")])
    def whoami(request: Request) -> dict[str, str]:
        return {"id": request.state.principal.id, "role": request.state.principal.role}

    @routes.get("/{name}", dependencies=[allowed("owner")])
    def get_sample(name: str) -> Sample:
        for sample in stored:
            if sample.name == name:
                return sample
        raise NotFound("there is no such sample")

    return routes


pages = Pages()


@pages.get("/", roles=("owner", "measurer", "auditor"), nav="Home")
async def home(page: Page) -> Response:
    user = await page.api.get("/v1/samples/whoami")
    return page.show("hello.html", title=f"Hello {user['role']}")


@pages.get("/samples", roles=("owner", "measurer"), nav="Samples")
async def listed(page: Page) -> Response:
    listing = await page.api.read("/v1/samples", SamplePage, page_size=3, page_token=page.query.get("page_token"))
    return page.show("samples.html", title="Samples", listing=listing, form=Sent.blank(size=1.5), trail=[("Home", "/")])


@pages.post("/samples", roles=("owner",))
async def create(page: Page, form: Sent) -> Response:
    name, size = form.text("name", "A name"), form.real("size")
    if form.ok:
        try:
            await page.api.post("/v1/samples", {"name": name, "size": size}, key=form.key)
        except ApiProblem as problem:
            form = form.failed(problem)
        else:
            return page.go("/samples", f"Made {name}")
    listing = await page.api.read("/v1/samples", SamplePage, page_size=3)
    return page.show("samples.html", title="Samples", status=422, listing=listing, form=form)


@pages.post("/samples/file", roles=("owner",))
async def upload(page: Page, form: Sent) -> Response:
    if (file := form.file("file")) is None:
        return page.show("hello.html", title="No file", status=422)
    made = await page.api.upload("/v1/samples/file", {"name": form.get("name")}, {"file": file}, key=form.key)
    return page.go("/samples", f"{made['name']} has {made['size']:.0f} bytes")


@pages.get("/samples/events", roles=("owner",))
async def events(page: Page) -> Response:
    return page.stream("/v1/samples/events")


@pages.get("/samples/raw/{name}", roles=("owner", "measurer"))
async def raw(page: Page) -> Response:
    return page.stream(f"/v1/samples/{page.path['name']}")


@pages.get("/samples/{name}", roles=("owner", "measurer"))
async def shown(page: Page) -> Response:
    sample = await page.api.read(f"/v1/samples/{page.path['name']}", Sample)
    return page.show("hello.html", title=sample.name)


def charts(name: str = "hostile") -> list:
    text = HOSTILE if name == "hostile" else name
    steps = list(range(1, 61))
    regret = [2.0 ** (-n / 6) + 1e-3 for n in steps]
    z = [((n * 37) % 60) / 30 - 1 for n in steps]
    return [
        line(
            "regret",
            text,
            [
                Series(text, steps, regret, [r / 2 for r in regret], [r * 2 for r in regret], is_step=True),
                Series("random rows", steps, [3 * n**-0.5 for n in steps]),
            ],
            x="answers",
            y="simple regret (units of y)",
            y_log=True,
            levels=[Level(0.01, "goal")],
        ),
        scatter(
            "posterior",
            f"Posterior {text}",
            [
                Points("rows", z, [z[-i] for i in steps], colour=regret),
                Points("chosen", [0.0, 0.5], [0.1, -0.4], labels=[text, "row 17"], is_ring=True),
            ],
            x="first axis of Z",
            y="second axis of Z",
            colour="mean",
        ),
        bars(
            "attacks",
            "What attacks recover",
            [Bar("known rows", 0.93), Bar("linkage", 0.12), Bar(text, 0.02)],
            value="advantage",
            name="attack",
        ),
    ]


@pages.get("/gallery", roles=("owner",), nav="Gallery")
async def gallery(page: Page) -> Response:
    name = page.query.get("name", "Regret against answers")
    text = HOSTILE if name == "hostile" else name
    problem = wire.Problem(
        type="x", title="It cannot be", status=422, detail=text, instance="/", code="invalid", retryable=False,
        request_id="1" * 16, errors=[wire.FieldProblem(message=text, row=7, line=8, column=text)], errors_total=1200,
    )  # fmt: skip
    form = Sent.blank(name=text, size=1e308, kind="b").failed(ApiProblem(problem, {}), {"": "name"})
    form.wrong("size", text)
    samples = [Sample(name=text, size=1e308), Sample(name="plain", size=0.125)]
    return page.show(
        "gallery.html", title=text, trail=[("Home", "/"), (text, "/samples")], charts=charts(name), form=form,
        problem=problem, samples=samples, text=text, now=page.site.now(),
    )  # fmt: skip


class Site(Console):
    """With the test's clock."""

    def now(self) -> datetime:
        return self.app.state.context.clock()


@cache
def _stored() -> str:
    return passwords.hash_of(PASSWORD, "minimal")


def _add(db: Connection, context: ServiceContext, user: User) -> None:
    users.add(db, user, context.seal.mac)
    details = {"user": user.id, "role": user.role}
    audit_log.append(db, "user.added", actor="test", now=moment(user.created_at), details=details)


def build(folder: Path, clock: Clock | None = None, kind: str = "curator", **chosen: object) -> FastAPI:
    """The service over ``folder``, with three people who know ``PASSWORD``; ``kind`` is in the names of its cookies."""
    clock = clock or Clock()
    settings = Settings(data_dir=folder, **{"password_hash": "minimal", **chosen})
    path = folder / "samples.sqlite"
    database = Database(path, (METADATA,), append_only=APPEND_ONLY, url=postgres.address_for(path))
    keys = folder / "secrets"
    context = ServiceContext.open(
        database,
        Seal.of(keys / "seal.key"),
        signer(keys / "log.key", kind),
        clock,
        checkpoint_file=folder / "checkpoint",
    )
    for name, role in WHO.items():
        user = User(f"usr_{name}", name, role, _stored(), stamp(clock()), None)
        database.write(lambda db, user=user: _add(db, context, user))
    stored: list[Sample] = []
    app = serving.build(
        title="samples",
        description="samples",
        context=context,
        findings=lambda db, records, part, folder: iter(()),
        settings=settings,
        routers=[router(stored)],
        limit_of=lambda path, principal: 1 << 26 if path.endswith("/file") and principal is not None else 1 << 20,
        auditors=("owner", "auditor"),
        monitors=("owner",),
        console=Site("Curator", [pages], Path(__file__).parent),
    )
    app.state.samples = stored
    return app
