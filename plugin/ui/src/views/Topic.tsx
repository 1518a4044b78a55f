// A topic: its numbers, the groups that read it, its messages by time, its settings.
import { Flex } from "@chakra-ui/react";
import type { Schemas } from "../api";
import { useAddress } from "../address";
import { span } from "../format";
import { Answered } from "../Answered";
import { PageLink } from "../links";
import { FactList, Section, When } from "../parts";
import { Given } from "../place";
import { EVERY_SECONDS, rowsIn, useBroker } from "../queries";
import { GroupRows, GroupsLeftOut } from "./Groups";
import { Lateness } from "./Lateness";
import { TimeAxis, axisIn } from "./TimeAxis";
import { TopicRows } from "./Topics";
import { TEXT } from "../texts";

const GIVEN = ["topic"];

export function Topic({ broker, mayAct }: { broker: string; mayAct: boolean }) {
  const topic = useAddress().of("topic");
  const answer = useBroker(broker, "topics/one", { topic });
  return (
    <Answered answer={answer} asOf={(one) => one.now_at}>
      {(one) => (
        <>
          <Section
            extra={
              <Flex fontSize="sm" gap={3} wrap="wrap">
                <PageLink to={{ topic }} view="messages">
                  {TEXT.waitingMessagesOfIt}
                </PageLink>
                <PageLink to={{ state: "all", topic }} view="messages">
                  {TEXT.allMessagesOfIt}
                </PageLink>
              </Flex>
            }
            title={TEXT.topicOf(topic)}
          >
            <Given value={GIVEN}>
              <TopicRows topics={[one.numbers]} />
            </Given>
          </Section>
          <Given value={GIVEN}>
            <GroupsOfTopic broker={broker} mayAct={mayAct} topic={topic} />
            <ByTime broker={broker} topic={topic} />
          </Given>
          <Section title={TEXT.settings}>
            <Settings of={one.settings} />
          </Section>
        </>
      )}
    </Answered>
  );
}

function GroupsOfTopic({ broker, mayAct, topic }: { broker: string; mayAct: boolean; topic: string }) {
  const answer = useBroker(broker, "groups", { topic });
  return (
    <Section
      count={rowsIn(answer, (page) => [page.groups.length, page.groups_to === null])}
      title={TEXT.groupsOfTheTopic}
    >
      <Answered answer={answer}>
        {(page) => (
          <>
            <GroupsLeftOut to={page.groups_to} />
            <GroupRows broker={broker} list="groups" mayAct={mayAct} page={page} />
          </>
        )}
      </Answered>
    </Section>
  );
}

function ByTime({ broker, topic }: { broker: string; topic: string }) {
  const answer = useBroker(broker, "overview", axisIn(useAddress().of), EVERY_SECONDS);
  return (
    <Answered answer={answer}>
      {(view) => (
        <>
          <TimeAxis everySeconds={EVERY_SECONDS} readAt={answer.readAt} view={view} />
          <Lateness broker={broker} topic={topic} view={view} />
        </>
      )}
    </Answered>
  );
}

const BEYOND: Record<Schemas["TopicSettings"]["out_of_range"], string> = {
  deliver: TEXT.outOfRangeDeliver,
  reject: TEXT.outOfRangeReject,
};

function Settings({ of: one }: { of: Schemas["TopicSettings"] }) {
  const facts: [string, React.ReactNode][] = [
    [TEXT.queues, one.queues],
    [TEXT.granularity, span(one.granularity_seconds)],
    [TEXT.longestDelay, span(one.max_delay_seconds)],
    [TEXT.longerDelays, BEYOND[one.out_of_range]],
    [TEXT.retention, span(one.retention_seconds)],
    [TEXT.retentionOfDeadLetters, span(one.dead_letter_retention_seconds)],
    [TEXT.delayLevels, one.delay_levels_seconds.map(span).join(", ")],
    [TEXT.createdAt, <When at={one.created_at} key="created" />],
  ];
  return <FactList facts={facts} />;
}
