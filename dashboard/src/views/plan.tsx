/* What the planner would decide now: its candidates by cost and throughput, and what it expects of any other shape. */

import { useEffect, useState } from "preact/hooks";
import { get, jobPath } from "../api";
import { short } from "../format";
import type { ViewProps } from "../main";
import { Card, Empty, Tile } from "../parts";
import { usePoll } from "../poll";
import type { Candidate, PlanPage, Shape, TriedShape } from "../types";

export const shapeText = (shape: Shape) =>
  `${shape.workers} × ${trim(shape.worker_cpu)} cores, ${shape.servers} × ${trim(shape.server_cpu)} cores`;
const trim = (value: number) => String(Number(value.toPrecision(3)));

export function Plan({ job, live }: ViewProps) {
  const { found, error } = usePoll<PlanPage>(live.page.planned ? `${jobPath(job)}/plan` : "", live.page.running ? 10000 : 0);
  const [tried, setTried] = useState<TriedShape | null>(null);
  if (!live.page.planned) {
    const why = live.page.platform === "local" ? "its size is fixed (with --workers or --servers), or it has no measurements yet" : "its planner's files are on the cluster";
    return <><div class="head"><h1>Plan</h1></div><Empty>The plan of this job is not known: {why}.</Empty></>;
  }
  if (error && !found) return <><div class="head"><h1>Plan</h1></div><Empty>{error}</Empty></>;
  if (!found) return <Empty>Asking the planner…</Empty>;
  return (
    <>
      <div class="head"><h1>Plan</h1><span class="dim">policy {found.policy}</span></div>
      <p class="lead">{found.why}</p>
      <div class="split">
        <Card title="Candidates: no other shape is both cheaper and faster" note={found.shapes}>
          <Front candidates={found.candidates} measured={found.measured ?? null} now={found.now ?? null} tried={tried} />
          <p class="legend"><span><i class="green" /> now</span><span><i class="orange" /> chosen</span><span><i class="blue" /> other candidates</span><span><i class="purple" /> the shape that you try</span><span>– measured now</span></p>
          <Candidates candidates={found.candidates} />
        </Card>
        <Explorer job={job} page={found} onTried={setTried} tried={tried} />
      </div>
      <Card title="The performance model"><p>{found.model}</p>{found.notes.filter((note) => note !== found.why).map((note) => <p key={note} class="dim">{note}</p>)}</Card>
    </>
  );
}

function Front({ candidates, tried, measured, now }: { candidates: Candidate[]; tried: TriedShape | null; measured: number | null; now: Shape | null }) {
  const known = candidates.filter((candidate) => candidate.throughput != null);
  if (!known.length) return <Empty>No predictions yet: the model needs measurements.</Empty>;
  const here = known.find((candidate) => candidate.now);
  const points = [...known.map(({ cost, throughput }) => [cost, throughput!]), ...(tried?.throughput != null ? [[tried.cost!, tried.throughput]] : []), ...(measured && here ? [[here.cost, measured]] : [])] as [number, number][];
  const right = Math.max(...points.map(([cost]) => cost)) * 1.08, top = Math.max(...points.map(([, speed]) => speed)) * 1.12;
  const x = (cost: number) => 54 + (500 - 64) * (cost / right), y = (speed: number) => 210 - 190 * (speed / top);
  const front = known.toSorted((one, other) => one.cost - other.cost);
  return (
    <svg class="scatter" viewBox="0 0 500 246" role="img" aria-label={`${known.length} candidates; the table has the same`}>
      {[0, 0.5, 1].map((share) => (
        <g key={share}>
          <line x1="54" x2="490" y1={y((share * top) / 1.12)} y2={y((share * top) / 1.12)} stroke="var(--line)" />
          <text x="48" y={y((share * top) / 1.12) + 4} text-anchor="end">{short((share * top) / 1.12)}</text>
          <text x={x((share * right) / 1.08)} y="226" text-anchor="middle">{trim((share * right) / 1.08)}</text>
        </g>
      ))}
      <text x="272" y="243" text-anchor="middle">cost an hour</text>
      <polyline points={front.map(({ cost, throughput }) => `${x(cost)},${y(throughput!)}`).join(" ")} fill="none" stroke="var(--blue)" stroke-opacity=".4" />
      {known.map((candidate) => (
        <circle key={shapeText(candidate.shape)} cx={x(candidate.cost)} cy={y(candidate.throughput!)} r={candidate.chosen || candidate.now ? 6 : 4} fill={`var(--${candidate.chosen ? "orange" : candidate.now ? "green" : "blue"})`}>
          <title>{shapeText(candidate.shape)}: {short(candidate.throughput!)} samples/s</title>
        </circle>
      ))}
      {tried?.throughput != null ? <circle cx={x(tried.cost!)} cy={y(tried.throughput)} r="7" fill="none" stroke="var(--purple)" stroke-width="2.5"><title>the shape that you try</title></circle> : null}
      {measured && here && now ? <path d={`M${x(here.cost) - 6},${y(measured)}h12`} stroke="var(--ink)" stroke-width="2"><title>measured now</title></path> : null}
    </svg>
  );
}

