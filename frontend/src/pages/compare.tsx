// Why are these runs different? Config, code, environment and seeds, then the metrics.

import type { ComponentChildren, VNode } from "preact";
import { useMemo, useState } from "preact/hooks";
import { url, usePoll } from "../api";
import { link, setParams, useAddress } from "../address";
import { AxisChoice, useAxis } from "../axis";
import { counted, formatMetric, formatSigned, formatSpread, formatValue, isNumber, toNumber } from "../format";
import { Problem, RunLink, State } from "../parts";
import { colorAt } from "../selection";
import { groupMetrics, isDetail, layerGroups, rankMetrics } from "../series";
import { useDark } from "../theme";
import type { Code, Compared, Comparison, Difference, Rows, StoreInfo } from "../types";
import { Charts } from "./charts";
import { DiffView } from "./diff_view";

export function ComparePage(props: { store: StoreInfo }): VNode {
  const { params } = useAddress();
  const isDark = useDark();
  const keys = useMemo(() => [...new Set((params.get("keys") ?? "").split(",").filter((key) => /^[0-9a-f]{8,64}$/.test(key)))], [params.get("keys")]);
  const polled = usePoll<Comparison>(keys.length > 1 ? url("compare", { keys: keys.join(",") }) : "");
  const data = polled.data;
  const slots = useMemo(() => new Map(keys.map((key, slot) => [key, slot])), [keys]);
  const setKeys = (next: string[]): void => setParams({ keys: next.join(",") });
  return (
    <main class="compare">
      <div class="chosen">
        {keys.map((key, slot) => (
          <span class="chip" key={key}>
            <i class="swatch" style={{ color: colorAt(slot, isDark) }} />
            <RunLink run={key} />
            {slot ? <button aria-label={`Make ${key} the baseline`} title="Make it the baseline" onClick={() => setKeys([key, ...keys.filter((each) => each !== key)])}>↤</button> : <span class="muted">baseline</span>}
            <button aria-label={`Remove ${key}`} onClick={() => setKeys(keys.filter((each) => each !== key))}>×</button>
          </span>
        ))}
        <AddRun known={keys} onAdd={(key) => setKeys([...keys, key])} />
      </div>
      {polled.error ? <Problem error={polled.error} /> : null}
      {keys.length < 2 ? (
        <div class="card empty">
          <h1>Why are two runs different?</h1>
          <p>Choose at least two runs here, or select them in the table of <a class="link" href="/">all runs</a> and press compare.</p>
        </div>
      ) : data && data.runs.length === keys.length ? (
        <Compare data={data} keys={keys} slots={slots} isDark={isDark} store={props.store} />
      ) : null}
    </main>
  );
}

function AddRun(props: { known: string[]; onAdd: (key: string) => void }): VNode {
  const [text, setText] = useState("");
  const wanted = text.trim();
  const where = /^[0-9a-f]+$/.test(wanted) ? `key~${wanted}` : wanted;
  const found = usePoll<Rows>(wanted ? url("runs", { where, limit: 8 }) : "", false);
  const rows = wanted ? (found.data?.rows ?? []).filter((row) => !props.known.includes(row.key)) : [];
  return (
    <div class="menu">
      <input class="find" placeholder="+ add a run: its key or a filter" aria-label="Add a run" value={text} onInput={(event) => setText(event.currentTarget.value)} />
      {rows.length ? (
        <ul class="panel completions">
          {rows.map((row) => (
            <li key={row.key} role="option" aria-selected={false} tabIndex={0} onClick={() => { props.onAdd(row.key); setText(""); }} onKeyDown={(event) => { if (event.key === "Enter") { props.onAdd(row.key); setText(""); } }}>
              <code>{row.key}</code> <State state={row.state} />
            </li>
          ))}
        </ul>
      ) : null}
    </div>
  );
}

