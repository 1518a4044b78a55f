// The state of the broker in one line above every view: what is wrong is red, and leads to where it is mended.
import { Badge, Flex, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";
import type { Schemas } from "./api";
import { count, many, span } from "./format";
import { PageLink } from "./parts";
import { useBroker } from "./queries";
import { TEXT } from "./texts";
import { Verdict } from "./Verdict";

const EVERY_SECONDS = 5;
const SILENT_SECONDS = 10;
/** From here on, a number says how old it is. */
const OLD_SECONDS = 10;
/** A release that is later than this is worth a colour: a wheel releases within its granularity, a second or less. */
const LATE_SECONDS = 2;

/** Whether a wheel has stopped, though it is connected: one that turns asks the database twice a second. */
export const isSilent = (activeAt: string, nowAt: string) =>
  Date.parse(nowAt) - Date.parse(activeAt) > SILENT_SECONDS * 1000;

const since = (at: string, nowAt: string) => span((Date.parse(nowAt) - Date.parse(at)) / 1000);

export function Pulse({ broker }: { broker: string }) {
  const { data: value, error } = useBroker(broker, "pulse", {}, EVERY_SECONDS);
  // A view that fails says why.
  if (!value || error) return null;
  const { dead, groups_at, lag, late, now_at, overdue, waiting } = value;
  const groupsAge = groups_at === null ? 0 : (Date.parse(now_at) - Date.parse(groups_at)) / 1000;
  const first = overdue[0];
  return (
    <>
      <Verdict broker={broker} pulse={value} />
      <Flex
        aria-label={TEXT.stateOfTheBroker}
        as="section"
        columnGap={5}
        // Among words, a link is told by more than its colour.
        css={{ "& a": { textDecoration: "underline" } }}
        fontSize="sm"
        mb={4}
        role="region"
        rowGap={1}
        wrap="wrap"
      >
        <Wheel pulse={value} />
        {first && (
          <Fact isWrong label={TEXT.overdue}>
            <PageLink
              to={overdue.length > 1 ? {} : { topic: first.topic }}
              view={overdue.length > 1 ? "overview" : "messages"}
            >
              {overdue.length > 1
                ? TEXT.someTopics(
                    value.overdue_has_more ? TEXT.atLeastOf(count(overdue.length)) : count(overdue.length),
                  )
                : first.topic}
            </PageLink>{" "}
            {TEXT.sinceAmong}
            {since(first.due_at, now_at)}
          </Fact>
        )}
        <Fact label={TEXT.waiting}>{count(waiting, value.waiting_is_exact)}</Fact>
        <Fact isWrong={dead !== null && dead > 0} label={TEXT.deadLetters}>
          {dead === null ? TEXT.notReadYet : dead > 0 ? <PageLink view="dead">{count(dead)}</PageLink> : "0"}
          {groupsAge > OLD_SECONDS && ` (${TEXT.ago(span(groupsAge))})`}
        </Fact>
        <Fact label={TEXT.oldestReadyMessage}>
          {lag?.oldest_deliver_at ? (
            <>
              {since(lag.oldest_deliver_at, now_at)}
              {TEXT.forAmong}{" "}
              <PageLink to={{ sort: "lag" }} view="groups">
                {lag.group}
              </PageLink>
            </>
          ) : groups_at === null ? (
            TEXT.notReadYet
          ) : (
            TEXT.none
          )}
        </Fact>
        <Fact isWrong={late !== null && late.p99_seconds > LATE_SECONDS} label={TEXT.lateInTheLast5Min}>
          {late ? (
            <>
              {TEXT.p50AndP99(span(late.p50_seconds), span(late.p99_seconds))}
              {TEXT.onAmong}{" "}
              <PageLink to={{ topic: late.topic }} view="overview">
                {late.topic}
              </PageLink>
            </>
          ) : (
            TEXT.nothingReleased
          )}
          {!value.late_has_all && TEXT.notOfAllTopics}
        </Fact>
      </Flex>
    </>
  );
}

const Fact = ({
  children,
  isWrong = false,
  label,
}: {
  children: ReactNode;
  isWrong?: boolean;
  label: string;
}) => (
  <Text as="span">
    <Text as="span" color="fg.muted">
      {label}:
    </Text>{" "}
    {isWrong ? (
      <Badge colorPalette="red" css={{ "& a": { color: "inherit" } }}>
        {children}
      </Badge>
    ) : (
      children
    )}
  </Text>
);

function Wheel({ pulse: { now_at, overdue, wheels } }: { pulse: Schemas["Pulse"] }) {
  const turning = wheels.filter((one) => one.active_at !== null && !isSilent(one.active_at, now_at));
  const [wheel] = turning;
  if (!wheel) {
    return (
      <Fact isWrong={overdue.length > 0 || wheels.length > 0} label={TEXT.wheel}>
        {wheels.length > 0 ? TEXT.connectedAndDoesNotTurn : TEXT.noneMessagesAreReleasedWhenA}
      </Fact>
    );
  }
  return (
    <Fact isWrong={turning.length < wheels.length} label={TEXT.wheel}>
      {wheel.name}
      {TEXT.turns}
      {wheel.started_at && TEXT.turningSinceASpan(since(wheel.started_at, now_at))}
      {turning.length > 1 && TEXT.andOneOther(many(turning.length - 1, TEXT.nounOther))}
      {turning.length < wheels.length &&
        `; ${many(wheels.length - turning.length, TEXT.doesNotTurn, TEXT.doNotTurn)}`}
    </Fact>
  );
}
