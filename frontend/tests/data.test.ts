// The data code of the page: what is drawn, written and completed.

import { describe, expect, test } from "vitest";
import { cellText, defaultColumns, shortTitles, parseColumn } from "../src/columns";
import { parseDiff } from "../src/diff";
import { complete, quote } from "../src/filter";
import { formatAge, formatBytes, formatDuration, formatMetric, formatSpread, formatValue, toNumber } from "../src/format";
import { cells } from "../src/heat";
import { isInside, lineColor, makeAxis } from "../src/parallel";
import { parseSelection, toggle, writeSelection } from "../src/selection";
import { align, groupMetrics, layerGroups, rankMetrics, smooth, sparkPath, splitMetric, toLine } from "../src/series";
import { moved } from "../src/order";
import type { StoreInfo } from "../src/types";

const STORE: StoreInfo = {
  name: "runs", root: "/runs", version: "1", num_runs: 2, states: {}, num_archived: 0, tags: ["best"], monitored: { "valid/accuracy": "max" }, num_searches: 0,
  config: [{ name: "train.lr", is_number: true, values: [0.1, 0.01] }, { name: "model.arch", is_number: false, values: ["vit", "a b"] }],
  metrics: ["train/loss", "valid/loss", "valid/accuracy", "grad_norm/0.weight", "lr"].map((name) => ({ name, is_number: true, values: [] })),
};

describe("numbers", () => {
  test("NaN and infinities come back from the wire", () => {
    expect([toNumber("nan"), toNumber("inf"), toNumber("-inf"), toNumber(2)]).toEqual([NaN, Infinity, -Infinity, 2]);
  });
  test("metrics have four digits, and exact short values stay short", () => {
    expect([0.96599, 0.02, 12.3456, 1234.5, 3.14e-5, 0, "nan", -0.5, 1e20].map(formatMetric)).toEqual(["0.9660", "0.02", "12.35", "1,235", "3.14e−5", "0", "NaN", "−0.5", "1e20"]);
  });
  test("spreads have two digits", () => expect([0.01234, 0, 1.5e-7].map(formatSpread)).toEqual(["0.012", "0", "1.5e−7"]));
  test("config values are written as in a filter", () => {
    expect([1e-5, 64, null, true, "a", [1, 2]].map((each) => formatValue(each))).toEqual(["1e-5", "64", "none", "true", "a", "[1,2]"]);
  });
  test("times and sizes", () => {
    expect([formatDuration(0.5), formatDuration(75), formatDuration(7300), formatAge(100, 103), formatAge(100, 4000), formatBytes(1500), formatBytes(null)]).toEqual(["500 ms", "1 min 15 s", "2 h 2 min", "now", "1 h", "1.5 kB", "damaged"]);
  });
});

describe("metrics", () => {
  test("train and valid share a chart, valid first", () => {
    expect(groupMetrics(["train/loss", "lr", "valid/loss"])).toEqual([{ name: "loss", metrics: ["valid/loss", "train/loss"] }, { name: "lr", metrics: ["lr"] }]);
  });
  test("a prefix that is not a set stays in the name", () => expect(splitMetric("grad_norm/0.weight")).toEqual({ set: "", name: "grad_norm/0.weight" }));
  test("the monitored metric comes first, details last", () => {
    expect(rankMetrics(STORE.metrics.map((each) => each.name), ["valid/accuracy"])).toEqual(["valid/accuracy", "valid/loss", "train/loss", "lr", "grad_norm/0.weight"]);
  });
  test("metrics of layers become rows of heat maps", () => {
    const groups = layerGroups(["grad_norm/0.weight", "grad_norm/0.bias", "activations/0/mean", "activations/1/mean", "valid/sample_loss/max"]);
    expect([...groups.keys()]).toEqual(["grad_norm", "activations mean"]);
    expect(groups.get("activations mean")?.map((each) => each.row)).toEqual(["0", "1"]);
  });
});

describe("curves", () => {
  test("smoothing starts at the first value and does not spread NaN", () => {
    expect(smooth([1, 1, NaN, 1], 0.9)).toEqual([1, 1, NaN, 1]);
    const [first, second] = smooth([0, 1], 0.5) as [number, number];
    expect(first).toBe(0);
    expect(second).toBeCloseTo(2 / 3);
  });
  test("a missing point is undefined, a value that is not finite is a gap", () => {
    const { x, columns } = align([{ x: [0, 2], columns: [[1, NaN]] }, { x: [0, 1], columns: [[3, 4]] }], false);
    expect(x).toEqual([0, 1, 2]);
    expect(columns).toEqual([[[1, undefined, null]], [[3, 4, undefined]]]);
  });
  test("a logarithmic axis has no place for zero", () => expect(align([{ x: [0, 1], columns: [[0, 1]] }], true).columns).toEqual([[[null, 1]]]));
  test("curves from the wire have numbers", () => {
    const line = toLine({ key: "a", metric: "m", over: "epoch", num_runs: 1, num: 2, is_sampled: false, x: [0, 1], y: ["nan", 2] });
    expect(line.y).toEqual([NaN, 2]);
  });
  test("a small curve is interrupted where there is no value", () => expect(sparkPath([0, NaN, 1, 2], 84, 22).match(/M/g)?.length).toBe(2));
});

