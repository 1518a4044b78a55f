import { Text } from "@chakra-ui/react";
import { Fragment } from "react";

/** Up to so many letters without a place to break stay together. */
const LONGEST_WORD = 16;

/** Where the parts of a name meet, besides hyphens and spaces, at which a browser breaks by itself. */
const AFTER_SIGNS = /(?<=[./_:,=])(?=\w)/;

const longestOf = (part: string) => Math.max(...part.split(/[\s-]/).map((word) => word.length));

/** Letters are narrower than the digit that is the unit: a wider box would leave a gap after the word. */
const widthOf = (part: string) => `${Math.min(LONGEST_WORD, Math.round(0.7 * longestOf(part)))}ch`;

/** A name or text in a cell: its lines break between words. Only a word that no column could hold breaks inside. */
export const Words = ({ of }: { of: string }) =>
  of.split(AFTER_SIGNS).map((part, index) => (
    <Fragment key={index}>
      {index > 0 && <wbr />}
      {longestOf(part) > LONGEST_WORD ? (
        <span style={{ display: "inline-block", minWidth: widthOf(part), overflowWrap: "anywhere" }}>
          {part}
        </span>
      ) : (
        part
      )}
    </Fragment>
  ));

/** A reason of any length, in three lines. */
export const Reason = ({ of }: { of: string | null }) =>
  of && (
    <Text as="span" css={{ overflowWrap: "anywhere" }} lineClamp={3} title={of}>
      {of}
    </Text>
  );
