// The rows that a user has chosen, and the column of checkboxes in which they are.
import { Checkbox } from "@chakra-ui/react";
import { useState } from "react";
import { columnsOf } from "./Rows";

type Choice = ReturnType<typeof useChoice>;
/** What every row that can be chosen has. */
type One = { key: string | null; message_id: string };

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

const Choose = ({ checked, label, toggle }: { checked: boolean; label: string; toggle: () => void }) => (
  <Checkbox.Root checked={checked} colorPalette="brand" onCheckedChange={toggle} size="sm">
    <Checkbox.HiddenInput aria-label={label} />
    <Checkbox.Control />
  </Checkbox.Root>
);

/** The column in which rows are chosen, those of which it may be. */
export const chooser = <Row extends One>(choice: Choice, mayBe: (one: Row) => boolean = () => true) =>
  columnsOf<Row>().display({
    cell: ({ row: { original: one } }) =>
      mayBe(one) && (
        <Choose
          checked={choice.has(one.message_id)}
          label={`Choose ${one.key ?? one.message_id}`}
          toggle={() => choice.toggle(one.message_id)}
        />
      ),
    header: () => <Choose checked={choice.all} label="Choose all" toggle={choice.toggleAll} />,
    id: "chosen",
  });
