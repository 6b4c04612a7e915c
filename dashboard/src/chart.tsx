/* Line charts over time (uPlot), with markers that can be clicked. */

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { clock, short } from "./format";

export interface Line {
  name: string;
  color: string; // name of a CSS variable, such as "blue"
  at: number[];
  values: (number | null)[];
  steps?: boolean;
  dashed?: boolean;
  fillTo?: string; // fill between this line and the line of that name
}

export interface Marker {
  at: number;
  id: number;
  tone: string;
}

interface ChartProps {
  label: string;
  lines: Line[];
  markers?: Marker[];
  selected?: number | null;
  onMarker?: (id: number) => void;
  unit?: (value: number) => string;
  height?: number;
  level?: { value: number; color: string };
}

const css = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Put lines with different times on one axis: uPlot wants one column of times. */
function columns(lines: Line[]): uPlot.AlignedData {
  if (lines.every((line) => line.at === lines[0]?.at)) return [lines[0]?.at ?? [], ...lines.map((line) => line.values)] as uPlot.AlignedData;
  return uPlot.join(lines.map((line) => [line.at, line.values] as uPlot.AlignedData));
}

export function Chart(props: ChartProps) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const now = useRef(props);
  now.current = props;
  const shape = props.lines.map((line) => line.name + line.color).join("|") + document.documentElement.dataset.theme;

  useEffect(() => {
    const element = place.current!;
    const made = new uPlot(options(now, element.clientWidth, props.height ?? 180), columns(now.current.lines), element);
    plot.current = made;
    const sized = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: props.height ?? 180 }));
    sized.observe(element);
    const click = (event: MouseEvent) => {
      const marker = nearest(made, now.current.markers ?? [], event);
      if (marker) now.current.onMarker?.(marker.id);
    };
    made.over.addEventListener("click", click);
    return () => {
      sized.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape]);
  useEffect(() => {
    const made = plot.current;
    if (!made) return;
    // do not disturb a zoomed chart: a double click shows everything again
    const before = made.data[0];
    const { min, max } = made.scales.x!;
    const zoomed = min != null && max != null && before.length > 1 && (min > before[0]! || max < before.at(-1)!);
    made.setData(columns(props.lines), !zoomed);
    if (zoomed) made.redraw();
  });
  const last = props.lines
    .map((line) => [line.name, line.values.findLast((value) => value !== null)] as const)
    .filter(([, value]) => value !== undefined)
    .map(([name, value]) => `${name} ${(props.unit ?? short)(value!)}`);
  return (
    <div class="chart" role="img" aria-label={`${props.label}: ${last.join(", ") || "no values"}`}>
      <div ref={place} />
    </div>
  );
}

function options(now: { current: ChartProps }, width: number, height: number): uPlot.Options {
  const props = now.current;
  const unit = (value: number | null) => (value === null || value === undefined ? "" : (now.current.unit ?? short)(value));
  const axis = { stroke: css("dim"), grid: { stroke: css("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
  return {
    width: Math.max(100, width),
    height,
    padding: [8, 10, 0, 0],
    cursor: { points: { size: 6 }, drag: { x: true, y: false, dist: 5 } },
    legend: { live: true },
    axes: [
      { ...axis, values: (_, times) => times.map((at) => clock(at)), space: 80, size: 30 },
      { ...axis, values: (_, values) => values.map(unit), size: 56 },
    ],
    scales: { x: { time: true }, y: { range: (_, low, high) => range(now.current, low, high) } },
    series: [
      { label: "time", value: (_, at) => (at === null ? "" : clock(at)) },
      ...props.lines.map((line) => ({
        label: line.name,
        stroke: css(line.color),
        width: 1.6,
        dash: line.dashed ? [6, 4] : undefined,
        points: { show: line.values.length < 2 },
        spanGaps: true,
        paths: line.steps ? uPlot.paths.stepped!({ align: 1 }) : undefined,
        value: (_: uPlot, value: number | null) => unit(value),
      })),
    ],
    bands: props.lines.flatMap((line, at) => {
      const other = props.lines.findIndex((candidate) => candidate.name === line.fillTo);
      return other < 0 ? [] : [{ series: [at + 1, other + 1] as [number, number], fill: css(line.color) + "26" }];
    }),
    hooks: { draw: [(made) => drawMarkers(made, now.current)] },
  };
}

function range(props: ChartProps, low: number | null, high: number | null): [number, number] {
  const most = Math.max(high ?? 1, props.level && high && props.level.value < 4 * high ? props.level.value : 0);
  const least = Math.min(0, low ?? 0);
  return [least, most > least ? most + (most - least) * 0.06 : least + 1];
}

function drawMarkers(made: uPlot, props: ChartProps) {
  const { ctx, bbox } = made;
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.setLineDash([]);
  if (props.level) {
    const y = Math.round(made.valToPos(props.level.value, "y", true));
    ctx.strokeStyle = css(props.level.color);
    ctx.setLineDash([5 * ratio, 4 * ratio]);
    ctx.beginPath();
    ctx.moveTo(bbox.left, y);
    ctx.lineTo(bbox.left + bbox.width, y);
    if (y >= bbox.top) ctx.stroke();
    ctx.setLineDash([]);
  }
  for (const marker of props.markers ?? []) {
    const x = Math.round(made.valToPos(marker.at, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    const chosen = marker.id === props.selected;
    ctx.strokeStyle = ctx.fillStyle = css(marker.tone);
    ctx.globalAlpha = chosen ? 1 : 0.55;
    ctx.lineWidth = (chosen ? 2 : 1) * ratio;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.globalAlpha = 1;
    ctx.beginPath();
    ctx.arc(x, bbox.top + 4 * ratio, (chosen ? 5 : 4) * ratio, 0, 2 * Math.PI);
    ctx.fill();
  }
  ctx.restore();
}

function nearest(made: uPlot, markers: Marker[], event: MouseEvent): Marker | undefined {
  const x = event.clientX - made.over.getBoundingClientRect().left;
  const near = markers.map((marker) => ({ marker, far: Math.abs(made.valToPos(marker.at, "x") - x) })).filter(({ far }) => far < 8);
  return near.sort((one, other) => one.far - other.far)[0]?.marker;
}
