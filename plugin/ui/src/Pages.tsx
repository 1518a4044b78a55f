// The end of an incomplete list: buttons for its other pages, or a note.
import { Button, Flex, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";
import { useAddress } from "./address";
import { TEXT } from "./texts";

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
    <Flex gap={2} mt={3} wrap="wrap">
      <Turn go={() => address.set({ after: null })} leads={!isFirst}>
        {TEXT.firstPage}
      </Turn>
      {/* A user who opened this page by a link is led to the first one. */}
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

/** As on the server: the rows of a list that has no pages. */
export const MOST_SHOWN = 200;

/** A line below a list that was cut; an empty one says itself that it may have more. */
export const CutNote = ({ children, of }: { children: ReactNode; of: unknown[] }) =>
  of.length === 0 ? null : (
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
    <CutNote of={of}>{TEXT.onlyTheAreShownNarrowThe(of.length, first)}</CutNote>
  );
