// Shows a patch with highlighted added and removed lines.

import type { VNode } from "preact";
import { useMemo } from "preact/hooks";
import { parseDiff } from "../diff";

const MAX_LINES = 3000;

export function DiffView(props: { patch: string; isCut: boolean; more?: string }): VNode | null {
  const files = useMemo(() => parseDiff(props.patch), [props.patch]);
  if (!files.length) return null;
  let num = 0;
  return (
    <>
      {files.map((file) => {
        const lines = file.lines.slice(0, Math.max(0, MAX_LINES - num));
        num += file.lines.length;
        return (
          <details class="card diff" open key={file.path}>
            <summary>
              <span class="mono">{file.path}</span> <span class="plus">+{file.added}</span> <span class="minus">−{file.removed}</span>
            </summary>
            <div class="lines" role="figure" aria-label={`Changes of ${file.path}`}>
              {lines.map((line, at) => (
                <div key={at} class={line.kind}>
                  <i>{line.old ?? ""}</i>
                  <i>{line.new ?? ""}</i>
                  <b>{line.kind === "added" ? "+" : line.kind === "removed" ? "−" : " "}</b>
                  <code>{line.text}</code>
                </div>
              ))}
            </div>
          </details>
        );
      })}
      {props.isCut || num > MAX_LINES ? <p class="muted">{props.more ?? "The patch is longer; `trainmaster code KEY --diff` prints all of it."}</p> : null}
    </>
  );
}
