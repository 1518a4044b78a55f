// The page as Airflow loads it: a component that it shows under "Delays".
import {
  Box,
  Button,
  ChakraProvider,
  Flex,
  Heading,
  NativeSelect,
  Text,
  defaultSystem,
} from "@chakra-ui/react";
import type { SystemContext } from "@chakra-ui/react";
import { QueryClientProvider } from "@tanstack/react-query";
import { useEffect, useRef } from "react";
import { Link } from "react-router-dom";
import { type Schemas, get, onNumbers } from "./api";
import { useAddress } from "./address";
import { LAST_BROKER, askAhead, brokersQuestion, shownBroker } from "./ahead";
import { Answered } from "./Answered";
import { FIELDS, Warning } from "./parts";
import { BrokerId } from "./place";
import { newClient, questionOf, useAnswer } from "./queries";
import { Search } from "./Search";
import { store } from "./stored";
import { Guarded, Upgraded } from "./Upgraded";
import { Verdict } from "./Verdict";
import { useZone } from "./zone";
import { DeadLetters } from "./views/DeadLetters";
import { Group } from "./views/Group";
import { Groups } from "./views/Groups";
import { Leases } from "./views/Leases";
import { Message } from "./views/Message";
import { Messages } from "./views/Messages";
import { Overview } from "./views/Overview";
import { Retries } from "./views/Retries";
import { Schedules } from "./views/Schedules";
import { TaskMessages } from "./views/TaskMessages";
import { Topic } from "./views/Topic";
import { Topics } from "./views/Topics";
import { WaitingConsumers } from "./views/WaitingConsumers";
import { WaitingRuns } from "./views/WaitingRuns";
import { Watchers } from "./views/Watchers";
import { TEXT } from "./texts";

/** The tabs, named by the view that they open; some have further views. */
const TABS: Record<string, { views: Record<string, string>; words: string }> = {
  overview: { views: {}, words: TEXT.overview },
  messages: { views: {}, words: TEXT.messages },
  topics: { views: {}, words: TEXT.topics },
  groups: {
    views: {
      groups: TEXT.consumerGroups,
      leases: TEXT.leases,
      retries: TEXT.retries,
      dead: TEXT.deadLetters,
    },
    words: TEXT.groups,
  },
  schedules: {
    views: { schedules: TEXT.schedules, watchers: TEXT.watchers, waits: TEXT.waitingRuns },
    words: TEXT.automation,
  },
};

/** The views of one thing, with their tabs. */
const TAB_OF_ONE: Record<string, string> = { group: "groups", message: "messages", topic: "topics" };

/** The tab of a view; undefined for a view that there is not. */
const tabOf = (view: string) =>
  TAB_OF_ONE[view] ?? Object.keys(TABS).find((tab) => tab === view || view in (TABS[tab]?.views ?? {}));

// Airflow's own theme, so that the page looks like the pages around it.
const themeOfAirflow = () =>
  (globalThis as { ChakraUISystem?: SystemContext }).ChakraUISystem ?? defaultSystem;

// What was asked for is still there when Airflow mounts the page again.
const client = newClient();
askAhead(client, window.location);
onNumbers((broker, pulse) => client.setQueryData(questionOf(broker, "pulse")[0], pulse));

// Until something renders Airflow's page again, it shows the page by way of a component that waits for this script: React
// holds that back for 300 ms, and the next navigation would mount everything anew, and the focus would be lost. So all
// is rendered again at once, by a navigation to where the user is.
setTimeout(() => dispatchEvent(new PopStateEvent("popstate", { state: history.state as unknown })));

/** Airflow's description of the place where it shows this: nothing on the page itself, a task instance in its tab. */
type Place = { dagId?: string; mapIndex?: string; runId?: string; taskId?: string };

export default function Page({ dagId, mapIndex, runId, taskId }: Place) {
  const task =
    dagId && runId && taskId ? { dagId, mapIndex: Number(mapIndex ?? -1), runId, taskId } : undefined;
  return (
    <ChakraProvider value={themeOfAirflow()}>
      <Box css={FIELDS} data-page="duewheel" height="100%" overflow="auto" p={{ base: 2, md: 4 }}>
        <Upgraded />
        <QueryClientProvider client={client}>
          <Guarded>{task ? <TaskMessages task={task} /> : <Brokers />}</Guarded>
        </QueryClientProvider>
      </Box>
    </ChakraProvider>
  );
}

function Brokers() {
  const address = useAddress();
  const asked = address.of("broker");
  const view = address.of("view");
  const zone = useZone();
  const answer = useAnswer(...brokersQuestion);
  return (
    // Only lists grow pale while the page asks for everything anew, and not what is around them.
    <Answered answer={{ ...answer, isOld: false }}>
      {({ brokers, version }) => {
        const named = shownBroker(asked, brokers);
        const listed = brokers.find((one) => one.connection_id === named);
        if (named === undefined) {
          return (
            <>
              <Warning>{TEXT.noAirflowConnectionOfTypeDuewheel}</Warning>
              <Watchers />
            </>
          );
        }
        return (
          <>
            <Flex align="center" gap={3} justify="space-between" mb={3} wrap="wrap">
              <Heading as="h1" id="duewheel-heading" size="lg" tabIndex={-1}>
                {TEXT.delayMessages}
              </Heading>
              <Flex align="center" gap={2} wrap="wrap">
                <Search broker={named} key={named} />
                {brokers.length > 1 && (
                  <NativeSelect.Root size="sm" width="14rem">
                    <NativeSelect.Field
                      aria-label={TEXT.broker}
                      onChange={(event) => address.set({ ...ofOne(view), broker: event.target.value })}
                      value={named}
                    >
                      {!listed && <option>{named}</option>}
                      {brokers.map((one) => (
                        <option key={one.connection_id}>{one.connection_id}</option>
                      ))}
                    </NativeSelect.Field>
                    <NativeSelect.Indicator aria-hidden="true" />
                  </NativeSelect.Root>
                )}
                <Text color="fg.muted" fontSize="xs">
                  {brokers.length > 1 ? "" : `${named} · `}
                  {TEXT.timesIn}
                  {zone}
                  {TEXT.duewheel}
                  {version}
                </Text>
              </Flex>
            </Flex>
            {listed && <Remembered broker={named} isOneOfMany={brokers.length > 1} />}
            {listed ? <Views broker={listed} /> : <Unlisted id={named} key={named} />}
          </>
        );
      }}
    </Answered>
  );
}

