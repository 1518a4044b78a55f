// The answers that the page shows, kept by TanStack Query: one question is asked once however many parts show it.
import {
  QueryClient,
  type UseQueryResult,
  keepPreviousData,
  replaceEqualDeep,
  useQuery,
  useQueryClient,
} from "@tanstack/react-query";
import { Failure, type Parameters, type ReadPath, type Reading, read } from "./api";
import { countOf } from "./format";
import { keepGroups } from "./keepGroups";
import { TEXT } from "./texts";

declare module "@tanstack/react-query" {
  interface Register {
    defaultError: Failure;
  }
}

export type Answer<T> = Pick<UseQueryResult<T>, "data" | "error" | "isPending" | "refetch"> & {
  /** When it was computed, by this machine's clock. */
  readAt: number;
  /** Another answer is on its way, to another question or after an act: nothing may act on what is shown. */
  isOld: boolean;
};

/** What a view shows live is asked again so often, while the tab is seen. */
export const EVERY_SECONDS = 5;

/** After a failure it is asked again at these intervals at least. */
const AFTER_FAILURE_SECONDS = 10;

/** Whether a failure passes by itself: the broker or the API server does not answer, or the user logs in elsewhere. */
const isOutage = ({ status }: Failure) => [0, 401, 502, 503].includes(status);

export const newClient = () =>
  new QueryClient({
    defaultOptions: {
      queries: {
        networkMode: "always",
        refetchOnReconnect: false,
        refetchOnWindowFocus: false,
        retry: false,
        structuralSharing: (before, answer) => replaceEqualDeep(before, keepGroups(before, answer)),
      },
    },
  });

/** A question: its key, and how it is asked. */
export type Question<T> = readonly [key: readonly unknown[], ask: (signal: AbortSignal) => Promise<T>];

/** A reading call on one broker. */
export const questionOf = <Path extends ReadPath>(
  broker: string,
  path: Path,
  parameters: Parameters = {},
): Question<Reading<Path>> => [
  [broker, path, parameters],
  (signal) => read(broker, path, parameters, signal),
];

/** For how long the server still gives the same answer: until then nobody needs to ask. */
const sharedSeconds = (answer: unknown) =>
  (answer as { next_in_seconds?: number } | undefined)?.next_in_seconds ?? 0;

/** What an answer may tell of its time: when it was computed, and how long ago the server did that. */
type Timed = { age_seconds?: number; now_at?: string };

/** No process gives an answer for so long: an older one was computed before the database's clock was set back. */
const LONGEST_SHARED_SECONDS = 120;

/** The newer of two answers to a question: each process of Airflow's API server has its own. */
function newer<T>(answer: T, client: QueryClient, key: readonly unknown[]): T {
  const before = client.getQueryState<T>(key);
  const [at, known] = [answer, before?.data].map((one) =>
    Date.parse((one as Timed | undefined)?.now_at ?? ""),
  );
  if (before?.data === undefined || at === undefined || known === undefined || !(at < known)) return answer;
  const age_seconds = ((before.data as Timed).age_seconds ?? 0) + (Date.now() - before.dataUpdatedAt) / 1000;
  return age_seconds > LONGEST_SHARED_SECONDS ? answer : { ...before.data, age_seconds };
}

/** Asks when the key changes, and with `everySeconds` again and again while the tab is seen. Until the answer to a new
 * question is there, the one before it stays, and is marked as old. So does what was there before the page asked for
 * everything anew; an answer that is merely asked for again is still good. */
export function useAnswer<T>(
  key: readonly unknown[],
  ask: (signal: AbortSignal) => Promise<T>,
  everySeconds?: number,
  enabled = true,
): Answer<T> {
  const client = useQueryClient();
  const { data, dataUpdatedAt, error, isFetching, isPending, isPlaceholderData, refetch } = useQuery<T>({
    enabled,
    placeholderData: keepPreviousData,
    queryFn: async ({ signal }) => {
      try {
        return newer(await ask(signal), client, key);
      } catch (error) {
        if (error instanceof Failure || signal.aborted) throw error;
        throw new Failure(0, "Failed", TEXT.thePageHasFailedTellYourAdministrator);
      }
    },
    queryKey: key,
    staleTime: ({ state }) => 1000 * sharedSeconds(state.data),
    // After an outage, a list that is not live is asked for until its answer arrives.
    refetchInterval: ({ state: { data, error } }) => {
      if (everySeconds === undefined)
        return error !== null && isOutage(error) && 1000 * AFTER_FAILURE_SECONDS;
      return 1000 * Math.max(everySeconds, error ? AFTER_FAILURE_SECONDS : sharedSeconds(data));
    },
    ...(everySeconds === undefined ? {} : { refetchOnWindowFocus: "always" }),
  });
  // A failure marks what was there before it, too. The page says so beside it, and goes on asking.
  const isOutdated = isFetching && error === null && client.getQueryState(key)?.isInvalidated === true;
  const readAt = dataUpdatedAt - 1000 * ((data as Timed | undefined)?.age_seconds ?? 0);
  return { data, error, isOld: isPlaceholderData || isOutdated, isPending, readAt, refetch };
}

/** The number of a list's rows for its heading. `of` returns it, and whether these are all; an empty list says so itself,
 * and the answer to the question before has another number. */
export function rowsIn<T>(
  { data, isOld }: Answer<T>,
  of: (answer: T) => readonly [rows: number, isAll: boolean],
): string | undefined {
  if (data === undefined || isOld) return undefined;
  const [rows, isAll] = of(data);
  return rows === 0 ? undefined : countOf(rows, true, isAll);
}

/** The answer to a reading call on one broker. */
export const useBroker = <Path extends ReadPath>(
  broker: string,
  path: Path,
  parameters: Parameters = {},
  everySeconds?: number,
  enabled = true,
): Answer<Reading<Path>> => useAnswer(...questionOf(broker, path, parameters), everySeconds, enabled);
