// Changes to a run, available with `trainmaster ui --allow-edit`. Actions that cannot be undone ask for confirmation.

import type { VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import { ApiError, post } from "../api";
import { go } from "../address";
import type { RunInfo } from "../types";

export function EditRun(props: { run: RunInfo; onDone: () => void }): VNode {
  const { run } = props;
  const [label, setLabel] = useState("");
  const [notes, setNotes] = useState(run.notes);
  const [asked, setAsked] = useState<"" | "delete" | "stop">("");
  const [problem, setProblem] = useState("");
  useEffect(() => setNotes(run.notes), [run.key]);
  const send = async (what: string, body: unknown): Promise<boolean> => {
    try {
      await post(`runs/${run.key}/${what}`, body);
      setProblem("");
      props.onDone();
      return true;
    } catch (error) {
      setProblem(error instanceof ApiError ? `${error.message}${error.rows["hint"] ? ` (${error.rows["hint"]})` : ""}` : "the server does not answer");
      return false;
    }
  };
  const isArchived = run.tags.includes("archived");
  const isLive = run.state === "running" || run.state === "held?";
  return (
    <div class="card pad edit">
      <h2>Edit</h2>
      <div class="labels">
        {run.tags.map((tag) => (
          <button key={tag} class="tag" aria-label={`Remove the label ${tag}`} onClick={() => send("tags", { remove: [tag] })}>{tag} ×</button>
        ))}
      </div>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void send("tags", { add: [label.trim()] }).then((isDone) => isDone && setLabel(""));
        }}
      >
        <input class="find" placeholder="add a label" aria-label="Add a label" value={label} onInput={(event) => setLabel(event.currentTarget.value)} />
      </form>
      <textarea rows={5} aria-label="Notes" placeholder="notes" value={notes} onInput={(event) => setNotes(event.currentTarget.value)} />
      <div class="buttons">
        <button class="small" disabled={notes === run.notes} onClick={() => send("notes", { text: notes })}>save notes</button>
        <button class="small" onClick={() => send("tags", isArchived ? { remove: ["archived"] } : { add: ["archived"] })}>{isArchived ? "take out of the archive" : "archive"}</button>
        {isLive ? <button class="small" onClick={() => setAsked("stop")}>stop …</button> : null}
        {isLive ? null : <button class="small danger" onClick={() => setAsked("delete")}>delete …</button>}
      </div>
      {asked ? (
        <div class="confirm" role="alertdialog" aria-label="Confirm">
          <p>{asked === "delete" ? `Delete run ${run.key} with all its files? This cannot be undone.` : `Ask run ${run.key} to save a checkpoint and stop?`}</p>
          <button class="small danger" onClick={() => send(asked, { confirm: run.key }).then((isDone) => { setAsked(""); if (isDone && asked === "delete") go("/"); })}>{asked}</button>
          <button class="small" onClick={() => setAsked("")}>cancel</button>
        </div>
      ) : null}
      {problem ? <p class="bad" role="alert">{problem}</p> : null}
    </div>
  );
}
