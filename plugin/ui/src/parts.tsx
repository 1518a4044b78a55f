// Small parts that several views are made of.
import {
  Alert,
  Badge,
  Box,
  Button,
  DataList,
  Flex,
  Heading,
  Input,
  Skeleton,
  Stack,
  Text,
  Textarea,
} from "@chakra-ui/react";
import { useQueryClient } from "@tanstack/react-query";
import { type ReactNode, createContext, use, useEffect, useRef, useState } from "react";
import { Link, type To } from "react-router-dom";
import { loginAddress } from "./api";
import { type Answer, useBroker } from "./queries";
import type { Change } from "./address";
import { useAddress } from "./address";
import { away, exactInstant, instant, shortened, span } from "./format";
import { fromWall, isInstant, toWall, useZone } from "./zone";
import { pageOf, taskOf } from "./tasks";
import { TEXT } from "./texts";

/** The borders of fields stand out from what is behind them, 3 to 1 at least, in both modes. */
export const FIELDS = {
  "& :is(input, select, textarea, [data-scope=checkbox][data-part=control][data-state=unchecked]):not([aria-invalid=true], [data-invalid])":
    { borderColor: "gray.500" },
};

/** Whether what is shown is of the question or the state before, so that nothing may act on it. */
export const IsOld = createContext(false);

/** What the place says already, as on the page of a group: fields of filters and columns of that name are not shown. */
export const Given = createContext<readonly string[]>([]);

/** The broker whose names complete what is typed into a filter; the empty string for none. */
export const BrokerId = createContext("");

/** From here on, an answer says how old it is. */
const OLD_SECONDS = 10;

/** How old an answer is, once that matters. */
export function Age({ readAt }: { readAt: number }) {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 5_000);
    return () => clearInterval(timer);
  }, []);
  const seconds = Math.round((now - readAt) / 1000);
  return seconds > OLD_SECONDS ? <Text as="span">{TEXT.ago(span(seconds))}</Text> : null;
}

/** When a list that stands still was read, by the database's clock, and a way to read it anew, counts included. */
function AsOf({ at, readAt }: { at: string; readAt: number }) {
  const client = useQueryClient();
  const zone = useZone();
  return (
    <Flex align="center" color="fg.muted" fontSize="sm" gap={2} justify="end" mb={2}>
      <Text as="span" title={`${exactInstant(at, zone)} ${zone}`}>
        {TEXT.asOf(instant(at, zone))}
      </Text>
      <Age readAt={readAt} />
      <Button onClick={() => void client.invalidateQueries()} size="xs" variant="outline">
        {TEXT.refresh}
      </Button>
    </Flex>
  );
}

/** The lines that stand for what is not there yet. */
const WIDTHS = ["100%", "92%", "96%", "60%"];

/** Shows an answer, or the reason why it is missing; after a failure, the previous answer stays below the reason. */
export function Answered<T>({
  answer,
  asOf,
  children,
}: {
  answer: Answer<T>;
  /** When it was read, of one that is not asked for again and again. */
  asOf?: (value: T) => string;
  children: (value: T) => ReactNode;
}) {
  const { data, error, isOld, isPending, readAt } = answer;
  return (
    <>
      {error && (
        <Alert.Root
          mb={3}
          role="alert"
          status={error.status >= 500 || error.status === 0 ? "error" : "warning"}
        >
          <Alert.Indicator aria-hidden="true" />
          <Alert.Content>
            <Alert.Description>
              {error.message}
              {data !== undefined && TEXT.theDataBelowIsOlder}
            </Alert.Description>
          </Alert.Content>
          {error.kind === "NotLoggedIn" ? (
            <Button asChild size="xs" variant="outline">
              <a href={loginAddress()}>{TEXT.logIn}</a>
            </Button>
          ) : (
            <Button onClick={() => void answer.refetch()} size="xs" variant="outline">
              {TEXT.tryAgain}
            </Button>
          )}
        </Alert.Root>
      )}
      {isPending && !error && (
        <Stack aria-label={TEXT.loading} gap={3} mb={4} role="status">
          {WIDTHS.map((width) => (
            <Skeleton height="1.25rem" key={width} width={width} />
          ))}
        </Stack>
      )}
      {data !== undefined && (
        <IsOld value={isOld}>
          <Box aria-busy={isOld} opacity={isOld ? 0.5 : 1}>
            {asOf && <AsOf at={asOf(data)} readAt={readAt} />}
            {children(data)}
          </Box>
        </IsOld>
      )}
    </>
  );
}

