// The page of one run: its curves, config, code, environment, files and log.

import type { ComponentChildren, VNode } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { canEdit, url, usePoll } from "../api";
import { go, link, setParams, useAddress } from "../address";
import { AxisChoice, useAxis } from "../axis";
import { counted, formatAge, formatBytes, formatDuration, formatMetric, formatValue, isNumber, toNumber } from "../format";
import { Copy, Problem, RunLink, State, useKeys, useNow } from "../parts";
import { groupMetrics, layerGroups, rankMetrics } from "../series";
import { useDark } from "../theme";
import type { Code, Plain, RunInfo, StoreInfo } from "../types";
import { Charts } from "./charts";
import { DiffView } from "./diff_view";
import { EditRun } from "./edit_run";
import { HeatMap } from "./heat_map";
import { LogView } from "./log_view";

const TABS: Record<string, string> = {
  curves: "Curves",
  config: "Config",
  code: "Code",
  environment: "Environment",
  layers: "Layers",
  samples: "Samples",
  figures: "Figures",
  attempts: "Attempts",
  events: "Events",
  log: "Log",
};

export function RunPage(props: { run: string; store: StoreInfo }): VNode {
  const { params } = useAddress();
  const context = { where: params.get("where") ?? "", sort: params.get("sort") ?? "" };
  const polled = usePoll<RunInfo>(url(`runs/${props.run}`, context));
  const now = useNow();
  const run = polled.data;
  const tab = params.get("tab") ?? "curves";
  const open = (key: string | null | undefined): void => {
    if (key) go(link(`/run/${key}`, { ...context, tab: tab === "curves" ? "" : tab }));
  };
  useKeys({ j: () => open(run?.next), k: () => open(run?.previous), Escape: () => go(link("/", context)) });
  if (!run) return <main class="run-page" aria-busy={!polled.error}>{polled.error ? <Problem error={polled.error} /> : null}</main>;
  const isLive = run.state === "running" || run.state === "held?";
  const store = run.store ?? "runs";
  const layers = layerGroups(run.metric_names.map((each) => each.name));
  const images = run.files.filter((path) => path.endsWith(".png"));
  const tabs = Object.entries(TABS).filter(([name]) => (name !== "layers" || layers.size > 0) && (name !== "figures" || images.length > 0) && (name !== "samples" || run.hardest.length > 0) && (name !== "events" || run.texts.length > 0));
  return (
    <main class="run-page">
      <div class="run-head">
        <a class="back" href={link("/", context)} aria-label="All runs">‹</a>
        <h1 class="mono">{run.key}</h1>
        <State state={run.state} epoch={run.epoch} numEpochs={run.num_epochs} progressed={run.progressed} now={now} />
        {run.tags.map((tag) => <a class="tag" key={tag} href={link("/", { where: `tag=${tag}` })}>{tag}</a>)}
        <span class="space" />
        {run.position !== null ? <span class="muted">{run.position + 1} of {run.num.toLocaleString("en-US")}</span> : null}
        <button class="small" disabled={!run.previous} onClick={() => open(run.previous)} title="Previous run (k)">↑ previous</button>
        <button class="small" disabled={!run.next} onClick={() => open(run.next)} title="Next run (j)">↓ next</button>
      </div>
      {run.state === "failed" || run.problems.length ? <Failure run={run} store={store} /> : null}
      <div class="run-body">
        <section class="run-main">
          <div class="tabs" role="tablist">
            {tabs.map(([name, title]) => (
              <button key={name} role="tab" aria-selected={tab === name} onClick={() => setParams({ tab: name === "curves" ? "" : name })}>
                {title}
              </button>
            ))}
          </div>
          {tab === "curves" ? <Curves run={run} store={props.store} isLive={isLive} /> : null}
          {tab === "config" ? <Config run={run} /> : null}
          {tab === "code" ? <CodeTab run={props.run} store={store} /> : null}
          {tab === "environment" ? <Environment run={props.run} /> : null}
          {tab === "layers" ? <Layers run={run} groups={layers} isLive={isLive} /> : null}
          {tab === "samples" ? <Samples run={run} /> : null}
          {tab === "figures" ? <Figures run={run} images={images} /> : null}
          {tab === "attempts" ? <Attempts run={run} /> : null}
          {tab === "events" ? <Events run={run} /> : null}
          {tab === "log" ? <LogView run={props.run} isLive={isLive} /> : null}
        </section>
        <aside class="facts" aria-label="Facts">
          <Facts run={run} now={now} store={store} />
          {canEdit() ? <EditRun run={run} onDone={polled.refresh} /> : run.notes ? <div class="card pad"><h2>Notes</h2><pre>{run.notes}</pre></div> : null}
        </aside>
      </div>
    </main>
  );
}

