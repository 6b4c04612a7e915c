/* A grid of colored cells, for thousands of shards or slots: one canvas instead of as many elements. */

import { useEffect, useRef, useState } from "preact/hooks";

interface GridProps {
  label: string;
  colors: (string | null)[]; // names of CSS variables, one a cell
  shades?: number[]; // opacity of each cell
  size?: number;
  rows?: string[]; // one line of cells each, with these names
  onPoint?: (cell: number | null) => void;
}

export const css = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

export function Grid(props: GridProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(600);
  const size = props.size ?? 9;
  const columns = Math.max(1, Math.floor(width / size));
  const count = props.colors.length;
  const height = Math.max(size, Math.ceil(count / columns) * size);
  useEffect(() => {
    const element = canvas.current!.parentElement!;
    const sized = new ResizeObserver(() => setWidth(element.clientWidth));
    sized.observe(element);
    return () => sized.disconnect();
  }, []);
  useEffect(() => {
    const element = canvas.current!, ratio = devicePixelRatio;
    element.width = width * ratio;
    element.height = height * ratio;
    element.style.height = `${height}px`;
    const context = element.getContext("2d")!;
    context.scale(ratio, ratio);
    const known = new Map<string, string>();
    props.colors.forEach((name, cell) => {
      if (name === null) return;
      if (!known.has(name)) known.set(name, css(name));
      context.fillStyle = known.get(name)!;
      context.globalAlpha = props.shades?.[cell] ?? 1;
      context.fillRect((cell % columns) * size, Math.floor(cell / columns) * size, size - 1, size - 1);
    });
  });
  const point = (event: PointerEvent) => {
    const cell = Math.floor(event.offsetY / size) * columns + Math.floor(event.offsetX / size);
    props.onPoint?.(event.offsetX < columns * size && cell < count ? cell : null);
  };
  return (
    <div class="grid">
      <canvas ref={canvas} role="img" aria-label={props.label} onPointerMove={point} onPointerLeave={() => props.onPoint?.(null)} />
    </div>
  );
}
