/* The brain: all jobs that it plans, the resources that they hold, and who waits for what. */

import { bytes, duration, plural, short } from "../format";
import { Card, Empty, Facts, Meter } from "../parts";
import { usePoll } from "../poll";
import type { BrainStatus } from "../types";
import { shapeText } from "./plan";

export function Cluster() {
  const { found, error } = usePoll<BrainStatus>("/api/brain", 2000);
  if (!found) return <><div class="head"><h1>Cluster</h1></div><Empty>{error || "Asking the brain…"}</Empty></>;
  const { capacity, held, jobs = [] } = found;
  const waiting = jobs.filter((job) => job.promised);
  return (
    <>
      <div class="head"><h1>Cluster</h1><span class="dim">brain at {found.address}, up {duration(found.up_s)}</span></div>
      {error || found.trouble ? <p class="banner" role="status">{error || found.trouble}</p> : null}
      <Card title="Capacity">
        <Meter share={capacity.cpu ? held.cpu / capacity.cpu : 0} label={`${short(held.cpu)} of ${capacity.cpu === null ? "any number of" : short(capacity.cpu)} cores held or promised`} />
        <Meter share={capacity.memory ? held.memory / capacity.memory : 0} label={`${bytes(held.memory)} of ${capacity.memory === null ? "unlimited memory" : bytes(capacity.memory)}`} />
        <Facts facts={[["Decisions", `${short(found.decisions ?? 0)}, the last in ${duration(found.decision_s ?? 0)}`], ["Past jobs", short(found.past ?? 0)], ["Executors", `${found.executors.pids?.length ?? 0} of ${found.executors.wanted}`]]} />
      </Card>
      <Card title={plural(jobs.length, "live job")} note={waiting.length ? `${waiting.map((job) => job.name).join(", ")} will change` : undefined}>
        {jobs.length ? (
          <div class="scroll"><table>
            <thead><tr><th>Job</th><th>User</th><th>Stage</th><th>Shape now</th><th>Waits for</th><th>Last decision, and why</th><th class="number">Seen</th></tr></thead>
            <tbody>
              {jobs.map((job) => (
                <tr key={job.name}>
                  <th scope="row">{job.name}</th><td>{job.user || "–"}</td><td>{job.stage}</td>
                  <td>{job.shape ? shapeText(job.shape) : "–"}</td><td>{job.promised ? shapeText(job.promised) : "–"}</td>
                  <td>{[job.event, job.why].filter(Boolean).join(": ") || "–"}</td><td class="number nowrap">{duration(job.seen_s)} ago</td>
                </tr>
              ))}
            </tbody>
          </table></div>
        ) : <Empty>No job asks this brain now. Start one with: springtide run train.py --brain {found.address}</Empty>}
      </Card>
    </>
  );
}
