import { type Schemas, get, ofBroker } from "../api";
import { useAddress } from "../address";
import { count } from "../format";
import { Answered, PageLink, Pages, Row, Rows, Section, When } from "../parts";
import { useAnswer } from "../useAnswer";

export function Topics({ broker }: { broker: string }) {
  const after = useAddress().of("after");
  const answer = useAnswer(JSON.stringify([broker, after]), (signal) =>
    get<Schemas["Topics"]>(ofBroker(broker, "topics"), { after }, signal),
  );
  return (
    <Section title="Topics">
      <Answered answer={answer}>
        {(page) => (
          <>
            <Rows
              empty="No topics yet: make one with `duewheel topic create`."
              heads={["Topic", "Type", "Waiting", "Next due", "Released up to", "Stragglers"]}
              label="Topics"
            >
              {page.topics.map((one) => (
                <Row
                  cells={[
                    <PageLink key="topic" to={{ topic: one.topic }} view="messages">
                      {one.topic}
                    </PageLink>,
                    one.message_type,
                    count(one.waiting, one.waiting_is_exact),
                    <When at={one.next_due_at} key="next" />,
                    <When at={one.released_to} key="released" />,
                    count(one.stragglers),
                  ]}
                  key={one.topic}
                />
              ))}
            </Rows>
            <Pages next={page.next} />
          </>
        )}
      </Answered>
    </Section>
  );
}
