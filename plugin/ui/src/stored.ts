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

const keyOf = (name: string) => `duewheel:${name}`;
const textOf = (name: string) => localStorage.getItem(keyOf(name)) ?? "null";

/** What the browser keeps under a name, if it keeps anything. */
export const stored = (name: string) => parsed(textOf(name));

/** Keeps a choice under its name. */
export function store(name: string, choice: unknown): void {
  localStorage.setItem(keyOf(name), JSON.stringify(choice));
  window.dispatchEvent(new StorageEvent("local-storage", { key: keyOf(name) }));
}

/** A choice under its name, and what changes it. `read` returns the choice from whatever is stored. */
export function useStored<Choice>(name: string, read: (value: unknown) => Choice) {
  const text = useSyncExternalStore(whenStored, () => textOf(name));
  return [read(parsed(text)), (choice: Choice) => store(name, choice)] as const;
}
