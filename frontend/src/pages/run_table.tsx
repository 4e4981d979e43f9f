// The table of runs. Only the visible rows exist in the DOM, and rows are fetched in blocks, so 100,000 rows scroll without pagination.

import type { VNode } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { ApiError, get, url } from "../api";
import { go, link } from "../address";
import { asStats, columnWidth, shortTitles, type ColumnSpec } from "../columns";
import { formatAge, formatDuration, formatMetric, formatShort, formatSpread, formatValue, toNumber } from "../format";
import { RunLink, State, useKeys } from "../parts";
import { colorAt } from "../selection";
import { sparkPath } from "../series";
import type { Curve, Plain, Row, Rows } from "../types";

export const ROW = 30;
const BLOCK = 100;
/** The widths of the first two columns. On a phone they are narrower, so that one more column fits. */
const [FIRST, STATE] = innerWidth < 600 ? [112, 84] : [188, 150];

export interface TableProps {
  /** The query parameters: where, sort, group, archived. */
  query: Record<string, string>;
  columns: ColumnSpec[];
  first: Rows;
  /** The metric of the sparklines. */
  sparkMetric: string;
  slots: Map<string, number>;
  isDark: boolean;
  isGrouped: boolean;
  pinned: Row | undefined;
  now: number;
  onToggle: (id: string) => void;
  onSort: (sort: string) => void;
  onPin: (key: string) => void;
}

/** The id by which a row is selected: its key, or the name of its group. */
export function rowId(row: Row, isGrouped: boolean): string {
  return isGrouped ? (row.group ?? row.key) : row.key;
}

export function RunTable(props: TableProps): VNode {
  const { first, columns } = props;
  const scroller = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const [focus, setFocus] = useState(-1);
  const blocks = useBlocks(props, Math.floor(top / ROW), Math.ceil((top + height) / ROW));
  const titles = useMemo(() => shortTitles(columns), [columns]);
  const widths = useMemo(() => columns.map((column, at) => columnWidth(column, titles.get(column.id) ?? column.title, blocks.get(0) ?? [], at) + (props.pinned && column.kind === "metric" ? 44 : 0)), [columns, titles, first.rows.length > 0, props.pinned === undefined]);
  const sparks = useSparks(visibleRows(blocks, top, height, first.num_rows), props);

  useLayoutEffect(() => {
    const element = scroller.current;
    if (!element) return;
    const observer = new ResizeObserver(() => setHeight(element.clientHeight));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    scroller.current?.scrollTo({ top: 0 });
    setFocus(-1);
  }, [props.query["where"], props.query["sort"], props.query["group"]]);

  const rowAt = (at: number): Row | undefined => blocks.get(Math.floor(at / BLOCK))?.[at % BLOCK];
  const move = (to: number): void => {
    const at = Math.max(0, Math.min(first.num_rows - 1, to));
    setFocus(at);
    const element = scroller.current;
    if (!element) return;
    const head = ROW + (props.pinned ? ROW : 0);
    if (at * ROW < element.scrollTop) element.scrollTop = at * ROW;
    else if ((at + 1) * ROW + head > element.scrollTop + element.clientHeight) element.scrollTop = (at + 1) * ROW + head - element.clientHeight;
  };
  const open = (row: Row | undefined): void => {
    if (row) go(link(`/run/${row.key}`, listContext(props.query)));
  };
  useKeys({
    j: () => move(focus + 1),
    k: () => move(focus < 0 ? 0 : focus - 1),
    ArrowDown: (event) => { event.preventDefault(); move(focus + 1); },
    ArrowUp: (event) => { event.preventDefault(); move(Math.max(0, focus - 1)); },
    PageDown: (event) => { event.preventDefault(); move(focus + Math.floor(height / ROW) - 2); },
    PageUp: (event) => { event.preventDefault(); move(focus - Math.floor(height / ROW) + 2); },
    Home: () => move(0),
    End: () => move(first.num_rows - 1),
    Enter: () => open(rowAt(focus)),
    x: () => { const row = rowAt(focus); if (row) props.onToggle(rowId(row, props.isGrouped)); },
    p: () => { const row = rowAt(focus); if (row) props.onPin(row.key); },
  });

  const template = `${FIRST}px ${STATE}px ${widths.map((width) => `minmax(0, ${width}fr)`).join(" ")}`;
  const width = FIRST + STATE + widths.reduce((sum, each) => sum + each, 0);
  const heightOfAll = (first.num_rows + 1 + (props.pinned ? 1 : 0)) * ROW + 14;
  const start = Math.max(0, Math.floor(top / ROW) - 6);
  const end = Math.min(first.num_rows, Math.ceil((top + height) / ROW) + 6);
  const shown: VNode[] = [];
  for (let at = start; at < end; at += 1) {
    const row = rowAt(at);
    shown.push(<TableRow key={at} at={at} row={row} table={props} template={template} sparks={sparks} isFocused={at === focus} top={at * ROW} />);
  }
  const sort = props.query["sort"] ?? "";
  return (
    <div class="card table-card" style={{ maxHeight: `${heightOfAll}px`, "--height": `${heightOfAll}px`, "--width": `${width}px` }}>
      <div class="scroller" ref={scroller} onScroll={(event) => setTop(event.currentTarget.scrollTop)} tabIndex={0} role="table" aria-label="Runs" aria-rowcount={first.num_rows}>
        <div class="head row" role="row" style={{ gridTemplateColumns: template }}>
          <Heading title={props.isGrouped ? "runs" : "run"} sort={sort} column="fact:key" onSort={props.onSort} />
          <Heading title="state" sort={sort} column="fact:state" onSort={props.onSort} />
          {columns.map((column) => (
            <Heading key={column.id} title={titles.get(column.id) ?? column.title} full={column.name} isNumber={column.isNumber} sort={sort} column={sortName(column)} onSort={props.onSort} />
          ))}
        </div>
        {props.pinned ? <TableRow at={-1} row={props.pinned} table={props} template={template} sparks={sparks} isFocused={false} isPinned top={0} /> : null}
        <div class="body" style={{ height: `${first.num_rows * ROW}px` }}>
          {shown}
        </div>
      </div>
    </div>
  );
}

