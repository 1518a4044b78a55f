// Small parts that several views are made of.
import { Alert, Badge, Box, Button, Flex, Heading, Input, Spinner, Table, Text } from "@chakra-ui/react";
import { type ReactNode, useEffect, useRef, useState } from "react";
import { type To, useHref, useNavigate } from "react-router-dom";
import type { Answer } from "./useAnswer";
import type { Change } from "./address";
import { useAddress } from "./address";
import { away, instant, shortened } from "./format";
import { fromWall, isInstant, toWall, useZone } from "./zone";
import { pageOf, taskOf } from "./tasks";

/** Shows an answer, or the reason why it is missing; after a failure, the previous answer stays below the reason. */
export function Answered<T>({ answer, children }: { answer: Answer<T>; children: (value: T) => ReactNode }) {
  return (
    <>
      {answer.failure && (
        <Alert.Root
          mb={3}
          role="alert"
          status={answer.failure.status >= 500 || answer.failure.status === 0 ? "error" : "warning"}
        >
          <Alert.Indicator aria-hidden="true" />
          <Alert.Content>
            <Alert.Description>
              {answer.failure.message}
              {answer.value !== undefined && " The data below is older."}
            </Alert.Description>
          </Alert.Content>
          <Button onClick={answer.again} size="xs" variant="outline">
            Try again
          </Button>
        </Alert.Root>
      )}
      {answer.value === undefined && answer.loading && !answer.failure && (
        <Spinner aria-label="Loading" m={6} role="status" />
      )}
      {answer.value !== undefined && children(answer.value)}
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
      <Alert.Description>{children}</Alert.Description>
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
    <Text as="span" title={new Date(at).toISOString()} whiteSpace="nowrap">
      {instant(at, zone)}
      {nowAt && (
        <Text as="span" color="fg.muted">
          {" "}
          {away(at, nowAt)}
        </Text>
      )}
    </Text>
  );
}

/** A link to a place in Airflow's UI: a real one, that opens in a new tab too. */
export function PlaceLink({ children, to }: { children: ReactNode; to: To }) {
  const href = useHref(to);
  const navigate = useNavigate();
  return (
    <Box
      _hover={{ textDecoration: "underline" }}
      asChild
      color="fg.info"
      css={{ overflowWrap: "anywhere" }}
      display="inline"
    >
      <a
        href={href}
        onClick={(event) => {
          if (event.metaKey || event.ctrlKey || event.shiftKey || event.button !== 0) return;
          event.preventDefault();
          void navigate(to);
        }}
      >
        {children}
      </a>
    </Box>
  );
}

/** A link to a view of the page, from the page or from a tab elsewhere. */
export function PageLink({ children, to, view }: { children: ReactNode; to?: Change; view: string }) {
  const broker = useAddress().of("broker");
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries({ broker, view, ...to })) if (value) query.set(name, value);
  return <PlaceLink to={{ pathname: "/plugin/duewheel", search: query.toString() }}>{children}</PlaceLink>;
}

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
const STATES: Record<string, [words: string, palette: string]> = {
  Acked: ["acked", "green"],
  DLQ: ["dead letter", "red"],
  Deleted: ["recalled", "gray"],
  Inflight: ["in flight", "blue"],
  Initialized: ["sent", "gray"],
  Moved: ["moved", "gray"],
  Ready: ["released", "cyan"],
  Skipped: ["skipped", "gray"],
  Timing: ["waiting", "purple"],
  WaitingRetry: ["waiting for a retry", "orange"],
  moved: ["moved", "gray"],
  recalled: ["recalled", "gray"],
  released: ["released", "cyan"],
  waiting: ["waiting", "purple"],
};

export function State({ of }: { of: string }) {
  const [words, palette] = STATES[of] ?? [of, "gray"];
  return <Badge colorPalette={palette}>{words}</Badge>;
}

/** A column of a table: its head, and the cell of a row; numbers stand at its right. False leaves the column out. */
export type Column<One> =
  false | undefined | [head: ReactNode, cell: (one: One, index: number) => ReactNode, kind?: "number"];

