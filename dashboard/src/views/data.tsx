/* The data: the ledger as a strip of shards, queues of data workers, and the lag of a stream's partitions. */

import { useRef, useState } from "preact/hooks";
import { jobPath } from "../api";
import { Grid } from "../canvas";
import { Chart, type Line } from "../chart";
import { duration, percent, plural, short, whole } from "../format";
import type { ViewProps } from "../main";
import { Card, Empty, Facts, Meter } from "../parts";
import { usePoll } from "../poll";
import type { DataStatus, JobMap, PartitionLag } from "../types";

const STATES: Record<string, [string, string]> = { p: ["pending", "line"], l: ["leased", "orange"], d: ["done", "green"], x: ["given up", "red"] };
const MOST_COLUMNS = 120;

export function Data({ job, live }: ViewProps) {
  const { page } = live;
  const { found: map, error } = usePoll<JobMap>(page.running ? `${jobPath(job)}/map` : "", 2000);
  const data = page.status.data ?? {};
  return (
    <>
      <div class="head"><h1>Data</h1></div>
      {page.status.online || live.online.length ? <Stream live={live} map={map} /> : <Shards data={data} map={map} over={!page.running} why={error} />}
      <Queues data={data} count={page.status.roles?.data_workers?.alive ?? 0} why={page.status.roles?.data_workers_why ?? ""} />
      <Losses data={data} />
    </>
  );
}

function Shards({ data, map, over, why }: { data: DataStatus; map: JobMap | null; over: boolean; why: string }) {
  const [pointed, setPointed] = useState<number | null>(null);
  const states = map?.shards?.states ?? "", total = map?.shards?.total ?? 0;
  const done = data.shards_done ?? 0, all = data.shards_total ?? 0;
  const group = states.length ? Math.ceil(total / states.length) : 1;
  if (!all) return <Card title="Shards"><Empty>No data set is open: the script has not reached its loop yet.</Empty></Card>;
  return (
    <Card title="Shards">
      <p class="lead">{whole(done)} of {whole(all)} done, {whole(data.shards_leased ?? 0)} leased{(data.epochs ?? 1) > 1 ? `, ${data.epochs} epochs` : ""}</p>
      <Meter share={done / all} label={percent(done / all, 1)} />
      {states ? (
        <>
          <p class="legend">{Object.entries(STATES).map(([letter, [name, color]]) => <span key={letter}><i class={color} /> {name}</span>)}{group > 1 ? <span class="dim">each cell stands for {group} shards</span> : null}</p>
          <Grid label={`Shards in order: ${Object.entries(STATES).map(([letter, [name]]) => `${states.split(letter).length - 1} ${name}`).join(", ")}`} colors={[...states].map((letter) => STATES[letter]![1])} size={states.length > 5000 ? 6 : 10} onPoint={setPointed} />
          <p class="dim chosen-text">{pointed === null ? "" : `shard ${pointed * group}: ${STATES[states[pointed]!]![0]}`}</p>
        </>
      ) : (
        <Empty>{over ? "The job is over; which shard was where is known only while its master runs." : why || "Reading the ledger…"}</Empty>
      )}
    </Card>
  );
}

function Queues({ data, count, why }: { data: DataStatus; count: number; why: string }) {
  const feed = data.feed;
  if (!feed?.room) return <Card title="Data workers"><Empty>{count ? "The data workers have made no batch yet." : `No data workers${why ? `: ${why}` : ". The job may get them with --data-workers auto."}`}</Empty></Card>;
  return (
    <Card title="Data workers" note={why}>
      <Meter share={(feed.queued ?? 0) / feed.room} label={`${feed.queued ?? 0} of ${feed.room} batches ready in the queues`} />
      <Facts facts={[["Data workers", String(count)], ["Made", short(feed.made)], ["Taken", short(feed.taken)], ...(feed.looped_s ? [["Waited", `${percent((feed.waited_s ?? 0) / feed.looped_s)} of the workers' time`] as [string, string]] : [])]} />
    </Card>
  );
}