/** The part of a query that the page of a run needs to find the next and the previous run. */
export function listContext(query: Record<string, string>): Record<string, string> {
  return { where: query["where"] ?? "", sort: query["sort"] ?? "" };
}

function sortName(column: ColumnSpec): string {
  if (column.kind !== "fact") return column.id;
  return { best: "fact:best", epoch: "fact:epoch", seed: "fact:seed", duration: "fact:duration", age: "fact:changed", tags: "fact:tag" }[column.name] ?? "";
}

function Heading(props: { title: string; full?: string; isNumber?: boolean; sort: string; column: string; onSort: (sort: string) => void }): VNode {
  const isUp = props.sort === props.column && props.column !== "";
  const isDown = props.sort === `-${props.column}`;
  const next = isDown ? props.column : isUp ? "" : `-${props.column}`;
  return (
    <div role="columnheader" class={props.isNumber ? "number" : ""} aria-sort={isUp ? "ascending" : isDown ? "descending" : "none"}>
      {props.column ? (
        <button title={`Sort by ${props.full ?? props.title}`} onClick={() => props.onSort(next)}>
          {props.title}
          {isUp ? " ↑" : isDown ? " ↓" : ""}
        </button>
      ) : (
        props.title
      )}
    </div>
  );
}

interface RowProps {
  at: number;
  row: Row | undefined;
  table: TableProps;
  template: string;
  sparks: Map<string, number[]>;
  isFocused: boolean;
  isPinned?: boolean;
  top: number;
}

function TableRow(props: RowProps): VNode {
  const { row, table } = props;
  const style = props.isPinned ? { gridTemplateColumns: props.template } : { gridTemplateColumns: props.template, transform: `translateY(${props.top}px)` };
  if (!row) return <div class="row loading" role="row" style={style} aria-rowindex={props.at + 1} />;
  const id = rowId(row, table.isGrouped);
  const slot = table.slots.get(id);
  const isSelected = slot !== undefined;
  const color = isSelected ? colorAt(slot, table.isDark) : "";
  const pinned = props.isPinned ? undefined : table.pinned;
  return (
    <div
      class={`row${isSelected ? " selected" : ""}${props.isFocused ? " focused" : ""}${props.isPinned ? " pinned" : ""}${table.pinned?.key === row.key ? " base" : ""}`}
      role="row"
      aria-rowindex={props.at + 1}
      aria-selected={isSelected}
      data-key={row.key}
      style={style}
    >
      <div role="cell" class="run">
        <input type="checkbox" checked={isSelected} aria-label={`Select ${row.key}`} onChange={() => table.onToggle(id)} style={isSelected ? { accentColor: color } : {}} />
        {table.isGrouped ? (
          <span class="group">
            <RunLink run={row.key} params={listContext(table.query)} /> <span class="count">× {row.keys?.length ?? 1}</span>
          </span>
        ) : (
          <RunLink run={row.key} params={listContext(table.query)} />
        )}
        {row.tags.slice(0, 1).map((tag) => <span class="tag" key={tag}>{tag}</span>)}
        <button class="pin" aria-label={props.isPinned ? "Unpin the baseline" : "Pin as the baseline"} title={props.isPinned ? "Unpin the baseline" : "Pin as the baseline (p)"} onClick={() => table.onPin(row.key)}>
          {props.isPinned ? "★" : "☆"}
        </button>
      </div>
      <div role="cell" title={row.reason}>
        {table.isGrouped && row.states ? <GroupState states={row.states} /> : <State state={row.state} epoch={row.epoch} numEpochs={row.num_epochs} progressed={row.progressed} now={table.now} />}
      </div>
      {table.columns.map((column, at) => (
        <Cell key={column.id} column={column} row={row} value={row.values[at]} base={pinned?.values[at]} now={table.now} spark={props.sparks.get(id)} isGrouped={table.isGrouped} />
      ))}
    </div>
  );
}