/** The error of a failed run, with a command that reproduces it. It is shown at the top of the page. */
function Failure(props: { run: RunInfo; store: string }): VNode {
  const { run } = props;
  const capsule = run.capsules[run.capsules.length - 1];
  const path = capsule ? `${props.store}/previews/${run.key.slice(0, 2)}/${run.key}/${capsule}` : "";
  return (
    <div class="failure card pad" role="alert">
      <h2>{run.state === "failed" ? "This run failed" : "Some records of this run cannot be read"}</h2>
      {run.reason ? <pre>{run.reason}</pre> : null}
      {run.problems.map((problem) => <pre key={problem}>{problem}</pre>)}
      <div class="buttons">
        {path ? <Copy label="copy replay command" text={`trainmaster replay ${shell(path)}`} /> : null}
        <button class="small" onClick={() => setParams({ tab: "log" })}>log</button>
        {run.problems.length ? <Copy label="copy verify command" text={`trainmaster verify --store ${shell(props.store)}`} /> : null}
      </div>
    </div>
  );
}

/** Quotes an argument of a shell command if necessary. */
export function shell(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

function Facts(props: { run: RunInfo; now: number; store: string }): VNode {
  const { run } = props;
  const command = (name: string): string => `trainmaster ${name} ${run.key} --store ${shell(props.store)}`;
  const facts: [string, ComponentChildren][] = [
    ["state", run.meaning],
    ["reason", run.state === "failed" ? "" : run.reason],
    ["held by", run.owner],
    ["epoch", run.epoch === null ? "" : `${run.epoch}${run.num_epochs ? ` of ${run.num_epochs}` : ""}`],
    ["step", run.step === null ? "" : run.step.toLocaleString("en-US")],
    ["best", run.best ? <span title={run.best.metric}>{formatMetric(run.best.value)} {run.best.metric} <span class="muted">@ epoch {run.best.epoch ?? "?"}</span></span> : ""],
    ["time", formatDuration(run.duration)],
    ["changed", run.changed ? <span title={new Date(run.changed * 1000).toLocaleString()}>{ago(formatAge(run.progressed ?? run.changed, props.now))}</span> : ""],
    ["seed", run.seed === null ? "" : formatValue(run.seed)],
    ["attempts", run.num_attempts > 1 ? run.num_attempts : ""],
    ["target", run.target ? <code>{run.target}</code> : ""],
  ];
  const others = run.replicates.filter((each) => each.key !== run.key);
  return (
    <>
      <div class="card pad">
        <dl>
          {facts.filter(([, value]) => value !== "").map(([name, value]) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ))}
        </dl>
        <div class="buttons">
          {run.state === "finished" ? null : <Copy label="copy resume" text={command("resume")} />}
          <Copy label="copy rerun" text={command("rerun")} />
          <Copy label="copy show" text={command("show")} />
          <Copy label="copy Python" text={`from trainmaster.store import Store\n\nrun = Store(${JSON.stringify(props.store)}).run("${run.key}")\nrun.history`} />
        </div>
      </div>
      {others.length ? (
        <div class="card pad">
          <h2>Same config, other seeds</h2>
          <ul class="replicates">
            {others.slice(0, 12).map((each) => (
              <li key={each.key}>
                <RunLink run={each.key} /> <span class="muted">seed {formatValue(each.seed)}</span> <State state={each.state} />
              </li>
            ))}
          </ul>
          <a class="small" href={link("/compare", { keys: [run.key, ...others.map((each) => each.key)].slice(0, 50).join(",") })}>compare all {others.length + 1}</a>
        </div>
      ) : null}
    </>
  );
}

