// The charts of a selection of runs: one request for all of them, the same crosshair, and finer points after zooming in.

import type { VNode } from "preact";
import { useMemo, useState } from "preact/hooks";
import { url, usePoll } from "../api";
import { Chart, type Range } from "../chart";
import { groupMetrics, toLine, type ChartGroup, type Line } from "../series";
import type { Curve } from "../types";

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
  const polled = usePoll<{ curves: Curve[] }>(address, props.isLive);
  const lines = useMemo(() => (address ? (polled.data?.curves ?? []).map(toLine) : []), [polled.data, address === ""]);

  return (
    <div class={`charts${polled.isOld && polled.data ? " waiting" : ""}`}>
      {shown.map((group) => (
        <div key={group.name} class={`slot${wide === group.name ? " wide" : ""}`}>
          <ZoomedChart
            {...props}
            group={group}
            lines={lines}
            isLoading={address !== "" && polled.data === undefined && polled.error === undefined}
            params={params}
            range={ranges[group.name] ?? null}
            onRange={(range) => setRanges({ ...ranges, [group.name]: range })}
            isWide={wide === group.name}
            onWide={() => setWide(wide === group.name ? "" : group.name)}
          />
        </div>
      ))}
    </div>
  );
}

interface ZoomedProps extends ChartsProps {
  group: ChartGroup;
  lines: Line[];
  isLoading: boolean;
  params: Record<string, string>;
  range: Range | null;
  onRange: (range: Range | null) => void;
  isWide: boolean;
  onWide: () => void;
}

/** A chart that asks for the points between the edges of its zoom, if not all of them are there already. */
function ZoomedChart(props: ZoomedProps): VNode {
  const { group, range } = props;
  const own = useMemo(() => props.lines.filter((line) => group.metrics.includes(line.metric)), [props.lines, group]);
  const needsMore = range !== null && own.some((line) => line.isSampled);
  const address = needsMore && range ? url("curves", { ...props.params, metrics: group.metrics.join("\n"), points: 4000, from: range.low, to: range.high }) : "";
  const finer = usePoll<{ curves: Curve[] }>(address, props.isLive);
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
      {...(props.note ? { note: props.note } : {})}
    />
  );
}
