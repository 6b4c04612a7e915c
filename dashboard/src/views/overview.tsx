/* Progress over time against the prediction, with every decision as a marker that explains itself. */

import { useEffect, useState } from "preact/hooks";
import { Chart, type Line, type Marker } from "../chart";
import { jobPath } from "../api";
import { bytes, clock, duration, percent, short, whole } from "../format";
import type { Live } from "../live";
import { link, type ViewProps } from "../main";
import { Card, Empty, Facts, Tile, shown } from "../parts";
import { usePoll } from "../poll";
import type { EventRow, PlanPage } from "../types";
import { Candidates } from "./plan";

const DECISIONS: Record<string, string> = { plan: "orange", decision: "purple", online: "orange", feeding: "teal", alert: "red", lost: "red", failed: "red", master_replaced: "red" };

/** Events to mark: decisions, and what they react to. A decision that repeats the last one is left out. */
export function decisionsOf(events: EventRow[]): EventRow[] {
  const found: EventRow[] = [];
  for (const event of events) {
    if (!(event.kind in DECISIONS) || !event.text) continue;
    if (found.at(-1)?.text !== event.text) found.push(event);
  }
  return found;
}

export function Overview({ job, live, options }: ViewProps) {
  const decisions = decisionsOf(live.events);
  const [selected, setSelected] = useState<number | null>(Number(options.get("event")) || null);
  useEffect(() => setSelected(Number(options.get("event")) || null), [options.get("event")]);
  const markers = decisions.map((event) => ({ at: event.at, id: event.number, tone: DECISIONS[event.kind]! }));
  const charts = { markers, selected, onMarker: setSelected };
  return (
    <>
      <Tiles live={live} />
      {live.page.status.online?.alert ? <p class="banner" role="alert">{live.page.status.online.alert}</p> : null}
      <div class="split">
        <div>
          <Speed live={live} {...charts} />
          <Quality live={live} {...charts} />
          <Roles live={live} {...charts} />
        </div>
        <Decisions job={job} live={live} decisions={decisions} selected={selected} onSelect={setSelected} />
      </div>
    </>
  );
}

interface Marked {
  live: Live;
  markers: Marker[];
  selected: number | null;
  onMarker: (id: number) => void;
}

function Tiles({ live }: { live: Live }) {
  const { status, running, mean_samples_per_s: mean } = live.page;
  const training = status.training ?? {}, data = status.data ?? {}, roles = status.roles ?? {}, saved = status.checkpoints ?? {};
  const rate = running ? training.samples_per_s ?? 0 : mean;
  const count = (role?: { alive?: number; wanted?: number }) => (running ? `${role?.alive ?? 0} of ${role?.wanted ?? 0}` : String(role?.wanted ?? 0));
  const left = data.shards_total && !status.online ? 1 - (data.shards_done ?? 0) / data.shards_total : 0;
  const done = data.shards_total ? (data.shards_done ?? 0) / data.shards_total : 0;
  return (
    <dl class="tiles">
      <Tile label="Samples" value={short(status.samples ?? 0)} note={data.shards_total && !status.online ? `${percent(done)} of the shards` : undefined} />
      <Tile label={running ? "Samples/s" : "Samples/s, mean"} value={short(rate)} />
      {running && left && done > 0.02 ? <Tile label="Left, at this pace" value={duration((training.trained_s ?? 0) * (left / done))} /> : null}
      {training.loss != null ? <Tile label="Loss" value={training.loss.toFixed(4)} /> : null}
      {Object.entries(training.metrics ?? {}).map(([name, value]) => <Tile key={name} label={name} value={Number.isInteger(value) ? whole(value) : value.toFixed(4)} />)}
      <Tile label="Workers" value={count(roles.workers)} />
      <Tile label="Servers" value={count(roles.servers)} note={roles.slots_moving ? `${roles.slots_moving} slots move` : undefined} />
      {roles.data_workers?.wanted || roles.data_workers?.alive ? <Tile label="Data workers" value={count(roles.data_workers)} /> : null}
      {status.online ? <Tile label="Lag" value={duration(status.online.lag_s)} note={`of ${duration(status.online.slo_lag_s)}`} tone={status.online.lag_s > status.online.slo_lag_s ? "bad" : ""} /> : null}
      <Tile label="Checkpoint" value={saved.number ? String(saved.number) : "none"} note={saved.trouble || undefined} />
      {roles.relaunches ? <Tile label="Relaunched" value={String(roles.relaunches)} /> : null}
    </dl>
  );
}

function Speed({ live, ...marked }: Marked) {
  if (live.online.length || live.page.status.online) return <Traffic live={live} {...marked} />;
  const at = live.progress.map((point) => point.at);
  if (!at.length) return <Card title="Throughput"><Empty>No progress is recorded: {why(live)}</Empty></Card>;
  const lines: Line[] = [{ name: "trained", color: "blue", at, values: live.progress.map((point) => point.samples_per_s) }];
  const predicted = live.predicted.filter(([time]) => time <= at.at(-1)!);
  if (predicted.length) {
    const times = [...predicted.map(([time]) => time), at.at(-1)!];
    lines.push({ name: "predicted", color: "orange", at: times, values: [...predicted.map(([, value]) => value), predicted.at(-1)![1]], steps: true, dashed: true });
  }
  const note = predicted.length ? undefined : "No prediction: the planner has not chosen a size, or the numbers of workers and servers are fixed.";
  return <Card title="Throughput, samples/s" note={note}><Chart label="Throughput in samples per second" lines={lines} {...marked} /></Card>;
}

