import { Text } from "@chakra-ui/react";
import { type Schemas, ofBroker, post } from "./api";
import { Asking, type Course } from "./Asking";
import { count, many } from "./format";
import { actOnEach, told } from "./outcomes";
import { TEXT } from "./texts";

/** A message that waits for its next attempt in a group. */
type Waiting = { group: string; message_id: string };

/** As many as one request takes. */
const AT_ONCE = 200;

/** The messages of each group, in portions. The next group is not begun once one was stopped or has failed. */
async function retry(broker: string, waiting: Waiting[], course: Course): Promise<string> {
  const outcomes: Schemas["Outcome"][] = [];
  for (const group of new Set(waiting.map((one) => one.group))) {
    const ids = waiting.filter((one) => one.group === group).map((one) => one.message_id);
    const before = outcomes.length;
    outcomes.push(
      ...(await actOnEach(
        ids,
        AT_ONCE,
        async (portion) =>
          (
            await post<Schemas["Outcomes"]>(ofBroker(broker, "retries/now"), {
              group,
              message_ids: portion,
            })
          ).outcomes,
        (done) =>
          waiting.length > AT_ONCE &&
          course.tell(TEXT.someOfAll(count(before + done), count(waiting.length))),
        course.isStopped,
      )),
    );
  }
  return told(outcomes);
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
