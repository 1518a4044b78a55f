import { Text } from "@chakra-ui/react";
import { type Schemas, post } from "./api";
import { Asking, type Course } from "./Asking";
import { count, many } from "./format";
import { type Part, actOnEach, portions, told } from "./outcomes";
import { TEXT } from "./texts";

/** A message that waits for its next attempt in a group. */
type Waiting = { group: string; message_id: string };

/** As many as one request takes. */
const AT_ONCE = 200;

/** The messages of each group, in portions. */
const partsOf = (broker: string, waiting: Waiting[]): Part[] =>
  [...new Set(waiting.map((one) => one.group))].flatMap((group) => {
    const ids = waiting.filter((one) => one.group === group).map((one) => one.message_id);
    return [...portions(ids, AT_ONCE)].map((some) => ({
      act: async () =>
        (await post<Schemas["Outcomes"]>(broker, "retries/now", { group, message_ids: some })).outcomes,
      ids: some,
    }));
  });

async function retry(broker: string, waiting: Waiting[], course: Course): Promise<string> {
  const tell = (done: number) =>
    waiting.length > AT_ONCE && course.tell(TEXT.someOfAll(count(done), count(waiting.length)));
  return told(await actOnEach(partsOf(broker, waiting), tell, course.isStopped));
}

export const RetryNow = ({
  broker,
  done,
  waiting,
}: {
  broker: string;
  done?: () => void;
  waiting: Waiting[];
}) => (
  <Asking
    act={(course) => retry(broker, waiting, course)}
    action={TEXT.retryNow}
    disabled={waiting.length === 0}
    {...(done ? { done } : {})}
  >
    <Text>{TEXT.makesTheNextAttemptOfDue(many(waiting.length, TEXT.nounMessage))}</Text>
  </Asking>
);