export function Section({
  children,
  extra,
  title,
}: {
  children: ReactNode;
  extra?: ReactNode;
  title: string;
}) {
  return (
    <Box as="section" borderColor="border" borderRadius="md" borderWidth="1px" mb={4} minW={0} p={4}>
      <Flex align="center" gap={3} justify="space-between" mb={3} wrap="wrap">
        <Heading as="h2" size="sm" tabIndex={-1}>
          {title}
        </Heading>
        {extra}
      </Flex>
      {children}
    </Box>
  );
}

export const Warning = ({ children }: { children: ReactNode }) => (
  <Alert.Root mb={4} role="status" status="warning">
    <Alert.Indicator aria-hidden="true" />
    <Alert.Content>
      <Alert.Description css={{ "& a": { textDecoration: "underline" } }}>{children}</Alert.Description>
    </Alert.Content>
  </Alert.Root>
);

/** An instant with how far away it is. */
export function When({ at, nowAt }: { at: string | null; nowAt?: string | undefined }) {
  const zone = useZone();
  return at === null ? (
    <Text as="span" color="fg.muted">
      –
    </Text>
  ) : (
    <Text as="span" title={`${exactInstant(at, zone)} ${zone}`} whiteSpace="nowrap">
      {instant(at, zone)}
      {nowAt && (
        <Text as="span" color="fg.muted" data-part="away">
          {" "}
          {away(at, nowAt)}
        </Text>
      )}
    </Text>
  );
}

/** A link to a place in Airflow's UI. */
export const PlaceLink = ({ children, to }: { children: ReactNode; to: To }) => (
  <Box
    _hover={{ textDecoration: "underline" }}
    asChild
    color="fg.info"
    css={{ overflowWrap: "anywhere" }}
    display="inline"
  >
    <Link to={to}>{children}</Link>
  </Box>
);

/** A link to a file. */
export const PlainLink = ({
  children,
  href,
  label,
}: {
  children: ReactNode;
  href: string;
  label: string;
}) => (
  <Box _hover={{ textDecoration: "underline" }} asChild color="fg.info" display="inline">
    <a aria-label={label} download href={href}>
      {children}
    </a>
  </Box>
);

/** A link to a view of the page, from the page or from a tab elsewhere. */
export function PageLink({ children, to, view }: { children: ReactNode; to?: Change; view: string }) {
  const broker = useAddress().of("broker");
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries({ broker, view, ...to })) if (value) query.set(name, value);
  return <PlaceLink to={{ pathname: "/plugin/duewheel", search: query.toString() }}>{children}</PlaceLink>;
}

type Of = { broker?: string };

/** A link to the page of a topic. */
export const TopicLink = ({ broker, topic }: Of & { topic: string }) => (
  <PageLink to={{ ...(broker ? { broker } : {}), topic }} view="topic">
    {topic}
  </PageLink>
);

/** A link to the page of a group on a topic. */
export const GroupLink = ({ broker, group, topic }: Of & { group: string; topic: string }) => (
  <PageLink to={{ ...(broker ? { broker } : {}), group, topic }} view="group">
    {group}
  </PageLink>
);

export const MessageLink = ({ broker, id }: { broker?: string; id: string }) => (
  <PageLink to={{ ...(broker ? { broker } : {}), id }} view="message">
    <Text as="span" fontFamily="mono" fontSize="xs" title={id}>
      {shortened(id, 20)}
    </Text>
  </PageLink>
);

