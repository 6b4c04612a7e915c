/* Small parts that all views share. */

import type { ComponentChildren } from "preact";
import type { MemberView } from "./types";

export const roleName = (member: MemberView) =>
  ["server", "worker", "data-worker"].includes(member.role.kind) ? `${member.role.kind}-${member.role.rank ?? 0}` : member.role.kind;

export function Card(props: { title: string; note?: ComponentChildren; children: ComponentChildren; wide?: boolean }) {
  return (
    <section class={props.wide ? "card wide" : "card"}>
      <h2>{props.title}</h2>
      {props.note ? <p class="dim note">{props.note}</p> : null}
      {props.children}
    </section>
  );
}

/** What is missing, and why. */
export const Empty = (props: { children: ComponentChildren }) => <p class="empty">{props.children}</p>;

export function Tile(props: { label: string; value: string; note?: string; tone?: string }) {
  return (
    <div class="tile">
      <dt>{props.label}</dt>
      <dd class={props.tone}>{props.value}</dd>
      {props.note ? <span class="dim">{props.note}</span> : null}
    </div>
  );
}

const TONES: Record<string, string> = {
  finished: "good", running: "good", starting: "warn", draining: "warn", failed: "bad", stopped: "dim",
  complete: "good", damaged: "bad", abandoned: "warn", joined: "good", gone: "dim", expected: "warn",
};

export const Badge = (props: { text: string }) => <span class={`badge ${TONES[props.text] ?? ""}`}>{props.text}</span>;

/** A bar that fills with a share; its meaning is also in its text. */
export function Meter(props: { share: number; label: string; tone?: string }) {
  const share = Math.max(0, Math.min(1, props.share));
  return (
    <span class="meter">
      <svg viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">
        <rect class="meter-back" width="100" height="6" />
        <rect class={`meter-fill ${props.tone ?? ""}`} width={100 * share} height="6" />
      </svg>
      <span>{props.label}</span>
    </span>
  );
}

export function Spark(props: { values: number[]; label: string }) {
  const { values } = props;
  if (values.length < 2) return <span class="dim">–</span>;
  const top = Math.max(...values) || 1;
  const points = values.map((value, at) => `${((100 * at) / (values.length - 1)).toFixed(1)},${(23 - (22 * value) / top).toFixed(1)}`);
  return (
    <svg class="spark" viewBox="0 0 100 24" preserveAspectRatio="none" role="img" aria-label={props.label}>
      <polyline points={points.join(" ")} fill="none" stroke="var(--blue)" stroke-width="1.5" vector-effect="non-scaling-stroke" />
    </svg>
  );
}

export function Facts(props: { facts: [string, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {props.facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** A field of an event as text. */
export function shown(value: unknown): string {
  if (typeof value === "string") return value;
  if (typeof value === "number") return Number.isInteger(value) ? value.toLocaleString("en") : String(Number(value.toPrecision(5)));
  if (Array.isArray(value)) return value.length ? value.map(shown).join("; ") : "none";
  if (value === null || value === undefined) return "none";
  return typeof value === "object" ? Object.entries(value).map(([name, part]) => `${name} ${shown(part)}`).join(", ") : String(value);
}
