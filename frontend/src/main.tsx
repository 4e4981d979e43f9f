// The layout that all pages share: navigation, the state of the store, and the switch between light and dark mode.

import { render, type VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import { follow, useAddress } from "./address";
import { canEdit, takeToken, url, usePoll } from "./api";
import { counted } from "./format";
import { Problem, useKeys } from "./parts";
import { ComparePage } from "./pages/compare";
import { RunPage } from "./pages/run";
import { RunsPage } from "./pages/runs";
import { SearchesPage } from "./pages/searches";
import { VerdictsPage } from "./pages/verdicts";
import { applyTheme, choice, chooseTheme } from "./theme";
import type { StoreInfo } from "./types";
import "./style.css";

const HELP: [string, string][] = [
  ["/", "filter"],
  ["j k", "next and previous row or run"],
  ["Enter", "open the run"],
  ["x", "select"],
  ["p", "pin as the baseline"],
  ["g", "group by all but the seed"],
  ["← →", "move the chart whose title has the focus"],
  ["Esc", "back to the runs"],
  ["t", "light, dark or as the system"],
  ["?", "this list"],
];

function App(): VNode {
  const { path } = useAddress();
  const polled = usePoll<StoreInfo>(url("store"));
  const [hasHelp, setHelp] = useState(false);
  const [theme, setTheme] = useState(choice());
  const store = polled.data;
  const turn = (): void => {
    const next = theme === "system" ? "light" : theme === "light" ? "dark" : "system";
    chooseTheme(next);
    setTheme(next);
  };
  useKeys({ "?": () => setHelp(!hasHelp), t: turn, Escape: () => setHelp(false) });
  useEffect(() => {
    document.title = store ? `${store.name} · trainmaster` : "trainmaster";
  }, [store?.name]);
  const running = (store?.states["running"] ?? 0) + (store?.states["held?"] ?? 0);
  const is = (page: string): "page" | undefined => ((page === "/" ? path === "/" || path.startsWith("/run/") : path.startsWith(page)) ? "page" : undefined);
  return (
    <div onClick={follow} class="frame">
      <header>
        <a class="brand" href="/">trainmaster</a>
        <span class="pill" title={store?.root ?? ""}>{store ? `${store.name} · ${counted(store.num_runs, "run")}` : "…"}</span>
        <nav aria-label="Pages">
          <a href="/" aria-current={is("/")}>Runs</a>
          <a href="/compare" aria-current={is("/compare")}>Compare</a>
          <a href="/searches" aria-current={is("/searches")}>Searches</a>
          <a href="/verdicts" aria-current={is("/verdicts")}>Verdicts</a>
        </nav>
        <span class="space" />
        {canEdit() ? <span class="pill edit">editing</span> : null}
        <span class={`pill live${running ? " on" : ""}`}><i />{running ? `${running} running` : "nothing running"}</span>
        <button class="icon" aria-label={`Theme: ${theme}`} title={`Theme: ${theme} (t)`} onClick={turn}>{theme === "dark" ? "☾" : theme === "light" ? "☀" : "◐"}</button>
        <button class="icon" aria-label="Keyboard shortcuts" title="Keyboard shortcuts (?)" onClick={() => setHelp(!hasHelp)}>?</button>
      </header>
      {hasHelp ? (
        <dialog open class="help" aria-label="Keyboard shortcuts">
          <dl>{HELP.map(([key, text]) => <div key={key}><dt><kbd>{key}</kbd></dt><dd>{text}</dd></div>)}</dl>
          {store ? <p class="muted">trainmaster {store.version}</p> : null}
        </dialog>
      ) : null}
      {polled.error ? <Problem error={polled.error} /> : null}
      {store ? <Page path={path} store={store} /> : <main aria-busy="true" />}
    </div>
  );
}

function Page(props: { path: string; store: StoreInfo }): VNode {
  const run = /^\/run\/([0-9a-f]{8,64})$/.exec(props.path);
  if (run?.[1]) return <RunPage run={run[1]} store={props.store} key={run[1]} />;
  if (props.path.startsWith("/compare")) return <ComparePage store={props.store} />;
  const search = /^\/searches\/(.+)$/.exec(props.path);
  if (props.path.startsWith("/searches")) return <SearchesPage name={search?.[1] ? decodeURIComponent(search[1]) : ""} store={props.store} />;
  if (props.path === "/verdicts") return <VerdictsPage />;
  if (props.path === "/") return <RunsPage store={props.store} />;
  return (
    <main class="empty card">
      <h1>There is no such page</h1>
      <a class="button" href="/">all runs</a>
    </main>
  );
}

takeToken();
applyTheme();
const root = document.getElementById("app");
if (root) render(<App />, root);