function Traffic({ live, ...marked }: Marked) {
  const points = live.online;
  if (!points.length) return <Card title="Traffic"><Empty>The stream's traffic is not measured yet.</Empty></Card>;
  const at = points.map((point) => point.at);
  const lines: Line[] = [
    { name: "arrived", color: "blue", at, values: points.map((point) => point.arriving) },
    { name: "trained", color: "green", at, values: points.map((point) => point.trained) },
    { name: "forecast", color: "orange", at, values: points.map((point) => point.forecast ?? null), dashed: true },
    { name: "capacity", color: "dim", at, values: points.map((point) => point.capacity ?? null), steps: true, dashed: true },
  ];
  const level = live.page.status.online ? { value: live.page.status.online.slo_lag_s, color: "red" } : undefined;
  return (
    <>
      <Card title="Traffic, samples/s"><Chart label="Traffic in samples per second" lines={lines} {...marked} /></Card>
      <Card title="Lag"><Chart label="Lag in seconds" unit={duration} level={level} lines={[{ name: "oldest sample waits", color: "red", at, values: points.map((point) => point.lag_s) }]} {...marked} /></Card>
    </>
  );
}

function Quality({ live, ...marked }: Marked) {
  const names = ["loss", ...new Set(live.progress.flatMap((point) => Object.keys(point.metrics ?? {})))];
  const values = (name: string) => live.progress.map((point) => (name === "loss" ? point.loss : point.metrics?.[name]) ?? null);
  const present = names.filter((name) => values(name).some((value) => value !== null));
  const [name, setName] = useState("loss");
  const chosen = present.includes(name) ? name : present[0];
  if (!live.progress.length) return null;
  if (!chosen) return <Card title="Loss"><Empty>The script has reported no loss and no metric: job.report(loss=…) shows them here.</Empty></Card>;
  const line = { name: chosen, color: "purple", at: live.progress.map((point) => point.at), values: values(chosen) };
  return (
    <Card title={chosen === "loss" ? "Loss" : chosen}>
      {present.length > 1 ? (
        <div class="choices" role="group" aria-label="Metric">
          {present.map((each) => <button type="button" key={each} class="quiet" aria-pressed={each === chosen} onClick={() => setName(each)}>{each}</button>)}
        </div>
      ) : null}
      <Chart label={chosen} lines={[line]} unit={(value) => value.toFixed(4)} {...marked} height={150} />
    </Card>
  );
}

function Roles({ live, ...marked }: Marked) {
  const at = live.progress.map((point) => point.at);
  if (!at.length) return null;
  const lines: Line[] = [
    { name: "workers", color: "blue", at, values: live.progress.map((point) => point.workers ?? 0), steps: true },
    { name: "servers", color: "green", at, values: live.progress.map((point) => point.servers ?? 0), steps: true },
  ];
  if (live.progress.some((point) => point.data_workers))
    lines.push({ name: "data workers", color: "teal", at, values: live.progress.map((point) => point.data_workers ?? 0), steps: true });
  return <Card title="Roles"><Chart label="Number of roles" lines={lines} unit={(value) => (Number.isInteger(value) ? String(value) : "")} {...marked} height={130} /></Card>;
}

const why = (live: Live) =>
  live.page.platform !== "local" ? "points of a job on a cluster are kept only while this page is open." : live.page.running ? "the job has just begun." : "an earlier version ran this job.";

interface DecisionProps {
  job: string;
  live: Live;
  decisions: EventRow[];
  selected: number | null;
  onSelect: (id: number | null) => void;
}

function Decisions({ job, live, decisions, selected, onSelect }: DecisionProps) {
  const began = live.page.began_at;
  return (
    <Card title="Decisions, and why">
      {decisions.length ? null : <Empty>Nothing was decided yet.</Empty>}
      <ol class="story">
        {decisions.toReversed().slice(0, 300).map((event) => (
          <li key={event.number} class={event.number === selected ? "chosen" : ""}>
            <button type="button" class="line" aria-expanded={event.number === selected} onClick={() => onSelect(event.number === selected ? null : event.number)}>
              <span class={`dot ${DECISIONS[event.kind]}`} />
              <span class="dim nowrap">{duration(event.at - began)}</span> <span>{event.text}</span>
            </button>
            {event.number === selected ? <Decision job={job} event={event} /> : null}
          </li>
        ))}
      </ol>
    </Card>
  );
}

/** The candidates of a plan, computed again from the inputs that the master kept. */
function Alternatives({ job, epoch }: { job: string; epoch: number }) {
  const { found, error } = usePoll<PlanPage>(`${jobPath(job)}/plan?epoch=${epoch}`, 0);
  if (!found) return <p class="dim">{error || "Computing the alternatives…"}</p>;
  return (
    <details open>
      <summary>{found.candidates.length} alternatives, by cost</summary>
      <Candidates candidates={found.candidates} />
      <p class="dim small">{found.model}</p>
    </details>
  );
}

function Decision({ job, event }: { job: string; event: EventRow }) {
  const facts = Object.entries(event.inputs ?? {}).filter(([, value]) => value !== null && value !== "" && !(Array.isArray(value) && !value.length));
  return (
    <div class="detail">
      {event.explained ? <Alternatives job={job} epoch={Number(event.inputs!.epoch)} /> : null}
      <Facts facts={[["At", clock(event.at)], ...(event.why ? [["Why", event.why] as [string, string]] : []), ...facts.map(([name, value]) => [name, name.includes("bytes") ? bytes(Number(value)) : shown(value)] as [string, string])]} />
      <p>
        <a href={link(job, "logs", `around=${event.at}${event.role ? `&role=${event.role}` : ""}`)}>Logs at this time</a>{" "}
        <a href={link(job, "timeline", `at=${event.at}`)}>On the timeline</a>
      </p>
    </div>
  );
}