const alignOf = (kind?: "number") => (kind === "number" ? "end" : "start");

/** A table that scrolls sideways by itself where the window is narrow. */
export function Rows<One>({
  columns,
  empty,
  keyOf,
  label,
  rows,
}: {
  columns: Column<One>[];
  empty: string;
  keyOf: (one: One, index: number) => string | number;
  label: string;
  rows: One[];
}) {
  if (rows.length === 0)
    return (
      <Text color="fg.muted" fontSize="sm" role="status">
        {empty}
      </Text>
    );
  const shown = columns.filter((column) => Array.isArray(column));
  return (
    <Table.ScrollArea aria-label={label} role="region" tabIndex={0}>
      <Table.Root aria-label={label} size="sm">
        <Table.Header>
          <Table.Row>
            {shown.map(([head, , kind], place) => (
              // The columns of a table never change their order.
              <Table.ColumnHeader key={place} textAlign={alignOf(kind)} whiteSpace="nowrap">
                {head}
              </Table.ColumnHeader>
            ))}
          </Table.Row>
        </Table.Header>
        <Table.Body>
          {rows.map((one, index) => (
            <Table.Row key={keyOf(one, index)}>
              {shown.map(([, cell, kind], place) => (
                <Table.Cell
                  // A long key stays within its column.
                  css={{ overflowWrap: "anywhere" }}
                  key={place}
                  maxW="22rem"
                  minW="6ch"
                  textAlign={alignOf(kind)}
                  verticalAlign="top"
                  whiteSpace="normal"
                >
                  {cell(one, index)}
                </Table.Cell>
              ))}
            </Table.Row>
          ))}
        </Table.Body>
      </Table.Root>
    </Table.ScrollArea>
  );
}

const MOST_SHOWN = 200;

/** A notice below a list without pages that is not complete. */
export const Shown = ({ first, of }: { first: string; of: unknown[] }) =>
  of.length < MOST_SHOWN ? null : (
    <Text color="fg.muted" fontSize="sm" mt={3}>
      Only the {MOST_SHOWN} {first} are shown: narrow the filter for others.
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
  const field = useRef<HTMLInputElement>(null);
  // Another address is another value; the field itself stays, and with it the focus.
  useEffect(() => {
    if (field.current) field.current.value = said;
  }, [said]);
  return (
    <Box as="label" fontSize="xs">
      <Text as="span" color="fg.muted" display="block">
        {label}
      </Text>
      <Input
        defaultValue={said}
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
          “{shortened(said)}” is no instant with its time zone.
          <button onClick={() => address.set({ after: null, [name]: null })} type="button">
            <u>Clear</u>
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
  // Whoever came by a link to this page goes back to the first.
  const before = pagesBefore.get(`${address.of("view")} ${after}`) ?? "";
  if (isFirst && next === null) return null;
  return (
    <Flex gap={2} mt={3}>
      <Button disabled={isFirst} onClick={() => address.set({ after: null })} size="xs" variant="outline">
        First page
      </Button>
      <Button disabled={isFirst} onClick={() => address.set({ after: before })} size="xs" variant="outline">
        Previous page
      </Button>
      <Button
        disabled={next === null}
        onClick={() => {
          if (next !== null) pagesBefore.set(`${address.of("view")} ${next}`, after);
          address.set({ after: next });
        }}
        size="xs"
        variant="outline"
      >
        Next page
      </Button>
    </Flex>
  );
}

/** The chosen ones among the rows; a row that is no longer shown is not chosen. */
export function useChoice(shown: string[]) {
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const now = shown.filter((one) => chosen.has(one));
  return {
    all: shown.length > 0 && now.length === shown.length,
    clear: () => setChosen(new Set()),
    has: (one: string) => chosen.has(one),
    now,
    toggle: (one: string) => {
      const next = new Set(chosen);
      if (!next.delete(one)) next.add(one);
      setChosen(next);
    },
    toggleAll: () => setChosen(now.length === shown.length ? new Set() : new Set(shown)),
  };
}
