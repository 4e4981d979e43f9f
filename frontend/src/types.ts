// The types of the responses from /api/v1. NaN and infinities are the strings "nan", "inf" and "-inf".

export type Plain = null | boolean | number | string | Plain[] | { [name: string]: Plain };

export interface ColumnInfo {
  name: string;
  is_number: boolean;
  values: Plain[];
}

export interface StoreInfo {
  name: string;
  root: string | null;
  version: string;
  num_runs: number;
  states: Record<string, number>;
  num_archived: number;
  tags: string[];
  monitored: Record<string, string>;
  num_searches: number;
  config: ColumnInfo[];
  metrics: ColumnInfo[];
}

export interface Stats {
  mean: number | string;
  std: number | string | null;
  num: number;
}

export interface Best {
  metric: string;
  mode: string;
  value: number | string;
  epoch: number | null;
  step: number | null;
}

export interface Row {
  key: string;
  state: string;
  reason: string;
  epoch: number | null;
  num_epochs: number | null;
  step: number | null;
  changed: number | null;
  progressed: number | null;
  started: number | null;
  duration: number | null;
  seed: Plain;
  tags: string[];
  best: Best | null;
  group: string | null;
  values: Plain[];
  keys?: string[];
  states?: Record<string, number>;
}

export interface Rows {
  version: number;
  num_rows: number;
  num_runs: number;
  num_all: number;
  varying: string[];
  offset: number;
  rows: Row[];
}

export interface Curve {
  key: string;
  metric: string;
  over: string;
  num_runs: number;
  num: number;
  is_sampled: boolean;
  x: (number | string)[];
  y: (number | string)[];
  low?: (number | string)[];
  high?: (number | string)[];
}

/** The requested curves, and those that cannot be drawn over the requested axis. */
export interface Curves {
  curves: Curve[];
  missing: { key: string; metric: string }[];
}

/** One of the hardest samples of a dataset. */
export interface HardSample {
  index: Plain;
  loss: Plain;
}

export interface AttentionItem {
  kind: string;
  text: string;
  keys: string[];
  where: string;
}

export interface MetricInfo {
  name: string;
  over: string;
  num: number;
  last: number | string | null;
  low: number | string | null;
  high: number | string | null;
  num_nan: number;
}

export interface Attempt {
  number: number;
  by: string;
  claimed: string;
  owner: string;
  outcome: string;
  reason: string;
  parent: number | null;
  step: number | null;
  has_started: boolean;
  ended: string;
}

export interface RunInfo {
  key: string;
  state: string;
  meaning: string;
  reason: string;
  epoch: number | null;
  num_epochs: number | null;
  step: number | null;
  target: string;
  changed: number | null;
  progressed: number | null;
  duration: number | null;
  num_attempts: number;
  owner: string;
  seed: Plain;
  metrics: Record<string, number | string>;
  best: Best | null;
  tags: string[];
  notes: string;
  attempts: Attempt[];
  metric_names: MetricInfo[];
  texts: { attempt: number; event: Plain }[];
  checkpoints: { attempt: number; name: string; step: number; size: number | null; epoch: number | null }[];
  /** `origin` is null if the run has not recorded where its values came from. */
  config: { name: string; value: Plain; num_same: number | null; origin: string | null }[];
  num_runs: number;
  files: string[];
  capsules: string[];
  hardest: { set: string; epoch: Plain; num_samples: Plain; hardest: HardSample[] }[];
  replicates: { key: string; state: string; seed: Plain }[];
  problems: string[];
  store: string | null;
  previous: string | null;
  next: string | null;
  position: number | null;
  num: number;
}

export interface Snapshot {
  name: string;
  commit: string | null;
  branch: string | null;
  subject: string;
  tree: string;
  changed: string[];
  deleted: string[];
  new: string[];
  taken: string;
}

export interface Code {
  snapshot: Snapshot | null;
  patch: string;
  is_cut: boolean;
  program?: { file?: string; files?: Record<string, string>; classes?: string[] } | null;
}

export interface Compared {
  name: string;
  values: Plain[];
  has: boolean[];
  is_same: boolean;
}

export interface Difference {
  name: string;
  mean: number | string;
  low: number | string;
  high: number | string;
  p: number | string;
  n_a: number;
  n_b: number;
  method: string;
}

export interface Comparison {
  runs: { key: string; state: string; epoch: number | null; num_epochs: number | null; seed: Plain; tags: string[]; group: string | null }[];
  config: Compared[];
  metrics: Compared[];
  code: Code[];
  files: { path: string; has: boolean[] }[];
  environment: Compared[];
  num_detailed: number;
  /** The differences from the first run, one for each other config. */
  differences: { key: string; metrics: Difference[]; why_no_interval: string }[];
  metric_names: string[];
}

export interface Trial {
  number: number;
  values: Record<string, Plain>;
  keys: string[];
  state: string;
  objectives: (number | string)[] | null;
  reason: string;
  epoch: number | null;
  run_states: string[];
}

export interface SearchInfo {
  name: string;
  plan: {
    monitor: string[];
    directions: string[];
    epochs: number | null;
    seed: number;
    sampler: string;
    pruner: string;
    num_replicates: number;
    space: Record<string, Plain>;
  };
  parameters: string[];
  trials: Trial[];
  best: Trial | null;
  front: number[];
}
