// Searches: the state of their trials, the best trial, parallel coordinates with brushes, slices, and the Pareto front.

import type { VNode } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { url, usePoll } from "../api";
import { link } from "../address";
import { counted, formatMetric, formatShort, formatTick, formatValue, toNumber } from "../format";
import { type Axis, type Brushes, isInside, lineColor, makeAxis } from "../parallel";
import { Copy, Problem, RunLink, State } from "../parts";
import { Importance } from "./importance";
import type { Plain, SearchInfo, StoreInfo, Trial } from "../types";

interface Listed {
  name: string;
  monitor?: string[];
  sampler?: string;
  states?: Record<string, number>;
  best?: Trial | null;
  is_damaged?: boolean;
}

export function SearchesPage(props: { name: string; store: StoreInfo }): VNode {
  return <main class="searches">{props.name ? <Search name={props.name} key={props.name} /> : <List />}</main>;
}

function List(): VNode {
  const polled = usePoll<{ searches: Listed[] }>(url("searches"));
  const searches = polled.data?.searches;
  if (!searches) return <Problem error={polled.error} />;
  if (!searches.length) {
    return (
      <div class="card empty">
        <h1>No searches yet</h1>
        <p>A search tries config values and keeps every trial as an ordinary run:</p>
        <pre>trainmaster search train.py lr='log(1e-4,1e-1)' --trials 30</pre>
      </div>
    );
  }
  return (
    <div class="card pad">
      <table class="plain">
        <thead><tr><th>search</th><th>objective</th><th>sampler</th><th>trials</th><th>best</th><th></th></tr></thead>
        <tbody>
          {searches.map((each) => (
            <tr key={each.name}>
              <td><a class="link" href={link(`/searches/${encodeURIComponent(each.name)}`)}>{each.name}</a></td>
              <td class="mono">{each.is_damaged ? <span class="bad">its plan cannot be read</span> : each.monitor?.join(", ")}</td>
              <td>{each.sampler}</td>
              <td><States states={each.states ?? {}} /></td>
              <td>{each.best?.objectives ? formatMetric(each.best.objectives[0]) : ""}</td>
              <td>{each.best?.keys[0] ? <RunLink run={each.best.keys[0]} /> : null}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function States(props: { states: Record<string, number> }): VNode {
  return <>{Object.entries(props.states).map(([state, count]) => <span key={state} class={`state ${state === "complete" ? "finished" : state}`}>{count} {state}{" "}</span>)}</>;
}

function Search(props: { name: string }): VNode {
  const polled = usePoll<SearchInfo>(url(`searches/${encodeURIComponent(props.name)}`));
  const [brushes, setBrushes] = useState<Brushes>({});
  const [parameter, setParameter] = useState("");
  const data = polled.data;
  const objective = (trial: Trial): number => toNumber(trial.objectives?.[0]);
  const axes = useMemo(() => {
    if (!data) return [];
    const named = data.parameters.map((name) => makeAxis(name, data.trials.map((trial) => trial.values[name])));
    const goals = data.plan.monitor.map((name, at) => makeAxis(name, data.trials.map((trial) => toNumber(trial.objectives?.[at])).filter(Number.isFinite)));
    return [...named, ...goals];
  }, [data]);
  if (!data) return <Problem error={polled.error} />;
  const { plan } = data;
  const states: Record<string, number> = {};
  for (const trial of data.trials) states[trial.state] = (states[trial.state] ?? 0) + 1;
  const placed = data.trials.map((trial) => ({ trial, places: placesOf(trial, data, axes) }));
  const inside = placed.filter((each) => isInside(each.places, brushes));
  const isMax = plan.directions[0] === "maximize";
  const sorted = [...inside].sort((a, b) => rank(objective(a.trial), isMax) - rank(objective(b.trial), isMax));
  const keys = inside.flatMap((each) => each.trial.keys);
  const sliced = parameter || data.parameters[0] || "";
  return (
    <>
      <div class="run-head">
        <a class="back" href="/searches" aria-label="All searches">‹</a>
        <h1>{data.name}</h1>
        <States states={states} />
        <span class="space" />
        <span class="muted">{plan.directions[0]} {plan.monitor.join(", ")} · {plan.sampler}{plan.pruner !== "none" ? ` · ${plan.pruner}` : ""}{plan.num_replicates > 1 ? ` · ${plan.num_replicates} seeds` : ""}</span>
      </div>
      {data.best ? (
        <div class="card pad best-trial">
          <b>best</b> <span class="big">{formatMetric(data.best.objectives?.[0])}</span> <span class="muted">trial {data.best.number}</span>
          {data.best.keys.map((key) => <RunLink key={key} run={key} />)}
          <code>{Object.entries(data.best.values).map(([name, value]) => `${name}=${formatShort(value)}`).join(" ")}</code>
          <Copy label="copy overrides" text={Object.entries(data.best.values).map(([name, value]) => `${name}=${formatValue(value)}`).join(" ")} />
        </div>
      ) : null}
      <section class="card pad">
        <h2>Parallel coordinates <span class="muted note">drag along an axis to filter the trials below</span>{Object.keys(brushes).length ? <button class="small" onClick={() => setBrushes({})}>clear</button> : null}</h2>
        <Parallel axes={axes} placed={placed} brushes={brushes} goal={plan.monitor[0] ?? ""} isMax={isMax} onBrushes={setBrushes} />
      </section>
      <div class="two">
        <section class="card pad">
          <h2>
            Slice{" "}
            <select aria-label="Parameter" value={sliced} onChange={(event) => setParameter(event.currentTarget.value)}>{data.parameters.map((name) => <option key={name}>{name}</option>)}</select>
          </h2>
          <Scatter x={axes.find((axis) => axis.name === sliced)} y={axes[data.parameters.length]} placed={inside} xName={sliced} yName={plan.monitor[0] ?? ""} front={[]} />
        </section>
        {plan.monitor.length > 1 ? (
          <section class="card pad">
            <h2>Pareto front <span class="muted note">{counted(data.front.length, "trial")}</span></h2>
            <Scatter x={axes[data.parameters.length]} y={axes[data.parameters.length + 1]} placed={inside} xName={plan.monitor[0] ?? ""} yName={plan.monitor[1] ?? ""} front={data.front} />
          </section>
        ) : (
          <section class="card pad">
            <h2>Progress <span class="muted note">best value so far</span></h2>
            <Progress trials={data.trials} isMax={isMax} axis={axes[data.parameters.length]} />
          </section>
        )}
      </div>
      {data.trials.length >= 10 && data.trials.length <= 300 ? <Importance where={`key in (${data.trials.flatMap((trial) => trial.keys).join(",")})`} metric={plan.monitor[0] ?? ""} /> : null}
      <section class="card pad">
        <h2>Trials <span class="muted note">{inside.length < placed.length ? `${inside.length} of ${placed.length}` : placed.length}</span>
          {keys.length > 0 && keys.length <= 60 ? <a class="small" href={link("/", { where: `key in (${keys.join(", ")})` })}>show these runs</a> : null}
        </h2>
        <div class="wide-table">
          <table class="plain">
            <thead><tr><th>no.</th><th>state</th>{plan.monitor.map((name) => <th key={name}>{name}</th>)}{data.parameters.map((name) => <th key={name}>{name}</th>)}<th>runs</th></tr></thead>
            <tbody>
              {sorted.slice(0, 300).map(({ trial }) => (
                <tr key={trial.number}>
                  <td>{trial.number}</td>
                  <td title={trial.reason}><State state={trial.state === "complete" ? "finished" : trial.state} /></td>
                  {plan.monitor.map((name, at) => <td key={name}>{trial.objectives ? formatMetric(trial.objectives[at]) : ""}</td>)}
                  {data.parameters.map((name) => <td key={name} class="mono" title={formatValue(trial.values[name])}>{formatShort(trial.values[name])}</td>)}
                  <td>{trial.keys.slice(0, 4).map((key) => <span key={key}><RunLink run={key} /> </span>)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
        {sorted.length > 300 ? <p class="muted">{counted(sorted.length - 300, "more trial")}: filter with the axes above.</p> : null}
      </section>
    </>
  );
}

interface Placed {
  trial: Trial;
  places: Record<string, number>;
}

function rank(value: number, isMax: boolean): number {
  return Number.isNaN(value) ? Infinity : isMax ? -value : value;
}

function placesOf(trial: Trial, data: SearchInfo, axes: Axis[]): Record<string, number> {
  const numOwn = data.parameters.length;
  return Object.fromEntries(
    axes.map((axis, at) => {
      const value: Plain | undefined = at < numOwn ? trial.values[axis.name] : trial.objectives ? toNumber(trial.objectives[at - numOwn]) : undefined;
      return [axis.name, axis.place(value)];
    }),
  );
}

const HEIGHT = 240;
const TOP = 26;

function Parallel(props: { axes: Axis[]; placed: Placed[]; brushes: Brushes; goal: string; isMax: boolean; onBrushes: (brushes: Brushes) => void }): VNode {
  const { axes, brushes } = props;
  const svg = useRef<SVGSVGElement>(null);
  const [drag, setDrag] = useState<{ name: string; from: number; to: number } | null>(null);
  const [room, setRoom] = useState(900);
  useEffect(() => {
    const box = svg.current?.parentElement;
    if (!box) return;
    const observer = new ResizeObserver(() => setRoom(box.clientWidth));
    observer.observe(box);
    return () => observer.disconnect();
  }, []);
  const step = Math.max(140, (room - 150) / Math.max(1, axes.length - 1));
  const width = Math.max(300, (axes.length - 1) * step + 140);
  const xOf = (at: number): number => 60 + at * step;
  const yOf = (share: number): number => TOP + (1 - share) * HEIGHT;
  const shareAt = (event: PointerEvent): number => {
    const box = svg.current?.getBoundingClientRect();
    if (!box) return 0;
    const y = ((event.clientY - box.top) / box.height) * (HEIGHT + TOP + 20);
    return Math.max(0, Math.min(1, 1 - (y - TOP) / HEIGHT));
  };
  const finish = (): void => {
    if (!drag) return;
    const [low, high] = [Math.min(drag.from, drag.to), Math.max(drag.from, drag.to)];
    const { [drag.name]: _, ...rest } = brushes;
    props.onBrushes(high - low > 0.01 ? { ...rest, [drag.name]: [low - 0.005, high + 0.005] } : rest);
    setDrag(null);
  };
  const lines = props.placed.slice(0, 2000).map((each) => {
    let path = "";
    let isDown = false;
    axes.forEach((axis, at) => {
      const share = each.places[axis.name] ?? NaN;
      if (Number.isNaN(share)) {
        isDown = false;
        return;
      }
      path += `${isDown ? "L" : "M"}${xOf(at)} ${yOf(share).toFixed(1)}`;
      isDown = true;
    });
    const goal = each.places[props.goal] ?? NaN;
    return { path, color: lineColor(goal, props.isMax), isIn: isInside(each.places, brushes), number: each.trial.number };
  });
  return (
    <div class="wide-table">
      <svg ref={svg} class="parallel" viewBox={`0 0 ${width} ${HEIGHT + TOP + 20}`} width={width} height={HEIGHT + TOP + 20} role="img" aria-label={`Parallel coordinates of ${counted(props.placed.length, "trial")}`} onPointerMove={(event) => drag && setDrag({ ...drag, to: shareAt(event) })} onPointerUp={finish} onPointerLeave={finish}>
        {lines.filter((line) => !line.isIn).map((line) => <path key={line.number} class="out" d={line.path} />)}
        {lines.filter((line) => line.isIn).map((line) => <path key={line.number} class="in" d={line.path} style={line.color ? { stroke: line.color } : {}} />)}
        {axes.map((axis, at) => {
          const brush = drag?.name === axis.name ? [Math.min(drag.from, drag.to), Math.max(drag.from, drag.to)] : brushes[axis.name];
          return (
            <g key={axis.name}>
              <text class="name" x={xOf(at)} y={14} text-anchor="middle">{axis.name.length > 22 ? `…${axis.name.slice(-21)}` : axis.name}</text>
              <line class="axis" x1={xOf(at)} x2={xOf(at)} y1={TOP} y2={TOP + HEIGHT} />
              {axis.ticks.map((tick) => <text key={tick.text} class="tick" x={xOf(at) + 6} y={yOf(tick.at) + 4}>{tick.text}</text>)}
              {brush ? <rect class="brush" x={xOf(at) - 6} width={12} y={yOf(brush[1] ?? 0)} height={Math.max(2, yOf(brush[0] ?? 0) - yOf(brush[1] ?? 0))} /> : null}
              <rect class="grab" x={xOf(at) - 12} width={24} y={TOP} height={HEIGHT} onPointerDown={(event) => { event.preventDefault(); const share = shareAt(event); setDrag({ name: axis.name, from: share, to: share }); }} />
            </g>
          );
        })}
      </svg>
    </div>
  );
}

function yAt(share: number): number {
  return 200 - share * 174;
}

function Frame(props: { x: Axis | undefined; y: Axis | undefined; xName: string; yName: string; children: VNode | (VNode | null)[] | null; label: string }): VNode {
  return (
    <svg class="scatter" viewBox="0 0 460 240" role="img" aria-label={props.label}>
      <line class="axis" x1={52} x2={450} y1={204} y2={204} />
      <line class="axis" x1={52} x2={52} y1={20} y2={204} />
      {(props.y?.ticks ?? []).map((tick) => <text key={tick.text} class="tick" x={46} y={yAt(tick.at) + 4} text-anchor="end">{tick.text}</text>)}
      {(props.x?.ticks ?? []).map((tick) => <text key={tick.text} class="tick" x={56 + tick.at * 386} y={220} text-anchor="middle">{tick.text}</text>)}
      <text class="name" x={450} y={236} text-anchor="end">{props.xName}</text>
      <text class="name" x={52} y={11}>{props.yName}</text>
      {props.children}
    </svg>
  );
}

function Scatter(props: { x: Axis | undefined; y: Axis | undefined; placed: Placed[]; xName: string; yName: string; front: number[] }): VNode {
  const front = new Set(props.front);
  return (
    <Frame x={props.x} y={props.y} xName={props.xName} yName={props.yName} label={`${props.yName} by ${props.xName}`}>
      {props.placed.map(({ trial, places }) => {
        const [x, y] = [places[props.xName] ?? NaN, places[props.yName] ?? NaN];
        if (Number.isNaN(x) || Number.isNaN(y)) return null;
        return (
          <circle key={trial.number} class={front.has(trial.number) ? "front" : ""} cx={56 + x * 386} cy={yAt(y)} r={front.has(trial.number) ? 4.5 : 3.5}>
            <title>{`trial ${trial.number}: ${trial.objectives?.map((each) => formatMetric(each)).join(", ")}`}</title>
          </circle>
        );
      })}
    </Frame>
  );
}

function Progress(props: { trials: Trial[]; isMax: boolean; axis: Axis | undefined }): VNode {
  const { axis } = props;
  const done = props.trials.filter((trial) => trial.state === "complete" && trial.objectives);
  const last = Math.max(1, props.trials.length - 1);
  let best = NaN;
  let path = "";
  for (const trial of done) {
    const value = toNumber(trial.objectives?.[0]);
    if (!Number.isFinite(value)) continue;
    const next = Number.isNaN(best) ? value : props.isMax ? Math.max(best, value) : Math.min(best, value);
    const x = 56 + (trial.number / last) * 386;
    const y = yAt(axis?.place(next) ?? 0);
    path += path ? `H${x.toFixed(1)}V${y.toFixed(1)}` : `M${x.toFixed(1)} ${y.toFixed(1)}`;
    best = next;
  }
  const x: Axis = { name: "trial", place: () => 0, ticks: [{ text: "0", at: 0 }, { text: formatTick(last), at: 1 }] };
  return (
    <Frame x={x} y={axis} xName="trial" yName="" label="Best value by trial">
      {[
        ...done.map((trial) => {
          const share = axis?.place(toNumber(trial.objectives?.[0])) ?? NaN;
          return Number.isNaN(share) ? null : <circle key={trial.number} class="faint" cx={56 + (trial.number / last) * 386} cy={yAt(share)} r={3} />;
        }),
        <path key="best" class="best" d={path} />,
      ]}
    </Frame>
  );
}
