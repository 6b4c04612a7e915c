/* The logs of all roles, with a filter; an event leads to the lines around its time. */

import { useEffect, useRef, useState } from "preact/hooks";
import { get, jobPath } from "../api";
import { date } from "../format";
import type { ViewProps } from "../main";
import { Empty } from "../parts";
import type { LogPage, LogText } from "../types";

const EVERY_MS = 2000;
const AROUND_S = 10;
const STAMP = /^(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d),(\d{3}) (\w+)/;

/** Time of a line that Springtide logged, in seconds; a script's own line has none. */
export function timeOf(line: LogText): number | null {
  const found = STAMP.exec(line.text);
  return found ? Date.parse(`${found[1]}T${found[2]}.${found[3]}`) / 1000 : null;
}

export function Logs({ job, live, options }: ViewProps) {
  const [page, setPage] = useState<LogPage | null>(null);
  const [error, setError] = useState("");
  const [role, setRole] = useState(options.get("role") ?? "");
  const [search, setSearch] = useState(options.get("search") ?? "");
  const [around, setAround] = useState(Number(options.get("around")) || 0);
  const list = useRef<HTMLOListElement>(null);
  const known = page?.roles ?? [];
  const asked = role && (!known.length || known.includes(role)) ? role : "";
  useEffect(() => {
    setRole(options.get("role") ?? "");
    setAround(Number(options.get("around")) || 0);
  }, [options.toString()]);
  useEffect(() => {
    const stop = new AbortController();
    const query = new URLSearchParams({ lines: around ? "2000" : "300", ...(asked && { role: asked }), ...(search && { search }) });
    const read = () =>
      get<LogPage>(`${jobPath(job)}/logs?${query}`, stop.signal).then(
        (found) => (setPage(found), setError("")),
        (problem: Error) => stop.signal.aborted || setError(problem.message),
      );
    const first = setTimeout(read, search ? 250 : 0);
    const timer = live.page.running && !around ? setInterval(read, EVERY_MS) : undefined;
    return () => (clearTimeout(first), clearInterval(timer), stop.abort());
  }, [job, asked, search, around, live.page.running]);
  const lines = (page?.lines ?? []).filter((line) => {
    const at = around ? timeOf(line) : null;
    return !around || (at !== null && Math.abs(at - around) <= AROUND_S);
  });
  return (
    <>
      <div class="head">
        <h1>Logs</h1>
        <label>Role{" "}
          <select value={asked} onChange={(event) => setRole(event.currentTarget.value)}>
            <option value="">all roles</option>
            {known.map((name) => <option key={name} value={name}>{name}</option>)}
          </select>
        </label>
        <input type="search" placeholder="Only lines that contain…" aria-label="Filter lines" value={search} onInput={(event) => setSearch(event.currentTarget.value)} />
        {around ? <button type="button" onClick={() => setAround(0)}>Show all times</button> : null}
      </div>
      {around ? <p class="dim">Lines within {AROUND_S} seconds of {date(around)}. A script's own lines have no time.</p> : null}
      {error ? <Empty>{error}</Empty> : null}
      {page && !lines.length ? <Empty>{search || around ? "No line matches." : "The logs are empty."}</Empty> : null}
      {page?.shortened ? <p class="dim">Not all lines are shown; choose a role, or use: springtide logs {job} ROLE</p> : null}
      <ol class="log" ref={list} tabIndex={0} aria-label="Log lines">
        {lines.map((line, at) => (
          <li key={at} class={/ (ERROR|CRITICAL) |Error:|^Traceback/.test(line.text) ? "error" : / WARNING /.test(line.text) ? "warning" : ""}>
            {asked ? null : <span class="dim role">{line.role}</span>}<span>{line.text}</span>
          </li>
        ))}
      </ol>
    </>
  );
}
