// Links: to places in Airflow's UI, to views of the page, and to files.
import { Box, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";
import { Link, type To } from "react-router-dom";
import { type Change, useAddress } from "./address";
import { shortened } from "./format";
import { pageOf, taskOf } from "./tasks";
import { Words } from "./Words";

/** A link to a place in Airflow's UI. */
export const PlaceLink = ({ children, to }: { children: ReactNode; to: To }) => (
  <Box _hover={{ textDecoration: "underline" }} asChild color="fg.info" display="inline">
    <Link to={to}>{typeof children === "string" ? <Words of={children} /> : children}</Link>
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
  return task ? <PlaceLink to={pageOf(task)}>{name}</PlaceLink> : <Words of={name ?? ""} />;
}
