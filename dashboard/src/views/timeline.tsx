/* The life of each role on one axis that can be zoomed: joins, kills, migrations, checkpoints and decisions. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { clock, duration } from "../format";
import { link, type ViewProps } from "../main";
import { Card, Empty } from "../parts";
import type { EventRow } from "../types";
import { decisionsOf } from "./overview";

interface Span {
  row: string;
  from: number;
  to: number | null;
  label: string;
}

interface Point {
  row: string;
  event: EventRow;
  tone: string;
}

const ROW = 18, LEFT = 104, TOP = 22;
const ORDER = ["decisions", "checkpoints", "slots", "master", "server", "worker", "data-worker"];

/** Lives of roles, from their joins to their ends, and single events. */
export function livesOf(events: EventRow[], began: number): { spans: Span[]; points: Point[] } {
  const open = new Map<string, Span>(), spans: Span[] = [], points: Point[] = [];
  const begin = (row: string, life: string, at: number, label: string) => {
    const span: Span = { row, from: at, to: null, label };
    open.set(life, span);
    spans.push(span);
  };
  const end = (life: string, event: EventRow, label: string) => {
    const span = open.get(life);
    if (!span) return;
    open.delete(life);
    Object.assign(span, { to: event.at, label: `${span.label}; ${label}` });
  };
  begin("master", "master", began, "master 1");
  for (const event of events) {
    const inputs = event.inputs ?? {};
    const life = `${event.role}.${inputs.incarnation ?? 0}`;
    const killed = /killed|signal|for lack of memory/.test(String(inputs.how ?? ""));
    switch (event.kind) {
      case "joined":
      case "reconnected":
        if (!open.has(life)) begin(event.role!, life, event.at, `${life}, process ${inputs.pid}`);
        break;
      case "exited":
        if (killed) points.push({ row: event.role!, event, tone: "red" });
        end(life, event, String(inputs.how));
        break;
      case "master":
        end("master", event, "replaced");
        begin("master", "master", event.at, `master ${inputs.term}`);
        points.push({ row: "master", event, tone: "red" });
        break;
      case "checkpoint":
        points.push({ row: "checkpoints", event, tone: inputs.outcome === "complete" ? "green" : "orange" });
        break;
      case "moved":
        points.push({ row: "slots", event, tone: "teal" });
        break;
    }
  }
  for (const event of decisionsOf(events)) points.push({ row: "decisions", event, tone: "orange" });
  return { spans, points };
}

function rowsOf(spans: Span[], points: Point[]): string[] {
  const names = [...new Set([...spans, ...points].map(({ row }) => row))];
  const rank = (name: string): number => {
    const at = ORDER.indexOf(name.replace(/-\d+$/, ""));
    return 1e6 * (at < 0 ? ORDER.length : at) + Number(/\d+$/.exec(name)?.[0] ?? 0);
  };
  return names.sort((one, other) => rank(one) - rank(other));
}

