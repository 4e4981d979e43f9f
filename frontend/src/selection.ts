// The selected runs and their colors. The position in the list determines the color. When a run is deselected, its position stays empty
// ("ab12cd34,,e781c096"), so the other runs keep their colors.

export const MAX_SELECTED = 200;

export function parseSelection(text: string): string[] {
  return text ? text.split(",").slice(0, MAX_SELECTED) : [];
}

export function writeSelection(slots: string[]): string {
  const last = slots.findLastIndex((slot) => slot !== "");
  return slots.slice(0, last + 1).join(",");
}

export function toggle(slots: string[], key: string): string[] {
  const at = slots.indexOf(key);
  if (at >= 0) return slots.map((slot, place) => (place === at ? "" : slot));
  const free = slots.indexOf("");
  if (free >= 0) return slots.map((slot, place) => (place === free ? key : slot));
  return slots.length < MAX_SELECTED ? [...slots, key] : slots;
}

export const LIGHT = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D"];
export const DARK = ["#4ea3d8", "#ff8a4c", "#3ecf9b", "#e6a3c7", "#f5be4a", "#8fd0f5", "#b8bfc8"];
export const DASHES: number[][] = [[], [8, 4], [2, 3], [8, 3, 2, 3]];

export function colorAt(slot: number, isDark: boolean): string {
  const palette = isDark ? DARK : LIGHT;
  return palette[slot % palette.length] as string;
}
