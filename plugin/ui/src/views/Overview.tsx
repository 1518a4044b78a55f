import { useState } from "react";
import { Badge, Button, Text } from "@chakra-ui/react";
import type { Schemas } from "../api";
import { useAddress } from "../address";
import { away, many } from "../format";
import { NeedsAttention } from "../NeedsAttention";
import { Answered } from "../Answered";
import { Section, Warning, When } from "../parts";
import { EVERY_SECONDS, useBroker } from "../queries";
import { NUMBER, Rows, columnsOf } from "../Rows";
import { Tiles } from "../Tiles";
import { isSilent } from "../problems";
import { Lateness } from "./Lateness";
import { TimeAxis, axisIn } from "./TimeAxis";
import { TEXT } from "../texts";

const MISSING = {
  flow: TEXT.whatWasAckedAndFailed,
  lateness: TEXT.howLateTopicsWere,
};

export function Overview({ broker }: { broker: string }) {
  const address = useAddress();
  const topic = address.of("topic");
  const answer = useBroker(broker, "overview", axisIn(address.of), EVERY_SECONDS);
  return (
    <>
      <Tiles broker={broker} />
      <Answered answer={answer}>
        {(view) => (
          <>
            <TimeAxis everySeconds={EVERY_SECONDS} readAt={answer.readAt} view={view} />
            {view.missing.length > 0 && (
              <Warning>{TEXT.notReadInTime(view.missing.map((one) => MISSING[one]).join(", "))}</Warning>
            )}
            <NeedsAttention broker={broker} />
            <HeldUp view={view} />
            <Lateness broker={broker} topic={topic} view={view} />
          </>
        )}
      </Answered>
      <Wheels broker={broker} />
    </>
  );
}

const HOLDS: Record<string, string> = {
  tables: TEXT.theBrokersTablesInAnOpen,
  topic: TEXT.theLockOfATopic,
  transaction: TEXT.anOpenTransactionThatHasWritten,
  upkeep: TEXT.theLockOfUpkeep,
};

const holder = columnsOf<Schemas["UpkeepHolder"]>();

const holderColumns = (nowAt: string) => [
  holder.accessor("pid", {
    cell: ({ row: { original: one } }) =>
      one.gid === null ? TEXT.pid(one.pid) : TEXT.thePreparedTransaction(one.gid),
    header: TEXT.byWhom,
  }),
  holder.accessor("login", { header: TEXT.login }),
  holder.accessor("application", { header: TEXT.application }),
  holder.accessor("state", {
    cell: ({ row: { original: one } }) => one.state ?? TEXT.hidden,
    header: TEXT.state,
  }),
  holder.accessor("since_at", {
    cell: ({ row: { original: one } }) =>
      one.since_at === null ? TEXT.overAnHour : <When at={one.since_at} nowAt={nowAt} />,
    header: TEXT.since,
  }),
  holder.accessor("holds", {
    cell: ({ row: { original: one } }) => HOLDS[one.holds] ?? one.holds,
    header: TEXT.holds,
  }),
];

const wheel = columnsOf<Schemas["TurningWheel"]>();

const wheelColumns = (nowAt: string) => [
  wheel.accessor("name", { header: TEXT.machineAndProcess }),
  wheel.accessor("client_address", {
    cell: ({ row: { original: one } }) => one.client_address ?? TEXT.theDatabasesMachineOrHiddenFrom,
    header: TEXT.address,
  }),
  wheel.accessor("login", { header: TEXT.login }),
  wheel.accessor("connections", { header: TEXT.sessions, ...NUMBER }),
  wheel.accessor("started_at", {
    cell: ({ row: { original: one } }) => <When at={one.started_at} nowAt={nowAt} />,
    header: TEXT.turningSince,
  }),
  wheel.accessor("active_at", {
    cell: ({ row: { original: one } }) => <LastActive at={one.active_at} nowAt={nowAt} />,
    header: TEXT.lastActive,
  }),
];

/** Who has held upkeep up for an hour. */
function HeldUp({ view }: { view: Schemas["Overview"] }) {
  if (view.held_up_by.length === 0) return null;
  return (
    <Section part="upkeep" title={TEXT.upkeepIsHeldUp}>
      <Rows
        columns={holderColumns(view.now_at)}
        empty=""
        keyOf={(one) => one.gid ?? String(one.pid)}
        label={TEXT.sessionsThatHoldUpkeepUp}
        rows={view.held_up_by}
      />
    </Section>
  );
}

/** The wheels in one line, and each with its sessions where one is asked for or does not turn. */
function Wheels({ broker }: { broker: string }) {
  const { data: pulse } = useBroker(broker, "pulse", {}, EVERY_SECONDS);
  const [open, setOpen] = useState<boolean>();
  if (!pulse) return null;
  const { now_at, wheels } = pulse;
  if (wheels.length === 0) {
    return (
      <Section part="wheels" title={TEXT.noWheelIsConnected}>
        <Text color="fg.muted" fontSize="sm">
          {TEXT.withoutAWheelMessagesAreReleased}
        </Text>
      </Section>
    );
  }
  const still = wheels.filter((one) => one.active_at !== null && isSilent(one.active_at, now_at)).length;
  const isOpen = open ?? still > 0;
  return (
    <Section
      extra={
        <Button aria-expanded={isOpen} onClick={() => setOpen(!isOpen)} size="xs" variant="outline">
          {isOpen ? TEXT.hideTheWheels : TEXT.showTheWheels}
        </Button>
      }
      part="wheels"
      title={`${many(wheels.length - still, TEXT.wheelRunning, TEXT.wheelsRunning)}${still > 0 ? TEXT.someAreSilent(still) : ""}`}
    >
      {isOpen && (
        <Rows
          columns={wheelColumns(now_at)}
          empty=""
          keyOf={(one) => `${one.name} ${one.login} ${one.client_address}`}
          label={TEXT.wheels}
          rows={wheels}
        />
      )}
    </Section>
  );
}

function LastActive({ at, nowAt }: { at: string | null; nowAt: string }) {
  if (at === null) return "–";
  return (
    <>
      {away(at, nowAt)} {isSilent(at, nowAt) && <Badge colorPalette="red">{TEXT.isSilent}</Badge>}
    </>
  );
}
