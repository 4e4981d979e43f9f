// The charts of the selected runs. A single request fetches all charts. They share a crosshair, and zooming in fetches more points.
// You can move a chart by dragging its title, or with the arrow keys.

import type { VNode } from "preact";
import { useMemo, useRef, useState } from "preact/hooks";
import { url, usePoll } from "../api";
import { Chart, type Range } from "../chart";
import { groupMetrics, toLine, type ChartGroup, type Line } from "../series";
import { moved } from "../order";
import type { Curves } from "../types";

export interface ChartsProps {
  /** Keys of runs, or names of groups. */
  ids: string[];
  isGrouped: boolean;
  metrics: string[];
  charts: string[];
  slots: Map<string, number>;
  labels: (id: string) => string;
  axis: string;
  smoothing: number;
  logs: Set<string>;
  isDark: boolean;
  isLive: boolean;
  height?: number;
  onLog: (chart: string, isLog: boolean) => void;
  /** Called with the new order after a chart has been moved. If it is missing, charts cannot be moved. */
  onOrder?: (charts: string[]) => void;
  note?: string;
}

export function Charts(props: ChartsProps): VNode {
  const groups = useMemo(() => groupMetrics(props.metrics), [props.metrics.join("\n")]);
  const shown = props.charts.map((name) => groups.find((group) => group.name === name)).filter((group): group is ChartGroup => group !== undefined);
  const [ranges, setRanges] = useState<Record<string, Range | null>>({});
  const [wide, setWide] = useState("");
  const points = props.ids.length > 60 ? 500 : props.ids.length > 12 ? 1000 : 2000;
  const params = { [props.isGrouped ? "groups" : "keys"]: props.ids.join(","), axis: props.axis };
  const metrics = shown.flatMap((group) => group.metrics);
  const address = props.ids.length && metrics.length ? url("curves", { ...params, metrics: metrics.join("\n"), points }) : "";
  const polled = usePoll<Curves>(address, props.isLive);
  const lines = useMemo(() => (address ? (polled.data?.curves ?? []).map(toLine) : []), [polled.data, address === ""]);
  const missing = address ? (polled.data?.missing ?? []) : [];
  const { onOrder } = props;
  const box = useRef<HTMLDivElement>(null);
  const [dragged, setDragged] = useState("");
  const names = shown.map((group) => group.name);

  const move = (name: string, to: number): void => onOrder?.(moved(names, name, to));
  // The chart under the pointer is highlighted while dragging. The new order is written to the URL when the pointer is released.
  const drag = (name: string, event: PointerEvent): void => {
    if (!onOrder || event.button !== 0) return;
    const handle = event.currentTarget as HTMLElement;
    handle.setPointerCapture(event.pointerId); // so that it also gets pointer events outside the title
    const start = { x: event.clientX, y: event.clientY };
    let target = -1;
    const follow = (now: PointerEvent): void => {
      if (target < 0 && Math.hypot(now.clientX - start.x, now.clientY - start.y) < 8) return;
      const slots = [...(box.current?.children ?? [])];
      const below = slots.findIndex((slot) => inside(slot.getBoundingClientRect(), now.clientX, now.clientY));
      target = below >= 0 ? below : target < 0 ? names.indexOf(name) : target;
      setDragged(name);
      slots.forEach((slot, at) => slot.classList.toggle("target", at === target && names[at] !== name));
    };
    const end = (now: PointerEvent): void => {
      handle.removeEventListener("pointermove", follow);
      handle.removeEventListener("pointerup", end);
      handle.removeEventListener("pointercancel", end);
      for (const slot of box.current?.children ?? []) slot.classList.remove("target");
      setDragged("");
      if (now.type === "pointerup" && target >= 0) {
        const swallow = (click: Event): void => click.stopImmediatePropagation(); // this was a drag, not a click on the title
        handle.addEventListener("click", swallow, { capture: true });
        setTimeout(() => handle.removeEventListener("click", swallow, { capture: true }));
        move(name, target);
      }
    };
    handle.addEventListener("pointermove", follow);
    handle.addEventListener("pointerup", end);
    handle.addEventListener("pointercancel", end);
  };
  const press = (name: string, event: KeyboardEvent): void => {
    const by = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (!onOrder || by === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    move(name, names.indexOf(name) + by);
  };

  return (
    <div class={`charts${polled.isOld && polled.data ? " waiting" : ""}`} ref={box}>
      {shown.map((group) => (
        <div key={group.name} class={`slot${wide === group.name ? " wide" : ""}${dragged === group.name ? " dragged" : ""}`}>
          <ZoomedChart
            {...props}
            group={group}
            lines={lines}
            isLoading={address !== "" && polled.data === undefined && polled.error === undefined}
            params={params}
            points={points}
            range={ranges[group.name] ?? null}
            onRange={(range) => setRanges({ ...ranges, [group.name]: range })}
            isWide={wide === group.name}
            onWide={() => setWide(wide === group.name ? "" : group.name)}
            numMissing={missing.filter((each) => group.metrics.includes(each.metric)).length}
            {...(onOrder ? { onGrab: (event: PointerEvent) => drag(group.name, event), onPress: (event: KeyboardEvent) => press(group.name, event) } : {})}
          />
        </div>
      ))}
    </div>
  );
}

function inside(box: DOMRect, x: number, y: number): boolean {
  return x >= box.left && x < box.right && y >= box.top && y < box.bottom;
}

interface ZoomedProps extends ChartsProps {
  group: ChartGroup;
  lines: Line[];
  isLoading: boolean;
  params: Record<string, string>;
  points: number;
  range: Range | null;
  onRange: (range: Range | null) => void;
  isWide: boolean;
  onWide: () => void;
  numMissing: number;
  onGrab?: (event: PointerEvent) => void;
  onPress?: (event: KeyboardEvent) => void;
}

/** A chart that fetches the points in its zoomed range if it does not have all of them yet. */
function ZoomedChart(props: ZoomedProps): VNode {
  const { group, range } = props;
  const own = useMemo(() => props.lines.filter((line) => group.metrics.includes(line.metric)), [props.lines, group]);
  const needsMore = range !== null && own.some((line) => line.isSampled);
  const address = needsMore && range ? url("curves", { ...props.params, metrics: group.metrics.join("\n"), points: props.points, from: range.low, to: range.high }) : "";
  const finer = usePoll<Curves>(address, props.isLive);
  const lines = useMemo(() => (address && finer.data ? finer.data.curves.map(toLine) : own), [finer.data, own, address === ""]);
  return (
    <Chart
      title={group.name}
      lines={lines}
      slots={props.slots}
      labels={props.labels}
      smoothing={props.smoothing}
      isLog={props.logs.has(group.name)}
      isDark={props.isDark}
      height={props.isWide ? 420 : (props.height ?? 168)}
      range={range}
      onRange={props.onRange}
      onLog={(isLog) => props.onLog(group.name, isLog)}
      onWide={props.onWide}
      isWide={props.isWide}
      isLoading={props.isLoading}
      axis={props.axis}
      numMissing={props.numMissing}
      {...(props.note ? { note: props.note } : {})}
      {...(props.onGrab && props.onPress ? { onGrab: props.onGrab, onPress: props.onPress } : {})}
    />
  );
}
