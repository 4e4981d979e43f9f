import type { VNode } from "preact";
export function RunPage(_: Record<string, unknown>): VNode { return <main />; }
