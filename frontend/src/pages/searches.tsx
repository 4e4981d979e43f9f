import type { VNode } from "preact";
export function SearchesPage(_: Record<string, unknown>): VNode { return <main />; }
