// The first line of every view: whether all is well, and if not, what is wrong and where it is mended.
import { Badge, Button, Flex, List as ItemList, Text } from "@chakra-ui/react";
import { Link } from "react-router-dom";
import type { ReactNode } from "react";
import { type Failure, type Schemas, get } from "./api";
import { useAddress } from "./address";
import { Age, LogIn, useAge } from "./Answered";
import { many, span } from "./format";
import type { PartState } from "./parts";
import { problemsOf } from "./problems";
import { EVERY_SECONDS, useAnswer, useBroker } from "./queries";
import { TEXT } from "./texts";

const WATCHERS_SECONDS = 60;

/** The watchers of all brokers, which Airflow's own database has. */
const watchersQuestion = [
  ["watchers"],
  (signal: AbortSignal) => get<Schemas["Watchers"]>("watchers", {}, signal),
] as const;

/** The broker's state and its watchers, undefined until they are read, when the state was read, and why it was not. */
export function useTroubles(broker: string) {
  const { data: pulse, error, readAt } = useBroker(broker, "pulse", {}, EVERY_SECONDS);
  const { data } = useAnswer(...watchersQuestion, WATCHERS_SECONDS);
  return {
    error,
    pulse: error ? undefined : pulse,
    readAt,
    watchers: data?.watchers.filter((one) => one.connection_id === broker),
  };
}

/** Why the state was not read; it has no filter to narrow. */
const reasonOf = ({ kind, message }: Failure) =>
  kind === "TookTooLong" ? TEXT.theBrokerDidNotAnswerInTime : message;

const Sentence = ({ children, color }: { children: ReactNode; color: string }) => (
  <Badge colorPalette={color} height="auto" py={0.5} size="md" whiteSpace="normal">
    {children}
  </Badge>
);

const Said = (sentence: { children: ReactNode; color: string }) => (
  <Text aria-label={TEXT.verdict} as="p" mb={2} role="status">
    <Sentence {...sentence} />
  </Text>
);

export function Verdict({ broker }: { broker: string }) {
  const address = useAddress();
  const { error, pulse, readAt, watchers } = useTroubles(broker);
  const age = useAge(readAt);
  // A list that stands still would not say that it has become old.
  if (error)
    return (
      <Flex align="center" gap={2} mb={2} wrap="wrap">
        <Said color="red">{TEXT.stateUnknown(reasonOf(error))}</Said>
        {error.kind === "NotLoggedIn" && <LogIn />}
      </Flex>
    );
  if (!pulse) return null;
  const problems = problemsOf(pulse, watchers ?? []);
  // All is well where all was read.
  const isWhole = pulse.faults !== null && pulse.groups_to === null && watchers !== undefined;
  if (problems.length === 0) {
    const words = isWhole ? TEXT.allOnTime : TEXT.notAllNumbersAreRead;
    // Nor would a state that no answer replaces.
    if (age !== undefined) return <Said color="gray">{TEXT.stateAgo(span(age), words)}</Said>;
    return <Said color={isWhole ? "green" : "gray"}>{words}</Said>;
  }
  return (
    <Flex aria-label={TEXT.verdict} as="section" direction="column" gap={1} mb={3} role="region">
      <Flex gap={2}>
        <Text fontWeight="bold">{many(problems.length, TEXT.nounProblem)}</Text>
        <Age readAt={readAt} />
      </Flex>
      <ItemList.Root gap={1} listStyle="none">
        {problems.map(({ button, part, to, view, words }) => (
          <ItemList.Item alignItems="center" display="flex" flexWrap="wrap" gap={2} key={words}>
            <Sentence color="red">{words}</Sentence>
            <Button asChild size="xs" variant="outline">
              <Link state={{ part } satisfies PartState} to={address.linkTo(view, to)}>
                {button}
              </Link>
            </Button>
          </ItemList.Item>
        ))}
      </ItemList.Root>
      {!isWhole && (
        <Text as="div">
          <Sentence color="gray">{TEXT.notAllNumbersAreRead}</Sentence>
        </Text>
      )}
    </Flex>
  );
}
