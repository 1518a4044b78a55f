// The state of the page stands in the address bar: a link can be sent to a colleague, and Back works. It is in the
// query string, as Airflow mounts a plugin's page anew for every other path.
import { useSearchParams } from "react-router-dom";

export type Change = Record<string, string | null | undefined>;

export function useAddress() {
  const [query, setQuery] = useSearchParams();
  return {
    /** What the address says; the empty string where it says nothing. */
    of: (name: string) => query.get(name) ?? "",
    /** Go to this view, with nothing but the broker kept. */
    open: (view: string, values: Change = {}) =>
      setQuery(changed(only(query, ["broker"]), { view, ...values })),
    /** Change some values, and keep the others. */
    set: (values: Change, replace = false) => setQuery(changed(query, values), { replace }),
  };
}

function only(query: URLSearchParams, names: string[]): URLSearchParams {
  return new URLSearchParams([...query].filter(([name]) => names.includes(name)));
}

function changed(query: URLSearchParams, values: Change): URLSearchParams {
  const next = new URLSearchParams(query);
  for (const [name, value] of Object.entries(values)) {
    if (value) next.set(name, value);
    else next.delete(name);
  }
  return next;
}