export function Timeline({ job, live, options }: ViewProps) {
  const began = live.page.began_at;
  const over = live.events.at(-1)?.at ?? live.page.now;
  const until = live.page.running ? live.page.now : over;
  const found = useMemo(() => livesOf(live.events, began), [live.events, began]);
  const rows = useMemo(() => rowsOf(found.spans, found.points), [found]);
  const at = Number(options.get("at")) || 0;
  const [view, setView] = useState<[number, number] | null>(at ? [at - 15, at + 15] : null);
  const [chosen, setChosen] = useState<{ text: string; event?: EventRow } | null>(null);
  useEffect(() => setView(at ? [at - 15, at + 15] : null), [at]);
  const [from, to] = view ?? [began, Math.max(until, began + 1)];
  const zoom = (factor: number, center = (from + to) / 2) => {
    const span = Math.min(Math.max(0.05, (to - from) * factor), until - began + 1);
    const start = Math.max(began, Math.min(center - ((center - from) / (to - from)) * span, until - span));
    setView(span >= until - began ? null : [start, start + span]);
  };
  const move = (share: number) => {
    const by = Math.max(began - from, Math.min(share * (to - from), until - to));
    if (view) setView([from + by, to + by]);
  };
  const keys = (event: KeyboardEvent) => {
    const act = { "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), "0": () => setView(null) }[event.key];
    if (act) (event.preventDefault(), act());
  };
  if (!live.events.length) return <Empty>The job has no events yet.</Empty>;
  return (
    <>
      <div class="head">
        <h1>Timeline</h1>
        <div class="choices" role="group" aria-label="Zoom">
          <button type="button" class="quiet" onClick={() => zoom(0.5)}>Zoom in</button>
          <button type="button" class="quiet" onClick={() => zoom(2)} disabled={!view}>Zoom out</button>
          <button type="button" class="quiet" onClick={() => move(-0.5)} disabled={!view}>Earlier</button>
          <button type="button" class="quiet" onClick={() => move(0.5)} disabled={!view}>Later</button>
          <button type="button" class="quiet" onClick={() => setView(null)} disabled={!view}>All</button>
        </div>
        <span class="dim">{clock(from)} to {clock(to)}, {duration(to - from)}</span>
      </div>
      <Card title={`${rows.length} rows`} note="Scroll with Ctrl or pinch to zoom, drag to move; with the keyboard: + − ← → 0.">
        <Lanes rows={rows} spans={found.spans} points={found.points} from={from} to={to} until={until} onZoom={zoom} onMove={move} onChoose={setChosen} onKey={keys} />
        <p class="chosen-text" aria-live="polite">
          {chosen ? chosen.text : <span class="dim">Point at a bar or a dot to read what happened.</span>}
          {chosen?.event ? <> <a href={link(job, "logs", `around=${chosen.event.at}${chosen.event.role ? `&role=${chosen.event.role}` : ""}`)}>Logs at this time</a></> : null}
        </p>
      </Card>
      <details>
        <summary>All lives as a table</summary>
        <div class="scroll"><table>
          <thead><tr><th>Role</th><th>From</th><th class="number">Lived</th><th>What</th></tr></thead>
          <tbody>{found.spans.map((span, index) => <tr key={index}><th scope="row">{span.row}</th><td>{clock(span.from)}</td><td class="number">{duration((span.to ?? until) - span.from)}</td><td>{span.label}</td></tr>)}</tbody>
        </table></div>
      </details>
    </>
  );
}

interface LanesProps {
  rows: string[];
  spans: Span[];
  points: Point[];
  from: number;
  to: number;
  until: number;
  onZoom: (factor: number, center: number) => void;
  onMove: (share: number) => void;
  onChoose: (chosen: { text: string; event?: EventRow } | null) => void;
  onKey: (event: KeyboardEvent) => void;
}

function Lanes(props: LanesProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(800);
  const drag = useRef<number | null>(null);
  const { from, to, rows } = props;
  const x = (at: number) => LEFT + ((at - from) / (to - from)) * (width - LEFT - 8);
  const timeAt = (pixel: number) => from + ((pixel - LEFT) / (width - LEFT - 8)) * (to - from);
  useEffect(() => {
    const element = canvas.current!.parentElement!;
    const sized = new ResizeObserver(() => setWidth(element.clientWidth));
    sized.observe(element);
    const wheel = (event: WheelEvent) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      latest.current.onZoom(event.deltaY > 0 ? 1.25 : 0.8, latest.current.timeAt(event.offsetX));
    };
    const target = canvas.current!;
    target.addEventListener("wheel", wheel, { passive: false });
    return () => (sized.disconnect(), target.removeEventListener("wheel", wheel));
  }, []);
  const latest = useRef({ onZoom: props.onZoom, timeAt });
  latest.current = { onZoom: props.onZoom, timeAt };
  const height = TOP + ROW * rows.length + 4;
  useEffect(() => draw(canvas.current!, width, height, x, props));
  const choose = (event: MouseEvent) => {
    const row = rows[Math.floor((event.offsetY - TOP) / ROW)];
    const point = props.points.filter((each) => each.row === row && Math.abs(x(each.event.at) - event.offsetX) < 7).at(-1);
    const span = props.spans.findLast((each) => each.row === row && x(each.from) <= event.offsetX && x(each.to ?? props.until) >= event.offsetX);
    if (point) props.onChoose({ text: `${clock(point.event.at)}  ${textOf(point.event)}`, event: point.event });
    else if (span) props.onChoose({ text: `${span.label}, ${duration((span.to ?? props.until) - span.from)}` });
  };
  const moved = (event: PointerEvent) => {
    if (drag.current === null) return event.pointerType === "mouse" ? choose(event) : undefined;
    props.onMove((drag.current - event.offsetX) / (width - LEFT));
    drag.current = event.offsetX;
  };
  return (
    <div class="lanes">
      <canvas
        ref={canvas}
        tabIndex={0}
        role="img"
        aria-label={`Lives of ${rows.length} roles; the table below has the same`}
        onKeyDown={props.onKey}
        onClick={choose}
        onPointerDown={(event) => (drag.current = event.offsetX)}
        onPointerMove={moved}
        onPointerUp={() => (drag.current = null)}
        onPointerLeave={() => (drag.current = null)}
      />
    </div>
  );
}

const textOf = (event: EventRow) =>
  event.text || event.why || [event.kind, event.role, ...Object.entries(event.inputs ?? {}).slice(0, 6).map(([name, value]) => `${name} ${String(value)}`)].filter(Boolean).join(", ");

function draw(canvas: HTMLCanvasElement, width: number, height: number, x: (at: number) => number, props: LanesProps) {
  const ratio = devicePixelRatio;
  if (canvas.width !== width * ratio || canvas.height !== height * ratio) {
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const style = getComputedStyle(document.documentElement);
  const color = (name: string) => style.getPropertyValue(`--${name}`).trim();
  const context = canvas.getContext("2d")!;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  const ticks = Math.max(2, Math.floor((width - LEFT) / 110));
  for (let tick = 0; tick <= ticks; tick++) {
    const at = props.from + (tick / ticks) * (props.to - props.from);
    context.fillStyle = color("line");
    context.fillRect(Math.round(x(at)), TOP - 6, 1, height - TOP + 6);
    context.fillStyle = color("dim");
    context.textAlign = tick === 0 ? "left" : tick === ticks ? "right" : "center";
    context.fillText(clock(at), x(at), 8);
  }
  const place = new Map(props.rows.map((row, index) => [row, TOP + ROW * index]));
  context.textAlign = "left";
  for (const [row, y] of place) {
    context.fillStyle = color("ink");
    context.fillText(row, 0, y + ROW / 2, LEFT - 8);
  }
  context.save();
  context.beginPath();
  context.rect(LEFT, 0, width - LEFT, height);
  context.clip();
  for (const span of props.spans) {
    const y = place.get(span.row)!, left = x(span.from), right = x(span.to ?? props.until);
    if (right < LEFT || left > width) continue;
    context.fillStyle = color("blue");
    context.globalAlpha = 0.6;
    context.fillRect(left, y + 4, Math.max(2, right - left), ROW - 8);
  }
  context.globalAlpha = 1;
  for (const point of props.points) {
    const at = x(point.event.at);
    if (at < LEFT - 5 || at > width + 5) continue;
    context.fillStyle = color(point.tone);
    context.beginPath();
    context.arc(at, place.get(point.row)! + ROW / 2, 4, 0, 2 * Math.PI);
    context.fill();
  }
  context.restore();
}
