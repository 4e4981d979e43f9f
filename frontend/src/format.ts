// Formats values as text. Content from runs is never inserted as HTML.

import type { Plain } from "./types";

/** Converts a number from the API, where NaN and infinities are strings. */
export function toNumber(value: unknown): number {
  if (typeof value === "number") return value;
  if (value === "inf") return Infinity;
  if (value === "-inf") return -Infinity;
  return NaN;
}

export function isNumber(value: unknown): boolean {
  return typeof value === "number" || value === "nan" || value === "inf" || value === "-inf";
}

/** A metric with four significant digits: 0.9660, 12.35, 3.1e−5. */
export function formatMetric(value: unknown): string {
  const number = toNumber(value);
  if (Number.isNaN(number)) return "NaN";
  if (!Number.isFinite(number)) return number > 0 ? "∞" : "−∞";
  const size = Math.abs(number);
  if (Number.isInteger(number) && size < 1e6) return number.toLocaleString("en-US").replace("-", "−");
  if (size >= 1e6 || size < 1e-4) return tidy(number.toExponential(2));
  if (size >= 1000) return number.toLocaleString("en-US", { maximumFractionDigits: 0 }).replace("-", "−");
  const rounded = number.toPrecision(4);
  const exact = String(number); // write a learning rate of 0.02 as 0.02, not 0.02000
  return (exact.length < rounded.length ? exact : rounded).replace("-", "−");
}

/** A number on an axis, without trailing zeros. */
export function formatTick(value: number): string {
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-3)) return tidy(value.toExponential(1));
  return value.toLocaleString("en-US", { maximumFractionDigits: size >= 1000 ? 0 : 4 }).replace("-", "−");
}

function tidy(text: string): string {
  return text.replace(/\.?0+e/, "e").replace("e+", "e").replace("-", "−").replace("e-", "e−");
}

/** The spread of a metric, with two significant digits. */
export function formatSpread(value: unknown): string {
  const number = toNumber(value);
  if (!Number.isFinite(number)) return "";
  if (number === 0) return "0";
  return number < 1e-4 || number >= 1e4 ? tidy(number.toExponential(1)) : String(Number(number.toPrecision(2)));
}

export function formatSigned(value: unknown): string {
  const text = formatMetric(value);
  return toNumber(value) > 0 ? `+${text}` : text;
}

/** A config value as you would write it in a filter. */
export function formatValue(value: Plain | undefined): string {
  if (value === undefined) return "";
  if (value === null) return "none";
  if (typeof value === "number") return Number.isInteger(value) && Math.abs(value) < 1e9 ? String(value) : formatExact(value);
  if (typeof value === "string") return value;
  if (typeof value === "boolean") return String(value);
  return JSON.stringify(value);
}

/** A config value in the table: a number with at most four significant digits. */
export function formatShort(value: Plain | undefined): string {
  return typeof value === "number" && !Number.isInteger(value) ? formatExact(Number(value.toPrecision(4))) : formatValue(value);
}

function formatExact(value: number): string {
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-4 || size >= 1e6) ? value.toExponential().replace("e+", "e") : String(value);
}

export function formatDuration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "";
  if (seconds < 1) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.round((seconds % 86400) / 3600)} h`;
}

export function formatAge(time: number | null | undefined, now: number): string {
  if (!time) return "";
  const seconds = Math.max(0, now - time);
  if (seconds < 10) return "now";
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

export function formatBytes(size: number | null): string {
  if (size === null) return "damaged";
  if (size < 1000) return `${size} B`;
  const units = ["kB", "MB", "GB", "TB"];
  let value = size;
  let unit = "B";
  for (const each of units) {
    if (value < 1000) break;
    value /= 1000;
    unit = each;
  }
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${unit}`;
}

export function counted(count: number, noun: string): string {
  return `${count.toLocaleString("en-US")} ${noun}${count === 1 ? "" : "s"}`;
}
