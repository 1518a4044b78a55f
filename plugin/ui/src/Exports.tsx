// A list as a file: all that its filter matches, not the page that is shown.
import { Flex, Text } from "@chakra-ui/react";
import { type Parameters, addressOf, ofBroker } from "./api";
import { PlainLink } from "./links";
import { TEXT } from "./texts";

/** As on the server; an export of dead letters has all of them. */
const MOST_ROWS = "10,000";

const FORMATS = [
  ["csv", TEXT.csv],
  ["jsonl", TEXT.jsonLines],
] as const;

export const Exports = ({
  broker,
  list,
  of,
  where = {},
  words = TEXT.exportUpTo(MOST_ROWS),
}: {
  /** Undefined for a list of all brokers. */
  broker?: string;
  list: string;
  /** The rows that are shown: an empty list has no file. */
  of: unknown[];
  where?: Parameters;
  words?: string;
}) =>
  of.length > 0 && (
    <Flex align="center" fontSize="sm" gap={3} mt={3} wrap="wrap">
      <Text color="fg.muted">{words}</Text>
      {FORMATS.map(([format, name]) => {
        const path = `${list}/export`;
        const { href } = addressOf(broker === undefined ? path : ofBroker(broker, path), {
          ...where,
          format,
        });
        return (
          <PlainLink href={href} key={format} label={TEXT.exportAs(name)}>
            {name}
          </PlainLink>
        );
      })}
    </Flex>
  );
