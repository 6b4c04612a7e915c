/* The shell: which job and which view are shown (in the fragment of the URL), navigation, theme, and connection. */

import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get, takeToken } from "./api";
import { Control } from "./control";
import { type Live, useLive } from "./live";
import { Badge, Empty } from "./parts";
import "./style.css";
import type { ServerInfo } from "./types";
import { Checkpoints } from "./views/checkpoints";
import { Cluster } from "./views/cluster";
import { Data } from "./views/data";
import { Jobs } from "./views/jobs";
import { Logs } from "./views/logs";
import { Nodes } from "./views/nodes";
import { Overview } from "./views/overview";
import { Plan } from "./views/plan";
import { Step } from "./views/step";
import { Tables } from "./views/tables";
import { Timeline } from "./views/timeline";

export interface ViewProps {
  job: string;
  live: Live;
  info: ServerInfo;
  options: URLSearchParams;
}

const VIEWS = [
  ["overview", "Overview", Overview],
  ["timeline", "Timeline", Timeline],
  ["step", "Step", Step],
  ["nodes", "Nodes", Nodes],
  ["data", "Data", Data],
  ["tables", "Tables", Tables],
  ["checkpoints", "Checkpoints", Checkpoints],
  ["plan", "Plan", Plan],
  ["logs", "Logs", Logs],
] as const;

interface Place {
  view: string;
  job: string;
  options: URLSearchParams;
}

function readPlace(): Place {
  const [path = "", query = ""] = location.hash.slice(1).split("?");
  const [, kind, job = "", view = "overview"] = path.split("/");
  const options = new URLSearchParams(query);
  return kind === "job" ? { view, job: decodeURIComponent(job), options } : { view: kind || "", job: "", options };
}

export const link = (job: string, view = "overview", options = "") =>
  `#/job/${encodeURIComponent(job)}/${view}${options && `?${options}`}`;

function App() {
  const [place, setPlace] = useState(readPlace);
  const [info, setInfo] = useState<ServerInfo | null>(null);
  const [error, setError] = useState("");
  useEffect(() => {
    const moved = () => {
      takeToken();
      setPlace(readPlace());
    };
    addEventListener("hashchange", moved);
    get<ServerInfo>("/api/info").then(
      (found) => {
        setInfo(found);
        if (!readPlace().view && !readPlace().job) location.replace(found.job ? link(found.job) : "#/jobs");
      },
      (problem: Error) => setError(problem.message),
    );
    return () => removeEventListener("hashchange", moved);
  }, []);
  const { live, error: lost, status } = useLive(place.job);
  const job = place.job || info?.job || "";
  useEffect(() => {
    document.title = place.job ? `${place.job}: Springtide` : "Springtide";
  }, [place.job]);
  const known = VIEWS.find(([id]) => id === place.view);
  const View = known?.[2];
  return (
    <>
      <a class="skip" href="#content" onClick={(event) => (event.preventDefault(), document.getElementById("content")?.focus())}>
        Skip to the content
      </a>
      <header>
        <a class="brand" href="#/jobs">
          <img src="./icon.svg" alt="" width="22" height="22" /> Springtide
        </a>
        {place.job ? <strong class="job">{place.job}</strong> : null}
        {live ? <Badge text={live.page.status.phase} /> : null}
        <span class="grow" />
        <Theme />
      </header>
      <nav aria-label="Views">
        <a href="#/jobs" aria-current={place.view === "jobs" ? "page" : undefined}>Jobs</a>
        {info?.brain ? <a href="#/cluster" aria-current={place.view === "cluster" ? "page" : undefined}>Cluster</a> : null}
        {VIEWS.map(([id, title]) =>
          job ? (
            <a key={id} href={link(job, id)} aria-current={place.job && place.view === id ? "page" : undefined}>{title}</a>
          ) : null,
        )}
      </nav>
      <main id="content" tabIndex={-1}>
        {lost || live?.page.trouble ? <p class="banner" role="status">{lost || live!.page.trouble}</p> : null}
        {error ? <Empty>{error}</Empty> : null}
        {place.view === "jobs" && info ? <Jobs info={info} /> : null}
        {info?.control && live?.page.running && place.view === "overview" ? <Control key={place.job} job={place.job} page={live.page} /> : null}
        {place.view === "cluster" ? <Cluster /> : null}
        {View && place.job && live && info && status < 400 ? <View job={place.job} live={live} info={info} options={place.options} /> : null}
        {View && place.job && !live && !lost ? <Empty>Reading {place.job}…</Empty> : null}
        {place.job && !View ? <Empty>There is no view “{place.view}”.</Empty> : null}
      </main>
    </>
  );
}

function Theme() {
  const [theme, setTheme] = useState(localStorage.getItem("springtide-theme") ?? "");
  document.documentElement.dataset.theme = theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const other = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  const change = () => {
    localStorage.setItem("springtide-theme", other);
    document.documentElement.dataset.theme = other;
    setTheme(other);
    dispatchEvent(new Event("hashchange")); // charts take their colors when they are drawn
  };
  return <button type="button" class="quiet" onClick={change} aria-label={`Use ${other} colors`}>{other === "dark" ? "Dark" : "Light"}</button>;
}

takeToken();
render(<App />, document.getElementById("app")!);
