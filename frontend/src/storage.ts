// Values that the browser stores. In a frame on another site, such as a notebook, the browser may refuse to store anything. In that case,
// the values are kept in memory until the page is closed.

const memory = new Map<string, string>();

function attempt<T>(act: () => T, otherwise: T): T {
  try {
    return act();
  } catch {
    return otherwise;
  }
}

function make(kind: "localStorage" | "sessionStorage"): { get: (name: string) => string | null; set: (name: string, value: string) => void; remove: (name: string) => void } {
  return {
    get: (name) => attempt(() => window[kind].getItem(name), null) ?? memory.get(`${kind} ${name}`) ?? null,
    set: (name, value) => {
      memory.set(`${kind} ${name}`, value);
      attempt(() => window[kind].setItem(name, value), undefined);
    },
    remove: (name) => {
      memory.delete(`${kind} ${name}`);
      attempt(() => window[kind].removeItem(name), undefined);
    },
  };
}

/** Kept for this browser. */
export const lasting = make("localStorage");
/** Kept for this tab. */
export const passing = make("sessionStorage");
