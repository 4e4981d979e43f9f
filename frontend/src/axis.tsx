// The x axis of all charts on a page: the unit in which each metric was logged, or the same unit for all of them.

import type { VNode } from "preact";
import { setParams, useAddress } from "./address";

/** Each axis of /api/v1 with its name on the page. */
export const AXES: [string, string][] = [
  ["step", "as logged"],
  ["epoch", "by epoch"],
  ["update", "by step"],
  ["sample", "by samples"],
  ["time", "by time"],
];

export function useAxis(): string {
  const asked = useAddress().params.get("axis") ?? "step";
  return AXES.some(([axis]) => axis === asked) ? asked : "step";
}

export function AxisChoice(): VNode {
  const axis = useAxis();
  return (
    <select class="button" aria-label="Horizontal axis" title="The horizontal axis of the charts" value={axis} onChange={(event) => setParams({ axis: event.currentTarget.value === "step" ? "" : event.currentTarget.value })}>
      {AXES.map(([name, label]) => <option key={name} value={name}>{label}</option>)}
    </select>
  );
}
