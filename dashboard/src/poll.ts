/* A document that is read again and again while a view shows it. */

import { useEffect, useState } from "preact/hooks";
import { get } from "./api";

export interface Polled<T> {
  found: T | null;
  error: string;
}

/** Read `path` now and every `everyMs`; 0 reads it once. An empty path reads nothing. */
export function usePoll<T>(path: string, everyMs: number): Polled<T> {
  const [state, setState] = useState<Polled<T>>({ found: null, error: "" });
  useEffect(() => {
    if (!path) return;
    const stop = new AbortController();
    let timer = 0;
    const read = () =>
      get<T>(path, stop.signal)
        .then(
          (found) => setState({ found, error: "" }),
          (problem: Error) => stop.signal.aborted || setState((before) => ({ ...before, error: problem.message })),
        )
        .finally(() => {
          if (everyMs && !stop.signal.aborted) timer = setTimeout(read, everyMs);
        });
    void read();
    return () => (clearTimeout(timer), stop.abort());
  }, [path, everyMs]);
  return state;
}
