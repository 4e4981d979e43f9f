// Curve data: which metrics share a chart, smoothing, and the conversion to uPlot's format.

import { toNumber } from "./format";
import type { Curve } from "./types";

const SETS = new Set(["train", "training", "valid", "val", "validation", "eval", "evaluation", "test", "dev"]);

/** Splits a metric into dataset and name: "train/loss" is the loss on the dataset "train"; "grad_norm/0.weight" belongs to no dataset. */
export function splitMetric(metric: string): { set: string; name: string } {
  const at = metric.indexOf("/");
  const set = at > 0 ? metric.slice(0, at) : "";
  return SETS.has(set) ? { set, name: metric.slice(at + 1) } : { set: "", name: metric };
}

export interface ChartGroup {
  name: string;
  metrics: string[];
}

/** Metrics with the same name for different datasets share a chart: training and validation loss are drawn together. */
export function groupMetrics(metrics: string[]): ChartGroup[] {
  const groups = new Map<string, string[]>();
  for (const metric of metrics) {
    const { name } = splitMetric(metric);
    const group = groups.get(name);
    if (group) group.push(metric);
    else groups.set(name, [metric]);
  }
  return [...groups].map(([name, each]) => ({ name, metrics: each.sort((a, b) => Number(isTraining(a)) - Number(isTraining(b))) }));
}

export function isTraining(metric: string): boolean {
  return splitMetric(metric).set.startsWith("train");
}

/** Whether a metric is detailed. Detailed metrics have their own charts on the page of a run, and are not shown by default. */
export function isDetail(metric: string): boolean {
  return splitMetric(metric).name.includes("/");
}

/** Metrics per layer: "grad_norm/0.weight" is the row "0.weight" of the heat map "grad_norm". */
export function layerGroups(metrics: string[]): Map<string, { row: string; metric: string }[]> {
  const groups = new Map<string, { row: string; metric: string }[]>();
  for (const metric of metrics) {
    const { set, name } = splitMetric(metric);
    const parts = name.split("/");
    if (set || parts.length < 2) continue;
    const first = parts[0] ?? "";
    const last = parts[parts.length - 1] ?? "";
    const [group, row] = parts.length === 2 ? [first, last] : [`${first} ${last}`, parts.slice(1, -1).join("/")];
    const rows = groups.get(group) ?? [];
    rows.push({ row, metric });
    groups.set(group, rows);
  }
  for (const [name, rows] of groups) if (rows.length < 2) groups.delete(name);
  return groups;
}

/** An exponential moving average with bias correction. A value that is not finite leaves a gap and does not affect later values. */
export function smooth(values: number[], weight: number): number[] {
  if (weight <= 0) return values;
  let sum = 0;
  let total = 0;
  return values.map((value) => {
    if (!Number.isFinite(value)) return value;
    sum = sum * weight + value * (1 - weight);
    total = total * weight + (1 - weight);
    return sum / total;
  });
}

export interface Line {
  key: string;
  metric: string;
  over: string;
  x: number[];
  y: number[];
  low?: number[];
  high?: number[];
  isSampled: boolean;
  numRuns: number;
}

export function toLine(curve: Curve): Line {
  const line: Line = {
    key: curve.key,
    metric: curve.metric,
    over: curve.over,
    x: curve.x.map(toNumber),
    y: curve.y.map(toNumber),
    isSampled: curve.is_sampled,
    numRuns: curve.num_runs,
  };
  if (curve.low && curve.high) {
    line.low = curve.low.map(toNumber);
    line.high = curve.high.map(toNumber);
  }
  return line;
}

type Column = (number | null | undefined)[];

/**
 * Aligns lines to one ascending x column. Where a line has no point, its column is undefined, and uPlot connects the neighboring points.
 * A value that is not finite, or not positive on a log axis, becomes null, and the line has a gap.
 */
export function align(lines: { x: number[]; columns: number[][] }[], isLog: boolean): { x: number[]; columns: Column[][] } {
  const first = lines[0];
  if (first && lines.every((line) => sameValues(line.x, first.x))) {
    return { x: first.x, columns: lines.map((line) => line.columns.map((column) => (isDrawable(column, isLog) ? column : column.map((value) => drawable(value, isLog))))) };
  }
  const x = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const rows = new Map(x.map((value, row) => [value, row]));
  const columns = lines.map((line) =>
    line.columns.map((column) => {
      const found: Column = new Array(x.length).fill(undefined);
      line.x.forEach((value, at) => {
        found[rows.get(value) as number] = drawable(column[at] ?? NaN, isLog);
      });
      return found;
    }),
  );
  return { x, columns };
}

function sameValues(one: number[], other: number[]): boolean {
  return one === other || (one.length === other.length && one.every((value, at) => value === other[at]));
}

function isDrawable(column: number[], isLog: boolean): boolean {
  return column.every((value) => Number.isFinite(value) && (!isLog || value > 0));
}

function drawable(value: number, isLog: boolean): number | null {
  return Number.isFinite(value) && (!isLog || value > 0) ? value : null;
}

/** The SVG path of a sparkline, for a row of the table. */
export function sparkPath(values: number[], width: number, height: number): string {
  const finite = values.filter(Number.isFinite);
  if (finite.length < 2) return "";
  const low = Math.min(...finite);
  const span = Math.max(...finite) - low || 1;
  let path = "";
  let isDown = false;
  values.forEach((value, at) => {
    if (!Number.isFinite(value)) {
      isDown = false;
      return;
    }
    const x = (at / (values.length - 1)) * (width - 2) + 1;
    const y = height - 2 - ((value - low) / span) * (height - 4);
    path += `${isDown ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    isDown = true;
  });
  return path;
}

/** Sorts metrics: first those by which runs choose their best checkpoint, then the loss and accuracy on evaluation sets, then the rest. */
export function rankMetrics(metrics: string[], monitored: string[]): string[] {
  const rank = (metric: string): number => {
    if (monitored.includes(metric)) return 0;
    if (isDetail(metric)) return 5;
    const { set, name } = splitMetric(metric);
    if (!set) return 4;
    if (isTraining(metric)) return 3;
    return name === "accuracy" || name === "loss" ? 1 : 2;
  };
  return [...metrics].sort((a, b) => rank(a) - rank(b));
}
