"""`springtide dashboard`: serves the dashboard of jobs, live and past, until Ctrl-C."""

import sys
from typing import Annotated

import typer

from springtide import errors
from springtide.cli.common.options import Job, WhereOptions, verb
from springtide.launch import job_lookup


@verb(
    "springtide dashboard train --port 8080",
    "springtide dashboard --allow-control     with buttons to scale and stop jobs",
    "springtide dashboard --host 0.0.0.0      for other machines too",
    "springtide dashboard train --platform k8s",
)
def dashboard(
    at: WhereOptions,
    job: Job = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to serve on; 0 means any free port.")] = 8470,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 for all addresses of this machine.", metavar="ADDRESS")
    ] = "127.0.0.1",
    brain: Annotated[
        str, typer.Option("--brain-folder", help="Folder of the brain whose jobs to show.", metavar="DIR")
    ] = ".springtide/brain",
    control: Annotated[
        bool, typer.Option("--allow-control", help="Let the page scale and stop jobs.  [default: read-only]")
    ] = False,
) -> int:
    """Serve a page about jobs, live or past: progress, decisions with reasons, roles, data, tables and checkpoints.

    Open the printed URL in a browser; it contains the token without which the server answers nothing. Ctrl-C ends the
    page, not the job.
    """
    from springtide.brain.service.queries import BrainLocation
    from springtide.dashboard import app, server
    from springtide.dashboard.access import AccessRules
    from springtide.dashboard.endpoints import DashboardSources
    from springtide.dashboard.job_reader import JobReader
    from springtide.dashboard.page_socket import listen, new_token, url_of

    where, token = at.where(), new_token()
    first = job_lookup.find(job, where).name if job is not None else newest(where)
    with listen(host, port) as listener:
        about = f"job {first}" if first else f"no jobs in {where.folder} yet"
        if not app.is_built():
            print(app.NOT_BUILT, file=sys.stderr)
        print(f"{about}: {url_of(listener, token)} (Ctrl-C ends the page, not the job)", flush=True)
        sources = DashboardSources(JobReader(where), first, control, BrainLocation(folder=brain))
        server.serve(listener, sources, AccessRules(host=host, token=token, control=control))
    return 0


def newest(where: job_lookup.JobLocation) -> str:
    """Return the newest job; return an empty string without jobs, so that a user can open a dashboard before the first
    job.
    """
    try:
        return job_lookup.find(None, where).name
    except errors.MissingFile:
        return ""
