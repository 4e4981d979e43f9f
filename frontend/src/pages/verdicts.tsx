// Hypotheses with their verdicts, pairs and intervals, and ablations with the contribution of each part of a config.

import type { VNode } from "preact";
import { url, usePoll } from "../api";
import { link } from "../address";
import { counted, formatMetric, formatSigned, formatSpread, toNumber } from "../format";
import { Copy, Problem, RunLink } from "../parts";

interface Pair {
  seed: number;
  a: number | string | null;
  b: number | string | null;
  keys: [string, string];
  difference: number | string;
  counts: boolean;
}

interface Hypothesis {
  name: string;
  error: string;
  claim: string;
  state: string;
  why: string;
  metric: string;
  margin: number;
  mean: number | string;
  low: number | string;
  high: number | string;
  num_pairs: number;
  budget: number | null;
  pairs: Pair[];
  looks: { n: number; t: number | string | null; critical: number | string }[];
  notes: string[];
  statement: string[];
}

interface Contribution {
  part: string;
  n: number;
  mean: number | null;
  low: number | null;
  high: number | null;
  p: number | null;
  verdict: string;
}

interface Ablation {
  name: string;
  error: string;
  metric: string;
  contributions: Contribution[];
  notes: string[];
  missing: string[];
  seeds: number[];
}

export function VerdictsPage(): VNode {
  const polled = usePoll<{ hypotheses: Hypothesis[]; ablations: Ablation[] }>(url("verdicts"));
  const data = polled.data;
  if (!data) return <main class="searches"><Problem error={polled.error} /></main>;
  if (!data.hypotheses.length && !data.ablations.length) {
    return (
      <main class="searches">
        <div class="card empty">
          <h1>No verdicts yet</h1>
          <p>Test whether one config is better than another, with as many seeds as it takes:</p>
          <pre>trainmaster test-hypothesis train.py --claim activation=gelu --than activation=relu --on accuracy</pre>
          <p>or measure what each part of a config contributes:</p>
          <pre>trainmaster ablate train.py dropout=0 activation=relu --seeds 5</pre>
        </div>
      </main>
    );
  }
  return (
    <main class="searches">
      {data.hypotheses.map((each) => (each.error ? <Unreadable key={each.name} {...each} /> : <HypothesisCard key={each.name} each={each} />))}
      {data.ablations.map((each) => (each.error ? <Unreadable key={each.name} {...each} /> : <AblationCard key={each.name} each={each} />))}
    </main>
  );
}

function Unreadable(props: { name: string; error: string }): VNode {
  return <section class="card pad"><h2>{props.name}</h2><p class="bad">{props.error}</p></section>;
}

const MARK: Record<string, string> = { supported: "good", refuted: "wrong", inconclusive: "open", pending: "open", helps: "good", hurts: "wrong", interacts: "open", unclear: "open", incomplete: "open" };

