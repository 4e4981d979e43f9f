// Small components that several pages use.

import type { ComponentChildren, VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { ApiError } from "./api";
import { link } from "./address";

export function State(props: { state: string; epoch?: number | null; numEpochs?: number | null; progressed?: number | null; now?: number }): VNode {
  const { state, epoch, numEpochs } = props;
  const isLive = state === "running" || state === "held?";
  const isStalled = isLive && props.progressed && props.now && props.now - props.progressed > 300;
  const share = epoch !== null && epoch !== undefined && numEpochs ? Math.min(1, epoch / numEpochs) : null;
  return (
    <span class={`state ${isStalled ? "stalled" : state.replace("?", "")}`}>
      {isStalled ? "stalled" : state}
      {isLive && share !== null ? (
        <>
          {" "}
          {epoch}/{numEpochs} <progress value={share} max={1} aria-label="progress" />
        </>
      ) : null}
    </span>
  );
}

export function RunLink(props: { run: string; params?: Record<string, string>; children?: ComponentChildren }): VNode {
  return (
    <a class="key" href={link(`/run/${encodeURIComponent(props.run)}`, props.params)}>
      {props.children ?? props.run}
    </a>
  );
}

export function Copy(props: { text: string; label: string }): VNode {
  const [isDone, setDone] = useState(false);
  return (
    <button
      class="small"
      title={props.text}
      onClick={() => {
        void copyText(props.text).then(() => {
          setDone(true);
          setTimeout(() => setDone(false), 1500);
        });
      }}
    >
      {isDone ? "copied" : props.label}
    </button>
  );
}

async function copyText(text: string): Promise<void> {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea"); // navigator.clipboard exists only on https and localhost
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

export function Problem(props: { error: ApiError | undefined }): VNode | null {
  const { error } = props;
  if (!error) return null;
  return (
    <div class="problem" role="alert">
      <b>{error.message}</b>
      {["where", "why", "known", "hint"].map((name) => (error.rows[name] ? <pre key={name}>{error.rows[name]}</pre> : null))}
    </div>
  );
}

/** A button that opens a panel below it. Escape or a click elsewhere closes the panel. */
export function Menu(props: { label: ComponentChildren; title?: string; children: ComponentChildren; isRight?: boolean }): VNode {
  const [isOpen, setOpen] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!isOpen) return;
    const close = (event: Event): void => {
      if (event instanceof KeyboardEvent ? event.key === "Escape" : !box.current?.contains(event.target as Node)) setOpen(false);
    };
    addEventListener("mousedown", close);
    addEventListener("keydown", close);
    return () => {
      removeEventListener("mousedown", close);
      removeEventListener("keydown", close);
    };
  }, [isOpen]);
  return (
    <div class="menu" ref={box}>
      <button class="button" aria-expanded={isOpen} aria-haspopup="true" title={props.title} onClick={() => setOpen(!isOpen)}>
        {props.label}
      </button>
      {isOpen ? <div class={`panel${props.isRight ? " right" : ""}`}>{props.children}</div> : null}
    </div>
  );
}

/** The current time in seconds, updated every ten seconds, for text such as "2 minutes ago". */
export function useNow(): number {
  const [now, setNow] = useState(() => Date.now() / 1000);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || setNow(Date.now() / 1000), 10000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

/** Handles single-key keyboard shortcuts, unless the user is typing in a field. */
export function useKeys(keys: Record<string, (event: KeyboardEvent) => void>): void {
  const latest = useRef(keys);
  latest.current = keys;
  useEffect(() => {
    const press = (event: KeyboardEvent): void => {
      const target = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey || /^(?:INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) return;
      if (target.tagName === "BUTTON" && (event.key === "Enter" || event.key === " ")) return;
      latest.current[event.key]?.(event);
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
}