export function Candidates({ candidates }: { candidates: Candidate[] }) {
  return (
    <div class="scroll"><table>
      <thead><tr><th>Workers</th><th>Servers</th><th class="number">Cost/h</th><th class="number">Samples/s</th><th /></tr></thead>
      <tbody>
        {candidates.map(({ shape, cost, throughput, chosen, now }) => (
          <tr key={shapeText(shape)} class={chosen ? "strong" : ""}>
            <td class="nowrap">{shape.workers} × {trim(shape.worker_cpu)}</td><td class="nowrap">{shape.servers} × {trim(shape.server_cpu)}</td>
            <td class="number">{trim(cost)}</td><td class="number">{short(throughput ?? null)}</td>
            <td class="nowrap">{[chosen ? "chosen" : "", now ? "now" : ""].filter(Boolean).join(", ")}</td>
          </tr>
        ))}
      </tbody>
    </table></div>
  );
}

const SLIDERS = [["workers", "Workers", 1], ["servers", "Servers", 1], ["worker_cpu", "Cores of each worker", 0.1], ["server_cpu", "Cores of each server", 0.1]] as const;

function Explorer({ job, page, tried, onTried }: { job: string; page: PlanPage; tried: TriedShape | null; onTried: (tried: TriedShape) => void }) {
  const [shape, setShape] = useState<Shape>(page.now ?? page.least);
  const [error, setError] = useState("");
  useEffect(() => {
    const stop = new AbortController();
    const query = new URLSearchParams(SLIDERS.map(([name]) => [name, String(shape[name])]));
    const timer = setTimeout(
      () =>
        get<TriedShape>(`${jobPath(job)}/plan/shape?${query}`, stop.signal).then(
          (found) => (onTried(found), setError("")),
          (problem: Error) => stop.signal.aborted || setError(problem.message),
        ),
      150,
    );
    return () => (clearTimeout(timer), stop.abort());
  }, [job, shape]);
  return (
    <Card title="Try another shape" note="The planner's own model predicts it. Nothing changes.">
      {SLIDERS.map(([name, title, step]) => (
        <label class="slider" key={name}>
          <span>{title}</span> <output>{trim(shape[name])}</output>
          <input type="range" min={page.least[name]} max={page.most[name]} step={step} value={shape[name]} onInput={(event) => setShape({ ...shape, [name]: Number(event.currentTarget.value) })} />
        </label>
      ))}
      {error ? <Empty>{error}</Empty> : null}
      {tried ? (
        <>
          <dl class="tiles">
            <Tile label="Samples/s expected" value={short(tried.throughput ?? null)} />
            <Tile label="Cost an hour" value={tried.cost == null ? "–" : trim(tried.cost)} />
          </dl>
          {tried.why ? <p class="warn">{tried.why}</p> : null}
        </>
      ) : null}
    </Card>
  );
}
