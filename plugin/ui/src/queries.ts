// The answers that the page shows, kept by TanStack Query: one question is asked once however many parts show it.
import {
  QueryClient,
  type UseQueryResult,
  keepPreviousData,
  useQuery,
  useQueryClient,
} from "@tanstack/react-query";
import { Failure, type Parameters, type ReadPath, type Reading, read } from "./api";
import { TEXT } from "./texts";

declare module "@tanstack/react-query" {
  interface Register {
    defaultError: Failure;
  }
}

export type Answer<T> = Pick<UseQueryResult<T>, "data" | "error" | "isPending" | "refetch"> & {
  /** Another answer is on its way, to another question or after an act: nothing may act on what is shown. */
  isOld: boolean;
};

/** After a failure it is asked again at these intervals at least. */
const AFTER_FAILURE_SECONDS = 10;

export const newClient = () =>
  new QueryClient({
    defaultOptions: {
      queries: {
        networkMode: "always",
        refetchOnReconnect: false,
        refetchOnWindowFocus: false,
        retry: false,
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
  const { data, error, isFetching, isPending, isPlaceholderData, refetch } = useQuery<T>({
    enabled,
    placeholderData: keepPreviousData,
    queryFn: async ({ signal }) => {
      try {
        return await ask(signal);
      } catch (error) {
        if (error instanceof Failure || signal.aborted) throw error;
        throw new Failure(0, "Failed", TEXT.thePageHasFailedTellYourAdministrator);
      }
    },
    queryKey: key,
    staleTime: ({ state }) => 1000 * sharedSeconds(state.data),
    ...(everySeconds === undefined
      ? {}
      : {
          refetchInterval: ({ state }) =>
            1000 *
            Math.max(
              everySeconds,
              state.status === "error" ? AFTER_FAILURE_SECONDS : sharedSeconds(state.data),
            ),
          refetchOnWindowFocus: "always",
        }),
  });
  // A failure marks what was there before it, too. The page says so beside it, and goes on asking.
  const isOutdated = isFetching && error === null && client.getQueryState(key)?.isInvalidated === true;
  return { data, error, isOld: isPlaceholderData || isOutdated, isPending, refetch };
}

/** The answer to a reading call on one broker. */
export const useBroker = <Path extends ReadPath>(
  broker: string,
  path: Path,
  parameters: Parameters = {},
  everySeconds?: number,
  enabled = true,
): Answer<Reading<Path>> => useAnswer(...questionOf(broker, path, parameters), everySeconds, enabled);
