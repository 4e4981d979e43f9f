// The URL contains everything that the user chooses, so that reloading, sharing links and the back button work.

import { useEffect, useState } from "preact/hooks";

export interface Address {
  path: string;
  params: URLSearchParams;
}

const CHANGED = "trainmaster:address";

function current(): Address {
  return { path: location.pathname, params: new URLSearchParams(location.search) };
}

export function useAddress(): Address {
  const [address, setAddress] = useState(current);
  useEffect(() => {
    const update = (): void => setAddress(current());
    addEventListener("popstate", update);
    addEventListener(CHANGED, update);
    return () => {
      removeEventListener("popstate", update);
      removeEventListener(CHANGED, update);
    };
  }, []);
  return address;
}

/** A URL within the dashboard. Keys and names are encoded, so they can contain special characters. */
export function link(path: string, params: Record<string, string> = {}): string {
  const given = Object.entries(params).filter(([, value]) => value !== "");
  const text = new URLSearchParams(given).toString().replaceAll("%2C", ",").replaceAll("%2F", "/").replaceAll("%3A", ":");
  return path + (text ? `?${text}` : "");
}

/** Goes to a URL. With `isSmall`, for example while the user is typing in the filter, no entry is added to the browser history. */
export function go(to: string, isSmall = false): void {
  if (to === location.pathname + location.search) return;
  if (isSmall) history.replaceState(null, "", to);
  else history.pushState(null, "", to);
  dispatchEvent(new Event(CHANGED));
}

export function setParams(changes: Record<string, string>, isSmall = false): void {
  const params = Object.fromEntries(new URLSearchParams(location.search));
  go(link(location.pathname, { ...params, ...changes }), isSmall);
}

/** Follows a link within the dashboard without reloading, unless the user wants a new tab or window. */
export function follow(event: MouseEvent): void {
  const anchor = (event.target as Element).closest?.("a[href]");
  if (!anchor || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.defaultPrevented) return;
  const href = anchor.getAttribute("href") ?? "";
  if (!href.startsWith("/") || href.startsWith("/api/") || anchor.hasAttribute("target")) return;
  event.preventDefault();
  go(href);
  scrollTo(0, 0);
}