function HypothesisCard(props: { each: Hypothesis }): VNode {
  const { each } = props;
  return (
    <section class={`card pad verdict ${MARK[each.state] ?? "open"}`}>
      <h2><span class="word">{each.state}</span> {each.claim} <span class="muted note">{each.name}</span></h2>
      <p>{each.why}</p>
      <div class="two">
        <Scale values={[{ name: "mean improvement", mean: toNumber(each.mean), low: toNumber(each.low), high: toNumber(each.high), mark: MARK[each.state] ?? "open" }]} margin={each.margin} label={`mean improvement ${formatSigned(each.mean)}`} />
        <Boundary looks={each.looks} />
      </div>
      <details>
        <summary>{counted(each.num_pairs, "pair")}{each.budget ? ` of at most ${each.budget}` : ""}</summary>
        <div class="wide-table">
          <table class="plain">
            <thead><tr><th>seed</th><th>claim</th><th></th><th>against</th><th></th><th>improvement</th></tr></thead>
            <tbody>
              {each.pairs.map((pair) => (
                <tr key={pair.seed} class={pair.counts ? "" : "same"}>
                  <td>{pair.seed}</td>
                  <td>{pair.a === null ? "failed" : formatMetric(pair.a)}</td>
                  <td><RunLink run={pair.keys[0]} /></td>
                  <td>{pair.b === null ? "failed" : formatMetric(pair.b)}</td>
                  <td><RunLink run={pair.keys[1]} /></td>
                  <td>{formatSigned(pair.difference)} <a class="small" href={link("/compare", { keys: pair.keys.join(",") })}>compare</a></td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </details>
      {each.statement.length ? <ul class="notes">{each.statement.map((note) => <li key={note}>{note}</li>)}</ul> : null}
      {each.notes.length ? <ul class="notes">{each.notes.map((note) => <li key={note}>{note}</li>)}</ul> : null}
      <div class="buttons"><Copy label="copy verify command" text={`trainmaster verify-hypothesis ${each.name}`} /></div>
    </section>
  );
}

function AblationCard(props: { each: Ablation }): VNode {
  const { each } = props;
  return (
    <section class="card pad">
      <h2>What each part contributes to {each.metric} <span class="muted note">{each.name} · {counted(each.seeds.length, "seed")}{each.missing.length ? ` · ${counted(each.missing.length, "run")} missing` : ""}</span></h2>
      <Scale
        values={each.contributions.map((part) => ({ name: part.part, mean: part.mean ?? NaN, low: part.low ?? NaN, high: part.high ?? NaN, mark: MARK[part.verdict] ?? "open" }))}
        margin={0}
        label={`contributions of ${counted(each.contributions.length, "part")}`}
      />
      <div class="wide-table">
        <table class="plain">
          <thead><tr><th>part</th><th>contribution</th><th>interval</th><th>p (Holm)</th><th>seeds</th><th>verdict</th></tr></thead>
          <tbody>
            {each.contributions.map((part) => (
              <tr key={part.part}>
                <td class="mono">{part.part}</td>
                <td>{part.mean === null ? "" : formatSigned(part.mean)}</td>
                <td>{part.low === null || part.high === null ? "none" : `${formatSigned(part.low)} … ${formatSigned(part.high)}`}</td>
                <td>{part.p === null ? "" : formatSpread(part.p)}</td>
                <td>{part.n}</td>
                <td><span class={`word ${MARK[part.verdict] ?? "open"}`}>{part.verdict}</span></td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <ul class="notes">{[...each.notes, ...each.missing.slice(0, 5)].map((note) => <li key={note}>{note}</li>)}</ul>
    </section>
  );
}

interface Bar {
  name: string;
  mean: number;
  low: number;
  high: number;
  mark: string;
}

/** A forest plot: intervals one below the other, with lines at zero and at the margin. */
function Scale(props: { values: Bar[]; margin: number; label: string }): VNode {
  const finite = props.values.flatMap((each) => [each.mean, each.low, each.high]).filter(Number.isFinite);
  const low = Math.min(0, props.margin, ...finite);
  const high = Math.max(0, props.margin, ...finite);
  const space = (high - low) * 0.08 || 1;
  const at = (value: number): number => 150 + ((value - low + space) / (high - low + 2 * space)) * 400;
  const height = props.values.length * 24 + 30;
  return (
    <svg class="forest" viewBox={`0 0 560 ${height}`} role="img" aria-label={props.label}>
      <line class="zero" x1={at(0)} x2={at(0)} y1={4} y2={height - 22} />
      <text class="tick" x={at(0) - 3} y={height - 8} text-anchor="end">0</text>
      {props.margin ? <line class="margin" x1={at(props.margin)} x2={at(props.margin)} y1={4} y2={height - 22} /> : null}
      {props.margin ? <text class="tick" x={at(props.margin) + 3} y={height - 8} text-anchor="start">{`margin ${formatMetric(props.margin)}`}</text> : null}
      {props.values.map((each, row) => {
        const y = row * 24 + 16;
        return (
          <g key={each.name} class={each.mark}>
            <text class="name" x={0} y={y + 4}>{each.name.length > 22 ? `${each.name.slice(0, 21)}…` : each.name}</text>
            {Number.isFinite(each.low) && Number.isFinite(each.high) ? <line class="bar" x1={at(each.low)} x2={at(each.high)} y1={y} y2={y} /> : null}
            {Number.isFinite(each.mean) ? <circle cx={at(each.mean)} cy={y} r={4} /> : null}
          </g>
        );
      })}
    </svg>
  );
}

/** The t statistic after each pair, and the boundary that it has to cross. */
function Boundary(props: { looks: Hypothesis["looks"] }): VNode | null {
  const looks = props.looks.filter((look) => look.t !== null && Number.isFinite(toNumber(look.t)));
  const bounded = looks.filter((look) => Number.isFinite(toNumber(look.critical)));
  if (bounded.length < 2) return null; // a curve needs at least two points
  const reach = Math.max(1, ...bounded.map((look) => toNumber(look.critical)), ...looks.map((look) => Math.abs(toNumber(look.t)))) * 1.1;
  const last = looks[looks.length - 1]?.n ?? 1;
  const first = looks[0]?.n ?? 0;
  const x = (n: number): number => 40 + ((n - first) / Math.max(1, last - first)) * 490;
  const y = (t: number): number => 60 - (t / reach) * 52;
  const path = (points: [number, number][]): string => points.map(([n, t], at) => `${at ? "L" : "M"}${x(n).toFixed(1)} ${y(t).toFixed(1)}`).join("");
  return (
    <svg class="forest" viewBox="0 0 560 140" role="img" aria-label="t after each pair, and the boundary">
      <line class="zero" x1={40} x2={530} y1={y(0)} y2={y(0)} />
      {[1, -1].map((sign) => <path key={sign} class="margin" d={path(bounded.map((look) => [look.n, sign * toNumber(look.critical)]))} />)}
      <path class="bar line" d={path(looks.map((look) => [look.n, toNumber(look.t)]))} />
      {looks.map((look) => <circle key={look.n} cx={x(look.n)} cy={y(toNumber(look.t))} r={3} />)}
      <text class="tick" x={40} y={134}>{first} pairs</text>
      <text class="tick" x={530} y={134} text-anchor="end">{last}</text>
      <text class="tick" x={34} y={y(0) + 4} text-anchor="end">t</text>
    </svg>
  );
}
