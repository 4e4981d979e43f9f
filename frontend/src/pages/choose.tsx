// A list of names, such as columns or charts, that the user can select and reorder.

import type { VNode } from "preact";
import { useState } from "preact/hooks";

interface Props {
  chosen: string[];
  all: { id: string; label: string; kind: string }[];
  most?: number;
  onChosen: (chosen: string[]) => void;
  onReset: () => void;
}

export function Choose(props: Props): VNode {
  const [text, setText] = useState("");
  const { chosen } = props;
  const known = new Map(props.all.map((each) => [each.id, each]));
  const isFull = props.most !== undefined && chosen.length >= props.most;
  const rest = props.all.filter((each) => !chosen.includes(each.id) && each.label.toLowerCase().includes(text.toLowerCase()));
  const move = (at: number, by: number): void => {
    const list = [...chosen];
    const [item] = list.splice(at, 1);
    if (item !== undefined) list.splice(at + by, 0, item);
    props.onChosen(list);
  };
  return (
    <div class="choose">
      <ol>
        {chosen.map((id, at) => (
          <li key={id}>
            <label>
              <input type="checkbox" checked onChange={() => props.onChosen(chosen.filter((each) => each !== id))} /> {known.get(id)?.label ?? id}
            </label>
            <button class="small" aria-label={`Move ${id} up`} disabled={at === 0} onClick={() => move(at, -1)}>↑</button>
            <button class="small" aria-label={`Move ${id} down`} disabled={at === chosen.length - 1} onClick={() => move(at, 1)}>↓</button>
          </li>
        ))}
      </ol>
      <input type="search" placeholder="find" aria-label="Find" value={text} onInput={(event) => setText(event.currentTarget.value)} />
      <ul>
        {rest.slice(0, 60).map((each) => (
          <li key={each.id}>
            <label>
              <input type="checkbox" checked={false} disabled={isFull} onChange={() => props.onChosen([...chosen, each.id])} /> {each.label} <span class="muted">{each.kind}</span>
            </label>
          </li>
        ))}
        {rest.length > 60 ? <li class="muted">{rest.length - 60} more</li> : null}
      </ul>
      <button class="small" onClick={props.onReset}>back to the default</button>
    </div>
  );
}