/** The holder of a message; the name of a task instance is a link to it. */
export function Consumer({ name }: { name: string | null }) {
  const task = taskOf(name ?? "");
  return task ? <PlaceLink to={pageOf(task)}>{name}</PlaceLink> : name;
}

/** The words for the states of a message, wherever they come from, with their colours. */
export const STATES: Record<string, [words: string, palette: string]> = {
  Acked: [TEXT.stateAcked, "green"],
  DLQ: [TEXT.deadLetter, "red"],
  Deleted: [TEXT.stateRecalled, "gray"],
  Inflight: [TEXT.stateInFlight, "blue"],
  Initialized: [TEXT.stateSent, "gray"],
  Moved: [TEXT.stateMoved, "gray"],
  Ready: [TEXT.stateReleased, "cyan"],
  Skipped: [TEXT.stateSkipped, "gray"],
  Timing: [TEXT.stateWaiting, "purple"],
  WaitingRetry: [TEXT.stateWaitingForARetry, "orange"],
  answered: [TEXT.stateAnswered, "green"],
  discarded: [TEXT.stateDiscarded, "gray"],
  edited: [TEXT.stateEdited, "blue"],
  expired: [TEXT.stateExpired, "gray"],
  moved: [TEXT.stateMoved, "gray"],
  recalled: [TEXT.stateRecalled, "gray"],
  released: [TEXT.stateReleased, "cyan"],
  replaced: [TEXT.stateReplaced, "blue"],
  taken_back: [TEXT.stateTakenBack, "gray"],
  waiting: [TEXT.stateWaiting, "purple"],
};

export function State({ of }: { of: string }) {
  const [words, palette] = STATES[of] ?? [of, "gray"];
  return <Badge colorPalette={palette}>{words}</Badge>;
}

/** Names with their values. */
export const FactList = ({ facts }: { facts: [string, ReactNode][] }) => (
  <DataList.Root orientation="horizontal" size="sm">
    {facts.map(([name, value]) => (
      <DataList.Item key={name}>
        <DataList.ItemLabel>{name}</DataList.ItemLabel>
        <DataList.ItemValue css={{ overflowWrap: "anywhere" }}>{value}</DataList.ItemValue>
      </DataList.Item>
    ))}
  </DataList.Root>
);

const MOST_SHOWN = 200;

/** A line below a list that was cut. */
export const CutNote = ({ children }: { children: ReactNode }) => (
  <Text color="fg.muted" fontSize="sm" mt={3}>
    {children}
  </Text>
);

/** A notice below a list without pages that is not complete. */
export const Shown = ({
  first,
  hasMore,
  of,
}: {
  first: string;
  /** Of a list that reports it; any other one is not complete if it is full. */
  hasMore?: boolean;
  of: unknown[];
}) =>
  !(hasMore ?? of.length >= MOST_SHOWN) ? null : (
    <CutNote>{TEXT.onlyTheAreShownNarrowThe(of.length, first)}</CutNote>
  );

/** A labelled field for a text of several lines, such as JSON. */
export const TextArea = ({
  label,
  onText,
  ...field
}: {
  label: string;
  name: string;
  onText: (text: string) => void;
  placeholder?: string;
  rows: number;
  value: string;
}) => (
  <Text as="label" display="block" fontSize="sm" mb={2}>
    {label}
    <Textarea
      fontFamily="mono"
      fontSize="xs"
      onChange={(event) => {
        onText(event.target.value);
      }}
      {...field}
    />
  </Text>
);

