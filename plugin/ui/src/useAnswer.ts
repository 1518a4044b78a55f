import { useCallback, useEffect, useRef, useState } from "react";
import { Failure } from "./api";

export type Answer<T> = {
  value: T | undefined;
  failure: Failure | undefined;
  loading: boolean;
  again: () => void;
};

/** The answer of a call, which is made again when `key` changes and, with `everySeconds`, at intervals. A hidden tab
 * makes no calls. After a failure the last answer stays, and the intervals grow, up to half a minute. An answer that
 * comes after `key` has changed is dropped. */
export function useAnswer<T>(
  key: string,
  ask: (signal: AbortSignal) => Promise<T>,
  everySeconds?: number,
): Answer<T> {
  const [state, setState] = useState<{ failure?: Failure; key: string; loading: boolean; value?: T }>({
    key,
    loading: true,
  });
  const [round, setRound] = useState(0);
  const asking = useRef(ask);
  useEffect(() => {
    asking.current = ask;
  });

  useEffect(() => {
    const abort = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let failures = 0;

    const run = async () => {
      timer = undefined;
      try {
        const value = await asking.current(abort.signal);
        failures = 0;
        setState({ key, loading: false, value });
      } catch (error) {
        if (abort.signal.aborted) return;
        failures += 1;
        const failure =
          error instanceof Failure
            ? error
            : new Failure(
                0,
                "Failed",
                "The page has failed. Load it again, and tell your Airflow administrator.",
              );
        setState((before) => ({
          failure,
          key,
          loading: false,
          ...(before.key === key && before.value !== undefined ? { value: before.value } : {}),
        }));
      }
      if (everySeconds !== undefined && !abort.signal.aborted && !document.hidden) {
        timer = setTimeout(() => void run(), Math.min(30, everySeconds * 2 ** failures) * 1000);
      }
    };
    const shown = () => {
      if (document.hidden) clearTimeout(timer);
      else if (everySeconds !== undefined) {
        clearTimeout(timer);
        void run();
      }
    };

    void run();
    document.addEventListener("visibilitychange", shown);
    return () => {
      abort.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", shown);
    };
  }, [key, everySeconds, round]);

  const again = useCallback(() => setRound((before) => before + 1), []);
  const current = state.key === key;
  return {
    again,
    failure: current ? state.failure : undefined,
    loading: !current || state.loading,
    value: current ? state.value : undefined,
  };
}
