// The runs that wait for an answer, and the answers that were given before a run waits for them.
import { Text } from "@chakra-ui/react";
import { AnswerRun } from "../AnswerRun";
import { type Schemas, post } from "../api";
import { Asking } from "../Asking";
import { Answered } from "../Answered";
import { Consumer, MessageLink, PlaceLink, TopicLink } from "../links";
import { CutNote } from "../Pages";
import { Section, When } from "../parts";
import { Exports } from "../Exports";
import { rowsIn, useBroker } from "../queries";
import { ACTIONS, Rows, columnsOf } from "../Rows";
import { taskOf } from "../tasks";
import { TEXT } from "../texts";

const ofRun = columnsOf<Schemas["WaitingRun"]>();

const runColumns = (nowAt: string) => [
  ofRun.accessor("key", { header: TEXT.key }),
  ofRun.accessor((one) => taskOf(one.task)?.dagId ?? "", {
    cell: ({ getValue }) => (
      <PlaceLink to={`/dags/${encodeURIComponent(getValue<string>())}`}>{getValue<string>()}</PlaceLink>
    ),
    header: TEXT.dag,
    id: "dag",
  }),
  ofRun.accessor("task", {
    cell: ({ row: { original: one } }) => <Consumer name={one.task} />,
    header: TEXT.taskInstance,
  }),
  ofRun.accessor("topic", {
    cell: ({ row: { original: one } }) => <TopicLink topic={one.topic} />,
    header: TEXT.topic,
  }),
  ofRun.accessor("deliver_at", {
    cell: ({ row: { original: one } }) => <When at={one.deliver_at} nowAt={nowAt} />,
    header: TEXT.timesOut,
  }),
  ofRun.accessor("born_at", {
    cell: ({ row: { original: one } }) => <When at={one.born_at} nowAt={nowAt} />,
    header: TEXT.since,
  }),
  ofRun.accessor("message_id", {
    cell: ({ row: { original: one } }) => <MessageLink id={one.message_id} />,
    enableSorting: false,
    header: TEXT.id,
  }),
];

const ofAnswer = columnsOf<Schemas["EarlyAnswer"]>();

const answerColumns = (nowAt: string, mayRead: boolean) => [
  ofAnswer.accessor("key", { header: TEXT.key }),
  ofAnswer.accessor("topic", {
    cell: ({ row: { original: one } }) => <TopicLink topic={one.topic} />,
    header: TEXT.topic,
  }),
  mayRead &&
    ofAnswer.accessor((one) => JSON.stringify(one.answer), {
      cell: ({ getValue }) => (
        <Text
          css={{ overflowWrap: "anywhere" }}
          fontFamily="mono"
          fontSize="xs"
          lineClamp={3}
          title={getValue<string>()}
        >
          {getValue<string>()}
        </Text>
      ),
      header: TEXT.body,
      id: "answer",
    }),
  ofAnswer.accessor("until_at", {
    cell: ({ row: { original: one } }) => <When at={one.until_at} nowAt={nowAt} />,
    header: TEXT.keptUntil,
  }),
];

type Props = { broker: string; mayAct: boolean };

export function WaitingRuns({ broker, mayAct }: Props) {
  const answer = useBroker(broker, "waiting-runs");
  return (
    <>
      <Section count={rowsIn(answer, (page) => [page.runs.length, !page.more])} title={TEXT.runsThatWait}>
        <Answered answer={answer}>
          {({ more, now_at, runs }) => (
            <>
              <Rows
                columns={[
                  ...runColumns(now_at),
                  mayAct &&
                    ofRun.display({
                      cell: ({ row: { original: one } }) => (
                        <AnswerRun broker={broker} id={one.message_id} keyOfWait={one.key} />
                      ),
                      ...ACTIONS,
                    }),
                ]}
                empty={TEXT.noRunWaits}
                keyOf={(one) => one.message_id}
                label={TEXT.waitingRuns}
                list="waiting-runs"
                read={{ at: now_at, readAt: answer.readAt }}
                rows={runs}
                sorts
              />
              {more && <CutNote of={runs}>{TEXT.onlyTheFirstByTimeout(runs.length)}</CutNote>}
              <Exports broker={broker} list="waiting-runs" of={runs} />
            </>
          )}
        </Answered>
      </Section>
      <EarlyAnswers broker={broker} mayAct={mayAct} />
    </>
  );
}

function EarlyAnswers({ broker, mayAct }: Props) {
  const answer = useBroker(broker, "early-answers");
  return (
    <Section
      count={rowsIn(answer, (page) => [page.answers.length, !page.more])}
      title={TEXT.earlyAnswersThatWait}
    >
      <Answered answer={answer}>
        {({ answers, may_read, more, now_at }) => (
          <>
            <Rows
              columns={[
                ...answerColumns(now_at, may_read),
                mayAct &&
                  ofAnswer.display({
                    cell: ({ row: { original: one } }) => <Withdraw broker={broker} one={one} />,
                    ...ACTIONS,
                  }),
              ]}
              empty={TEXT.noEarlyAnswers}
              keyOf={(one) => `${one.topic} ${one.key}`}
              label={TEXT.earlyAnswers}
              list="early-answers"
              rows={answers}
              sorts
            />
            {more && <CutNote of={answers}>{TEXT.onlyTheFirstByEnd(answers.length)}</CutNote>}
            <Exports broker={broker} list="early-answers" of={answers} />
          </>
        )}
      </Answered>
    </Section>
  );
}

const Withdraw = ({ broker, one: { key, topic } }: { broker: string; one: Schemas["EarlyAnswer"] }) => (
  <Asking
    act={async () => {
      const { withdrawn } = await post<Schemas["Withdrawn"]>(broker, "early-answers/withdraw", {
        key,
        topic,
      });
      return withdrawn ? TEXT.isWithdrawn(key) : TEXT.nothingToWithdraw(key);
    }}
    action={TEXT.withdraw}
    quiet
    serious
  >
    <Text>{TEXT.theNextRunWaitsForAnother(key, topic)}</Text>
  </Asking>
);
