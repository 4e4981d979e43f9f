// Light or dark mode: the system setting, unless the user has chosen a mode.

import { useEffect, useState } from "preact/hooks";
import { lasting } from "./storage";

export type Choice = "system" | "light" | "dark";

const NAME = "trainmaster-theme";
const CHANGED = "trainmaster:theme";
const system = matchMedia("(prefers-color-scheme: dark)");

export function choice(): Choice {
  const stored = lasting.get(NAME);
  return stored === "light" || stored === "dark" ? stored : "system";
}

export function isDarkNow(): boolean {
  return choice() === "dark" || (choice() === "system" && system.matches);
}

export function applyTheme(): void {
  document.documentElement.dataset["theme"] = isDarkNow() ? "dark" : "light";
}

export function chooseTheme(to: Choice): void {
  if (to === "system") lasting.remove(NAME);
  else lasting.set(NAME, to);
  applyTheme();
  dispatchEvent(new Event(CHANGED));
}

export function useDark(): boolean {
  const [isDark, setDark] = useState(isDarkNow);
  useEffect(() => {
    const update = (): void => {
      applyTheme();
      setDark(isDarkNow());
    };
    addEventListener(CHANGED, update);
    system.addEventListener("change", update);
    return () => {
      removeEventListener(CHANGED, update);
      system.removeEventListener("change", update);
    };
  }, []);
  return isDark;
}
