// A chart of metrics: smoothed lines of runs with their raw values, bands of groups, a crosshair that all charts share, and zoom.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { VNode } from "preact";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { formatDuration, formatMetric, formatTick } from "./format";
import { align, isTraining, smooth, type Line } from "./series";
import { colorAt, DASHES } from "./selection";

export interface Range {
  low: number;
  high: number;
}

interface Props {
  title: string;
  lines: Line[];
  /** The position of each run in the selection, which determines its color. */
  slots: Map<string, number>;
  labels: (key: string) => string;
  smoothing: number;
  isLog: boolean;
  isDark: boolean;
  height: number;
  range: Range | null;
  onRange: (range: Range | null) => void;
  onLog?: (isLog: boolean) => void;
  onWide?: () => void;
  isWide?: boolean;
  note?: string;
  isLoading: boolean;
  /** The requested axis, and how many lines cannot be drawn over it. */
  axis: string;
  numMissing: number;
  onGrab?: (event: PointerEvent) => void;
  onPress?: (event: KeyboardEvent) => void;
}

interface Drawn {
  line: Line;
  color: string;
  dash: number[];
  /** The index of the line's series in the plot. */
  at: number;
}

const UNITS: Record<string, string> = { epoch: "epoch", update: "step", batch: "batch", sample: "samples", second: "time", "": "as logged" };

export function Chart(props: Props): VNode {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const drawn = useRef<Drawn[]>([]);
  const [hover, setHover] = useState<{ at: number; left: number } | null>(null);
  const { lines, slots, smoothing, isLog, isDark, range } = props;
  const over = lines[0]?.over ?? "";
  const shown = useMemo(() => lines.filter((line) => line.over === over), [lines, over]);
  const numOther = lines.length - shown.length;

  const built = useMemo(() => build(shown, slots, smoothing, isLog, isDark), [shown, slots, smoothing, isLog, isDark]);

  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    drawn.current = built.drawn;
    const styles = getComputedStyle(document.documentElement);
    const text = styles.getPropertyValue("--muted").trim();
    const grid = styles.getPropertyValue("--grid").trim();
    const font = `11px ${styles.getPropertyValue("--sans").trim()}`;
    const axis: uPlot.Axis = { stroke: text, font, grid: { stroke: grid, width: 1 }, ticks: { show: false }, gap: 6 };
    const created = new uPlot(
      {
        width: Math.max(120, element.clientWidth),
        height: props.height,
        padding: [8, 8, 0, 0],
        legend: { show: false },
        cursor: { sync: { key: `trainmaster-${over}` }, points: { size: 6, show: !built.isCrowded }, drag: { x: true, y: false, setScale: false }, focus: { prox: built.isCrowded ? -1 : 24 } },
        focus: { alpha: 0.35 },
        scales: {
          x: { time: false, range: range ? [range.low, range.high] : whole },
          y: { distr: isLog ? 3 : 1, ...(isLog ? {} : { range: padded }) },
        },
        axes: [
          { ...axis, size: 26, values: (_: uPlot, values: number[]) => values.map((each) => (over === "second" ? formatDuration(each) : formatTick(each))), space: 64 },
          { ...axis, size: 46, values: (_: uPlot, values: (number | null)[]) => values.map((each) => (each === null ? "" : formatTick(each))), space: 28 },
        ],
        series: [{}, ...built.series],
        bands: built.bands,
        hooks: {
          setCursor: [
            (u) => {
              const at = u.cursor.idx;
              setHover(at === null || at === undefined || (u.cursor.left ?? -1) < 0 ? null : { at, left: u.cursor.left ?? 0 });
            },
          ],
          setSelect: [
            (u) => {
              if (u.select.width < 4) return;
              props.onRange({ low: u.posToVal(u.select.left, "x"), high: u.posToVal(u.select.left + u.select.width, "x") });
              u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
            },
          ],
        },
      },
      built.data as uPlot.AlignedData,
      element,
    );
    created.over.addEventListener("dblclick", () => props.onRange(null));
    plot.current = created;
    return () => {
      created.destroy();
      plot.current = null;
    };
  }, [built, props.height, over, isLog, isDark, range?.low, range?.high]);

  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const observer = new ResizeObserver(() => {
      if (plot.current && element.clientWidth) plot.current.setSize({ width: Math.max(120, element.clientWidth), height: props.height });
    });
    observer.observe(element);
    return () => observer.disconnect();
  }, [props.height]);

  const numRuns = Math.max(0, ...shown.map((line) => line.numRuns));
  const hasBand = shown.some((line) => line.low);
  const hasTrain = shown.some((line) => isTraining(line.metric));
  const hasValid = shown.some((line) => !isTraining(line.metric));
  const why = props.axis === "step" ? "logged over several units" : `not recorded by ${UNITS[props.axis] ?? props.axis}`;
  const notes = [
    hasBand ? `mean of ${numRuns > 1 ? numRuns : 1}, 95 %` : "",
    props.note ?? "",
    numOther > 0 ? `${numOther} over another unit` : "",
    props.numMissing > 0 && shown.length > 0 ? `${props.numMissing} ${why}` : "",
  ].filter(Boolean);
  const summary = `${props.title} over ${UNITS[over] ?? "step"}: ${shown.length} lines`;
  return (
    <figure class={`card chart${props.isWide ? " wide" : ""}`} aria-label={summary}>
      <figcaption>
        <button
          class={`title${props.onGrab ? " movable" : ""}`}
          onClick={props.onWide}
          onPointerDown={props.onGrab}
          onKeyDown={props.onPress}
          title={[props.title, props.onWide ? (props.isWide ? "Click: normal width" : "Click: full width") : "", props.onGrab ? "Drag or press the arrow keys: move" : ""].filter(Boolean).join("\n")}
        >
          {props.title}
        </button>
        <span class="note">
          {notes.join(" · ")}
          {hasTrain && hasValid ? <span class="keys" aria-label="valid is solid, train is dotted"><i class="solid" />valid <i class="dotted" />train</span> : null}
        </span>
        {range ? <button class="small" onClick={() => props.onRange(null)}>reset zoom</button> : null}
        {props.onLog ? (
          <button class="small" aria-pressed={isLog} onClick={() => props.onLog?.(!isLog)} title="Logarithmic axis">log</button>
        ) : null}
      </figcaption>
      <div class="plot" ref={box} />
      {shown.length === 0 && !props.isLoading ? <p class="hollow">{props.numMissing > 0 ? why : "no values yet"}</p> : null}
      <span class="unit">{UNITS[over] ?? "step"}</span>
      {hover && shown.length > 0 ? <Tooltip drawn={built.drawn} data={built.data} at={hover.at} left={hover.left} over={over} labels={props.labels} /> : null}
    </figure>
  );
}

