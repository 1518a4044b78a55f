import { Fragment } from "react";

/** Up to so many letters without a place to break stay together. */
const LONGEST_WORD = 16;

/** Where the parts of a name meet, besides hyphens and spaces, at which a browser breaks by itself. */
const AFTER_SIGNS = /(?<=[./_:,=])(?=\w)/;

const isLong = (part: string) => part.split(/[\s-]/).some((word) => word.length > LONGEST_WORD);

/** A name or text in a cell: its lines break between words. Only a word that no column could hold breaks inside. */
export const Words = ({ of }: { of: string }) =>
  of.split(AFTER_SIGNS).map((part, index) => (
    <Fragment key={index}>
      {index > 0 && <wbr />}
      {isLong(part) ? (
        <span style={{ display: "inline-block", minWidth: `${LONGEST_WORD}ch`, overflowWrap: "anywhere" }}>
          {part}
        </span>
      ) : (
        part
      )}
    </Fragment>
  ));