/** What another broker does not have: messages by their ids, and the places of pages in its lists. */
const ofOne = (view: string) => ({
  after: null,
  id: null,
  ...(view === "message" ? { view: "messages" } : {}),
});

/** Keeps the broker for the next visit, and names it in the address, which may be opened in another browser. */
function Remembered({ broker, isOneOfMany }: { broker: string; isOneOfMany: boolean }) {
  const address = useAddress();
  const isNamed = !isOneOfMany || address.of("broker") !== "";
  useEffect(() => {
    store(LAST_BROKER, broker);
    if (!isNamed) address.set({ broker }, true);
    // The address is another object each time.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [broker, isNamed]);
  return null;
}

/** A broker that the address names and the list does not: its connection is in a secrets backend. */
function Unlisted({ id }: { id: string }) {
  const answer = useAnswer(["broker", id], (signal) =>
    get<Schemas["BrokerChoice"]>(`brokers/${encodeURIComponent(id)}`, {}, signal),
  );
  return <Answered answer={{ ...answer, isOld: false }}>{(broker) => <Views broker={broker} />}</Answered>;
}

/** A row of links to views. */
function Links({
  current,
  label,
  views,
}: {
  current: string | undefined;
  label: string;
  views: [name: string, words: string][];
}) {
  const address = useAddress();
  return (
    <Flex aria-label={label} as="nav" borderBottomWidth="1px" borderColor="border" gap={1} mb={4} wrap="wrap">
      {views.map(([name, words]) => (
        <Button
          aria-current={name === current ? "page" : undefined}
          asChild
          borderBottomColor={name === current ? "brand.solid" : "transparent"}
          borderBottomWidth="3px"
          borderRadius={0}
          key={name}
          size="sm"
          variant="ghost"
        >
          <Link to={address.linkTo(name)}>{words}</Link>
        </Button>
      ))}
    </Flex>
  );
}

function Views({ broker }: { broker: Schemas["BrokerChoice"] }) {
  const address = useAddress();
  const view = address.of("view") || "overview";
  const tab = tabOf(view);
  const furtherViews = Object.entries(TABS[tab ?? ""]?.views ?? {});
  const id = broker.connection_id;
  const mayAct = broker.may_act;
  const place = [id, view, ...(view in TAB_OF_ONE ? ["id", "topic", "group"].map(address.of) : [])].join(" ");
  const shown = useRef(place);
  // The link that was followed has gone, and the focus with it, so keyboard users continue from the top.
  useEffect(() => {
    if (shown.current !== place && document.activeElement === document.body) {
      document.getElementById("duewheel-heading")?.focus();
    }
    shown.current = place;
  }, [place]);
  return (
    <>
      <Links
        current={tab}
        label={TEXT.views}
        views={Object.entries(TABS).map(([name, { words }]) => [name, words])}
      />
      {furtherViews.length > 0 && (
        <Links
          current={view in TAB_OF_ONE ? tab : view}
          label={TEXT.viewsOf(TABS[tab ?? ""]?.words ?? "")}
          views={furtherViews}
        />
      )}
      <Verdict broker={id} key={id} />
      {!mayAct && (
        <Text color="fg.muted" fontSize="sm" mb={3}>
          {TEXT.readOnly(id)}
        </Text>
      )}
      <BrokerId value={id}>
        <Guarded key={place}>
          {tab === undefined && <Warning>{TEXT.theAddressNamesAViewWhich(view)}</Warning>}
          {view === "overview" && <Overview broker={id} />}
          {view === "topics" && <Topics broker={id} />}
          {view === "messages" && <Messages broker={id} mayAct={mayAct} />}
          {view === "message" && <Message broker={id} mayAct={mayAct} />}
          {view === "groups" && <Groups broker={id} mayAct={mayAct} />}
          {view === "topic" && <Topic broker={id} mayAct={mayAct} />}
          {view === "group" && <Group broker={id} mayAct={mayAct} mayReadBodies={broker.may_read_bodies} />}
          {view === "leases" && <Leases broker={id} mayAct={mayAct} />}
          {view === "retries" && <Retries broker={id} mayAct={mayAct} />}
          {view === "dead" && (
            <DeadLetters broker={id} mayAct={mayAct} mayReadBodies={broker.may_read_bodies} />
          )}
          {view === "schedules" && <Schedules broker={id} mayAct={mayAct} />}
          {view === "leases" && <WaitingConsumers broker={id} />}
          {view === "waits" && <WaitingRuns broker={id} mayAct={mayAct} />}
          {view === "watchers" && <Watchers />}
        </Guarded>
      </BrokerId>
    </>
  );
}
