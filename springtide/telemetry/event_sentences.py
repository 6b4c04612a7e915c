"""Describes the events of a job in sentences with reasons, for `springtide explain` and the dashboard."""

import re
from collections.abc import Sequence
from typing import Any

from springtide.domain.plan.plan import WITHOUT_BRAIN

Event = dict[str, Any]
FOLDED = 4  # a sentence is merged with an equal one among this many latest sentences, which then shows a count
COUNTED = re.compile(r"(?<=incarnation )\d+|\d+ of \d+(?= slots)|\d+(?= slots have)|(?<=checkpoint )\d+")
"""Numbers in a decision that differ between repetitions of the same decision."""
MEASURED = re.compile(r"(?<![\w-])\d[\d,.]*")
"""Numbers in a reason. The rank in `worker-1` does not count as a number."""
AT_ONCE_S = 1.0  # if a loss and the decision about it lie within this many seconds, they count as simultaneous

SENTENCES = {
    "fenced": "incarnation {incarnation} of {role} no longer counts: {why}",
    "phase": "the job is {phase}: {why}",
    "failed": "{role} failed: {error}",
    "unreadable": "{role} could not read shard {shard} from {offset} on: {error}",
    "master_replaced": "{why}; a new master (term {term}) listened {seconds:.1f} s later",
    "online": "{workers} workers stay: {why}",
    "letters_not_kept": "{role}: dead letters are only counted from now on, not stored: {why}",
    "shorten": "{why}",
    "alert": "ALERT: {why}",
    "alert_over": "the alert is over: {why}",
    "resumed": "continues from checkpoint {number} in {where}, {samples:,} samples trained",
    "new_data": "trains new data with the model of checkpoint {number} in {where}, made after {samples:,} samples",
}


def sentences(began_at: float, story: Sequence[Event]) -> list[dict[str, Any]]:
    """Return the events of a job as sentences. Events that neither explain nor change anything are left out. A sentence
    that repeats one of the latest sentences is counted with the earlier one: `times` is the count, and `until` the last
    time.
    """
    described: list[dict[str, Any]] = []
    keys: list[str] = []
    feeding: Any = None
    for place, event in enumerate(story):
        text, seconds = sentence(event), round(event["at"] - began_at, 3)
        key = outline(event, text)
        if event["event"] == "feeding":
            before, feeding = feeding, (event["data_workers"], event["cpu"])
            text = "" if before == feeding else text
        if not text or needless(event, story[:place][-1:], story[place + 1 : place + 4]):
            continue
        if key in keys[-FOLDED:]:
            earlier = described[len(keys) - 1 - keys[::-1].index(key)]
            at_once = earlier["what"] == text and seconds - earlier["until"] < AT_ONCE_S
            earlier["times"] += not at_once
            earlier["until"] = seconds
        else:
            keys.append(key)
            described.append({"seconds": seconds, "what": text, "times": 1, "until": seconds})
    return described


def outline(event: Event, text: str) -> str:
    """Return a key that is equal for repetitions of an event: the sentence without its measurements. Roles, sizes and
    phases stay, because these tell which event it is."""
    if event["event"] == "phase":
        return f"{event['at']}"
    plain = COUNTED.sub("#", event["what"]) if "what" in event else ""
    fixed = [event.get("role"), event.get("shape"), event.get("data_workers"), event.get("workers"), plain]
    why = str(event.get("why") or text)
    return f"{event['event']} {fixed} {event.get('outcome')} {MEASURED.sub('#', why)}"


def needless(event: Event, before: Sequence[Event], following: Sequence[Event]) -> bool:
    """Return True for a planned exit, and for a loss whose reason the next decision repeats."""
    if event["event"] == "fenced" and any(
        (earlier["event"], earlier.get("role")) == ("finished", event["role"]) for earlier in before
    ):
        return True
    reason = {"exited": event.get("how"), "fenced": event.get("why")}.get(event["event"])
    return bool(reason) and any(
        later["event"] in ("fenced", "decision") and reason in later["why"] and later["at"] - event["at"] < AT_ONCE_S
        for later in following
    )


def sentence(event: Event) -> str:
    if event["event"] in SENTENCES:
        return SENTENCES[event["event"]].format(**event)
    match event["event"]:
        case "exited" if "status 0" not in event.get("how", ""):
            return str(event["how"])
        case "poisoned":
            return "given up: " + "; ".join(event["shards"])
        case "checkpoint" if event["outcome"] != "complete":
            return f"checkpoint {event['number']} {event['outcome']}: {event['why']}"
        case "checkpoint" if event.get("why"):
            return f"checkpoint {event['number']} is complete; {event['why']}"
        case "checkpoint" if event.get("mirror", "complete") != "complete":
            return f"checkpoint {event['number']} is without a mirror: {event['mirror']}"
        case "uploaded" if event["outcome"] != "complete":
            return f"checkpoint {event['number']} was not copied to {event['url']}: {event['why']}"
        case "feeding":
            some = f"{event['data_workers']} of {event['cpu']:g} CPU" if event["data_workers"] and event["cpu"] else ""
            return f"data workers: {some or event['data_workers'] or 'none'}: {event['why']}"
        case "plan":
            return planned(event)
        case "ready" if event.get("checkpoint"):
            back = f"{event['role']} is back with its slots of checkpoint {event['checkpoint']} in {event['where']}"
            again = f"{event['samples_again']:,} samples are trained again"
            return "; ".join(filter(None, (*event.get("unusable", ()), back, event.get("mirror", ""), again)))
        case "finished" if event.get("checked"):
            return f"{event['role']} has computed {event['checked']} batches of data workers itself, with equal results"
        case "ended" | "joined" | "ready" | "placed" | "finished" | "exited" | "lost":
            return ""
        case kind if event.get("why"):
            what = event.get("what") or " ".join([kind, str(event.get("role", ""))]).strip()
            return f"{what}: {event['why']}"
        case _:
            return ""


def planned(event: Event) -> str:
    shape, why = event.get("shape") or "another size", event["why"]
    alone = [f"; {note}" for note in event.get("notes", []) if note.startswith(WITHOUT_BRAIN)]
    match event["outcome"]:
        case "taken":
            expected = event.get("throughput")
            speed = f", {expected:,.0f} samples/s expected" if expected else ""
            text = f"planned: {shape}{speed}: {why}"
        case "refused":
            text = f"a plan ({shape}) was refused: {why}"
        case "done":
            return f"the plan is applied: {shape}"
        case "started":
            text = f"begins with {why}"
        case "failed":
            return f"no plan: {why}"
        case "forgotten":
            return f"the job is not in the history: {why}"
        case _ if not alone:
            return ""  # the plan changes nothing
        case _:
            text = f"unchanged: {why}"
    stage = f" [{event['stage']}]" if event.get("stage") else ""
    return text + stage + "".join(alone[:1])
