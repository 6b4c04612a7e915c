/* Where the time of a step goes: per worker as stacked bars, and the slowest worker against the median. */

import { useState } from "preact/hooks";
import { duration, percent, short } from "../format";
import type { ViewProps } from "../main";
import { Card, Empty, roleName } from "../parts";
import type { MemberView } from "../types";

const PHASES = [
  ["data", "Read and collate", "teal"],
  ["pull_wait", "Wait for rows", "orange"],
  ["forward", "Forward", "blue"],
  ["backward", "Backward", "purple"],
  ["push_wait", "Wait for pushes", "red"],
] as const;
const TERMS = [
  ["gradient", "Compute", "blue"],
  ["update", "Servers apply", "red"],
  ["synchronization", "Network and queues", "orange"],
  ["lookup", "Servers look up", "teal"],
] as const;
const OTHER = ["other", "Everything else", "dim"] as const;

interface Bar {
  name: string;
  steps: number;
  step: number;
  parts: number[];
}

/** Seconds of a step by part, over the steps between two reports of a worker; null without steps. */
export function barOf(member: MemberView, before: MemberView | undefined, parts: readonly (readonly [string, ...string[]])[]): Bar | null {
  const same = before && (before.incarnation ?? 0) === (member.incarnation ?? 0);
  const seconds = member.report?.seconds ?? {}, earlier = (same && before.report?.seconds) || {};
  const steps = (member.report?.step ?? 0) - ((same && before.report?.step) || 0);
  if (steps <= 0 || !seconds.total) return null;
  const of = (name: string) => Math.max(0, ((seconds[name] ?? 0) - (earlier[name] ?? 0)) / steps);
  const found = parts.map(([name]) => of(name));
  const total = of("total");
  return { name: roleName(member), steps, step: total, parts: [...found, Math.max(0, total - found.reduce((sum, part) => sum + part, 0))] };
}

export function Step({ live }: ViewProps) {
  const [recent, setRecent] = useState(false);
  const [terms, setTerms] = useState(false);
  const parts = terms ? TERMS : PHASES;
  const members = live.page.status.members ?? [];
  const first = live.recent[0]?.status.members ?? [];
  const bars = members
    .filter((member) => member.role.kind === "worker")
    .map((member) => barOf(member, recent ? first.find((other) => roleName(other) === roleName(member)) : undefined, parts))
    .filter((bar): bar is Bar => bar !== null);
  const longest = Math.max(...bars.map((bar) => bar.step), 0);
  const sorted = bars.toSorted((one, other) => one.step - other.step);
  const median = sorted[Math.floor((sorted.length - 1) / 2)], slowest = sorted.at(-1);
  const legend = [...parts, OTHER];
  return (
    <>
      <div class="head">
        <h1>Step</h1>
        <div class="choices" role="group" aria-label="Time">
          <button type="button" class="quiet" aria-pressed={!recent} onClick={() => setRecent(false)}>Since each worker joined</button>
          <button type="button" class="quiet" aria-pressed={recent} disabled={!live.page.running} onClick={() => setRecent(true)}>Last seconds</button>
        </div>
        <div class="choices" role="group" aria-label="Division">
          <button type="button" class="quiet" aria-pressed={!terms} onClick={() => setTerms(false)}>Phases of the loop</button>
          <button type="button" class="quiet" aria-pressed={terms} onClick={() => setTerms(true)}>Terms of the performance model</button>
        </div>
      </div>
      {bars.length ? (
        <>
          {median && slowest && bars.length > 1 ? (
            <p class="lead">
              The slowest worker is <strong>{slowest.name}</strong>: {duration3(slowest.step)} a step, {(slowest.step / median.step).toFixed(2)} times the median of {duration3(median.step)}.
              {slowest.step > 1.2 * median.step ? ` Most of the difference: ${difference(slowest, median, legend)}.` : ""}
            </p>
          ) : null}
          <Card title="Mean step of each worker" note={<Legend entries={legend} />}>
            <table class="bars">
              <thead><tr><th>Worker</th><th class="number">Step</th><th>Parts of the step</th><th class="number">Steps</th></tr></thead>
              <tbody>
                {bars.map((bar) => (
                  <tr key={bar.name}>
                    <th scope="row">{bar.name}</th>
                    <td class="number">{duration3(bar.step)}</td>
                    <td class="wide"><Stack bar={bar} longest={longest} legend={legend} /></td>
                    <td class="number">{short(bar.steps)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </Card>
        </>
      ) : (
        <Empty>{members.length ? (recent ? "No worker has made a step in the last seconds." : "No worker has reported a step yet.") : "The last status of this job has no workers: its command was killed, or the job has just begun."}</Empty>
      )}
      <Servers live={live} />
    </>
  );
}

function Stack({ bar, longest, legend }: { bar: Bar; longest: number; legend: readonly (readonly [string, string, string])[] }) {
  let x = 0;
  const label = bar.parts.map((part, at) => `${legend[at]![1]} ${percent(part / bar.step)}`).join(", ");
  return (
    <svg class="stack" viewBox="0 0 1000 14" preserveAspectRatio="none" role="img" aria-label={label}>
      <title>{label}</title>
      {bar.parts.map((part, at) => {
        const width = (1000 * part) / longest;
        x += width;
        return <rect key={at} x={x - width} width={width} height="14" fill={`var(--${legend[at]![2]})`} />;
      })}
    </svg>
  );
}

function Servers({ live }: { live: ViewProps["live"] }) {
  const servers = (live.page.status.members ?? []).filter((member) => member.role.kind === "server" && member.report?.counters?.lookup_ns !== undefined);
  if (!servers.length) return null;
  return (
    <Card title="Servers" note="Time that a server needs for each key, since it started.">
      <div class="scroll"><table>
        <thead><tr><th>Server</th><th class="number">Keys pulled</th><th class="number">Keys pushed</th><th class="number">Look up a key</th><th class="number">Update a key</th></tr></thead>
        <tbody>
          {servers.map((server) => {
            const counters = server.report!.counters!;
            const each = (ns = 0, keys = 0) => (keys ? `${(ns / keys).toFixed(0)} ns` : "–");
            return (
              <tr key={roleName(server)}>
                <th scope="row">{roleName(server)}</th>
                <td class="number">{short(counters.pulled_keys)}</td><td class="number">{short(counters.pushed_keys)}</td>
                <td class="number">{each(counters.lookup_ns, counters.pulled_keys)}</td><td class="number">{each(counters.update_ns, counters.pushed_keys)}</td>
              </tr>
            );
          })}
        </tbody>
      </table></div>
    </Card>
  );
}

const Legend = ({ entries }: { entries: readonly (readonly [string, string, string])[] }) => (
  <span class="legend">{entries.map(([id, title, color]) => <span key={id}><i class={color} /> {title}</span>)}</span>
);

const duration3 = (seconds: number) => (seconds < 1 ? `${(1000 * seconds).toFixed(seconds < 0.01 ? 2 : 1)} ms` : duration(seconds));

function difference(slow: Bar, median: Bar, legend: readonly (readonly [string, string, string])[]): string {
  const gaps = slow.parts.map((part, at) => part - median.parts[at]!);
  const most = gaps.indexOf(Math.max(...gaps));
  return `${legend[most]![1].toLowerCase()} (+${duration3(gaps[most]!)})`;
}
