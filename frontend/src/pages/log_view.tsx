// The output of a run, updated live, with a search field.

import type { VNode } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get, url } from "../api";
import { counted } from "../format";

interface Piece {
  attempt: number | null;
  attempts: number[];
  text: string;
  start: number;
  end: number;
  size: number;
}

const MAX_TEXT = 4_000_000;

export function LogView(props: { run: string; isLive: boolean }): VNode {
  const [attempt, setAttempt] = useState<number | null>(null);
  const [piece, setPiece] = useState<Piece | null>(null);
  const [find, setFind] = useState("");
  const [isFollowing, setFollowing] = useState(true);
  const box = useRef<HTMLPreElement>(null);
  useEffect(() => {
    const abort = new AbortController();
    let timer = 0;
    let known: Piece | null = null;
    const ask = async (): Promise<void> => {
      try {
        const at = known === null ? {} : { start: known.end, attempt: known.attempt ?? undefined };
        const answer = await get<Piece>(url(`runs/${props.run}/log`, { ...(attempt === null ? {} : { attempt }), ...at }), null, abort.signal);
        const next = answer.data;
        if (next && (known === null || next.text)) {
          known = known ? { ...next, text: (known.text + next.text).slice(-MAX_TEXT), start: known.start } : next;
          setPiece(known);
        }
      } catch {
        if (abort.signal.aborted) return;
      }
      if (props.isLive) timer = window.setTimeout(ask, document.hidden ? 10000 : 2000);
    };
    setPiece(null);
    void ask();
    return () => {
      abort.abort();
      window.clearTimeout(timer);
    };
  }, [props.run, attempt, props.isLive]);
  useEffect(() => {
    if (isFollowing && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [piece]);
  const lines = useMemo(() => (piece?.text ?? "").split("\n"), [piece]);
  const found = find ? lines.filter((line) => line.toLowerCase().includes(find.toLowerCase())) : lines;
  if (piece && piece.attempt === null) return <div class="card pad muted"><p>This run has printed nothing.</p></div>;
  return (
    <div class="card pad">
      <div class="toolbar slim">
        <input class="find" type="search" placeholder="find in the log" aria-label="Find in the log" value={find} onInput={(event) => setFind(event.currentTarget.value)} />
        {piece && piece.attempts.length > 1 ? (
          <select class="button" aria-label="Attempt" value={String(piece.attempt)} onChange={(event) => setAttempt(Number(event.currentTarget.value))}>
            {piece.attempts.map((each) => <option key={each} value={each}>attempt {each}</option>)}
          </select>
        ) : null}
        <span class="muted">{find ? `${counted(found.length, "line")} found` : piece && piece.start > 0 ? `the last ${Math.round((piece.end - piece.start) / 1000)} kB` : ""}</span>
      </div>
      <pre class="log" ref={box} tabIndex={0} aria-label="Log" onScroll={(event) => setFollowing(event.currentTarget.scrollHeight - event.currentTarget.scrollTop - event.currentTarget.clientHeight < 40)}>
        {found.slice(-20000).join("\n")}
      </pre>
    </div>
  );
}
