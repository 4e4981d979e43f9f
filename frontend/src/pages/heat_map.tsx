// A heat map of gradients or activations: one row for each layer, one column for each step, and a color for each value.

import type { VNode } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { url, usePoll } from "../api";
import { formatMetric, formatTick } from "../format";
import { cells } from "../heat";
import { toLine } from "../series";
import { useDark } from "../theme";
import type { Curve } from "../types";

const ROW = 16;

export function HeatMap(props: { run: string; title: string; rows: { row: string; metric: string }[]; isLive: boolean }): VNode {
  const rows = props.rows.slice(0, 200);
  const polled = usePoll<{ curves: Curve[] }>(url("curves", { keys: props.run, metrics: rows.map((each) => each.metric).join("\n"), points: 300 }), props.isLive);
  const isDark = useDark();
  const canvas = useRef<HTMLCanvasElement>(null);
  const [at, setAt] = useState<{ row: number; column: number } | null>(null);
  const map = useMemo(() => {
    const lines = new Map((polled.data?.curves ?? []).map((curve) => [curve.metric, toLine(curve)]));
    return cells(rows.map((each) => lines.get(each.metric)), isDark);
  }, [polled.data, isDark]);
  useEffect(() => {
    const element = canvas.current;
    if (!element || !map.x.length) return;
    element.width = map.x.length;
    element.height = rows.length;
    const context = element.getContext("2d");
    if (!context) return;
    const image = context.createImageData(map.x.length, rows.length);
    image.data.set(map.pixels);
    context.putImageData(image, 0, 0);
  }, [map]);
  const value = at ? map.values[at.row]?.[at.column] : undefined;
  return (
    <figure class="card pad heat" aria-label={`Heat map of ${props.title}`}>
      <figcaption>
        <b>{props.title}</b>
        <span class="muted">
          {at && value !== undefined ? `${rows[at.row]?.row} at ${formatTick(map.x[at.column] ?? 0)}: ${Number.isNaN(value) ? "no value" : formatMetric(value)}` : map.x.length ? `${formatMetric(map.low)} to ${formatMetric(map.high)}${map.isLog ? ", logarithmic" : ""}` : ""}
        </span>
      </figcaption>
      <div class="heat-grid">
        <div class="heat-rows" aria-hidden="true">{rows.map((each) => <span key={each.metric} title={each.metric}>{each.row}</span>)}</div>
        <canvas
          ref={canvas}
          style={{ height: `${rows.length * ROW}px` }}
          onMouseMove={(event) => {
            const box = event.currentTarget.getBoundingClientRect();
            setAt({ row: Math.floor(((event.clientY - box.top) / box.height) * rows.length), column: Math.floor(((event.clientX - box.left) / box.width) * map.x.length) });
          }}
          onMouseLeave={() => setAt(null)}
        />
      </div>
    </figure>
  );
}
