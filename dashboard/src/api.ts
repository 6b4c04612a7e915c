/* Requests to the API. The token is in the fragment of the URL that a person opens; it is kept for this tab only. */

const KEY = "springtide-token";

/** Take the token from the fragment, so that it is neither shown nor stored in the browser's history. */
export function takeToken(): void {
  const fragment = location.hash.slice(1);
  if (fragment && !fragment.startsWith("/")) {
    sessionStorage.setItem(KEY, fragment);
    history.replaceState(null, "", location.pathname + "#/");
  }
}

export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

async function request(path: string, options: RequestInit = {}): Promise<Response> {
  const headers = { ...options.headers, Authorization: `Bearer ${sessionStorage.getItem(KEY) ?? ""}` };
  const reply = await fetch(path, { ...options, headers });
  if (!reply.ok) {
    const text = await reply.text();
    let why = text;
    try {
      why = (JSON.parse(text) as { error: string }).error;
    } catch {
      /* not from the API */
    }
    throw new Refused(reply.status, why || reply.statusText);
  }
  return reply;
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await (await request(path, { signal })).json()) as T;
}

export async function post<T>(path: string, body: object): Promise<T> {
  const options = { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
  return (await (await request(path, options)).json()) as T;
}

/** Read server-sent events until the server ends them. Returns true after its `end` event: nothing more will come. */
export async function listen(path: string, onData: (data: string) => void, signal: AbortSignal): Promise<boolean> {
  const reply = await request(path, { signal });
  const reader = reply.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return false;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop()!;
    for (const part of parts) {
      if (part.startsWith("event: end")) return true;
      if (part.startsWith("data: ")) onData(part.slice(6));
    }
  }
}

export const jobPath = (job: string) => `/api/jobs/${encodeURIComponent(job)}`;
