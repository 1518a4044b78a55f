import { Text } from "@chakra-ui/react";
import { type Schemas, ofBroker, post } from "../api";
import { Asking } from "../Asking";
import { span } from "../format";
import { Answered, PageLink, Section, When } from "../parts";
import { useBroker } from "../queries";
import { Rows, columnsOf } from "../Rows";

const column = columnsOf<Schemas["Schedule"]>();

const COLUMNS = [
  column.accessor("name", { header: "Schedule" }),
  column.accessor("topic", {
    cell: ({ row: { original: one } }) => (
      <PageLink to={{ topic: one.topic }} view="messages">
        {one.topic}
      </PageLink>
    ),
    header: "Topic",
  }),
  column.display({
    cell: ({ row: { original: one } }) =>
      one.cron ? `${one.cron} (${one.timezone})` : `every ${span(one.every_seconds ?? 0)}`,
    header: "Occurs",
    id: "occurs",
  }),
  column.accessor("next_at", {
    cell: ({ row: { original: one } }) =>
      one.paused_at ? (
        <Text>
          paused since <When at={one.paused_at} />
        </Text>
      ) : (
        <When at={one.next_at} />
      ),
    header: "Next",
  }),
  column.accessor("last_at", {
    cell: ({ row: { original: one } }) => <When at={one.last_at} />,
    header: "Last",
  }),
  column.accessor("misfire", { header: "Missed ones" }),
];

export function Schedules({ broker, mayAct }: { broker: string; mayAct: boolean }) {
  const answer = useBroker(broker, "schedules", {}, 10);
  return (
    <Section title="Schedules">
      <Answered answer={answer}>
        {(page) => (
          <Rows
            columns={[
              ...COLUMNS,
              mayAct &&
                column.display({
                  cell: ({ row: { original: one } }) => <Switch broker={broker} schedule={one} />,
                  header: "Actions",
                  id: "actions",
                }),
            ]}
            empty="No schedules yet: add one with `duewheel schedule add`."
            keyOf={(one) => one.name}
            label="Schedules"
            rows={page.schedules}
            sorts
          />
        )}
      </Answered>
    </Section>
  );
}

function Switch({ broker, schedule }: { broker: string; schedule: Schemas["Schedule"] }) {
  const { name } = schedule;
  const paused = schedule.paused_at !== null;
  return (
    <Asking
      act={async () => {
        await post(ofBroker(broker, `schedules/${paused ? "resume" : "pause"}`), { name });
        return paused ? `${name} is resumed.` : `${name} is paused.`;
      }}
      action={paused ? "Resume" : "Pause"}
    >
      <Text>
        {paused
          ? `${name} is resumed from now. Occurrences that fell into the pause are not sent.`
          : `${name} sends nothing until it is resumed, and messages that it has sent ahead are taken back.`}
      </Text>
    </Asking>
  );
}