function Compare(props: { data: Comparison; keys: string[]; slots: Map<string, number>; isDark: boolean; store: StoreInfo }): VNode {
  const { data, keys } = props;
  const { params } = useAddress();
  const code = codeSummary(data);
  const metrics = useMemo(() => rankMetrics(data.metric_names, Object.keys(props.store.monitored)), [data.metric_names.join("\n")]);
  const layered = useMemo(() => new Set([...layerGroups(metrics).values()].flat().map((each) => each.metric)), [metrics]);
  const charts = groupMetrics(metrics.filter((name) => !layered.has(name) && !isDetail(name))).map((group) => group.name).slice(0, 12);
  const logs = new Set((params.get("log") ?? "").split("|").filter(Boolean));
  const axis = useAxis();
  const smoothing = Number(params.get("smooth") ?? "0");
  const isLive = data.runs.some((run) => run.state === "running");
  return (
    <>
      <Section number={1} title="Config" note={different(data.config, "value")}>
        <Table rows={data.config} keys={keys} noun="value" />
      </Section>
      <Section number={2} title="Code" note={code}>
        <CodePart data={data} keys={keys} />
      </Section>
      <Section number={3} title="Environment" note={data.environment.length ? different(data.environment, "fact") : "not recorded"}>
        {data.environment.length ? <Table rows={data.environment} keys={keys.slice(0, data.num_detailed)} noun="fact" /> : <p class="muted">The extension <code>EnvironmentInfo</code> records it.</p>}
      </Section>
      <Section number={4} title="Seeds" note={data.runs.map((run) => formatValue(run.seed)).filter(Boolean).join(", ")}>
        <div class="wide-table"><table class="plain">
          <thead><Heads keys={keys} first="" /></thead>
          <tbody>
            <tr><td>seed</td>{data.runs.map((run) => <td key={run.key} class="mono">{run.seed === null ? "none" : formatValue(run.seed)}</td>)}</tr>
            <tr><td>state</td>{data.runs.map((run) => <td key={run.key}><State state={run.state} /></td>)}</tr>
            <tr><td>epochs</td>{data.runs.map((run) => <td key={run.key}>{run.epoch ?? ""}</td>)}</tr>
          </tbody>
        </table></div>
      </Section>
      <Section number={5} title="Metrics" note={new Set(data.runs.map((run) => run.epoch)).size > 1 ? "the runs have different numbers of epochs" : ""}>
        <div class="toolbar slim"><AxisChoice /></div>
        <Charts
          ids={keys}
          isGrouped={false}
          metrics={metrics}
          charts={charts}
          slots={props.slots}
          labels={(key) => key}
          axis={axis}
          smoothing={smoothing}
          logs={logs}
          isDark={props.isDark}
          isLive={isLive}
          onLog={(chart, isLog) => {
            const next = new Set(logs);
            if (isLog) next.add(chart);
            else next.delete(chart);
            setParams({ log: [...next].join("|") });
          }}
        />
        <Differences data={data} />
        <MetricTable rows={data.metrics} keys={keys} />
      </Section>
    </>
  );
}

function different(rows: Compared[], noun: string): string {
  const count = rows.filter((row) => !row.is_same).length;
  return count ? `${counted(count, noun)} ${count === 1 ? "differs" : "differ"}` : `all ${counted(rows.length, noun)} are the same`;
}

function Section(props: { number: number; title: string; note: string; children: ComponentChildren }): VNode {
  return (
    <section class="card pad section">
      <h2><span class="muted">{props.number}</span> {props.title} <span class="muted note">{props.note}</span></h2>
      {props.children}
    </section>
  );
}

function Heads(props: { keys: string[]; first: string }): VNode {
  return <tr><th>{props.first}</th>{props.keys.map((key) => <th key={key}><a class="key" href={link(`/run/${key}`)}>{key}</a></th>)}</tr>;
}

