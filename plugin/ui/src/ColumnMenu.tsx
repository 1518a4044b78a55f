// The choice of a list's columns, as in Airflow's own lists: a menu of boxes, which the browser remembers.
import { Button, Menu } from "@chakra-ui/react";
import { useStored } from "./stored";
import { TEXT } from "./texts";

/** The columns of a list that its user has hidden, by their ids. */
export const useHidden = (list: string) =>
  useStored(`${list}:hidden-columns`, (value): string[] =>
    Array.isArray(value) ? value.filter((one) => typeof one === "string") : [],
  );

type Props = {
  columns: { id: string; isShown: boolean; words: string }[];
  label: string;
  toggle: (id: string) => void;
};

export function ColumnMenu({ columns, label, toggle }: Props) {
  const hidden = columns.filter((one) => !one.isShown).length;
  const words = hidden === 0 ? TEXT.columns : TEXT.columnsHidden(hidden);
  return (
    <Menu.Root closeOnSelect={false} positioning={{ placement: "bottom-end" }}>
      <Menu.Trigger asChild>
        <Button aria-label={TEXT.columnsOf(words, label)} size="xs" variant="outline">
          {words}
        </Button>
      </Menu.Trigger>
      <Menu.Positioner>
        <Menu.Content>
          {columns.map(({ id, isShown, words: name }) => (
            <Menu.CheckboxItem checked={isShown} key={id} onCheckedChange={() => toggle(id)} value={id}>
              <Menu.ItemIndicator aria-hidden="true">✓</Menu.ItemIndicator>
              {name}
            </Menu.CheckboxItem>
          ))}
        </Menu.Content>
      </Menu.Positioner>
    </Menu.Root>
  );
}
