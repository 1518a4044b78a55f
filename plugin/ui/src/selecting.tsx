// The rows that a user has selected, the column of checkboxes in which they are, and the bar with what may be done.
import { Button, Checkbox, Flex, Text } from "@chakra-ui/react";
import { type ReactNode, use, useState } from "react";
import type { Schemas } from "./api";
import { count } from "./format";
import { IsOld } from "./Answered";
import { columnsOf } from "./Rows";
import { TEXT } from "./texts";

export type Selection = ReturnType<typeof useSelection>;
/** What every row that can be selected has. */
type One = { key: string | null; message_id: string };

/** The selected ones among the rows; a row that is no longer shown is not selected. */
export function useSelection(shown: string[]) {
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const now = shown.filter((one) => selected.has(one));
  return {
    all: shown.length > 0 && now.length === shown.length,
    clear: () => setSelected(new Set()),
    has: (one: string) => selected.has(one),
    now,
    toggle: (one: string) => {
      const next = new Set(selected);
      if (!next.delete(one)) next.add(one);
      setSelected(next);
    },
    toggleAll: () => setSelected(now.length === shown.length ? new Set() : new Set(shown)),
  };
}

/** A number that was counted, or that there are more. */
export const counted = ({ exact, messages }: Schemas["Count"]) =>
  `${exact ? "" : TEXT.atLeast}${count(messages)}`;

/** The actions on the selected rows. If all rows of a page are selected, all that match can be. */
export function SelectionBar({
  actions,
  actionsOnAll,
  selection,
  of,
  total,
}: {
  actions: ReactNode;
  /** None where nothing acts on all. */
  actionsOnAll: ReactNode;
  selection: Selection;
  /** The filter: under another one, not all are selected any more. */
  of: string;
  total: Schemas["Count"] | undefined;
}) {
  const [allOf, setAllOf] = useState<string>();
  const isAll = allOf === of;
  if (selection.now.length === 0 && !isAll) return null;
  const isMore = total !== undefined && (total.messages > selection.now.length || !total.exact);
  return (
    <Flex
      align="center"
      aria-label={TEXT.selected}
      bg="bg.muted"
      borderRadius="sm"
      gap={2}
      mb={3}
      p={2}
      role="group"
      wrap="wrap"
    >
      <Text fontSize="sm">
        {isAll ? TEXT.allThatMatchAreSelected : TEXT.someSelected(count(selection.now.length))}
      </Text>
      {isAll ? actionsOnAll : actions}
      {!isAll && actionsOnAll && selection.all && isMore && (
        <Button onClick={() => setAllOf(of)} size="xs" variant="outline">
          {TEXT.selectAll(counted(total))}
        </Button>
      )}
      <Button
        onClick={() => {
          setAllOf(undefined);
          selection.clear();
        }}
        size="xs"
        variant="ghost"
      >
        {TEXT.clear}
      </Button>
    </Flex>
  );
}

type Box = { checked: boolean; isOfAll?: boolean; label: string; toggle: () => void };

/** Rows of the previous query cannot be selected. The box for all rows has visible words above cards. */
const SelectBox = ({ checked, isOfAll = false, label, toggle }: Box) => (
  <Checkbox.Root
    checked={checked}
    colorPalette="brand"
    disabled={use(IsOld)}
    onCheckedChange={toggle}
    size="sm"
  >
    <Checkbox.HiddenInput aria-label={label} />
    <Checkbox.Control />
    {isOfAll && <Checkbox.Label hideFrom="md">{label}</Checkbox.Label>}
  </Checkbox.Root>
);

/** The column that selects rows. `mayBe` tells which can be selected; `nameOf` tells rows of the same message apart. */
export const selector = <Row extends One>(
  selection: Selection,
  mayBe: (one: Row) => boolean = () => true,
  nameOf: (one: Row) => string = (one) => one.message_id,
) =>
  columnsOf<Row>().display({
    cell: ({ row: { original: one } }) =>
      mayBe(one) && (
        <SelectBox
          checked={selection.has(nameOf(one))}
          label={TEXT.select(one.key ?? one.message_id)}
          toggle={() => selection.toggle(nameOf(one))}
        />
      ),
    header: () => (
      <SelectBox checked={selection.all} isOfAll label={TEXT.selectAllShown} toggle={selection.toggleAll} />
    ),
    id: "selected",
  });
