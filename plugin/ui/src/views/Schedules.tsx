import { Badge, Text } from "@chakra-ui/react";
import { type Schemas, post } from "../api";
import { Asking } from "../Asking";
import { span } from "../format";
import { Answered } from "../Answered";
import { TopicLink } from "../links";
import { Section, When } from "../parts";
import { Exports } from "../Exports";
import { rowsIn, useBroker } from "../queries";
import { ACTIONS, Rows, columnsOf } from "../Rows";
import { TEXT } from "../texts";

const column = columnsOf<Schemas["Schedule"]>();

/** A wheel advances schedules every two seconds. One that is late by more than this is overdue. */
const LATE_MS = 10_000;

const columns = (nowAt: string) => [
  column.accessor("name", { header: TEXT.schedule }),
  column.accessor("topic", {
    cell: ({ row: { original: one } }) => <TopicLink topic={one.topic} />,
    header: TEXT.topic,
  }),
  column.display({
    cell: ({ row: { original: one } }) =>
      one.cron ? `${one.cron} (${one.timezone})` : TEXT.everySpan(span(one.every_seconds ?? 0)),
    header: TEXT.occurs,
    id: "occurs",
  }),
  column.accessor("next_at", {
    cell: ({ row: { original: one } }) =>
      one.paused_at ? (
        <Text>
          {TEXT.pausedSince}
          <When at={one.paused_at} />
        </Text>
      ) : (
        <>
          <When at={one.next_at} nowAt={nowAt} />
          {one.next_at && Date.parse(nowAt) - Date.parse(one.next_at) > LATE_MS && (
            <Badge colorPalette="red">{TEXT.overdue}</Badge>
          )}
        </>
      ),
    header: TEXT.next,
  }),
  column.accessor("last_at", {
    cell: ({ row: { original: one } }) => <When at={one.last_at} />,
    header: TEXT.last,
  }),
  column.accessor("misfire", { header: TEXT.misfirePolicy }),
];

export function Schedules({ broker, mayAct }: { broker: string; mayAct: boolean }) {
  const answer = useBroker(broker, "schedules", {}, 10);
  return (
    <Section count={rowsIn(answer, (page) => [page.schedules.length, true])} title={TEXT.schedules}>
      <Answered answer={answer}>
        {(page) => (
          <>
            <Rows
              columns={[
                ...columns(page.now_at),
                mayAct &&
                  column.display({
                    cell: ({ row: { original: one } }) => <Switch broker={broker} schedule={one} />,
                    ...ACTIONS,
                  }),
              ]}
              empty={TEXT.noSchedulesYetAddOneWith}
              keyOf={(one) => one.name}
              label={TEXT.schedules}
              list="schedules"
              rows={page.schedules}
              sorts
            />
            <Exports broker={broker} list="schedules" of={page.schedules} />
          </>
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
        await post(broker, `schedules/${paused ? "resume" : "pause"}`, { name });
        return paused ? TEXT.isResumed(name) : TEXT.isPaused(name);
      }}
      action={paused ? TEXT.resume : TEXT.pause}
      quiet
    >
      <Text>
        {paused ? TEXT.isResumedFromNowOccurrencesThat(name) : TEXT.sendsNothingUntilItIsResumed(name)}
      </Text>
    </Asking>
  );
}
