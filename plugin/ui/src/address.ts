// The state of the page stands in the address bar: a link can be sent to a colleague, and Back works. The state is in
// the query string, because Airflow mounts a plugin's page again for every other path.
import { useSearchParams } from "react-router-dom";

export type Change = Record<string, string | null | undefined>;

export function useAddress() {
  const [query, setQuery] = useSearchParams();
  return {
    /** The value in the address; the empty string if it has none. */
    of: (name: string) => query.get(name) ?? "",
    /** The address of a view of the page that is shown. */
    linkTo: (view: string, values: Change = {}) => ({
      search: changed(only(query, ["broker"]), { view, ...values }).toString(),
    }),
    /** Go to this view; of the other values, only the broker is kept. */
    open: (view: string, values: Change = {}) =>
      setQuery(changed(only(newest(), ["broker"]), { view, ...values })),
    /** Change some values, and keep the others. */
    set: (values: Change, replace = false) => setQuery(changed(newest(), values), { replace }),
  };
}

/** What the address bar has. The router renders it in a transition, so `query` may be older: a second field that is
 * filled meanwhile must not undo the first. */
const newest = () => new URLSearchParams(window.location.search);

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