function GroupState(props: { states: Record<string, number> }): VNode {
  const total = Object.values(props.states).reduce((sum, each) => sum + each, 0);
  return (
    <span class="group-states">
      {Object.entries(props.states).map(([state, count]) => (
        <span key={state} class={`state ${state.replace("?", "")}`}>
          {total === count && total === 1 ? "" : `${count} `}
          {state}{" "}
        </span>
      ))}
    </span>
  );
}

function Cell(props: { column: ColumnSpec; row: Row; value: Plain | undefined; base: Plain | undefined; now: number; spark: number[] | undefined; isGrouped: boolean }): VNode {
  const { column, row, value } = props;
  const name = column.isNumber ? "number" : "";
  if (column.kind === "fact") return <FactCell {...props} />;
  if (value === null || value === undefined) return <div role="cell" class={`${name} missing`}>{column.kind === "metric" ? "" : value === null && !props.isGrouped ? "" : "·"}</div>;
  if (column.kind === "config") return <div role="cell" class={name} title={formatValue(value)}>{formatShort(value)}</div>;
  const stats = asStats(value);
  const shown = stats ? stats.mean : value;
  const base = asStats(props.base)?.mean ?? props.base;
  const delta = base !== undefined && base !== null ? toNumber(shown) - toNumber(base) : NaN;
  const isBad = !Number.isFinite(toNumber(shown));
  const title = stats ? `mean ± standard deviation of ${stats.num} finished` : String(value);
  return (
    <div role="cell" class={`number metric${isBad ? " bad" : ""}`} title={title}>
      {Number.isFinite(delta) && delta !== 0 ? <span class="delta">{delta > 0 ? "+" : "−"}{formatSpread(Math.abs(delta))}</span> : null}
      <span>{formatMetric(shown)}</span>
      {stats && formatSpread(stats.std) ? <span class="spread">±{formatSpread(stats.std)}</span> : null}
      {stats && row.keys && stats.num < row.keys.length && stats.num > 0 ? <span class="spread">n={stats.num}</span> : null}
    </div>
  );
}

function FactCell(props: { column: ColumnSpec; row: Row; now: number; spark: number[] | undefined; isGrouped: boolean }): VNode {
  const { row } = props;
  switch (props.column.name) {
    case "best": {
      const best = props.isGrouped ? null : row.best;
      const where = best ? (best.epoch !== null ? `@ ${best.epoch}` : best.step !== null ? `@ ${best.step}` : "") : "";
      return (
        <div role="cell" class="number metric" title={best ? `best ${best.metric} (${best.mode}), epoch ${best.epoch}, step ${best.step}` : ""}>
          {best ? <span>{formatMetric(best.value)}</span> : null}
          <span class="spread">{where}</span>
        </div>
      );
    }
    case "curve":
      return (
        <div role="cell" class="spark">
          <svg viewBox="0 0 84 22" width="84" height="22" aria-hidden="true">
            <path d={props.spark ? sparkPath(props.spark, 84, 22) : ""} />
          </svg>
        </div>
      );
    case "epoch":
      return <div role="cell" class="number">{row.epoch ?? ""}</div>;
    case "seed":
      return <div role="cell" class="number">{props.isGrouped ? "" : formatValue(row.seed)}</div>;
    case "duration":
      return <div role="cell" class="number muted">{formatDuration(row.duration)}</div>;
    case "tags":
      return <div role="cell">{row.tags.join(", ")}</div>;
    case "age":
      return <div role="cell" class="number muted" title={row.changed ? new Date(row.changed * 1000).toLocaleString() : ""}>{formatAge(row.progressed ?? row.changed, props.now)}</div>;
    default:
      return <div role="cell" />;
  }
}

