"""The search server: a page for browsers, and its functions as JSON over HTTP."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, File, HTTPException, Request, Response, UploadFile
from fastapi import Query as QueryParameters
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from PIL import Image

from gradspace import __version__
from gradspace.data.image_files import TooManyPixels
from gradspace.indexes.contract import IndexGone
from gradspace.indexes.searcher import Query, Searcher
from gradspace.serve import schemas
from gradspace.serve.batching import Searched
from gradspace.serve.desk import Desk
from gradspace.serve.guard import FormRoute, Guard
from gradspace.serve.limits import Limits
from gradspace.serve.metrics import Metrics
from gradspace.serve.pictures import CONTENT_TYPES, UNTOLD, UnknownFormat, as_jpeg, read_picture

STATIC = Path(__file__).parent / "static"
ERRORS = {
    400: ("the request cannot be read", "this server answers requests to localhost only"),
    404: ("there is no such index or item", "there is no such item in the index photos: 'a.jpg'"),
    413: ("too large", "a request may have at most 20 MiB: send a smaller picture"),
    415: ("not a picture", "a picture must be image/jpeg, image/png ..., got 'text/plain'"),
    422: ("not understood", "k: should be less than or equal to 200, got '500'"),
    503: (
        "overloaded, or the index is gone",
        "too many requests are waiting: try again in a second",
    ),
}
JPEG = {200: {"content": {"image/jpeg": {}}, "description": "a JPEG"}, 304: {"description": "same"}}


def make_app(
    searchers: Sequence[Searcher],
    limits: Limits | None = None,
    hosts: Collection[str] | None = None,
) -> FastAPI:
    """Make the application that searches these indexes, by default the first one.

    `hosts` are the host names that requests must carry; None for any.
    """
    limits, metrics = limits or Limits(), Metrics()
    desk = Desk(searchers, limits, metrics)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        desk.close()

    app = FastAPI(
        title="gradspace",
        summary="Search images and captions with a trained model.",
        version=__version__,
        docs_url=None,  # both pages would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        openapi_url="/api/openapi.json",
        lifespan=lifespan,
    )
    app.state.desk = desk
    app.add_middleware(Guard, metrics=metrics, body_bytes=limits.body_bytes, hosts=hosts)
    app.add_exception_handler(RequestValidationError, _not_understood)
    app.add_exception_handler(IndexGone, _gone)
    _add_searches(app, desk)
    _add_items(app, desk)
    _add_the_rest(app, desk, metrics)
    return app


def _add_searches(app: FastAPI, desk: Desk) -> None:
    @app.get("/api/search", responses=_errors(400, 404, 422, 503), tags=["search"])
    async def search(
        request: Request, asked: Annotated[schemas.SentenceSearch, QueryParameters()]
    ) -> schemas.SearchAnswer:
        """Search by a sentence `q`, or for more `like` an item."""
        q = asked.q.strip()
        if bool(q) == bool(asked.like):
            raise HTTPException(422, "give either a sentence q, or an item to find more like it")
        if asked.like:
            await desk.item(desk.name(asked.index), asked.like)
        found = await desk.search(request, Query(text=q, like=asked.like), asked)
        return _answer(desk, asked, found)

    forms = APIRouter(route_class=FormRoute)

    @forms.post("/api/search", responses=_errors(400, 404, 413, 415, 422, 503), tags=["search"])
    async def search_by_picture(
        request: Request, asked: Annotated[schemas.PictureSearch, File()]
    ) -> schemas.SearchAnswer:
        """Search by a picture, or by a picture and a sentence `q`."""
        index = desk.name(asked.index)
        if not desk.searchers[index].reads_pictures:
            raise HTTPException(422, f"the model of the index {index} cannot read pictures")
        async with desk.place_for_a_picture():
            picture = await _read(desk, asked.picture)
            query = Query(asked.q.strip(), picture, picture_weight=asked.picture_weight)
            found = await desk.search(request, query, asked)
        return _answer(desk, asked, found)

    app.include_router(forms)

    @app.get("/api/explain", responses=_errors(400, 404, 422, 503), tags=["search"])
    async def explain(
        key: Annotated[schemas.Text, QueryParameters(examples=["holiday/beach.jpg"])],
        q: Annotated[schemas.Text, QueryParameters(examples=["a dog on a beach"])],
        index: Annotated[schemas.Text, QueryParameters(examples=["photos"])] = "",
    ) -> schemas.ExplainAnswer:
        """Explain what the words of a sentence and the regions of an image add to their score."""
        name = desk.name(index)
        if not q.strip():
            raise HTTPException(422, "an explanation needs a sentence q")
        await desk.item(name, key)
        try:
            found = await desk.explain(name, key, q.strip())
        except ValueError as error:
            raise HTTPException(422, str(error)) from error
        if found is None:
            raise HTTPException(404, f"the model of the index {name} cannot explain this score")
        return schemas.ExplainAnswer.of(found)


def _add_items(app: FastAPI, desk: Desk) -> None:
    @app.get("/api/indexes", responses=_errors(400, 503), tags=["indexes"])
    async def indexes() -> list[schemas.IndexAnswer]:
        """List the indexes of this server; the first one is searched by default."""
        return [
            schemas.IndexAnswer(
                id=name,
                name=searcher.index.name,
                items=await desk.in_thread(len, searcher.index.engine),
                kinds=list(searcher.index.kinds),
                **vars(desk.offers[name]),
            )
            for name, searcher in desk.searchers.items()
        ]

    errors = _errors(400, 404, 422, 503)

    @app.get("/api/items/{index}/{key:path}", responses=errors, tags=["indexes"])
    async def item(index: schemas.IndexId, key: schemas.Key) -> schemas.ItemAnswer:
        """Return everything known about an item."""
        return schemas.ItemAnswer.of(await desk.item(desk.name(index), key))

    images: dict[str, Any] = {"response_class": Response, "tags": ["indexes"]}
    images["responses"] = {**errors, **JPEG}

    @app.get("/thumbnails/{index}/{key:path}", **images)
    async def thumbnail(request: Request, index: schemas.IndexId, key: schemas.Key) -> Response:
        """Return a thumbnail of an image."""
        own = desk.searchers[desk.name(index)].index
        return _jpeg(request, await desk.file(index, key, own.thumbnail))

    @app.get("/pictures/{index}/{key:path}", **images)
    async def picture(request: Request, index: schemas.IndexId, key: schemas.Key) -> Response:
        """Return an image at screen size; never the file itself."""
        own = desk.searchers[desk.name(index)].index
        return _jpeg(request, await desk.file(index, key, lambda k: as_jpeg(own.picture(k))))


def _add_the_rest(app: FastAPI, desk: Desk, metrics: Metrics) -> None:
    @app.get("/health", tags=["server"], responses=_errors(400))
    async def health() -> schemas.HealthAnswer:
        """Confirm that the server is running."""
        return schemas.HealthAnswer(status="ok", version=__version__)

    @app.get("/metrics", response_class=PlainTextResponse, tags=["server"], responses=_errors(400))
    async def counted() -> str:
        """Return requests, latencies, batch sizes and queue lengths for Prometheus."""
        return metrics.text({name: len(batcher) for name, batcher in desk.batchers.items()})

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    app.mount("/static", StaticFiles(directory=STATIC))


async def _read(desk: Desk, file: UploadFile) -> Image.Image:
    kind = file.content_type or ""
    if kind.partition(";")[0].strip().lower() not in (*CONTENT_TYPES, *UNTOLD):
        known = ", ".join(CONTENT_TYPES)
        raise HTTPException(415, f"a picture must be one of {known}, got {kind[:100]!r}")
    try:
        return await desk.in_thread(read_picture, file.file, desk.limits.picture_pixels)
    except TooManyPixels as error:
        raise HTTPException(413, str(error)) from error
    except UnknownFormat as error:
        raise HTTPException(415, str(error)) from error
    except ValueError as error:
        raise HTTPException(422, str(error)) from error


def _answer(desk: Desk, asked: schemas.Options, found: Searched) -> schemas.SearchAnswer:
    index = desk.name(asked.index)
    return schemas.SearchAnswer(
        index=index,
        kind=desk.kind(index, asked.kind),
        hits=[schemas.HitAnswer.found(hit, rank) for rank, hit in enumerate(found.hits, start=1)],
        unknown_words=found.unknown_words,
    )


def _jpeg(request: Request, content: bytes) -> Response:
    mark = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {"ETag": mark, "Cache-Control": "private, max-age=300"}
    if request.headers.get("if-none-match") == mark:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type="image/jpeg", headers=headers)


def _errors(*codes: int) -> dict[int | str, dict[str, Any]]:
    return {
        code: {
            "model": schemas.ErrorAnswer,
            "description": ERRORS[code][0],
            "content": {"application/json": {"example": {"detail": ERRORS[code][1]}}},
        }
        for code in codes
    }


async def _not_understood(request: Request, error: Exception) -> JSONResponse:
    """Answer with the first validation error in a sentence."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = str(first["loc"][1]) if len(first["loc"]) > 1 else "the request"
    said = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    got = first.get("input")
    if said.startswith("Expected UploadFile"):
        said = "should be a file"
    if first["type"] == "extra_forbidden":
        said = "there is no such parameter"
    elif isinstance(got, str) and "got" not in said:
        said += f", got {got[:100]!r}"
    return JSONResponse({"detail": f"{field}: {said}"}, 422)


async def _gone(request: Request, error: Exception) -> JSONResponse:
    sentence = "the index has been moved or deleted: put it back, or restart the server"
    return JSONResponse({"detail": sentence}, 503)
