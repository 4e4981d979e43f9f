// Requests to the server. A page polls every 2 seconds while something is changing, every 10 seconds otherwise, and not at all while it is hidden.

import { useEffect, useRef, useState } from "preact/hooks";
import { passing } from "./storage";

const FAST = 2000;
const SLOW = 10000;
const NUM_FAST = 5;

export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number,
    readonly rows: Record<string, string>,
  ) {
    super(message);
  }
}

export function url(path: string, params: Record<string, string | number | undefined> = {}): string {
  const given = Object.entries(params).filter((each): each is [string, string | number] => each[1] !== undefined && each[1] !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `/api/v1/${path}${text ? `?${text}` : ""}`;
}

interface Answer<T> {
  data: T | undefined;
  tag: string | null;
}

/** Sends a GET request. The response has no data if the server has nothing newer than `tag`. */
export async function get<T>(address: string, tag: string | null = null, signal?: AbortSignal): Promise<Answer<T>> {
  const headers: Record<string, string> = { "X-Trainmaster-Page": "1", ...(tag ? { "If-None-Match": tag } : {}) };
  const response = await fetch(address, { headers, cache: "no-store", ...(signal ? { signal } : {}) });
  if (response.status === 304) return { data: undefined, tag };
  const body = await response.json();
  if (!response.ok || (body.error && body.status)) throw new ApiError(body.error ?? "the request failed", body.status ?? response.status, body);
  return { data: body as T, tag: response.headers.get("ETag") };
}

const TOKEN = "trainmaster-token";

/** The token for changes. It is part of the URL that `trainmaster ui --allow-edit` prints, and is kept only in this tab. */
export function takeToken(): void {
  const found = /^#token=([\w-]+)$/.exec(location.hash);
  if (found?.[1]) {
    passing.set(TOKEN, found[1]);
    history.replaceState(null, "", location.pathname + location.search);
  }
}

export function canEdit(): boolean {
  return passing.get(TOKEN) !== null;
}

export async function post<T>(path: string, body: unknown): Promise<T> {
  const response = await fetch(url(path), {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Trainmaster-Token": passing.get(TOKEN) ?? "" },
    body: JSON.stringify(body),
  });
  const answer = await response.json();
  if (!response.ok) throw new ApiError(answer.error ?? "the change failed", response.status, answer);
  return answer as T;
}

export interface Polled<T> {
  data: T | undefined;
  error: ApiError | undefined;
  /** Whether `data` still belongs to the previous address. Pages keep showing it until the new data arrives. */
  isOld: boolean;
  refresh: () => void;
}

/** Fetches the data at an address and keeps it up to date. An empty address fetches nothing. */
export function usePoll<T>(address: string, isLive = true): Polled<T> {
  const [state, setState] = useState<{ address: string; data: T | undefined; error: ApiError | undefined }>({ address: "", data: undefined, error: undefined });
  const [count, setCount] = useState(0);
  const tags = useRef<{ address: string; tag: string | null }>({ address: "", tag: null });
  useEffect(() => {
    if (!address) return;
    const abort = new AbortController();
    let timer = 0;
    let numSame = 0;
    let isOver = false;
    const ask = async (): Promise<void> => {
      window.clearTimeout(timer);
      const tag = tags.current.address === address ? tags.current.tag : null;
      try {
        const answer = await get<T>(address, tag, abort.signal);
        if (isOver) return;
        tags.current = { address, tag: answer.tag };
        numSame = answer.data === undefined ? numSame + 1 : 0;
        if (answer.data !== undefined) setState({ address, data: answer.data, error: undefined });
        else setState((old) => (old.error ? { ...old, error: undefined } : old));
      } catch (error) {
        if (isOver || (error instanceof DOMException && error.name === "AbortError")) return;
        tags.current = { address, tag: null };
        numSame += 1;
        const known = error instanceof ApiError ? error : new ApiError("the server does not answer", 0, { hint: "is `trainmaster ui` still running?" });
        setState((old) => ({ address, data: known.status === 0 ? old.data : undefined, error: known }));
      }
      if (isLive && !document.hidden) timer = window.setTimeout(ask, numSame < NUM_FAST ? FAST : SLOW);
    };
    const wake = (): void => {
      window.clearTimeout(timer);
      if (!document.hidden && isLive) void ask();
    };
    void ask();
    document.addEventListener("visibilitychange", wake);
    return () => {
      isOver = true;
      abort.abort();
      window.clearTimeout(timer);
      document.removeEventListener("visibilitychange", wake);
    };
  }, [address, isLive, count]);
  return { data: state.data, error: state.error, isOld: state.address !== address, refresh: () => setCount((old) => old + 1) };
}