describe("the selection", () => {
  test("a run keeps its place, and so its color, when others leave", () => {
    const slots = toggle(toggle(["a", "b", "c"], "b"), "d");
    expect(slots).toEqual(["a", "d", "c"]);
    expect(toggle(slots, "a")).toEqual(["", "d", "c"]);
  });
  test("it survives the address bar", () => expect(parseSelection(writeSelection(["a", "", "c", ""]))).toEqual(["a", "", "c"]));
});

describe("the filter", () => {
  const names = { config: STORE.config, metrics: ["valid/loss"], tags: ["best"], states: ["finished", "failed"] };
  const texts = (text: string): string[] => complete(text, text.length, names).items.map((each) => each.text);
  test("names at the start and after and", () => {
    expect(texts("l")).toEqual(["train.lr", "model.arch", "valid/loss"]);
    expect(texts("train.lr<1 and arch")).toEqual(["model.arch"]);
  });
  test("values after a sign, quoted where needed", () => {
    expect(texts("model.arch=")).toEqual(["vit", '"a b"']);
    expect(texts("state=fa")).toEqual(["failed"]);
    expect(texts("arch in (vit, ")).toEqual(["vit", '"a b"']);
  });
  test("signs after a name, and words after a value", () => {
    expect(texts("train.lr ")).toContain("<");
    expect(texts("train.lr<1 ")).toEqual(["and", "or"]);
  });
  test("text that would be read as something else is quoted", () => {
    expect(["vit", "1e-3", "true", 'a"b', "and", 0.1, null, "[16]", [16, "a b"]].map(quote)).toEqual(["vit", '"1e-3"', '"true"', '"a\\"b"', '"and"', "0.1", "none", '"[16]"', '[16, "a b"]']);
  });
});

describe("columns", () => {
  test("the first look has what matters", () => {
    expect(defaultColumns(STORE, ["train.lr", "seed"])).toEqual(["metric:valid/accuracy", "best", "curve", "metric:valid/loss", "metric:train/loss", "config:train.lr", "seed", "duration", "age"]);
  });
  test("titles are as short as possible", () => {
    const columns = ["config:a.lr", "config:b.lr", "config:b.width"].map((id) => parseColumn(id, STORE));
    expect([...shortTitles(columns).values()]).toEqual(["a.lr", "b.lr", "width"]);
  });
  test("a group is measured with its spread", () => expect(cellText(parseColumn("metric:valid/loss", STORE), { mean: 0.5, std: 0.1, num: 3 })).toBe("0.5 ±0.0000"));
});

describe("diffs", () => {
  const PATCH = "diff --git a/x.py b/x.py\nindex 1..2 100644\n--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,3 @@ def f():\n same\n-old\n+new\n+<script>\n\\ No newline at end of file\ndiff --git a/y b/y\nBinary files differ\n";
  test("lines have kinds and numbers", () => {
    const [file, other] = parseDiff(PATCH);
    expect([file?.path, file?.added, file?.removed, other?.path]).toEqual(["x.py", 2, 1, "y"]);
    expect(file?.lines.slice(1, 4)).toEqual([{ kind: "same", text: "same", old: 1, new: 1 }, { kind: "removed", text: "old", old: 2 }, { kind: "added", text: "new", new: 2 }]);
  });
});

describe("heat maps and axes", () => {
  test("rows share an axis, and a missing value has a color of its own", () => {
    const map = cells([{ x: [0, 1], y: [1, 2] }, { x: [1], y: [NaN] }, undefined], false);
    expect([map.x, map.low, map.high, map.isLog]).toEqual([[0, 1], 1, 2, false]);
    expect([...map.pixels.slice(8, 11)]).toEqual([238, 240, 243]);
  });
  test("numbers over several orders of magnitude are placed logarithmically", () => expect(makeAxis("lr", [1e-4, 1e-2, 1]).place(1e-2)).toBeCloseTo(0.5));
  test("texts are categories, and an unknown value has no place", () => {
    const axis = makeAxis("arch", ["vit", "mlp"]);
    expect([axis.place("mlp"), axis.place("vit")]).toEqual([0, 1]);
    expect(axis.place(undefined)).toBeNaN();
  });
  test("a trial without an objective has no color", () => {
    expect([lineColor(NaN, true), lineColor(NaN, false)]).toEqual(["", ""]);
    expect(lineColor(0, false)).toBe(lineColor(1, true));
  });
  test("a brush keeps what lies inside", () => {
    expect([isInside({ lr: 0.5 }, { lr: [0.4, 0.6] }), isInside({ lr: NaN }, { lr: [0, 1] }), isInside({}, {})]).toEqual([true, false, true]);
  });
});

describe("the order of charts", () => {
  test("a chart moves to the place it is dropped on", () => expect(moved(["a", "b", "c"], "a", 2)).toEqual(["b", "c", "a"]));
  test("the ends are the first and the last place", () => expect([moved(["a", "b"], "a", -1), moved(["a", "b"], "a", 9)]).toEqual([["a", "b"], ["b", "a"]]));
});
