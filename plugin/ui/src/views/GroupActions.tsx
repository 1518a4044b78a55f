// What may be done with a group: pause, rewind and delete it.
import { Flex, Input, NativeSelect, Text } from "@chakra-ui/react";
import { useState } from "react";
import { type Schemas, get, ofBroker, post, refusal } from "../api";
import { Asking } from "../Asking";
import { many } from "../format";
import { inflightWords, manyReady } from "../groupStory";
import { MoreActions } from "../MoreActions";
import { fromWall, useZone } from "../zone";
import { TEXT } from "../texts";

type Group = Schemas["GroupNumbers"];
type Act = { broker: string; group: Group };

/** What may be done with a group on a topic. */
export const GroupActions = ({ broker, group, nowAt }: Act & { nowAt: string }) => (
  <Flex gap={1} minW="7rem" wrap="wrap">
    <Pause broker={broker} group={group} />
    <MoreActions of={`${group.group}, ${group.topic}`}>
      <Rewind broker={broker} group={group} nowAt={nowAt} />
      <Delete broker={broker} group={group} />
    </MoreActions>
  </Flex>
);

function Pause({ broker, group: { group, paused_at, topic } }: Act) {
  const isPaused = paused_at !== null;
  return (
    <Asking
      act={async () => {
        await post(broker, `groups/${isPaused ? "resume" : "pause"}`, { group, topic });
        return isPaused ? TEXT.groupContinues(group) : TEXT.isPaused(group);
      }}
      action={isPaused ? TEXT.resume : TEXT.pause}
      quiet
    >
      <Text>
        {isPaused
          ? TEXT.receivesTheMessagesOfAgainFrom(group, topic)
          : TEXT.receivesNoMessagesOfUntilIt(group, topic) + TEXT.andLeasesEndAsEver}
      </Text>
    </Asking>
  );
}

function Delete({ broker, group: one }: Act) {
  const { dead, group, inflight, ready, topic, waiting_retry } = one;
  return (
    <Asking
      act={async () => {
        await post(broker, "groups/delete", { group, topic });
        return TEXT.isDeletedOn(group, topic);
      }}
      action={TEXT.delete}
      quiet
      preview={() =>
        Promise.resolve({
          number: ready + inflight + dead + waiting_retry,
          words: TEXT.itDoesNotGetAndGoWithIt(
            manyReady(ready),
            inflightWords(one),
            many(dead, TEXT.deadLetter),
            many(waiting_retry, TEXT.nounRetry, TEXT.nounRetries),
          ),
        })
      }
      serious
    >
      <Text>{TEXT.theGroupLosesItsPlace(group, topic)}</Text>
    </Asking>
  );
}

/** From where a group may be rewound, besides an instant that is typed. */
const RECENTLY: [name: string, words: string, seconds: number][] = [
  ["15min", TEXT.theLast15Minutes, 900],
  ["hour", TEXT.theLastHour, 3_600],
  ["day", TEXT.theLast24Hours, 86_400],
];

function Rewind({ broker, group: { group, topic }, nowAt }: Act & { nowAt: string }) {
  const [since, setSince] = useState("");
  const [at, setAt] = useState("");
  const [again, setAgain] = useState("");
  const zone = useZone();
  const recent = RECENTLY.find(([name]) => name === since);
  const to = recent
    ? new Date(Date.parse(nowAt) - recent[2] * 1000).toISOString()
    : since === "at"
      ? fromWall(at, zone)
      : since === "all"
        ? "earliest"
        : undefined;
  return (
    <Asking
      act={async () => {
        const rewound = await post<Schemas["Rewound"]>(broker, "groups/rewind", {
          group,
          to: to ?? "",
          topic,
        });
        return TEXT.theGroupReadsOnFromThat(
          again,
          many(rewound.leases_ended, TEXT.nounLease),
          many(rewound.messages_returned, TEXT.nounMessage),
          many(rewound.retries_recalled, TEXT.nounRetry, TEXT.nounRetries),
        );
      }}
      action={TEXT.rewind}
      preview={async () => {
        // Nothing is rewound before it is said from where on.
        if (to === undefined) throw refusal("NoInstant", TEXT.selectFromWhereOn);
        const found = await get<Schemas["Count"]>(ofBroker(broker, "groups/rewind/count"), {
          group,
          to,
          topic,
        });
        const words = `${found.exact ? "" : TEXT.atLeast}${many(found.messages, TEXT.nounMessage)}`;
        setAgain(words);
        return { number: found.messages, words: TEXT.comeAgain(words, found.messages === 1) };
      }}
      previewOf={to ?? ""}
      quiet
      serious
    >
      <Text mb={3}>{TEXT.receivesTheMessagesAgainThatWere(group, topic)}</Text>
      <Text as="label" display="block" fontSize="sm" mb={2}>
        {TEXT.releasedIn}
        <NativeSelect.Root>
          <NativeSelect.Field name="since" onChange={(event) => setSince(event.target.value)} value={since}>
            <option value="">{TEXT.selectOne}</option>
            {RECENTLY.map(([name, words]) => (
              <option key={name} value={name}>
                {words}
              </option>
            ))}
            <option value="at">{TEXT.theTimeSinceAnInstant}</option>
            <option value="all">{TEXT.allTheTimeThatIsKept}</option>
          </NativeSelect.Field>
          <NativeSelect.Indicator aria-hidden="true" />
        </NativeSelect.Root>
      </Text>
      {since === "at" && (
        <Text as="label" display="block" fontSize="sm">
          {TEXT.sinceIn}
          {zone}
          <Input
            name="to"
            onChange={(event) => setAt(event.target.value)}
            step="1"
            type="datetime-local"
            value={at}
          />
        </Text>
      )}
    </Asking>
  );
}
