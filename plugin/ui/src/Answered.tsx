// An answer of the API with its age, or its place: lines until it arrives, the reason if it is missing.
import { Alert, Box, Button, Flex, Skeleton, Stack, Text } from "@chakra-ui/react";
import { useQueryClient } from "@tanstack/react-query";
import { type ReactNode, createContext, useEffect, useState } from "react";
import { loginAddress } from "./api";
import { exactInstant, instant, span } from "./format";
import type { Answer } from "./queries";
import { TEXT } from "./texts";
import { useZone } from "./zone";

/** Whether the answer on the screen is of an earlier question or state, so that no action may use it. */
export const IsOld = createContext(false);

/** From here on, an answer says how old it is. */
const OLD_SECONDS = 10;

/** How old an answer is in seconds, once that matters. */
export function useAge(readAt: number): number | undefined {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 5_000);
    return () => clearInterval(timer);
  }, []);
  const seconds = Math.round((now - readAt) / 1000);
  return seconds > OLD_SECONDS ? seconds : undefined;
}

/** How old an answer is, once that matters. */
export function Age({ readAt }: { readAt: number }) {
  const seconds = useAge(readAt);
  return seconds === undefined ? null : <Text as="span">{TEXT.ago(span(seconds))}</Text>;
}

/** The instant, by the database's clock, at which a list was read that the page does not refresh, and a button that
 * reads it again with its counts. */
export function AsOf({ at, readAt }: { at: string; readAt: number }) {
  const client = useQueryClient();
  const zone = useZone();
  return (
    <Flex align="center" color="fg.muted" fontSize="sm" gap={2} justify="end">
      <Text as="span" title={`${exactInstant(at, zone)} ${zone}`}>
        {TEXT.asOf(instant(at, zone))}
      </Text>
      <Age readAt={readAt} />
      <Button onClick={() => void client.invalidateQueries()} size="xs" variant="outline">
        {TEXT.refresh}
      </Button>
    </Flex>
  );
}

/** The lines on the screen until the answer arrives. */
const WIDTHS = ["100%", "92%", "96%", "60%"];

/** Leads to Airflow's login, and back. */
export const LogIn = () => (
  <Button asChild size="xs" variant="outline">
    <a href={loginAddress()}>{TEXT.logIn}</a>
  </Button>
);

/** Shows an answer, or the reason why it is missing; after a failure, the previous answer stays below the reason. */
export function Answered<T>({
  answer,
  asOf,
  children,
}: {
  answer: Answer<T>;
  /** Returns the instant of the reading, if the page does not refresh the answer and no list in it has its own line. */
  asOf?: (value: T) => string;
  children: (value: T) => ReactNode;
}) {
  const { data, error, isOld, isPending, readAt } = answer;
  return (
    <>
      {error && (
        <Alert.Root
          mb={3}
          role="alert"
          status={error.status >= 500 || error.status === 0 ? "error" : "warning"}
        >
          <Alert.Indicator aria-hidden="true" />
          <Alert.Content>
            <Alert.Description>
              {error.message}
              {data !== undefined && TEXT.theDataBelowIsOlder}
            </Alert.Description>
          </Alert.Content>
          {error.kind === "NotLoggedIn" ? (
            <LogIn />
          ) : (
            <Button onClick={() => void answer.refetch()} size="xs" variant="outline">
              {TEXT.tryAgain}
            </Button>
          )}
        </Alert.Root>
      )}
      {isPending && !error && (
        <Stack aria-label={TEXT.loading} gap={3} mb={4} role="status">
          {WIDTHS.map((width) => (
            <Skeleton height="1.25rem" key={width} width={width} />
          ))}
        </Stack>
      )}
      {data !== undefined && (
        <IsOld value={isOld}>
          <Box aria-busy={isOld} opacity={isOld ? 0.5 : 1}>
            {asOf && (
              <Box mb={2}>
                <AsOf at={asOf(data)} readAt={readAt} />
              </Box>
            )}
            {children(data)}
          </Box>
        </IsOld>
      )}
    </>
  );
}
