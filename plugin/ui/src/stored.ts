// Choices that the browser keeps for its user. Airflow's own pages keep theirs there in the same way.
import { useSyncExternalStore } from "react";

/** Calls back when another tab changes a choice, or this tab does. */
export function whenStored(tell: () => void): () => void {
  const events = ["storage", "local-storage"];
  events.forEach((event) => window.addEventListener(event, tell));
  return () => events.forEach((event) => window.removeEventListener(event, tell));
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    // Anything in the browser may have written it.
    return undefined;
  }
}

/** A choice under its name, and what changes it. `read` returns the choice from whatever is stored. */
export function useStored<Choice>(name: string, read: (value: unknown) => Choice) {
  const key = `duewheel:${name}`;
  const text = useSyncExternalStore(whenStored, () => localStorage.getItem(key) ?? "null");
  const store = (choice: Choice) => {
    localStorage.setItem(key, JSON.stringify(choice));
    window.dispatchEvent(new StorageEvent("local-storage", { key }));
  };
  return [read(parsed(text)), store] as const;
}