function Tooltip(props: { drawn: Drawn[]; data: (number | null | undefined)[][]; at: number; left: number; over: string; labels: (key: string) => string }): VNode | null {
  const x = props.data[0]?.[props.at];
  const values = props.drawn
    .map((each) => ({ ...each, value: props.data[each.at]?.[props.at] }))
    .filter((each) => typeof each.value === "number")
    .sort((a, b) => (b.value as number) - (a.value as number));
  if (values.length === 0 || typeof x !== "number") return null;
  return (
    <div class={`tooltip${props.left > 160 ? " at-left" : ""}`} aria-hidden="true">
      <div class="at">{props.over === "second" ? formatDuration(x) : `${UNITS[props.over] ?? "step"} ${formatTick(x)}`}</div>
      {values.slice(0, 12).map((each) => (
        <div key={`${each.line.key} ${each.line.metric}`}>
          <i class={`swatch${isTraining(each.line.metric) ? " ring" : ""}`} style={{ color: each.color }} />
          <b>{formatMetric(each.value)}</b> {props.labels(each.line.key)} <span>{isTraining(each.line.metric) ? "train" : ""}</span>
        </div>
      ))}
      {values.length > 12 ? <div>{values.length - 12} more</div> : null}
    </div>
  );
}

function whole(_: uPlot, low: number | null, high: number | null): [number, number] {
  if (low === null || high === null) return [0, 1];
  return low === high ? [low - 1, high + 1] : [low, high];
}

function padded(_: uPlot, low: number | null, high: number | null): [number, number] {
  if (low === null || high === null || !Number.isFinite(low) || !Number.isFinite(high)) return [0, 1];
  const space = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  return [low - space, high + space];
}

interface Built {
  data: (number | null | undefined)[][];
  series: uPlot.Series[];
  bands: uPlot.Band[];
  drawn: Drawn[];
  /** Whether there are too many lines to highlight the one under the pointer: highlighting a line redraws all lines. */
  isCrowded: boolean;
}

/** The columns and styles of a plot: for each line, the raw values (faint, if the line is smoothed), the band, and the line itself. */
function build(lines: Line[], slots: Map<string, number>, smoothing: number, isLog: boolean, isDark: boolean): Built {
  const aligned = align(
    lines.map((line) => {
      const columns: number[][] = [];
      if (line.low && line.high) columns.push(line.high, line.low);
      else if (smoothing > 0) columns.push(line.y);
      columns.push(smooth(line.y, smoothing));
      return { x: line.x, columns };
    }),
    isLog,
  );
  const isCrowded = lines.length > 60;
  const built: Built = { data: [aligned.x], series: [], bands: [], drawn: [], isCrowded };
  lines.forEach((line, number) => {
    const slot = slots.get(line.key) ?? 0;
    const color = colorAt(slot, isDark);
    const columns = aligned.columns[number] ?? [];
    const hasTwin = lines.some((other) => other !== line && other.key === line.key);
    const dash = isTraining(line.metric) && hasTwin ? [1, 4] : (DASHES[Math.floor(slot / 7) % DASHES.length] ?? []);
    columns.forEach((column, at) => {
      const isLast = at === columns.length - 1;
      const isBand = !isLast && columns.length === 3;
      built.data.push(column);
      built.series.push({
        label: line.metric,
        stroke: isLast ? color : isBand ? "transparent" : `${color}40`,
        width: isLast ? (isCrowded ? 1 : 1.75) : 1,
        alpha: isCrowded ? 0.6 : 1,
        dash: isLast ? dash : [],
        cap: dash[0] === 1 ? "round" : "butt",
        spanGaps: false,
        points: { show: isLast && column.filter((value) => typeof value === "number").length < 2 },
      });
    });
    const last = built.data.length - 1;
    if (columns.length === 3) built.bands.push({ series: [last - 2, last - 1], fill: `${color}26` });
    built.drawn.push({ line, color, dash, at: last });
  });
  return built;
}
