// The order of a list that the user arranges.

/** The list with one item moved to another place. A place beyond the ends is the first or the last one. */
export function moved<T>(list: T[], item: T, to: number): T[] {
  const rest = list.filter((each) => each !== item);
  rest.splice(Math.max(0, Math.min(to, rest.length)), 0, item);
  return rest;
}
