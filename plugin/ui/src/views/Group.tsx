// A group on a topic: its state in a sentence, its numbers with what may be done, its leases, retries and dead letters.
import { Text } from "@chakra-ui/react";
import { useAddress } from "../address";
import { groupStory } from "../groupStory";
import { Answered } from "../Answered";
import { PageLink } from "../links";
import { Section, Warning } from "../parts";
import { Given } from "../place";
import { useBroker } from "../queries";
import { DeadLetters } from "./DeadLetters";
import { GroupRows, GroupsLeftOut } from "./Groups";
import { Leases } from "./Leases";
import { Retries } from "./Retries";
import { TEXT } from "../texts";

const GIVEN = ["group", "topic"];

type Props = { broker: string; mayAct: boolean; mayReadBodies: boolean };

export function Group({ broker, mayAct, mayReadBodies }: Props) {
  const address = useAddress();
  const [group, topic] = [address.of("group"), address.of("topic")];
  const answer = useBroker(broker, "groups", { group, topic });
  return (
    <>
      <Answered answer={answer} asOf={(page) => page.now_at}>
        {(page) => {
          const { groups, groups_to, now_at } = page;
          const [one] = groups;
          if (!one && groups_to === null)
            return (
              <Warning>{topic ? TEXT.noSuchGroup(group, topic) : TEXT.noSuchGroupAnywhere(group)}</Warning>
            );
          return (
            <Section
              extra={
                topic && (
                  <PageLink to={{ topic }} view="topic">
                    {TEXT.topicOf(topic)}
                  </PageLink>
                )
              }
              title={topic ? TEXT.groupOn(group, topic) : TEXT.groupAlone(group)}
            >
              <GroupsLeftOut to={groups_to} />
              {topic &&
                groups.map((each) => (
                  <Text key={each.group} mb={3} role="status">
                    {groupStory(each, now_at)}
                  </Text>
                ))}
              <Given value={topic ? GIVEN : []}>
                <GroupRows broker={broker} list={topic ? "" : "groups"} mayAct={mayAct} page={page} />
              </Given>
            </Section>
          );
        }}
      </Answered>
      {topic && (
        <Given value={GIVEN}>
          <Leases broker={broker} mayAct={mayAct} />
          <Retries broker={broker} mayAct={mayAct} />
          <DeadLetters broker={broker} mayAct={mayAct} mayReadBodies={mayReadBodies} />
        </Given>
      )}
    </>
  );
}
