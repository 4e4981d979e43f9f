// Completion in the filter line: suggestions for the text at the cursor.

export interface Names {
  config: { name: string; is_number: boolean; values: unknown[] }[];
  metrics: string[];
  tags: string[];
  states: string[];
}

export interface Completion {
  text: string;
  kind: string;
}

export interface Completions {
  start: number;
  items: Completion[];
}

const MAX_ITEMS = 12;
const SIGN = /(?:==|!=|<=|>=|=|<|>|~)\s*$/;
const NAME_BEFORE_SIGN = /([^\s=<>~(),!"']+)\s*(?:==|!=|<=|>=|=|<|>|~)\s*$/;
const NAME_BEFORE_LIST = /([^\s=<>~(),!"']+)\s+in\s*\(([^)]*)$/;

/** Suggestions for the word that ends at the cursor: names, operators, values, or `and` and `or`. */
export function complete(text: string, cursor: number, names: Names): Completions {
  const before = text.slice(0, cursor);
  const word = /[^\s=<>~(),!"']*$/.exec(before)?.[0] ?? "";
  const start = cursor - word.length;
  const rest = before.slice(0, start);
  const list = NAME_BEFORE_LIST.exec(rest);
  const sign = NAME_BEFORE_SIGN.exec(rest);
  if (list || sign) {
    const name = (list ?? sign)?.[1] ?? "";
    return { start, items: matching(valuesOf(name, names), word, "value") };
  }
  if (rest.trim() === "" || /(?:^|[\s(])(?:and|or|not)\s+$/i.test(rest) || /\($/.test(rest)) {
    const own = ["state", "epoch", "tag", "key"];
    return {
      start,
      items: [
        ...matching(names.config.map((each) => each.name), word, "config"),
        ...matching(names.metrics, word, "metric"),
        ...matching(own, word, "run"),
      ].slice(0, MAX_ITEMS),
    };
  }
  if (/\s$/.test(rest) || /[)"']$/.test(rest)) {
    const isAfterName = /(?:^|\s|\()(?:and |or |not )?[^\s=<>~(),!"']+\s+$/.test(rest) && !SIGN.test(rest) && isName(rest, names);
    return { start, items: matching(isAfterName ? ["<", ">", "=", "!=", "~", "in ("] : ["and", "or"], word, "word") };
  }
  return { start, items: [] };
}

function isName(rest: string, names: Names): boolean {
  const last = /([^\s=<>~(),!"']+)\s+$/.exec(rest)?.[1] ?? "";
  const before = rest.slice(0, rest.length - last.length).trimEnd();
  return !SIGN.test(before) && (names.config.some((each) => each.name === last) || names.metrics.includes(last) || ["state", "epoch", "tag", "key"].includes(last));
}

function valuesOf(name: string, names: Names): string[] {
  if (name === "state") return names.states;
  if (name === "tag") return names.tags;
  const column = names.config.find((each) => each.name === name || each.name.endsWith(`.${name}`));
  return (column?.values ?? []).filter((each) => typeof each !== "object" || each === null || Array.isArray(each)).map(quote);
}

/** A value as it is written in a filter. Text that the filter would not parse as a string is quoted. */
export function quote(value: unknown): string {
  if (value === null) return "none";
  if (Array.isArray(value)) return `[${value.map(quote).join(", ")}]`;
  const text = String(value);
  if (typeof value !== "string") return text;
  const isPlain = /^[^\s=<>~(),!"'[\]]+$/.test(text) && !/^(?:and|or|not|in|true|false|none|null|nan|-?inf)$/i.test(text);
  return isPlain && !/^[+-]?(?:\d|\.\d)/.test(text) ? text : `"${text.replace(/[\\"]/g, "\\$&")}"`;
}

function matching(texts: string[], word: string, kind: string): Completion[] {
  const wanted = word.toLowerCase();
  const found = texts.filter((text) => text.toLowerCase().includes(wanted) && text !== word);
  found.sort((a, b) => Number(b.toLowerCase().startsWith(wanted)) - Number(a.toLowerCase().startsWith(wanted)));
  return found.slice(0, MAX_ITEMS).map((text) => ({ text, kind }));
}
