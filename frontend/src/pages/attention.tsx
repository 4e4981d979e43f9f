// What needs attention: stalled, failed, diverged and slow runs, and a disk that is almost full. Each item links to the runs in question.

import type { VNode } from "preact";
import { link } from "../address";
import { url, usePoll } from "../api";
import type { AttentionItem } from "../types";

const QUIET = new Set(["failed", "diverged"]);

export function Attention(): VNode | null {
  const polled = usePoll<{ items: AttentionItem[] }>(url("attention"));
  const items = polled.data?.items ?? [];
  if (!items.length) return null;
  return (
    <nav class="attention" aria-label="Needs attention">
      {items.map((item) => (
        <a key={item.kind} class={`alert ${QUIET.has(item.kind) ? "quiet" : "loud"}`} href={item.keys.length === 1 ? link(`/run/${item.keys[0]}`) : item.where ? link("/", { where: item.where }) : "/"}>
          <b>{item.kind}</b> {item.text}
        </a>
      ))}
    </nav>
  );
}
