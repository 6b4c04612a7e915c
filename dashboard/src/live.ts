/* The state of the job that is shown: a whole update first, then what is new each second. */

import { useEffect, useState } from "preact/hooks";
import { Refused, jobPath, listen } from "./api";
import type { Forecast, EventRow, JobPage, LiveUpdate, OnlinePoint, ProgressPoint } from "./types";

const RETRY_MS = 2000;
const RECENT = 15; // pages to keep, one a second, for rates over the last seconds
const MOST_POINTS = 8000;
const MOST_EVENTS = 4000;

export interface Live {
  page: JobPage;
  recent: JobPage[];
  progress: ProgressPoint[];
  online: OnlinePoint[];
  forecast: Forecast | null;
  predicted: [number, number][];
  events: EventRow[];
}

export interface LiveState {
  live: Live | null;
  error: string;
  status: number;
}

export function merge(before: Live | null, update: LiveUpdate): Live {
  const { page, history, events } = update;
  const base = update.whole ? null : before;
  return {
    page,
    recent: [...(base?.recent ?? []), page].slice(-RECENT),
    progress: [...(base?.progress ?? []), ...history.progress!].slice(-MOST_POINTS),
    online: [...(base?.online ?? []), ...history.online!].slice(-MOST_POINTS),
    forecast: history.forecast ?? null,
    predicted: history.predicted as [number, number][],
    events: [...(base?.events ?? []), ...events].slice(-MOST_EVENTS),
  };
}

export function useLive(job: string): LiveState {
  const [state, setState] = useState<LiveState>({ live: null, error: "", status: 0 });
  useEffect(() => {
    const stop = new AbortController();
    let live: Live | null = null;
    setState({ live: null, error: "", status: 0 });
    const follow = async () => {
      while (!stop.signal.aborted) {
        try {
          const over = await listen(
            `${jobPath(job)}/live`,
            (data) => {
              live = merge(live, JSON.parse(data) as LiveUpdate);
              setState({ live, error: "", status: 0 });
            },
            stop.signal,
          );
          if (over) return;
        } catch (error) {
          if (stop.signal.aborted) return;
          const refused = error instanceof Refused ? error : null;
          const why = refused ? refused.message : "The dashboard's server does not answer; its command may have ended.";
          setState({ live, error: why, status: refused?.status ?? 0 });
          if (refused && refused.status < 500) return;
        }
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      }
    };
    if (job) void follow();
    return () => stop.abort();
  }, [job]);
  return state;
}
