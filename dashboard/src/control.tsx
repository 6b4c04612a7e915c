/* Orders to a running job, where the dashboard was started with --allow-control. */

import { useState } from "preact/hooks";
import { jobPath, post } from "./api";
import type { Done, JobPage } from "./types";

export function Control({ job, page }: { job: string; page: JobPage }) {
  const roles = page.status.roles ?? {};
  const [workers, setWorkers] = useState(roles.workers?.wanted ?? 1);
  const [servers, setServers] = useState(roles.servers?.wanted ?? 1);
  const [sure, setSure] = useState(false);
  const [said, setSaid] = useState("");
  const order = (what: string, body: object) =>
    post<Done>(`${jobPath(job)}/${what}`, body).then(
      (done) => setSaid(done.what),
      (problem: Error) => setSaid(problem.message),
    );
  return (
    <section class="card control" aria-label="Control">
      <label>Workers <input type="number" min="1" value={workers} onInput={(event) => setWorkers(Number(event.currentTarget.value))} /></label>
      <label>Servers <input type="number" min="1" value={servers} onInput={(event) => setServers(Number(event.currentTarget.value))} /></label>
      <button type="button" onClick={() => order("scale", { workers, servers })}>Scale</button>
      <button type="button" onClick={() => order("checkpoint", {})}>Checkpoint now</button>
      {sure ? (
        <>
          <button type="button" class="danger" onClick={() => (setSure(false), order("stop", {}))}>Stop {job}</button>
          <button type="button" onClick={() => setSure(false)}>Keep it</button>
        </>
      ) : (
        <button type="button" class="danger" onClick={() => setSure(true)}>Stop…</button>
      )}
      <span role="status" class="dim">{said}</span>
    </section>
  );
}