function ago(text: string): string {
  return text === "now" ? text : `${text} ago`;
}

function Curves(props: { run: RunInfo; store: StoreInfo; isLive: boolean }): VNode {
  const { run } = props;
  const { params } = useAddress();
  const isDark = useDark();
  const [text, setText] = useState("");
  const metrics = useMemo(() => rankMetrics(run.metric_names.filter((each) => each.num > 0).map((each) => each.name), run.best ? [run.best.metric] : []), [run.metric_names.length, run.best?.metric]);
  const layered = useMemo(() => new Set([...layerGroups(metrics).values()].flat().map((each) => each.metric)), [metrics]);
  const groups = useMemo(() => groupMetrics(metrics), [metrics]);
  const shown = groups.filter((group) => (text ? group.name.includes(text) : !group.metrics.every((name) => layered.has(name)))).slice(0, 60);
  const slots = useMemo(() => new Map([[run.key, 0]]), [run.key]);
  const axis = useAxis();
  const smoothing = Number(params.get("smooth") ?? "0");
  const logs = new Set((params.get("log") ?? "").split("|").filter(Boolean));
  const numHidden = groups.length - shown.length;
  if (!metrics.length) return <div class="card empty"><p>This run has not logged any metric yet.</p></div>;
  return (
    <>
      <div class="toolbar slim">
        <input class="find" type="search" placeholder={`find one of ${counted(groups.length, "metric")}`} value={text} aria-label="Find a metric" onInput={(event) => setText(event.currentTarget.value)} />
        <AxisChoice />
        <label class="button slider">
          smooth {smoothing ? smoothing.toFixed(2) : "off"}
          <input type="range" min="0" max="0.98" step="0.02" value={smoothing} aria-label="Smoothing" onInput={(event) => setParams({ smooth: event.currentTarget.value === "0" ? "" : event.currentTarget.value }, true)} />
        </label>
      </div>
      <Charts
        ids={[run.key]}
        isGrouped={false}
        metrics={metrics}
        charts={shown.map((group) => group.name)}
        slots={slots}
        labels={() => ""}
        axis={axis}
        smoothing={smoothing}
        logs={logs}
        isDark={isDark}
        isLive={props.isLive}
        onLog={(chart, isLog) => {
          const next = new Set(logs);
          if (isLog) next.add(chart);
          else next.delete(chart);
          setParams({ log: [...next].join("|") });
        }}
      />
      {numHidden > 0 && !text ? <p class="muted status">{counted(numHidden, "metric")} of single layers are on the tab “Layers”; the search finds them here.</p> : null}
    </>
  );
}

