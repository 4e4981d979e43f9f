import type { VNode } from "preact";
export function ComparePage(_: Record<string, unknown>): VNode { return <main />; }
