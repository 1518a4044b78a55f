import { type Schemas, get, ofBroker } from "../api";
import { useAddress } from "../address";
import { count } from "../format";
import { Answered, PageLink, Pages, Rows, Section, When } from "../parts";
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
              columns={[
                [
                  "Topic",
                  (one) => (
                    <PageLink to={{ topic: one.topic }} view="messages">
                      {one.topic}
                    </PageLink>
                  ),
                ],
                ["Type", (one) => one.message_type],
                ["Waiting", (one) => count(one.waiting, one.waiting_is_exact), "number"],
                ["Next due", (one) => <When at={one.next_due_at} />],
                ["Released up to", (one) => <When at={one.released_to} />],
                ["Stragglers", (one) => count(one.stragglers), "number"],
              ]}
              empty="No topics yet: make one with `duewheel topic create`."
              keyOf={(one) => one.topic}
              label="Topics"
              rows={page.topics}
            />
            <Pages next={page.next} />
          </>
        )}
      </Answered>
    </Section>
  );
}
