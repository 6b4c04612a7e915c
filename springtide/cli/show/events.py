"""`springtide events` and `springtide explain`: list the events of a job in full, or explain them in sentences with
reasons."""

from typing import Any

import msgspec

from springtide.cli.common.options import Job, JsonOnly, WhereOptions, verb
from springtide.cli.common.render import print_result, wrap
from springtide.launch import job_lookup
from springtide.telemetry.event_sentences import Event, sentences

INDENT = " " * 11


@verb("springtide events train")
def events(at: WhereOptions, job: Job = None, as_json: JsonOnly = False) -> int:
    """List all events of a job, in order."""
    reach = job_lookup.find(job, at.where())
    story, began_at = reach.story(), reach.card.began_at
    lines = (f"{since(began_at, event)}  {event['event']:<9} {details(event)}" for event in story)
    text = (part for line in lines for part in wrap(line, INDENT))
    print_result(text, {"job": reach.name, "events": story}, as_json)
    return 0


@verb("springtide explain train")
def explain(at: WhereOptions, job: Job = None, as_json: JsonOnly = False) -> int:
    """Tell what happened to a job and why: phases, losses, relaunches, scaling. Decisions that changed nothing are left
    out, and repeated events are folded. `springtide events` lists all events."""
    reach = job_lookup.find(job, at.where())
    card = reach.card
    described = sentences(card.began_at, reach.story())
    state = "runs" if reach.running() else "is over"
    lines = [f"job {reach.name} ({card.script}) {state}; this is its story:"]
    for line in described:
        again = f" ({line['times']} times until {line['until']:.1f} s)" if line["times"] > 1 else ""
        lines += wrap(f"{line['seconds']:8.1f} s {line['what']}{again}", INDENT)
    print_result(lines, {"job": reach.name, "story": described}, as_json)
    return 0


def since(began_at: float, event: Event) -> str:
    return f"{event['at'] - began_at:7.1f} s"


def details(event: Event) -> str:
    if event["event"] == "ended":
        return f"{event['status']['phase']}: {event['status']['why']}"
    fields = {name: value for name, value in event.items() if name not in ("at", "event", "trace")}
    return "  ".join(f"{name}={show(value)}" for name, value in fields.items())


def show(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
