/* Numbers, sizes and times for people. */

export function short(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  for (const [bound, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]] as const)
    if (size >= bound) return `${(value / (unit === "k" ? 1e3 : bound)).toFixed(1)}${unit}`;
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return Number.isInteger(value) ? String(value) : size >= 100 ? value.toFixed(0) : size >= 1 ? value.toFixed(1) : value.toFixed(3);
}

export const whole = (value: number) => Math.round(value).toLocaleString("en");
export const percent = (share: number, digits = 0) => `${(100 * share).toFixed(digits)}%`;

export function bytes(size: number | null | undefined): string {
  if (size === null || size === undefined) return "–";
  for (const [bound, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]] as const)
    if (size >= bound) return `${(size / bound).toFixed(size / bound >= 100 ? 0 : 1)} ${unit}`;
  return `${Math.round(size)} B`;
}

export function duration(seconds: number): string {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${seconds.toFixed(0)} s`;
  if (seconds < 7200) return `${(seconds / 60).toFixed(1)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} d`;
}

export const clock = (at: number) => new Date(at * 1000).toTimeString().slice(0, 8);

export function date(at: number): string {
  const time = new Date(at * 1000);
  const day = `${time.getFullYear()}-${String(time.getMonth() + 1).padStart(2, "0")}-${String(time.getDate()).padStart(2, "0")}`;
  return `${day} ${clock(at)}`;
}

export const plural = (count: number, noun: string) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
