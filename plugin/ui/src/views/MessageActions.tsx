// What may be done with waiting messages that a user has selected.
import { Text } from "@chakra-ui/react";
import { useState } from "react";
import { type Schemas, post } from "../api";
import { Asking, type Course } from "../Asking";
import { count, many } from "../format";
import { IN_AN_HOUR, InstantField } from "../InstantField";
import { actOnEach, portions, told } from "../outcomes";
import { TEXT } from "../texts";

const AT_ONCE = 200;

type Some = { broker: string; done?: () => void; ids: string[] };

async function each(
  broker: string,
  path: string,
  ids: string[],
  more: object,
  course: Course,
): Promise<string> {
  const parts = [...portions(ids, AT_ONCE)].map((some) => ({
    act: async () => (await post<Schemas["Outcomes"]>(broker, path, { message_ids: some, ...more })).outcomes,
    ids: some,
  }));
  const outcomes = await actOnEach(
    parts,
    (done) => ids.length > AT_ONCE && course.tell(TEXT.someOfAll(count(done), count(ids.length))),
    course.isStopped,
  );
  return told(outcomes);
}

export const Recall = ({ broker, done, ids }: Some) => (
  <Asking
    act={(course) => each(broker, "messages/recall", ids, {}, course)}
    action={TEXT.recall}
    disabled={ids.length === 0}
    {...(done ? { done } : {})}
    serious
  >
    <Text>{TEXT.takesBackNeverToBeDelivered(many(ids.length, TEXT.nounMessage))}</Text>
  </Asking>
);

export function Reschedule({ broker, done, ids }: Some) {
  const [to, setTo] = useState<object>(IN_AN_HOUR);
  return (
    <Asking
      act={(course) => each(broker, "messages/reschedule", ids, to, course)}
      action={TEXT.reschedule}
      disabled={ids.length === 0}
      {...(done ? { done } : {})}
    >
      <Text mb={3}>{TEXT.deliversAtAnotherInstantWithAnother(many(ids.length, TEXT.nounMessage))}</Text>
      <InstantField choose={setTo} />
    </Asking>
  );
}

export const DeliverNow = ({ broker, done, ids }: Some) => (
  <Asking
    act={(course) => each(broker, "messages/reschedule", ids, { delay_seconds: 0 }, course)}
    action={TEXT.deliverNow}
    disabled={ids.length === 0}
    {...(done ? { done } : {})}
  >
    <Text>{TEXT.deliversAtOnceWithAnotherId(many(ids.length, TEXT.nounMessage))}</Text>
  </Asking>
);
