// Reorders lists that the user arranges.

/** Returns the list with one item moved to another position. A position beyond an end of the list means that end. */
export function moved<T>(list: T[], item: T, to: number): T[] {
  const rest = list.filter((each) => each !== item);
  rest.splice(Math.max(0, Math.min(to, rest.length)), 0, item);
  return rest;
}