// ---- fetching

/** The blocks of rows, indexed by number. An old block is shown until its new version arrives, so nothing flickers. */
function useBlocks(props: TableProps, from: number, to: number): Map<number, Row[]> {
  const names = props.columns.filter((column) => column.kind !== "fact").map((column) => column.id).join("\n");
  const query = JSON.stringify([props.query, names]);
  const cache = useRef<{ query: string; rows: Map<number, Row[]>; versions: Map<number, number> }>({ query: "", rows: new Map(), versions: new Map() });
  const [, setCount] = useState(0);
  if (cache.current.query !== query) cache.current = { query, rows: new Map(), versions: new Map() };
  const own = cache.current;
  if (own.versions.get(0) !== props.first.version) {
    own.rows.set(0, expand(props.first.rows, props.columns));
    own.versions.set(0, props.first.version);
  }
  const low = Math.max(0, Math.floor((from - 20) / BLOCK));
  const high = Math.min(Math.floor(Math.max(0, props.first.num_rows - 1) / BLOCK), Math.floor((to + 20) / BLOCK));
  useEffect(() => {
    const abort = new AbortController();
    const timer = setTimeout(() => {
      for (let block = low; block <= high; block += 1) {
        if (own.versions.get(block) === props.first.version) continue;
        get<Rows>(url("runs", { ...props.query, columns: names, offset: block * BLOCK, limit: BLOCK }), null, abort.signal)
          .then((answer) => {
            if (!answer.data || cache.current !== own) return;
            own.rows.set(block, expand(answer.data.rows, props.columns));
            own.versions.set(block, props.first.version);
            setCount((old) => old + 1);
          })
          .catch((error: unknown) => {
            if (error instanceof ApiError) own.versions.set(block, props.first.version);
          });
      }
    }, 40);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [query, low, high, props.first.version]);
  return own.rows;
}

/** Adds empty values for columns of kind "fact", because the server sends only the values of config keys and metrics. */
export function expand(rows: Row[], columns: ColumnSpec[]): Row[] {
  return rows.map((row) => {
    let at = 0;
    return { ...row, values: columns.map((column) => (column.kind === "fact" ? null : (row.values[at++] ?? null))) };
  });
}

function visibleRows(blocks: Map<number, Row[]>, top: number, height: number, count: number): Row[] {
  const rows: Row[] = [];
  for (let at = Math.max(0, Math.floor(top / ROW)); at < Math.min(count, Math.ceil((top + height) / ROW)); at += 1) {
    const row = blocks.get(Math.floor(at / BLOCK))?.[at % BLOCK];
    if (row) rows.push(row);
  }
  return rows;
}

/** The sparklines of the visible rows. They are fetched after the rows, and again when a run has changed. */
function useSparks(rows: Row[], props: TableProps): Map<string, number[]> {
  const cache = useRef<{ metric: string; values: Map<string, number[]>; seen: Map<string, string> }>({ metric: "", values: new Map(), seen: new Map() });
  const [, setCount] = useState(0);
  if (cache.current.metric !== props.sparkMetric) cache.current = { metric: props.sparkMetric, values: new Map(), seen: new Map() };
  const own = cache.current;
  const hasColumn = props.columns.some((column) => column.id === "curve");
  const mark = (row: Row): string => `${row.state} ${row.epoch} ${row.step} ${row.keys?.length ?? 1}`;
  const wanted = hasColumn && props.sparkMetric ? rows.filter((row) => own.seen.get(rowId(row, props.isGrouped)) !== mark(row)) : [];
  const ids = wanted.map((row) => rowId(row, props.isGrouped)).join(",");
  useEffect(() => {
    if (!ids) return;
    const abort = new AbortController();
    const timer = setTimeout(() => {
      get<{ curves: Curve[] }>(url("curves", { [props.isGrouped ? "groups" : "keys"]: ids, metrics: props.sparkMetric, points: 60 }), null, abort.signal)
        .then((answer) => {
          for (const row of wanted) own.seen.set(rowId(row, props.isGrouped), mark(row));
          for (const curve of answer.data?.curves ?? []) own.values.set(curve.key, curve.y.map(toNumber));
          setCount((old) => old + 1);
        })
        .catch(() => undefined);
    }, 120);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [ids, props.sparkMetric, wanted.map(mark).join(",")]);
  return own.values;
}
