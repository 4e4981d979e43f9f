// The importance of each config key. The seed has its own bar; keys with a smaller share are noise.

import type { VNode } from "preact";
import { url, usePoll } from "../api";

interface Found {
  metric: string;
  shares: Record<string, number>;
  num_runs: number;
  notes: string[];
}

export function Importance(props: { where: string; metric: string }): VNode {
  const polled = usePoll<Found>(url("importance", { where: props.where, metric: props.metric }), false);
  const shares = Object.entries(polled.data?.shares ?? {}).slice(0, 12);
  const most = Math.max(0.01, ...shares.map(([, share]) => share));
  return (
    <section class="card pad">
      <h2>Importance <span class="muted note">{polled.data ? `for ${polled.data.metric}${"seed" in polled.data.shares ? "; what is not above the seed is noise" : ""}` : ""}</span></h2>
      {polled.error ? <p class="muted">{polled.error.message}{polled.error.rows["why"] ? `: ${polled.error.rows["why"]}` : ""}</p> : null}
      {!polled.data && !polled.error ? <p class="muted">computing …</p> : null}
      <div class="bars">
        {shares.map(([name, share]) => (
          <div key={name} class={name === "seed" ? "noise" : ""}>
            <span class="mono">{name}</span>
            <meter min={0} max={most} value={share} aria-label={name} />
            <span>{(share * 100).toFixed(0)} %</span>
          </div>
        ))}
      </div>
      <ul class="notes">{(polled.data?.notes ?? []).map((note) => <li key={note}>{note}</li>)}</ul>
    </section>
  );
}
