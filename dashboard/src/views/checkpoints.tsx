/* The job's checkpoints: what each has, where it is, whether it is intact, and how to continue from it. */

import { useEffect, useState } from "preact/hooks";
import { get, jobPath } from "../api";
import { bytes, date, duration, short } from "../format";
import type { ViewProps } from "../main";
import { Badge, Card, Empty } from "../parts";
import type { Checkpoint, CheckpointList } from "../types";

export function Checkpoints({ job, live }: ViewProps) {
  const [found, setFound] = useState<CheckpointList | null>(null);
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  const read = (verify: boolean) => {
    setBusy(verify);
    get<CheckpointList>(`${jobPath(job)}/checkpoints${verify ? "?verify=true" : ""}`)
      .then((list) => (setFound(list), setError("")), (problem: Error) => setError(problem.message))
      .finally(() => setBusy(false));
  };
  const news = live.events.findLast((event) => ["checkpoint", "uploaded"].includes(event.kind))?.number;
  useEffect(() => read(false), [job, news]);
  const rows = found?.checkpoints ?? [];
  return (
    <>
      <div class="head">
        <h1>Checkpoints</h1>
        <button type="button" onClick={() => read(true)} disabled={busy || !rows.length}>{busy ? "Verifying…" : "Verify all checksums"}</button>
      </div>
      {live.page.status.checkpoints?.trouble ? <p class="banner" role="status">{live.page.status.checkpoints.trouble}</p> : null}
      {error ? <Empty>{error}</Empty> : null}
      {found && !rows.length ? <Empty>The job has no checkpoint yet. It makes one every 30 seconds unless --checkpoint-every says otherwise.</Empty> : null}
      {found?.resume ? <Card title="Continue from the newest"><code class="command">{found.resume}</code></Card> : null}
      {rows.length ? (
        <Card title="All checkpoints" note={live.page.platform === "local" ? undefined : "The files of a job on a cluster are not checked here."}>
          <div class="scroll"><table>
            <thead>
              <tr><th class="number">Number</th><th>Begun</th><th>Outcome</th><th>Kind</th><th class="number">Size</th><th class="number">Took</th><th class="number">Samples</th><th>Files</th><th>Copied to</th></tr>
            </thead>
            <tbody>{rows.toReversed().map((row) => <Row key={row.number} row={row} />)}</tbody>
          </table></div>
        </Card>
      ) : null}
    </>
  );
}

function Row({ row }: { row: Checkpoint }) {
  const there = !row.kept ? "deleted, a newer one exists" : row.apart.length ? `on the disks of ${row.apart.join(", ")}` : row.where;
  return (
    <tr>
      <td class="number">{row.number}</td>
      <td class="nowrap">{row.at ? date(row.at) : "–"}</td>
      <td><Badge text={row.outcome} />{row.verified ? " verified" : ""}{row.why ? <div class="small">{row.why}</div> : null}</td>
      <td>{row.kind || "–"}</td>
      <td class="number">{row.bytes ? bytes(row.bytes) : "–"}</td>
      <td class="number">{row.seconds ? duration(row.seconds) : "–"}</td>
      <td class="number">{row.samples ? short(row.samples) : "–"}</td>
      <td class={row.kept ? "" : "dim"}>{row.outcome === "complete" ? there : "–"}</td>
      <td>{row.uploaded || "–"}</td>
    </tr>
  );
}
