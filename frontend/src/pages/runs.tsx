// The page of all runs: a filter, charts of the selected runs, and the table.

import type { VNode } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { url, usePoll } from "../api";
import { go, link, setParams, useAddress } from "../address";
import { AxisChoice, useAxis } from "../axis";
import { type ColumnSpec, defaultColumns, FACTS, parseColumn } from "../columns";
import { counted } from "../format";
import { Menu, Problem, useKeys, useNow } from "../parts";
import { parseSelection, toggle, writeSelection } from "../selection";
import { groupMetrics, isDetail, rankMetrics } from "../series";
import { useDark } from "../theme";
import type { Row, Rows, StoreInfo } from "../types";
import { Attention } from "./attention";
import { Charts } from "./charts";
import { Choose } from "./choose";
import { FilterLine } from "./filter_line";
import { expand, RunTable, rowId } from "./run_table";
import { lasting } from "../storage";

const NUM_AUTO = 5;
const MAX_CHARTS = 6;
const SAVED = "trainmaster-columns";

export function RunsPage(props: { store: StoreInfo }): VNode {
  const { store } = props;
  const { params } = useAddress();
  const isDark = useDark();
  const now = useNow();
  const isGrouped = params.get("group") === "1";
  const query = { where: params.get("where") ?? "", sort: params.get("sort") ?? "", group: isGrouped ? "1" : "", archived: params.get("archived") ?? "" };

  // The first block of rows lists the config keys that vary. They determine the columns, and the columns determine the values to fetch.
  const saved = lasting.get(`${SAVED}:${store.root}`) ?? "";
  const asked = params.get("cols") ?? saved;
  const [varying, setVarying] = useState<string[] | null>(null);
  const ids = useMemo(() => (asked ? asked.split("|").filter(Boolean) : defaultColumns(store, varying ?? [])), [asked, varying, store.metrics.length, JSON.stringify(store.monitored)]);
  const columns = useMemo(() => ids.filter((id) => !(isGrouped && (id === "seed" || id === "best"))).map((id) => parseColumn(id, store)), [ids, isGrouped, store.config.length]);
  const names = columns.filter((column) => column.kind !== "fact").map((column) => column.id).join("\n");
  const polled = usePoll<Rows>(url("runs", { ...query, columns: names, limit: 100 }));
  // Rows must match the columns with which they were fetched, so keep both until the rows for new columns arrive.
  const settled = useRef<{ rows: Rows; columns: ColumnSpec[]; query: typeof query } | null>(null);
  if (polled.data && !polled.isOld) settled.current = { rows: polled.data, columns, query };
  const rows = settled.current?.rows;
  useEffect(() => {
    if (rows && !polled.isOld && JSON.stringify(rows.varying) !== JSON.stringify(varying)) setVarying(rows.varying);
  }, [rows, polled.isOld]);

  // ---- selected runs and their colors
  const slotsText = params.get("sel") ?? "";
  const chosen = useMemo(() => parseSelection(slotsText), [slotsText]);
  const isAuto = slotsText === "";
  const withValues = (rows?.rows ?? []).filter((row) => row.values.some((value) => value !== null) && row.state !== "failed");
  const auto = (withValues.length ? withValues : (rows?.rows ?? [])).slice(0, NUM_AUTO).map((row) => rowId(row, isGrouped)).join(",");
  const list = useMemo(() => (isAuto ? auto.split(",").filter(Boolean) : chosen), [isAuto, auto, chosen]);
  const slots = useMemo(() => new Map(list.map((id, slot) => [id, slot] as const).filter(([id]) => id)), [list]);
  const select = (id: string): void => {
    const next = writeSelection(toggle(list, id));
    setParams({ sel: next === "" ? "none" : next });
  };
  const selected = [...slots.keys()].filter((id) => id !== "none");

  // ---- charts
  const metrics = useMemo(() => rankMetrics(store.metrics.map((each) => each.name), Object.keys(store.monitored)), [store]);
  const groups = useMemo(() => groupMetrics(metrics), [metrics]);
  const charts = (params.get("charts") ?? groups.filter((group) => !isDetail(group.metrics[0] ?? "")).slice(0, 3).map((group) => group.name).join("|")).split("|").filter(Boolean);
  const axis = useAxis();
  const smoothing = Number(params.get("smooth") ?? "0");
  const logs = new Set((params.get("log") ?? "").split("|").filter(Boolean));
  const setLog = (chart: string, isLog: boolean): void => {
    const next = new Set(logs);
    if (isLog) next.add(chart);
    else next.delete(chart);
    setParams({ log: [...next].join("|") });
  };

  // ---- the baseline
  const pin = params.get("pin") ?? "";
  const pinnedRows = usePoll<Rows>(pin ? url("runs", { where: `key=${pin}`, columns: names, limit: 1, archived: "1", group: query.group }) : "");
  const pinned: Row | undefined = pin && pinnedRows.data ? expand(pinnedRows.data.rows, columns)[0] : undefined;

  const setColumns = (next: string[]): void => {
    lasting.set(`${SAVED}:${store.root}`, next.join("|"));
    setParams({ cols: next.join("|") });
  };
  useKeys({
    "/": (event) => { event.preventDefault(); document.getElementById("filter")?.focus(); },
    g: () => setParams({ group: isGrouped ? "" : "1", sel: "" }),
    c: () => selected.length > 1 && !isGrouped && go(link("/compare", { keys: selected.join(",") })),
  });

  const all = useMemo(
    () => [
      ...Object.entries(FACTS).map(([id, label]) => ({ id, label, kind: "run" })),
      ...metrics.map((name) => ({ id: `metric:${name}`, label: name, kind: "metric" })),
      ...store.config.map((each) => ({ id: `config:${each.name}`, label: each.name, kind: (rows?.varying ?? []).includes(each.name) ? "differs" : "config" })),
    ],
    [metrics, store.config, rows?.varying],
  );
  const differing = [...ids.filter((id) => !id.startsWith("config:")).filter((id) => id !== "duration" && id !== "age"), ...(rows?.varying ?? []).map((name) => `config:${name}`), "duration", "age"];
  const filterNames = useMemo(
    () => ({ config: store.config, metrics, tags: store.tags, states: Object.keys(store.states) }),
    [store, metrics],
  );
  const isLive = Object.keys(store.states).some((state) => state === "running" || state === "held?");

  if (store.num_runs === 0) return <FirstSteps />;
  return (
    <main class="runs">
      <Attention />
      <div class="toolbar">
        <FilterLine where={query.where} names={filterNames} error={polled.error} onWhere={(where) => setParams({ where }, true)} />
        <button class="button" aria-pressed={isGrouped} title="One row for all runs that differ only in their seed (g)" onClick={() => setParams({ group: isGrouped ? "" : "1", sel: "" })}>
          group: {isGrouped ? "all but seed" : "none"}
        </button>
        <Menu label={`columns ${ids.length}/${all.length}`} isRight>
          <button class="small" onClick={() => setColumns(differing)}>only what differs ({rows?.varying.length ?? 0})</button>
          <Choose
            chosen={ids}
            all={all}
            onChosen={setColumns}
            onReset={() => {
              lasting.remove(`${SAVED}:${store.root}`);
              setParams({ cols: "" });
            }}
          />
        </Menu>
        <Menu label={`charts ${charts.length}`} isRight>
          <Choose chosen={charts} all={groups.map((group) => ({ id: group.name, label: group.name, kind: counted(group.metrics.length, "metric") }))} most={MAX_CHARTS} onChosen={(next) => setParams({ charts: next.join("|") || " " })} onReset={() => setParams({ charts: "" })} />
        </Menu>
        <AxisChoice />
        <label class="button slider">
          smooth {smoothing ? smoothing.toFixed(2) : "off"}
          <input type="range" min="0" max="0.98" step="0.02" value={smoothing} aria-label="Smoothing" onInput={(event) => setParams({ smooth: event.currentTarget.value === "0" ? "" : event.currentTarget.value }, true)} />
        </label>
      </div>
      {polled.error && polled.error.status !== 400 ? <Problem error={polled.error} /> : null}
      {charts.length && selected.length ? (
        <Charts ids={selected} isGrouped={isGrouped} metrics={metrics} charts={charts} slots={slots} labels={(id) => (isGrouped ? labelOfGroup(rows, id) : id)} axis={axis} smoothing={smoothing} logs={logs} isDark={isDark} isLive={isLive} onLog={setLog} onOrder={(next) => setParams({ charts: next.join("|") })} />
      ) : null}
      <div class="status" aria-live="polite" hidden={!rows && polled.error !== undefined}>
        {rows ? (rows.num_runs === rows.num_all ? counted(rows.num_all, "run") : `${rows.num_runs.toLocaleString("en-US")} of ${counted(rows.num_all, "run")}`) : " "}
        {rows && isGrouped ? ` in ${counted(rows.num_rows, "group")}` : ""}
        {isAuto ? ` · charts show the first ${selected.length}` : ` · ${selected.length} selected`}
        {isAuto ? null : <button class="small" onClick={() => setParams({ sel: "" })}>clear</button>}
        {selected.length > 1 && !isGrouped ? <a class="small" href={link("/compare", { keys: selected.join(",") })}>compare</a> : null}
        {store.num_archived && !query.archived ? <button class="small" onClick={() => setParams({ archived: "1" })}>show {counted(store.num_archived, "archived run")}</button> : null}
        {query.archived ? <button class="small" onClick={() => setParams({ archived: "" })}>hide archived runs</button> : null}
      </div>
      {rows && rows.num_rows === 0 ? (
        <div class="card empty">
          <p>No run matches this filter.</p>
          <button class="button" onClick={() => setParams({ where: "" })}>show all {counted(rows.num_all, "run")}</button>
        </div>
      ) : rows && !(varying === null && !asked) ? (
        <RunTable
          query={settled.current?.query ?? query}
          columns={settled.current?.columns ?? columns}
          first={rows}
          sparkMetric={columns.find((column) => column.kind === "metric")?.name ?? metrics[0] ?? ""}
          slots={slots}
          isDark={isDark}
          isGrouped={isGrouped}
          pinned={pinned}
          now={now}
          onToggle={select}
          onSort={(sort) => setParams({ sort })}
          onPin={(key) => setParams({ pin: pin === key ? "" : key })}
        />
      ) : polled.error ? null : (
        <div class="card table-card loading" aria-busy="true" />
      )}
    </main>
  );
}

function labelOfGroup(rows: Rows | undefined, id: string): string {
  const row = rows?.rows.find((each) => each.group === id);
  return row ? `${row.key} × ${row.keys?.length ?? 1}` : id;
}

function FirstSteps(): VNode {
  return (
    <main class="empty card first-steps">
      <h1>No runs yet</h1>
      <p>Runs appear here as soon as they start. Train a first one:</p>
      <pre>trainmaster run train.py</pre>
      <p>or in Python:</p>
      <pre>{'manager = Manager("runs", {"lr": 0.01}, make_loop=make_loop)\nmanager.process({"lr": 0.02})'}</pre>
    </main>
  );
}
