// Parses a patch into lines of different kinds (added, removed, ...), for highlighting.

export interface DiffLine {
  kind: "file" | "hunk" | "added" | "removed" | "same" | "note";
  text: string;
  old?: number;
  new?: number;
}

export interface DiffFile {
  path: string;
  added: number;
  removed: number;
  lines: DiffLine[];
}

/** Splits a unified diff, as git writes it, into files. */
export function parseDiff(patch: string): DiffFile[] {
  const files: DiffFile[] = [];
  let file: DiffFile | undefined;
  let before = 0;
  let after = 0;
  let inHunk = false;
  for (const text of patch.split("\n")) {
    const header = /^diff --git (?:"?a\/(.*?)"?) (?:"?b\/(.*?)"?)$/.exec(text);
    if (header) {
      file = { path: header[2] ?? text, added: 0, removed: 0, lines: [] };
      files.push(file);
      inHunk = false;
      continue;
    }
    if (!file) continue;
    const hunk = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@/.exec(text);
    if (hunk) {
      before = Number(hunk[1]);
      after = Number(hunk[2]);
      inHunk = true;
      file.lines.push({ kind: "hunk", text });
    } else if (!inHunk) {
      if (/^(?:new file|deleted file|rename|similarity|Binary|GIT binary)/.test(text)) file.lines.push({ kind: "note", text });
    } else if (text.startsWith("+")) {
      file.added += 1;
      file.lines.push({ kind: "added", text: text.slice(1), new: after++ });
    } else if (text.startsWith("-")) {
      file.removed += 1;
      file.lines.push({ kind: "removed", text: text.slice(1), old: before++ });
    } else if (text.startsWith(" ")) {
      file.lines.push({ kind: "same", text: text.slice(1), old: before++, new: after++ });
    } else if (text.startsWith("\\")) {
      file.lines.push({ kind: "note", text });
    }
  }
  return files;
}
