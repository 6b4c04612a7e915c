/* CPU, memory and GPU of each role. */

import { useState } from "preact/hooks";
import { jobPath } from "../api";
import { bytes, duration, percent, plural } from "../format";
import { link, type ViewProps } from "../main";
import { Badge, Card, Empty, Meter, roleName } from "../parts";
import { usePoll } from "../poll";
import type { JobMap, MemberView } from "../types";

/** Cores that a role used between two statuses; null if unknown. */
export function coresOf(member: MemberView, before: MemberView | undefined, seconds: number): number | null {
  const same = before && (before.incarnation ?? 0) === (member.incarnation ?? 0);
  if (!same || !member.usage || !before.usage || seconds < 0.5) return null;
  return Math.max(0, ((member.usage.cpu_s ?? 0) - (before.usage.cpu_s ?? 0)) / seconds);
}

export function Nodes({ job, live }: ViewProps) {
  const [kind, setKind] = useState("");
  const members = live.page.status.members ?? [];
  const first = live.recent[0]!, seconds = live.page.now - first.now;
  const before = new Map((first.status.members ?? []).map((member) => [roleName(member), member]));
  const kinds = [...new Set(members.map((member) => member.role.kind))];
  const chosen = members.filter((member) => !kind || member.role.kind === kind);
  const { found: map } = usePoll<JobMap>(live.page.running ? `${jobPath(job)}/map` : "", 5000);
  const gpus = members.some((member) => member.usage?.gpu);
  if (!members.length) return <Empty>No roles are known: {live.page.running ? "the job has just begun." : "the command that ran the job was killed, so its last status is missing."}</Empty>;
  return (
    <>
      <div class="head">
        <h1>Nodes</h1>
        <div class="choices" role="group" aria-label="Kind">
          <button type="button" class="quiet" aria-pressed={!kind} onClick={() => setKind("")}>All</button>
          {kinds.map((each) => <button type="button" key={each} class="quiet" aria-pressed={each === kind} onClick={() => setKind(each)}>{each}s</button>)}
        </div>
        <span class="dim">{plural(chosen.length, "role")}{live.page.running ? "" : "; the figures are of the job's last status"}</span>
      </div>
      <Forecast map={map} running={live.page.running} />
      <Card title="CPU and memory">
        <div class="scroll"><table>
          <thead>
            <tr>
              <th>Role</th><th>State</th><th class="number">Life</th><th class="number">Process</th><th>CPU now</th><th class="number">CPU in all</th><th>Memory</th><th class="number">Held back</th>
              {gpus ? <th>GPU</th> : null}
            </tr>
          </thead>
          <tbody>
            {chosen.map((member) => <Row key={roleName(member)} job={job} member={member} cores={coresOf(member, before.get(roleName(member)), seconds)} gpus={gpus} />)}
          </tbody>
        </table></div>
      </Card>
    </>
  );
}

/** Whether a server will run out of memory, as the master's guard forecasts it. */
function Forecast({ map, running }: { map: JobMap | null; running: boolean }) {
  if (!running || !map) return null;
  const forecasts = map.memory ?? [];
  return (
    <Card title={map.short_of_memory ? "Memory will run out" : "Memory of servers ahead"}>
      {forecasts.length ? <ul>{forecasts.map((text) => <li key={text} class={text.includes("full after") ? "bad" : ""}>{text}</li>)}</ul> : <Empty>No forecast: it needs servers with a memory limit (--memory), and some measurements of their growth.</Empty>}
    </Card>
  );
}

function Row({ job, member, cores, gpus }: { job: string; member: MemberView; cores: number | null; gpus: boolean }) {
  const usage = member.usage, limit = usage?.cpu_limit, memory = usage?.memory_limit;
  const share = memory ? (usage!.memory ?? 0) / memory : null;
  return (
    <tr>
      <th scope="row"><a href={link(job, "logs", `role=${roleName(member)}`)}>{roleName(member)}</a></th>
      <td><Badge text={member.state || (member.joined ? "joined" : member.alive ? "expected" : "gone")} /></td>
      <td class="number">{member.incarnation ?? 0}</td>
      <td class="number">{member.pid || "–"}</td>
      <td>{cores === null ? "–" : limit ? <Meter share={cores / limit} label={`${cores.toFixed(2)} of ${limit} cores`} tone={cores > 0.95 * limit ? "warn" : ""} /> : `${cores.toFixed(2)} cores`}</td>
      <td class="number">{usage ? duration(usage.cpu_s ?? 0) : "–"}</td>
      <td>{!usage ? "–" : share !== null ? <Meter share={share} label={`${bytes(usage.memory)} of ${bytes(memory)}`} tone={share > 0.9 ? "bad" : share > 0.75 ? "warn" : ""} /> : bytes(usage.memory)}</td>
      <td class="number">{usage?.throttled_s ? duration(usage.throttled_s) : "–"}</td>
      {gpus ? <td>{usage?.gpu ? `${bytes(usage.gpu.memory)}${usage.gpu.busy == null ? "" : `, busy ${percent(usage.gpu.busy)}`}` : "–"}</td> : null}
    </tr>
  );
}
