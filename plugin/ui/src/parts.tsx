// Small parts that several views are made of.
import { Alert, Box, DataList, Flex, Heading, Text, Textarea } from "@chakra-ui/react";
import { type ReactNode, useEffect, useRef } from "react";
import { useLocation } from "react-router-dom";
import { away, exactInstant, instant } from "./format";
import { useZone } from "./zone";

/** The borders of fields stand out from what is behind them, 3 to 1 at least, in both modes. */
export const FIELDS = {
  "& :is(input, select, textarea, [data-scope=checkbox][data-part=control][data-state=unchecked]):not([aria-invalid=true], [data-invalid])":
    { borderColor: "gray.500" },
};

/** What a link says of the part of its view that it leads to. */
export type PartState = { part?: string | undefined };

export function Section({
  children,
  count,
  extra,
  part,
  title,
}: {
  children: ReactNode;
  /** The number of rows in it, in words; none where it is not known. */
  count?: string | false | undefined;
  extra?: ReactNode;
  /** The name by which links lead to it. */
  part?: string;
  title: string;
}) {
  const heading = useRef<HTMLHeadingElement>(null);
  const { key, state } = useLocation() as { key: string; state: PartState | null };
  const isWanted = part !== undefined && state?.part === part;
  // Each time that the link is followed.
  useEffect(() => {
    if (isWanted) heading.current?.focus();
  }, [isWanted, key]);
  return (
    <Box as="section" borderColor="border" borderRadius="md" borderWidth="1px" mb={4} minW={0} p={4}>
      <Flex align="center" fontSize="sm" gap={3} justify="space-between" mb={children ? 3 : 0} wrap="wrap">
        <Flex align="baseline" gap={2} minW={0}>
          <Heading as="h2" css={{ overflowWrap: "anywhere" }} minW={0} ref={heading} size="sm" tabIndex={-1}>
            {title}
          </Heading>
          {count && (
            <Text color="fg.muted" whiteSpace="nowrap">
              {count}
            </Text>
          )}
        </Flex>
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

/** Names with their values, beside them or in a narrow window below. */
export const FactList = ({ facts }: { facts: [string, ReactNode][] }) => (
  <DataList.Root orientation={{ base: "vertical", md: "horizontal" }} size="sm">
    {facts.map(([name, value]) => (
      <DataList.Item alignItems={{ md: "baseline" }} flexDirection={{ md: "row" }} key={name}>
        <DataList.ItemLabel minW="11rem">{name}</DataList.ItemLabel>
        <DataList.ItemValue css={{ "& > *": { minW: 0 }, overflowWrap: "anywhere" }}>
          {value}
        </DataList.ItemValue>
      </DataList.Item>
    ))}
  </DataList.Root>
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