/** A field of a filter: a typed value counts once the field is left or Enter is pressed. */
export function Filter({
  label,
  name,
  placeholder,
  width = "12rem",
}: {
  label: string;
  name: string;
  placeholder?: string;
  width?: string;
}) {
  const address = useAddress();
  const said = address.of(name);
  const broker = use(BrokerId);
  const isName = name === "topic" || name === "group";
  const names = useBroker(broker, "names", {}, undefined, isName && broker !== "").data;
  const isGiven = use(Given).includes(name);
  const field = useRef<HTMLInputElement>(null);
  // Another address is another value; the field itself stays, and with it the focus.
  useEffect(() => {
    if (field.current) field.current.value = said;
  }, [said]);
  if (isGiven) return null;
  return (
    <Box as="label" fontSize="xs">
      <Text as="span" color="fg.muted" display="block">
        {label}
      </Text>
      <Input
        defaultValue={said}
        list={isName ? `duewheel-${name}s` : undefined}
        name={name}
        onBlur={(event) => {
          if (event.target.value !== said) address.set({ after: null, [name]: event.target.value });
        }}
        onKeyDown={(event) => {
          if (event.key === "Enter") address.set({ after: null, [name]: event.currentTarget.value });
        }}
        placeholder={placeholder ?? ""}
        ref={field}
        size="sm"
        width={width}
      />
      {isName && (
        <datalist id={`duewheel-${name}s`}>
          {(name === "topic" ? names?.topics : names?.groups)?.map((one) => (
            <option key={one} value={one} />
          ))}
        </datalist>
      )}
    </Box>
  );
}

/** A field of a filter for an instant, which the address has in UTC. A text there that is none is an error. */
export function InstantFilter({ label, name }: { label: string; name: string }) {
  const address = useAddress();
  const zone = useZone();
  const said = address.of(name);
  const wrong = said !== "" && !isInstant(said);
  const value = said === "" || wrong ? "" : toWall(said, zone);
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => {
    if (field.current) field.current.value = value;
  }, [value]);
  const take = (typed: string) => address.set({ after: null, [name]: fromWall(typed, zone) ?? null });
  return (
    <Box as="label" fontSize="xs">
      <Text as="span" color="fg.muted" display="block">
        {label}
      </Text>
      <Input
        aria-invalid={wrong}
        defaultValue={value}
        name={name}
        onBlur={(event) => {
          // An incomplete instant has no value. The field shows that it does not count.
          if (event.target.validity.badInput) event.target.reportValidity();
          else if (event.target.value !== value) take(event.target.value);
        }}
        onKeyDown={(event) => {
          if (event.key === "Enter" && !event.currentTarget.validity.badInput)
            take(event.currentTarget.value);
        }}
        ref={field}
        size="sm"
        step="1"
        type="datetime-local"
        width="13rem"
      />
      {wrong && (
        <Flex color="fg.error" gap={2} role="alert">
          “{shortened(said)}
          {TEXT.isNoInstantWithItsTime}
          <button onClick={() => address.set({ after: null, [name]: null })} type="button">
            <u>{TEXT.clear}</u>
          </button>
        </Flex>
      )}
    </Box>
  );
}

/** For each view and place of a page, the place of the page before it. */
const pagesBefore = new Map<string, string>();

/** Next and back in a list with pages. */
export function Pages({ next }: { next: string | null }) {
  const address = useAddress();
  const after = address.of("after");
  const isFirst = after === "";
  const view = address.of("view");
  if (isFirst && next === null) return null;
  return (
    <Flex gap={2} mt={3}>
      <Turn go={() => address.set({ after: null })} leads={!isFirst}>
        {TEXT.firstPage}
      </Turn>
      {/* Whoever came by a link to this page goes back to the first. */}
      <Turn go={() => address.set({ after: pagesBefore.get(`${view} ${after}`) ?? "" })} leads={!isFirst}>
        {TEXT.previousPage}
      </Turn>
      <Turn
        go={() => {
          pagesBefore.set(`${view} ${next}`, after);
          address.set({ after: next });
        }}
        leads={next !== null}
      >
        {TEXT.nextPage}
      </Turn>
    </Flex>
  );
}

/** A button that leads nowhere keeps the focus if it has it. */
const Turn = ({ children, go, leads }: { children: string; go: () => void; leads: boolean }) => (
  <Button
    aria-disabled={!leads}
    onClick={leads ? go : undefined}
    opacity={leads ? 1 : 0.5}
    size="xs"
    variant="outline"
  >
    {children}
  </Button>
);
