/* All jobs, with a search. */

import { useEffect, useState } from "preact/hooks";
import { get } from "../api";
import { date, duration, short } from "../format";
import { link } from "../main";
import { Badge, Empty, Spark } from "../parts";
import type { JobList, JobRow, ServerInfo } from "../types";

const EVERY_MS = 3000;

export function Jobs(props: { info: ServerInfo }) {
  const [jobs, setJobs] = useState<JobRow[] | null>(null);
  const [error, setError] = useState("");
  const [search, setSearch] = useState("");
  useEffect(() => {
    const stop = new AbortController();
    const read = () =>
      get<JobList>("/api/jobs", stop.signal).then(
        (found) => (setJobs(found.jobs), setError("")),
        (problem: Error) => stop.signal.aborted || setError(problem.message),
      );
    void read();
    const timer = setInterval(read, EVERY_MS);
    return () => (clearInterval(timer), stop.abort());
  }, []);
  const words = search.toLowerCase().split(/\s+/);
  const found = (jobs ?? []).filter((job) => words.every((word) => `${job.name} ${job.phase} ${job.script} ${job.platform}`.toLowerCase().includes(word)));
  return (
    <>
      <div class="head">
        <h1>Jobs</h1>
        <input type="search" placeholder="Search by name, state or script" aria-label="Search jobs" value={search} onInput={(event) => setSearch(event.currentTarget.value)} />
      </div>
      {error ? <p class="banner" role="status">{error}</p> : null}
      {jobs && !jobs.length ? <Empty>No jobs in {props.info.folder}. Start one with: springtide run train.py</Empty> : null}
      {jobs?.length && !found.length ? <Empty>No job matches “{search}”.</Empty> : null}
      {found.length ? (
        <div class="scroll">
          <table>
            <thead>
              <tr>
                <th>Job</th><th>State</th><th>Progress</th><th class="number">Samples</th><th class="number">Samples/s</th><th>Speed over time</th><th class="number">Ran for</th><th>Began</th>
              </tr>
            </thead>
            <tbody>{found.map((job) => <Row key={job.name} job={job} />)}</tbody>
          </table>
        </div>
      ) : null}
    </>
  );
}

function Row({ job }: { job: JobRow }) {
  return (
    <tr>
      <td><a href={link(job.name)}>{job.name}</a><div class="dim small">{job.script}{job.platform === "local" ? "" : `, on ${job.platform}`}</div></td>
      <td><Badge text={job.phase} />{job.phase === "failed" ? <div class="small">{job.why}</div> : null}</td>
      <td>{job.shards_total ? `${short(job.shards_done)} of ${short(job.shards_total)} shards` : "–"}</td>
      <td class="number">{short(job.samples)}</td>
      <td class="number">{short(job.samples_per_s)}</td>
      <td><Spark values={job.spark as number[]} label={`Samples per second of ${job.name} over time`} /></td>
      <td class="number">{duration(job.elapsed_s)}</td>
      <td class="nowrap">{date(job.began_at)}</td>
    </tr>
  );
}
