// The axes of a parallel coordinates plot. Each value has a position between the bottom (0) and the top (1).

import { formatTick, formatValue } from "./format";
import { viridis } from "./heat";
import type { Plain } from "./types";

export interface Axis {
  name: string;
  /** The position of a value on the axis; NaN if the value is missing. */
  place: (value: Plain | undefined) => number;
  ticks: { text: string; at: number }[];
}

const MAX_CATEGORIES = 12;

export function makeAxis(name: string, values: (Plain | undefined)[]): Axis {
  const known = values.filter((value) => value !== undefined && value !== null);
  const numbers = known.filter((value): value is number => typeof value === "number" && Number.isFinite(value));
  const isNumeric = known.length > 0 && numbers.length === known.length;
  if (!isNumeric || new Set(numbers).size === 1) {
    const texts = [...new Set(known.map((value) => formatValue(value as Plain)))].sort().slice(0, MAX_CATEGORIES);
    const at = (text: string): number => (texts.length === 1 ? 0.5 : texts.indexOf(text) / (texts.length - 1));
    return {
      name,
      place: (value) => (value === undefined || value === null || !texts.includes(formatValue(value)) ? NaN : at(formatValue(value))),
      ticks: texts.map((text) => ({ text, at: at(text) })),
    };
  }
  const low = Math.min(...numbers);
  const high = Math.max(...numbers);
  const isLog = low > 0 && high / low >= 100;
  const place = (value: Plain | undefined): number => {
    if (typeof value !== "number" || !Number.isFinite(value)) return NaN;
    return isLog ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
  };
  const inner = isLog ? Math.sqrt(low * high) : (low + high) / 2;
  return { name, place, ticks: [low, inner, high].map((value) => ({ text: formatTick(Number(value.toPrecision(3))), at: place(value) })) };
}

export type Brushes = Record<string, [number, number]>;

/** Whether a point lies within all brushed ranges. */
export function isInside(places: Record<string, number>, brushes: Brushes): boolean {
  return Object.entries(brushes).every(([name, [low, high]]) => {
    const at = places[name] ?? NaN;
    return at >= low && at <= high;
  });
}

/** The color of a trial's line, by its place on the axis of the objective. Empty if it has no place there: only complete trials have an objective. */
export function lineColor(goal: number, isMax: boolean): string {
  return Number.isNaN(goal) ? "" : `rgb(${viridis(0.15 + 0.85 * (isMax ? goal : 1 - goal)).join(" ")})`; // the darkest colors would be invisible in dark mode
}
