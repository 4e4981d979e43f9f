// The columns of the table of runs. A column id is a kind and a name ("metric:valid/loss", "config:train.lr"), or only a name ("best", "curve").

import { isDetail, rankMetrics } from "./series";
import type { Plain, Row, Stats, StoreInfo } from "./types";
import { formatMetric, formatShort } from "./format";

export interface ColumnSpec {
  id: string;
  kind: "metric" | "config" | "fact";
  name: string;
  title: string;
  isNumber: boolean;
}

export const FACTS: Record<string, string> = { best: "best", curve: "curve", epoch: "epoch", seed: "seed", duration: "time", tags: "tags", age: "age" };
const NUMBERS = new Set(["best", "epoch", "seed", "duration", "age"]);
const NUM_CONFIG = 6;
const NUM_METRICS = 3;

export function parseColumn(id: string, store: StoreInfo | undefined): ColumnSpec {
  const at = id.indexOf(":");
  const kind = id.slice(0, Math.max(0, at));
  const name = id.slice(at + 1);
  if (kind === "metric") return { id, kind, name, title: name, isNumber: true };
  if (kind === "config") return { id, kind, name, title: name, isNumber: store?.config.find((each) => each.name === name)?.is_number ?? false };
  return { id, kind: "fact", name: id, title: FACTS[id] ?? id, isNumber: NUMBERS.has(id) };
}

/** The default columns: the most important metrics, the best value, the curve, and the config values in which the runs differ. */
export function defaultColumns(store: StoreInfo, varying: string[]): string[] {
  const metrics = rankMetrics(store.metrics.map((each) => each.name), Object.keys(store.monitored)).filter((name) => !isDetail(name)).slice(0, NUM_METRICS);
  const [first, ...rest] = metrics.map((name) => `metric:${name}`);
  const config = varying.filter((name) => !/(?:^|\.)(?:random_)?seed$/.test(name)).slice(0, NUM_CONFIG).map((name) => `config:${name}`);
  const hasSeed = varying.some((name) => /(?:^|\.)(?:random_)?seed$/.test(name));
  return [...(first ? [first] : []), ...(Object.keys(store.monitored).length ? ["best"] : []), ...(first ? ["curve"] : []), ...rest, ...config, ...(hasSeed ? ["seed"] : []), "duration", "age"];
}

/** Column titles. The title of a config value is the last part of its name, or more parts if the last one is ambiguous. */
export function shortTitles(columns: ColumnSpec[]): Map<string, string> {
  const titles = new Map<string, string>();
  for (const column of columns) {
    if (column.kind !== "config") {
      titles.set(column.id, column.title);
      continue;
    }
    const parts = column.name.split(".");
    let length = 1;
    const ending = (name: string): string => name.split(".").slice(-length).join(".");
    while (length < parts.length && columns.some((other) => other !== column && other.kind === "config" && ending(other.name) === ending(column.name))) length += 1;
    titles.set(column.id, ending(column.name));
  }
  return titles;
}

/** The statistics of a group; undefined for the value of a single run. */
export function asStats(value: Plain | undefined): Stats | undefined {
  const isGroup = typeof value === "object" && value !== null && !Array.isArray(value) && "mean" in value && "num" in value;
  return isGroup ? (value as unknown as Stats) : undefined;
}

/** The text of a value, used to measure how wide its column has to be. */
export function cellText(column: ColumnSpec, value: Plain | undefined): string {
  if (value === null || value === undefined) return "";
  const stats = asStats(value);
  if (stats) return `${formatMetric(stats.mean)} ±0.0000`;
  return column.kind === "metric" ? formatMetric(value) : formatShort(value);
}

const WIDTHS: Record<string, number> = { best: 128, curve: 104, epoch: 60, seed: 54, duration: 92, tags: 120, age: 64 };

export function columnWidth(column: ColumnSpec, title: string, rows: Row[], at: number): number {
  if (column.kind === "fact") return WIDTHS[column.name] ?? 100;
  const longest = rows.slice(0, 100).reduce((most, row) => Math.max(most, cellText(column, row.values[at]).length), 0);
  return Math.round(Math.min(260, Math.max(title.length * 7.2 + 34, longest * 7.6 + 26, 64)));
}
