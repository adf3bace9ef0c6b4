"""/v1/datasets: the owner's tables."""

from typing import Annotated

from fastapi import APIRouter, Depends, File, Form, Request, UploadFile
from pydantic import TypeAdapter, ValidationError
from starlette.responses import Response

from blindopt import wire
from blindopt.errors import Invalid
from curator_service.routes.common import CuratorDep, DatasetId
from curator_service.use_cases.studies.datasets import Upload
from service_kit.web.dependencies import PageSize, PageToken, RequestContextDep, allowed, answer, page_of
from service_kit.web.problems import documented

router = APIRouter(prefix="/v1/datasets", tags=["datasets"], dependencies=[allowed("owner")])
FIELDS = ("name", "public", "columns", "file", "import_name")
_COLUMNS = TypeAdapter(list[wire.Name])


async def only_known_fields(request: Request) -> None:
    """Invalid for a form field that is unknown, sent twice or empty: a typing error must not widen what is stored."""
    items = (await request.form()).multi_items()
    sent = [name for name, _ in items]
    for name, value in items:
        if value == "":  # the framework would take it for a field that was left out
            raise Invalid(
                "a field of the form is empty", [{"field": name[:60], "message": "send a value or leave it out"}]
            )
        if name not in FIELDS or sent.count(name) > 1:
            raise Invalid(
                f"the form takes {', '.join(FIELDS)}, each once", [{"field": name[:60], "message": "not taken"}]
            )


@router.post(
    "",
    dependencies=[Depends(only_known_fields)],
    status_code=201,
    response_model=wire.DatasetView,
    responses=documented(409),
    operation_id="register_dataset",
)
def register(
    request: Request,
    caller: RequestContextDep,
    curator: CuratorDep,
    name: Annotated[wire.Name, Form(description="For people.")],
    public: Annotated[bool, Form(description="Nobody in it needs protection.")] = False,
    columns: Annotated[
        str | None,
        Form(
            min_length=1,
            description="JSON list of the columns to read and store; all others are left out. Default: all.",
        ),
    ] = None,
    file: Annotated[UploadFile | None, File(description="CSV in UTF-8 with a header, or *.parquet.")] = None,
    import_name: Annotated[
        str | None, Form(min_length=1, description="Instead of file: one in the configured import folder.")
    ] = None,
) -> Response:
    """Register a CSV or Parquet file. It is checked whole; on any error nothing is stored."""
    chosen = _columns(columns)
    if (file is None) == (import_name is None):
        raise Invalid("send either file or import_name", [{"field": "file", "message": "one of the two is needed"}])
    if file is not None:
        upload = Upload(name=name, public=public, columns=chosen, filename=file.filename or "")
        return answer(request, curator.datasets.register(caller, upload, file.file))
    assert import_name is not None
    path = curator.datasets.import_path(import_name)
    with path.open("rb") as opened:
        upload = Upload(name=name, public=public, columns=chosen, filename=path.name)
        return answer(request, curator.datasets.register(caller, upload, opened))


def _columns(text: str | None) -> list[str] | None:
    if text is None:
        return None
    try:
        return _COLUMNS.validate_json(text)
    except ValidationError:
        raise Invalid(
            "columns must be a JSON list of names", [{"field": "columns", "message": 'for example ["age", "stay"]'}]
        ) from None


@router.get("", response_model=wire.DatasetPage, responses=documented(), operation_id="list_datasets")
def listed(curator: CuratorDep, page_size: PageSize = 50, page_token: PageToken = None) -> wire.DatasetPage:
    """Datasets in the order of their registration."""
    found, token = page_of(curator.datasets.page(int(page_token or 0), page_size + 1), page_size, lambda item: item[0])
    return wire.DatasetPage(datasets=[view for _, view in found], next_page_token=token)


@router.get("/{dataset_id}", response_model=wire.DatasetView, responses=documented(), operation_id="get_dataset")
def one(dataset_id: DatasetId, curator: CuratorDep) -> wire.DatasetView:
    """One dataset with its columns."""
    return curator.datasets.one(dataset_id)


@router.post(
    "/{dataset_id}:archive", response_model=wire.DatasetView, responses=documented(409), operation_id="archive_dataset"
)
def archive(request: Request, dataset_id: DatasetId, caller: RequestContextDep, curator: CuratorDep) -> Response:
    """Allow no new study on it."""
    return answer(request, curator.datasets.archive(caller, dataset_id))
