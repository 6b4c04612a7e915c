/* The tables: rows and bytes of each server, which slots are hot, where every slot is, and what the row cache saves. */

import { useState } from "preact/hooks";
import { jobPath } from "../api";
import { Grid } from "../canvas";
import { bytes, percent, plural, short } from "../format";
import type { ViewProps } from "../main";
import { Card, Empty, Facts, Meter, roleName } from "../parts";
import { usePoll } from "../poll";
import type { JobMap, MemberView, SlotMap } from "../types";

const COLORS = ["blue", "green", "orange", "purple", "teal", "red", "edge", "dim"];
const HOT = 8;

export function Tables({ job, live }: ViewProps) {
  const { page } = live;
  const { found: map, error } = usePoll<JobMap>(page.running ? `${jobPath(job)}/map` : "", 1500);
  const servers = (page.status.members ?? []).filter((member) => member.role.kind === "server" && member.report?.counters?.rows !== undefined);
  const slots = map?.slots;
  return (
    <>
      <div class="head"><h1>Tables</h1></div>
      <Rows servers={servers} earlier={live.recent[0]!.status.members ?? []} seconds={page.now - live.recent[0]!.now} />
      {slots?.owners?.length ? (
        <>
          <Placement slots={slots} />
          <HotSlots slots={slots} />
        </>
      ) : (
        <Card title="Placement"><Empty>{page.running ? error || "No server has joined yet." : "The job is over; the placement of slots is known only while its master runs."}</Empty></Card>
      )}
      <Cache live={live} />
    </>
  );
}

function Rows({ servers, earlier, seconds }: { servers: MemberView[]; earlier: MemberView[]; seconds: number }) {
  if (!servers.length) return <Card title="Rows"><Empty>No server has reported its tables. A job without embedding tables has no rows.</Empty></Card>;
  const sum = (name: string) => servers.reduce((total, server) => total + (server.report!.counters![name] ?? 0), 0);
  const most = Math.max(...servers.map((server) => server.report!.counters!.table_bytes ?? 0), 1);
  const growth = (server: MemberView) => {
    const before = earlier.find((member) => roleName(member) === roleName(server) && member.incarnation === server.incarnation)?.report?.counters?.rows;
    return before === undefined || seconds < 1 ? null : (server.report!.counters!.rows! - before) / seconds;
  };
  return (
    <Card title={`${short(sum("rows"))} rows, ${bytes(sum("table_bytes"))}`}>
      <div class="scroll"><table>
        <thead><tr><th>Server</th><th class="number">Rows</th><th class="number">Growth</th><th>Memory of tables</th><th class="number">Created</th><th class="number">Evicted</th></tr></thead>
        <tbody>
          {servers.map((server) => {
            const counters = server.report!.counters!, grown = growth(server);
            return (
              <tr key={roleName(server)}>
                <th scope="row">{roleName(server)}</th>
                <td class="number">{short(counters.rows)}</td>
                <td class="number">{grown === null ? "–" : `${short(grown)} rows/s`}</td>
                <td><Meter share={(counters.table_bytes ?? 0) / most} label={bytes(counters.table_bytes)} /></td>
                <td class="number">{short(counters.created)}</td>
                <td class="number">{short(counters.evicted)}</td>
              </tr>
            );
          })}
        </tbody>
      </table></div>
    </Card>
  );
}

function Placement({ slots }: { slots: SlotMap }) {
  const [pointed, setPointed] = useState<number | null>(null);
  const owners = slots.owners!, goals = slots.goals ?? {};
  const ranks = [...new Set(owners)].sort((one, other) => one - other);
  const color = (rank: number) => COLORS[rank % COLORS.length]!;
  const moving = Object.keys(goals).length;
  const text = (slot: number) => {
    const goal = goals[slot as unknown as keyof typeof goals];
    return `slot ${slot} on server-${owners[slot]}: ${bytes(slots.bytes![slot])}, ${short(slots.requests![slot])} keys a report${goal === undefined ? "" : `, moves to server-${goal}`}`;
  };
  return (
    <Card title={`Placement of ${owners.length} slots`} note={moving ? `${plural(moving, "slot")} moving; they are pale until they have arrived.` : "No slot moves."}>
      <p class="legend">{ranks.map((rank) => <span key={rank}><i class={color(rank)} /> server-{rank}: {owners.filter((owner) => owner === rank).length}</span>)}</p>
      <Grid label={`Slots by server: ${ranks.map((rank) => `server-${rank} has ${owners.filter((owner) => owner === rank).length}`).join(", ")}`} colors={owners.map(color)} shades={owners.map((_, slot) => (slot in goals ? 0.35 : 1))} size={owners.length > 2048 ? 8 : 12} onPoint={setPointed} />
      <p class="dim chosen-text" aria-live="polite">{pointed === null ? "Point at a slot to read its load." : text(pointed)}</p>
    </Card>
  );
}

function HotSlots({ slots }: { slots: SlotMap }) {
  const requests = slots.requests!, total = requests.reduce((sum, each) => sum + each, 0);
  if (!total) return <Card title="Hot slots"><Empty>No requests are counted yet.</Empty></Card>;
  const hot = requests.map((keys, slot) => ({ slot, keys })).sort((one, other) => other.keys - one.keys).slice(0, HOT);
  const mean = total / requests.length;
  return (
    <Card title="Hot slots" note={`The mean slot has ${short(mean)} keys a report.`}>
      <div class="scroll"><table>
        <thead><tr><th class="number">Slot</th><th>Server</th><th>Keys pulled and pushed, a report</th><th class="number">Against the mean</th><th class="number">Bytes</th></tr></thead>
        <tbody>
          {hot.map(({ slot, keys }) => (
            <tr key={slot}>
              <td class="number">{slot}</td><td>server-{slots.owners![slot]}</td>
              <td><Meter share={keys / hot[0]!.keys} label={short(keys)} /></td>
              <td class="number">{(keys / mean).toFixed(1)} ×</td><td class="number">{bytes(slots.bytes![slot])}</td>
            </tr>
          ))}
        </tbody>
      </table></div>
    </Card>
  );
}

function Cache({ live }: { live: ViewProps["live"] }) {
  const cache = live.page.status.training?.cache;
  if (!cache) return <Card title="Row cache"><Empty>No worker caches rows: caches are for bsp groups, with --cache.</Empty></Card>;
  const asked = (cache.hits ?? 0) + (cache.pulled ?? 0);
  return (
    <Card title={cache.on ? "Row cache" : "Row cache: off"} note={cache.why}>
      {asked ? <Meter share={(cache.hits ?? 0) / asked} label={`${percent((cache.hits ?? 0) / asked, 1)} of the rows came from the cache`} /> : null}
      <Facts facts={[["Rows kept", `${short(cache.rows)} of ${short(cache.size)}`], ["Found in the cache", short(cache.hits)], ["Pulled", short(cache.pulled)], ["Pushed", short(cache.pushed)]]} />
    </Card>
  );
}
