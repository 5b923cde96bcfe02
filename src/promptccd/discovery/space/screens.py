"""The screens of a visit, which are those of `open`, and what is taken away: at an address that nobody can guess."""

import asyncio
from dataclasses import asdict

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route

from promptccd.discovery.site import App, Message, Receive, Send
from promptccd.discovery.space.guard import owner_of
from promptccd.discovery.space.visits import Visit, VisitOverError, VisitProject, Visits
from promptccd.discovery.workbench.routes import NOT_KEPT, application, bundle, screens
from promptccd.discovery.workbench.take_away import assignment_rows_of
from promptccd.experiments.pages import csv_text

TABLE, ARCHIVES = "groups.csv", ("images.zip", "model.zip")
_TURNS = 8  # answers that are made at once; a photograph may take 100 MB while it is decoded
_ANSWER_S = 60.0  # that one of them may take, whoever is slow


def screens_of(visits: Visits) -> App:
    """What answers the screens of all visits, below their addresses."""
    shown = application([*screens(_project_of), Route("/take/{name}", _taken)])
    turns = asyncio.Semaphore(_TURNS)

    async def of_visit(scope: Message, receive: Receive, send: Send) -> None:
        try:
            visit = visits.at(scope["path_params"]["address"], owner_of(scope))
        except VisitOverError as error:
            await PlainTextResponse(str(error), 410)(scope, receive, send)
            return
        scope["visit"] = visit
        if b"since=" in scope["query_string"]:  # a window that waits for news, though nobody may look at it
            visit.alive()
            await shown(scope, receive, send)
        elif "/take/" in scope["path"]:  # a long download keeps nobody else waiting
            visit.touch()
            await shown(scope, receive, send)
        else:
            visit.touch()
            async with turns, asyncio.timeout(_ANSWER_S):
                await shown(scope, receive, send)

    return application([Route("/{name}", bundle), Mount("/{address}", of_visit)])


def _project_of(request: Request) -> VisitProject:
    visit: Visit = request.scope["visit"]
    return visit.project()


async def _taken(request: Request) -> Response:
    """The table as it is now, or an archive that was made."""
    visit: Visit = request.scope["visit"]
    name = request.path_params["name"]
    headers = {"content-disposition": f'attachment; filename="{name}"', **NOT_KEPT}
    if name == TABLE:
        return Response(await run_in_threadpool(_table, visit), media_type="text/csv", headers=headers)
    if name not in ARCHIVES or not (visit.taken / name).is_file():
        raise HTTPException(404, "There is no such file.")
    return FileResponse(visit.taken / name, headers=headers)


def _table(visit: Visit) -> str:
    rows = [{**asdict(row), "group": row.category} for row in assignment_rows_of(visit.project())]
    return csv_text(["file", "group", "name", "sha256"], rows)
