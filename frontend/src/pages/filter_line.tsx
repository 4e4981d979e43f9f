// The filter line. It accepts the same conditions as `trainmaster ls --where`, completes names and values, and shows errors below the line.

import type { VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { ApiError } from "../api";
import { complete, type Completions, type Names } from "../filter";

export function FilterLine(props: { where: string; names: Names; error: ApiError | undefined; onWhere: (where: string) => void }): VNode {
  const [text, setText] = useState(props.where);
  const [found, setFound] = useState<Completions>({ start: 0, items: [] });
  const [chosen, setChosen] = useState(-1);
  const input = useRef<HTMLInputElement>(null);
  const timer = useRef(0);
  useEffect(() => {
    if (document.activeElement !== input.current || props.where !== text.trim()) setText(props.where);
  }, [props.where]);

  const send = (value: string, wait: number): void => {
    window.clearTimeout(timer.current);
    timer.current = window.setTimeout(() => props.onWhere(value.trim()), wait);
  };
  const suggest = (value: string): void => {
    setFound(complete(value, input.current?.selectionStart ?? value.length, props.names));
    setChosen(-1);
  };
  const accept = (at: number): void => {
    const item = found.items[at];
    const element = input.current;
    if (!item || !element) return;
    const cursor = element.selectionStart ?? text.length;
    const space = item.kind === "word" && item.text.endsWith("(") ? "" : item.kind === "value" || item.kind === "word" ? " " : "";
    const value = text.slice(0, found.start) + item.text + space + text.slice(cursor);
    const end = found.start + item.text.length + space.length;
    element.value = value; // set immediately, so that the next key is inserted at the right position
    element.setSelectionRange(end, end);
    setText(value);
    suggest(value);
    send(value, 300);
  };
  const press = (event: KeyboardEvent): void => {
    if (event.key === "Escape") {
      setFound({ start: 0, items: [] });
      if (!found.items.length) input.current?.blur();
    } else if (event.key === "ArrowDown" && found.items.length) {
      event.preventDefault();
      setChosen((chosen + 1) % found.items.length);
    } else if (event.key === "ArrowUp" && found.items.length) {
      event.preventDefault();
      setChosen((chosen - 1 + found.items.length) % found.items.length);
    } else if ((event.key === "Enter" && chosen >= 0) || (event.key === "Tab" && found.items.length && text)) {
      event.preventDefault();
      accept(Math.max(0, chosen));
    } else if (event.key === "Enter") {
      setFound({ start: 0, items: [] });
      send(text, 0);
    }
  };
  const error = text.trim() && props.error?.status === 400 ? props.error : undefined;
  return (
    <div class="filter">
      <input
        ref={input}
        id="filter"
        value={text}
        placeholder="filter: lr<0.01 and arch=ResNet18"
        spellcheck={false}
        autocomplete="off"
        role="combobox"
        aria-label="Filter runs"
        aria-expanded={found.items.length > 0}
        aria-controls="completions"
        aria-invalid={error !== undefined}
        aria-describedby={error ? "filter-error" : undefined}
        onInput={(event) => {
          const value = event.currentTarget.value;
          setText(value);
          suggest(value);
          send(value, 400);
        }}
        onFocus={() => suggest(text)}
        onBlur={() => setTimeout(() => setFound({ start: 0, items: [] }), 150)}
        onKeyDown={press}
      />
      {text ? (
        <button class="clear" aria-label="Clear the filter" onClick={() => { setText(""); send("", 0); }}>
          ×
        </button>
      ) : null}
      {found.items.length && document.activeElement === input.current ? (
        <ul class="panel completions" id="completions" role="listbox">
          {found.items.map((item, at) => (
            <li
              key={`${item.kind} ${item.text}`}
              role="option"
              aria-selected={at === chosen}
              onMouseDown={(event) => {
                event.preventDefault();
                accept(at);
              }}
            >
              <code>{item.text}</code> <span>{item.kind}</span>
            </li>
          ))}
        </ul>
      ) : null}
      {error ? (
        <div class="filter-error" id="filter-error" role="alert">
          <b>{error.message}</b>
          {error.rows["where"] ? <pre>{error.rows["where"]}</pre> : null}
          {error.rows["hint"] ? <span>{error.rows["hint"]}</span> : null}
        </div>
      ) : null}
    </div>
  );
}