/** A table that shows only the rows that differ, unless the user asks for all rows. */
function Table(props: { rows: Compared[]; keys: string[]; noun: string }): VNode {
  const [hasAll, setAll] = useState(false);
  const rows = hasAll ? props.rows : props.rows.filter((row) => !row.is_same);
  return (
    <>
      {rows.length ? (
        <div class="wide-table">
          <table class="plain">
            <thead><Heads keys={props.keys} first="" /></thead>
            <tbody>
              {rows.map((row) => (
                <tr key={row.name} class={row.is_same ? "same" : ""}>
                  <td class="mono">{row.name}</td>
                  {row.values.map((value, at) => <td key={at} class={`mono value${!row.is_same && at && JSON.stringify(value) !== JSON.stringify(row.values[0]) ? " other" : ""}`}>{row.has[at] ? formatValue(value) : "–"}</td>)}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : null}
      {props.rows.length > rows.length || hasAll ? <button class="small" onClick={() => setAll(!hasAll)}>{hasAll ? "only what differs" : `show all ${counted(props.rows.length, props.noun)}`}</button> : null}
    </>
  );
}

function codeSummary(data: Comparison): string {
  const trees = data.code.map((code) => code.snapshot?.tree);
  if (trees.every((tree) => tree !== undefined)) return new Set(trees).size === 1 ? "the same files" : "different files";
  if (data.files.length) return `${counted(data.files.length, "source file")} ${data.files.length === 1 ? "differs" : "differ"}`;
  return data.code.every((code) => code.snapshot === null) ? "no snapshots" : "";
}

function CodePart(props: { data: Comparison; keys: string[] }): VNode {
  const { data, keys } = props;
  const [shown, setShown] = useState<number | null>(null);
  const patches = data.code.map((code) => code.patch);
  const isSame = new Set(patches).size === 1;
  const code: Code | undefined = data.code[shown ?? 0];
  if (data.code.every((each) => !each.snapshot && !each.patch)) return <p class="muted">The extension <code>CodeTracker</code> saves it.</p>;
  return (
    <>
      <div class="wide-table">
        <table class="plain">
          <thead><Heads keys={keys.slice(0, data.num_detailed)} first="" /></thead>
          <tbody>
            <tr><td>commit</td>{data.code.map((each, at) => <td key={at} class="mono">{each.snapshot ? (each.snapshot.commit ?? "none").slice(0, 12) : "–"}</td>)}</tr>
            <tr><td>subject</td>{data.code.map((each, at) => <td key={at}>{each.snapshot?.subject ?? ""}</td>)}</tr>
            <tr><td>uncommitted</td>{data.code.map((each, at) => <td key={at}>{each.snapshot ? counted(each.snapshot.changed.length + each.snapshot.new.length + each.snapshot.deleted.length, "file") : ""}</td>)}</tr>
            {data.files.map((file) => <tr key={file.path}><td class="mono">{file.path}</td>{file.has.map((has, at) => <td key={at} class={has ? "other" : "muted"}>{has ? (at ? "differs" : "baseline") : "missing"}</td>)}</tr>)}
          </tbody>
        </table>
      </div>
      <CodeDifference data={data} keys={keys} />
      {patches.some(Boolean) ? (
        <>
          <div class="buttons">
            {isSame ? <button class="small" aria-pressed={shown !== null} onClick={() => setShown(shown === null ? 0 : null)}>{shown === null ? "show" : "hide"} the uncommitted changes (the same in all)</button> : patches.map((patch, at) => (patch ? <button key={at} class="small" aria-pressed={shown === at} onClick={() => setShown(shown === at ? null : at)}>uncommitted changes of {keys[at]}</button> : null))}
          </div>
          {shown !== null && code ? <DiffView patch={code.patch} isCut={code.is_cut} /> : null}
        </>
      ) : null}
    </>
  );
}

/** The code of each run compared with the code of the first run. The diff is computed by git on request. */
function CodeDifference(props: { data: Comparison; keys: string[] }): VNode | null {
  const trees = props.data.code.map((code) => code.snapshot?.tree);
  const others = trees.map((_, at) => at).filter((at) => at > 0 && trees[0] && trees[at] && trees[at] !== trees[0]);
  const [shown, setShown] = useState<number | null>(null);
  const pair = shown === null ? "" : `${props.keys[0]},${props.keys[shown]}`;
  const polled = usePoll<{ patch: string; is_cut: boolean }>(pair ? url("diff", { keys: pair }) : "", false);
  if (!others.length) return null;
  return (
    <>
      <div class="buttons">
        {others.map((at) => (
          <button key={at} class="small" aria-pressed={shown === at} onClick={() => setShown(shown === at ? null : at)}>
            differences of {props.keys[at]} to the baseline
          </button>
        ))}
      </div>
      {shown !== null && polled.error ? <Problem error={polled.error} /> : null}
      {shown !== null && polled.data && !polled.isOld ? <DiffView patch={polled.data.patch} isCut={polled.data.is_cut} more="The difference is longer; `trainmaster code KEY --checkout DIR` restores the files of a run." /> : null}
    </>
  );
}

/** The differences between the config of the first run and the other configs, over all their seeds, with 95% intervals. */
function Differences(props: { data: Comparison }): VNode | null {
  const { data } = props;
  const found = data.differences.filter((each) => each.metrics.length);
  const why = data.differences[0]?.why_no_interval;
  if (!found.length) return why ? <p class="muted">No interval: {why}.</p> : null;
  return (
    <div class="differences">
      {found.map((each) => <DifferenceTable key={each.key} name={each.key} baseline={data.runs[0]?.key ?? ""} metrics={each.metrics} />)}
      {found.length > 1 ? <p class="muted">Each interval covers its own difference in 95 % of cases; all of them together in fewer.</p> : null}
    </div>
  );
}

function DifferenceTable(props: { name: string; baseline: string; metrics: Difference[] }): VNode {
  const shown = props.metrics.filter((each) => !isDetail(each.name));
  const list = shown.length ? shown : props.metrics;
  return (
    <>
      <h2>{props.name} minus {props.baseline}, over all seeds of both configs</h2>
      <div class="wide-table"><table class="plain">
        <thead><tr><th>metric</th><th>difference</th><th>95 % interval</th><th></th><th>p</th><th>seeds</th></tr></thead>
        <tbody>
          {list.map((each) => (
            <tr key={each.name}>
              <td class="mono">{each.name}</td>
              <td>{formatSigned(each.mean)}</td>
              <td>{isFinite(toNumber(each.low)) ? `${formatSigned(each.low)} … ${formatSigned(each.high)}` : "none"}</td>
              <td><Interval difference={each} /></td>
              <td>{isFinite(toNumber(each.p)) ? formatSpread(each.p) : ""}</td>
              <td class="muted">{each.n_a === each.n_b ? each.n_a : `${each.n_a}, ${each.n_b}`} ({each.method})</td>
            </tr>
          ))}
        </tbody>
      </table></div>
    </>
  );
}

function Interval(props: { difference: Difference }): VNode | null {
  const [mean, low, high] = [props.difference.mean, props.difference.low, props.difference.high].map(toNumber) as [number, number, number];
  if (!isFinite(low) || !isFinite(high)) return null;
  const reach = Math.max(Math.abs(low), Math.abs(high)) * 1.1 || 1;
  const at = (value: number): number => 80 + (value / reach) * 78;
  const isClear = low > 0 || high < 0;
  return (
    <svg class={`interval${isClear ? " clear" : ""}`} viewBox="0 0 160 16" width="160" height="16" role="img" aria-label={isClear ? "the interval excludes zero" : "the interval contains zero"}>
      <line class="zero" x1="80" x2="80" y1="0" y2="16" />
      <line x1={at(low)} x2={at(high)} y1="8" y2="8" />
      <circle cx={at(mean)} cy="8" r="3" />
    </svg>
  );
}

function MetricTable(props: { rows: Compared[]; keys: string[] }): VNode {
  const [hasAll, setAll] = useState(false);
  const rows = hasAll ? props.rows : props.rows.filter((row) => !isDetail(row.name));
  return (
    <>
      <div class="wide-table">
        <table class="plain">
          <thead><Heads keys={props.keys} first="last value" /></thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.name}>
                <td class="mono">{row.name}</td>
                {row.values.map((value, at) => (
                  <td key={at}>
                    {row.has[at] ? formatMetric(value) : "–"}
                    {at && row.has[at] && row.has[0] && isNumber(value) && toNumber(value) !== toNumber(row.values[0]) ? <span class="muted delta"> {formatSigned(toNumber(value) - toNumber(row.values[0]))}</span> : null}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {props.rows.length > rows.length || hasAll ? <button class="small" onClick={() => setAll(!hasAll)}>{hasAll ? "fewer" : `show all ${counted(props.rows.length, "metric")}`}</button> : null}
    </>
  );
}