function Config(props: { run: RunInfo }): VNode {
  const [text, setText] = useState("");
  const rows = props.run.config.filter((each) => `${each.name} ${formatValue(each.value)} ${each.origin ?? ""}`.toLowerCase().includes(text.toLowerCase()));
  const hasOrigins = props.run.config.some((each) => each.origin !== null);
  return (
    <div class="card pad">
      <input class="find" type="search" placeholder="find a value" aria-label="Find a value" value={text} onInput={(event) => setText(event.currentTarget.value)} />
      <table class="plain">
        <thead><tr><th>key</th><th>value</th>{hasOrigins ? <th>where from</th> : null}<th class="wide-only">in this store</th></tr></thead>
        <tbody>
          {rows.map((each) => (
            <tr key={each.name}>
              <td class="mono">{each.name}</td>
              <td class="mono value">{formatValue(each.value)}</td>
              {hasOrigins ? <td class={`value${each.origin === "default" ? " muted" : ""}`}>{each.origin}</td> : null}
              <td class="muted wide-only">
                {each.num_same === null ? "" : each.num_same === props.run.num_runs ? "all runs have it" : each.num_same <= 1 ? "only this run has it" : `${each.num_same.toLocaleString("en-US")} of ${counted(props.run.num_runs, "run")} have it`}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function CodeTab(props: { run: string; store: string }): VNode {
  const polled = usePoll<Code>(url(`runs/${props.run}/code`), false);
  const code = polled.data;
  if (!code) return <Problem error={polled.error} />;
  const snapshot = code.snapshot;
  const files = Object.entries(code.program?.files ?? {});
  return (
    <>
      {snapshot ? (
        <div class="card pad">
          <dl>
            <div><dt>commit</dt><dd class="mono">{snapshot.commit ?? "none"} {snapshot.branch ? <span class="tag">{snapshot.branch}</span> : null}</dd></div>
            <div><dt>subject</dt><dd>{snapshot.subject}</dd></div>
            <div><dt>changes</dt><dd>{[["changed", snapshot.changed], ["deleted", snapshot.deleted], ["new", snapshot.new]].filter(([, list]) => (list as string[])?.length).map(([name, list]) => `${(list as string[]).length} ${name as string}`).join(", ") || "none: the code is that of the commit"}</dd></div>
          </dl>
          <div class="buttons">
            <Copy label="copy checkout" text={`trainmaster code ${props.run} --checkout then --store ${shell(props.store)}`} />
            {snapshot.commit ? <Copy label="copy commit" text={snapshot.commit} /> : null}
          </div>
        </div>
      ) : (
        <div class="card pad muted">
          <p>This run has no snapshot of its code. The extension <code>CodeTracker</code> saves the commit, the uncommitted changes and the new files.</p>
        </div>
      )}
      <DiffView patch={code.patch} isCut={code.is_cut} />
      {files.length ? (
        <div class="card pad">
          <h2>Source files</h2>
          <table class="plain"><tbody>{files.slice(0, 100).map(([path, digest]) => <tr key={path}><td class="mono">{path}</td><td class="mono muted">{String(digest).slice(0, 12)}</td></tr>)}</tbody></table>
        </div>
      ) : null}
    </>
  );
}

function Environment(props: { run: string }): VNode {
  const polled = usePoll<Record<string, Plain>>(url(`runs/${props.run}/environment`), false);
  const [text, setText] = useState("");
  const facts = Object.entries(polled.data ?? {});
  if (polled.data && !facts.length) return <div class="card pad muted"><p>This run has not recorded its environment. The extension <code>EnvironmentInfo</code> does.</p></div>;
  return (
    <div class="card pad">
      <input class="find" type="search" placeholder={`find one of ${counted(facts.length, "fact")}`} aria-label="Find a fact" value={text} onInput={(event) => setText(event.currentTarget.value)} />
      <table class="plain">
        <tbody>
          {facts.filter(([name, value]) => `${name} ${formatValue(value)}`.toLowerCase().includes(text.toLowerCase())).map(([name, value]) => (
            <tr key={name}><td class="mono">{name}</td><td class="mono value">{Array.isArray(value) ? <pre>{value.map((each) => formatValue(each)).join("\n")}</pre> : formatValue(value)}</td></tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Layers(props: { run: RunInfo; groups: Map<string, { row: string; metric: string }[]>; isLive: boolean }): VNode {
  return <>{[...props.groups].map(([name, rows]) => <HeatMap key={name} run={props.run.key} title={name} rows={rows} isLive={props.isLive} />)}</>;
}

function Figures(props: { run: RunInfo; images: string[] }): VNode {
  return (
    <div class="figures">
      {props.images.map((path) => (
        <figure class="card" key={path}>
          <a href={url(`runs/${props.run.key}/image`, { path })} target="_blank" rel="noreferrer">
            <img loading="lazy" src={url(`runs/${props.run.key}/image`, { path })} alt={path} />
          </a>
          <figcaption class="muted mono">{path}</figcaption>
        </figure>
      ))}
    </div>
  );
}

/** The samples with the highest losses, as found by the extension `SampleLoss`. */
function Samples(props: { run: RunInfo }): VNode {
  return (
    <>
      {props.run.hardest.map((each) => (
        <div class="card pad" key={each.set}>
          <h2>
            Hardest samples of {each.set}{" "}
            <span class="muted note">{[isNumber(each.num_samples) ? `of ${counted(toNumber(each.num_samples), "sample")}` : "", each.epoch === null ? "" : `epoch ${formatValue(each.epoch)}`].filter(Boolean).join(", ")}</span>
          </h2>
          <table class="plain">
            <thead><tr><th>rank</th><th>sample</th><th>loss</th></tr></thead>
            <tbody>
              {each.hardest.map((sample, at) => (
                <tr key={at}><td class="muted">{at + 1}</td><td class="mono">{formatValue(sample.index)}</td><td>{isNumber(sample.loss) ? formatMetric(sample.loss) : formatValue(sample.loss)}</td></tr>
              ))}
            </tbody>
          </table>
        </div>
      ))}
    </>
  );
}

function Attempts(props: { run: RunInfo }): VNode {
  const { run } = props;
  return (
    <>
      <div class="card pad">
        <h2>Attempts</h2>
        <table class="plain">
          <thead><tr><th>no.</th><th>started</th><th>by</th><th>from</th><th>outcome</th><th>where</th></tr></thead>
          <tbody>
            {[...run.attempts].reverse().map((each) => (
              <tr key={each.number}>
                <td>{each.number}</td>
                <td>{each.claimed.slice(0, 19).replace("T", " ")}</td>
                <td>{each.by}</td>
                <td>{each.has_started ? (each.step === null ? "scratch" : `step ${each.step.toLocaleString("en-US")} of attempt ${each.parent}`) : "never started"}</td>
                <td><State state={each.outcome || (each.number === run.attempts[run.attempts.length - 1]?.number ? run.state : "killed")} /> <span class="muted">{each.reason.split("\n")[0]}</span></td>
                <td class="muted">{each.owner}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <div class="card pad">
        <h2>Checkpoints</h2>
        {run.checkpoints.length ? (
          <table class="plain">
            <thead><tr><th>name</th><th>attempt</th><th>epoch</th><th>step</th><th>size</th></tr></thead>
            <tbody>
              {run.checkpoints.map((each) => (
                <tr key={`${each.attempt} ${each.name}`}>
                  <td class="mono">{each.name} {run.best && run.best.step === each.step ? <span class="tag">best</span> : null}</td>
                  <td>{each.attempt}</td>
                  <td>{each.epoch ?? ""}</td>
                  <td>{each.step.toLocaleString("en-US")}</td>
                  <td class={each.size === null ? "bad" : ""}>{formatBytes(each.size)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        ) : (
          <p class="muted">none</p>
        )}
      </div>
      <div class="card pad">
        <h2>Metrics</h2>
        <table class="plain">
          <thead><tr><th>name</th><th>points</th><th>last</th><th>lowest</th><th>highest</th></tr></thead>
          <tbody>
            {run.metric_names.map((each) => (
              <tr key={each.name}>
                <td class="mono">{each.name}</td>
                <td>{each.num.toLocaleString("en-US")}{each.num_nan ? <span class="bad"> {each.num_nan} NaN</span> : null}</td>
                <td>{each.last === null ? "" : formatMetric(each.last)}</td>
                <td>{each.low === null ? "" : formatMetric(each.low)}</td>
                <td>{each.high === null ? "" : formatMetric(toNumber(each.high))}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

function Events(props: { run: RunInfo }): VNode {
  const [text, setText] = useState("");
  useEffect(() => setText(""), [props.run.key]);
  const events = props.run.texts.map((each) => ({ ...each, line: JSON.stringify(each.event) })).filter((each) => each.line.toLowerCase().includes(text.toLowerCase()));
  return (
    <div class="card pad">
      <input class="find" type="search" placeholder="find an event" aria-label="Find an event" value={text} onInput={(event) => setText(event.currentTarget.value)} />
      <table class="plain"><tbody>{events.reverse().map((each, at) => <tr key={at}><td class="muted">attempt {each.attempt}</td><td class="mono value">{each.line}</td></tr>)}</tbody></table>
    </div>
  );
}