function Losses({ data }: { data: DataStatus }) {
  const given = data.poisoned ?? [], left = data.left_out ?? [];
  if (!given.length && !left.length) return null;
  return (
    <Card title="Samples that could not be read">
      {left.length ? <p>{plural(data.samples_left_out ?? 0, "sample")} left out; the first batches:</p> : null}
      <div class="scroll"><table>
        <thead><tr><th class="number">Epoch</th><th class="number">Shard</th><th>Samples</th><th>Error</th></tr></thead>
        <tbody>
          {given.map(([shard, epoch, first, end, failures, error]) => <tr key={`${shard}-${first}`}><td class="number">{epoch}</td><td class="number">{shard}</td><td>{first} to {end}, tried {failures} times</td><td>{error}</td></tr>)}
          {left.map(([batch, indices, error]) => <tr key={batch.join("-")}><td class="number">{batch[0]}</td><td class="number">{batch[1]}</td><td>{indices.slice(0, 10).join(", ")}</td><td>{error}</td></tr>)}
        </tbody>
      </table></div>
    </Card>
  );
}

function Stream({ live, map }: { live: ViewProps["live"]; map: JobMap | null }) {
  const { page, online: points, forecast } = live;
  const at = points.map((point) => point.at);
  const state = page.status.online;
  const lines: Line[] = [
    { name: "arrived", color: "blue", at, values: points.map((point) => point.arriving) },
    { name: "trained", color: "green", at, values: points.map((point) => point.trained) },
  ];
  if (forecast && at.length) {
    const ahead = forecast.mean.map((_, step) => forecast.at + (step + 0.5) * forecast.step_s);
    const until = at.at(-1)! + Math.max(60, 0.35 * (at.at(-1)! - at[0]!));
    const kept = ahead.filter((time) => time >= at[0]! && time <= until).length;
    const first = ahead.findIndex((time) => time >= at[0]!);
    if (kept > 1) {
      const times = ahead.slice(first, first + kept);
      lines.push({ name: "forecast", color: "orange", at: times, values: forecast.mean.slice(first, first + kept), dashed: true });
      lines.push({ name: "forecast, 90%", color: "orange", at: times, values: forecast.high.slice(first, first + kept), fillTo: "forecast" });
    }
  }
  return (
    <>
      <Card title="Traffic and forecast, samples/s" note={state?.expected?.why || state?.expected?.trouble}>
        {points.length ? <Chart label="Traffic and forecast" lines={lines} height={220} /> : <Empty>The stream's traffic is not measured yet.</Empty>}
      </Card>
      <Card title="Partitions: lag over time"><Partitions parts={map?.partitions ?? []} limit={state?.slo_lag_s ?? 60} over={!page.running} /></Card>
    </>
  );
}

/** Lags since this page was opened, one column for each time that they were read. */
function Partitions({ parts, limit, over }: { parts: PartitionLag[]; limit: number; over: boolean }) {
  const history = useRef<{ parts: PartitionLag[]; columns: Map<number, number>[] }>({ parts: [], columns: [] });
  if (parts.length && parts !== history.current.parts) {
    history.current.parts = parts;
    history.current.columns = [...history.current.columns, new Map(parts.map((part) => [part.partition, part.lag_s]))].slice(-MOST_COLUMNS);
  }
  const { columns } = history.current;
  if (!parts.length) return <Empty>{over ? "The job is over; lags of partitions are known only while its master runs." : "No partition has been reported yet."}</Empty>;
  return (
    <div class="scroll"><table class="heat">
      <thead><tr><th>Partition</th><th>Reader</th><th class="number">Lag</th><th class="number">Waiting</th><th>Lag since this page was opened; full color is {duration(limit)} or more</th></tr></thead>
      <tbody>
        {parts.map((part) => (
          <tr key={part.partition}>
            <th scope="row">{part.partition}</th>
            <td>{part.owner == null ? "any worker" : `worker-${part.owner}`}</td>
            <td class={part.lag_s > limit ? "number bad" : "number"}>{duration(part.lag_s)}</td>
            <td class="number">{short(part.backlog)}</td>
            <td class="wide">
              <svg viewBox={`0 0 ${MOST_COLUMNS} 10`} preserveAspectRatio="none" class="stack" aria-hidden="true">
                {columns.map((column, index) => <rect key={index} x={index} width="1" height="10" fill="var(--red)" fill-opacity={Math.min(1, (column.get(part.partition) ?? 0) / limit)} />)}
              </svg>
            </td>
          </tr>
        ))}
      </tbody>
    </table></div>
  );
}
