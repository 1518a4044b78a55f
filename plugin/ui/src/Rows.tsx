// Tables: TanStack Table knows the columns and their order, Chakra draws them.
import { Box, Flex, Input, Table, Text } from "@chakra-ui/react";
import {
  type Column as ShownColumn,
  type ColumnDef,
  type ColumnDefTemplate,
  type Header,
  type RowData,
  type SortingState,
  createColumnHelper,
  getCoreRowModel,
  getFilteredRowModel,
  getSortedRowModel,
  useReactTable,
} from "@tanstack/react-table";
import { type ReactNode, use, useState } from "react";
import { AsOf } from "./Answered";
import { ColumnMenu, useHidden } from "./ColumnMenu";
import { count } from "./format";
import { Given } from "./place";
import { TEXT } from "./texts";
import { Words } from "./Words";

declare module "@tanstack/react-table" {
  // Both parameters are those of the interface that is extended.
  // eslint-disable-next-line @typescript-eslint/no-unused-vars
  interface ColumnMeta<TData extends RowData, TValue> {
    /** Its cells stand at the right, so that digits stand below each other. */
    isNumber?: boolean;
  }
}

/** A column of any kind of value. */
// eslint-disable-next-line @typescript-eslint/no-explicit-any
export type Column<One> = ColumnDef<One, any>;

/** Makes the columns of a kind of rows. */
export const columnsOf = <One extends RowData>() => createColumnHelper<One>();

export const NUMBER = { meta: { isNumber: true } } as const;

/** The column with what may be done with a row. */
export const ACTIONS = {
  enableHiding: false,
  enableSorting: false,
  header: TEXT.actions,
  id: "actions",
} as const;

/** What a list may be given by its place. */
export type ListProps = Pick<Props<unknown>, "list" | "read">;

type Props<One> = {
  columns: (Column<One> | false | undefined)[];
  empty: string;
  keyOf: (one: One, index: number) => string;
  label: string;
  /** The name of a list whose columns its user may hide; the browser keeps the choice under it. */
  list?: string;
  /** How many rows there are, for a list that has counted them. */
  number?: string | undefined;
  /** When the rows were read, where the page does not refresh them. */
  read?: { at: string; readAt: number } | undefined;
  rows: One[];
  /** Whether the user may order the rows: only where all of them are here. */
  sorts?: boolean;
};

/** A table that scrolls sideways by itself where the window is narrow. */
export function Rows<One>({
  columns,
  empty,
  keyOf,
  label,
  list = "",
  number,
  read,
  rows,
  sorts = false,
}: Props<One>) {
  const given = use(Given);
  const [hidden, hide] = useHidden(list);
  const [wanted, setWanted] = useState("");
  const [sorting, setSorting] = useState<SortingState>([]);
  // eslint-disable-next-line react-hooks/incompatible-library -- nothing here is memoised by hand
  const table = useReactTable({
    columns: columns.filter(
      (one) => typeof one === "object" && !("accessorKey" in one && given.includes(String(one.accessorKey))),
    ) as Column<One>[],
    data: rows,
    enableSorting: sorts,
    getCoreRowModel: getCoreRowModel(),
    getFilteredRowModel: getFilteredRowModel(),
    getRowId: keyOf,
    globalFilterFn: "includesString",
    getSortedRowModel: getSortedRowModel(),
    onSortingChange: setSorting,
    state: { globalFilter: wanted, sorting },
  });
  const choosable = list === "" ? [] : choosableOf(table.getAllLeafColumns());
  // The browser may have stored any id: only what the menu offers is hidden.
  const visible = choosable.map((one) => [one.id, !hidden.includes(one.id)] as const);
  table.setOptions((was) => ({
    ...was,
    state: { ...was.state, columnVisibility: Object.fromEntries(visible) },
  }));
  const shown = table.getRowModel().rows;
  const isSearched = sorts && rows.length >= SEARCHED_FROM;
  const hasMenu = choosable.length > 0 && rows.length > 0;
  return (
    <>
      {(isSearched || hasMenu || read || number) && (
        <Flex align="center" data-part="list-head" gap={2} justify="end" mb={2} wrap="wrap">
          {isSearched && (
            <>
              <Input
                aria-label={TEXT.searchIn(label)}
                onChange={(event) => setWanted(event.target.value)}
                placeholder={TEXT.searchIn(label)}
                size="sm"
                value={wanted}
                width="16rem"
              />
              <Text flex="1" fontSize="sm" role="status">
                {wanted !== "" && TEXT.shownOfAll(count(shown.length), count(rows.length))}
              </Text>
            </>
          )}
          {number && (
            <Text flex="1" fontSize="sm">
              {number}
            </Text>
          )}
          {read && <AsOf {...read} />}
          {hasMenu && (
            <ColumnMenu
              columns={choosable.map((one) => ({
                id: one.id,
                isShown: one.getIsVisible(),
                words: wordsOf(one.columnDef.header) ?? "",
              }))}
              label={label}
              toggle={(id) =>
                hide(hidden.includes(id) ? hidden.filter((one) => one !== id) : [...hidden, id])
              }
            />
          )}
        </Flex>
      )}
      {rows.length === 0 ? (
        <Text color="fg.muted" fontSize="sm" role="status">
          {empty}
        </Text>
      ) : (
        <Table.ScrollArea aria-label={label} css={CARDS} role="region" tabIndex={0}>
          <Table.Root aria-label={label} role="table" size="sm">
            <Table.Header role="rowgroup">
              <Table.Row role="row">
                {table.getFlatHeaders().map((header) => (
                  <Head header={header} key={header.id} />
                ))}
              </Table.Row>
            </Table.Header>
            <Table.Body role="rowgroup">
              {shown.map((row) => (
                <Table.Row key={row.id} role="row">
                  {row.getVisibleCells().map((cell) => (
                    <Table.Cell
                      data-label={wordsOf(cell.column.columnDef.header)}
                      key={cell.id}
                      role="cell"
                      maxW="22rem"
                      minW="6ch"
                      textAlign={alignOf(cell.column.columnDef.meta)}
                      verticalAlign="top"
                      whiteSpace="normal"
                    >
                      {inCell(drawn(cell.column.columnDef.cell, cell.getContext()))}
                    </Table.Cell>
                  ))}
                </Table.Row>
              ))}
            </Table.Body>
          </Table.Root>
        </Table.ScrollArea>
      )}
    </>
  );
}

/** A list that is shown whole has a search from so many rows on. */
const SEARCHED_FROM = 10;

/** The columns that a user may hide: all with words but the first one and the actions. */
const choosableOf = <One,>(columns: ShownColumn<One>[]) =>
  columns
    .filter((one) => wordsOf(one.columnDef.header) !== undefined)
    .filter((one, index) => index > 0 && one.getCanHide());

/** The name of a column before the value in a card; a column of boxes has none. */
const wordsOf = (header: unknown) => (typeof header === "string" ? header : undefined);

/** Where the window is wide, the first column with words stays in sight; where it is narrow, each row is a card. */
const CARDS = {
  "& :is(td, th)[data-label]:not([data-label] ~ [data-label])": {
    md: { bg: "bg", left: 0, position: "sticky", zIndex: 1 },
  },
  // Instants have two lines.
  "& td [data-part=away]": { display: "block" },
  mdDown: {
    "& td *": { whiteSpace: "normal" },
    "& :is(table, thead, tbody, tr)": { display: "block" },
    // A value that is longer than its line moves below its label before it breaks inside a word.
    "& td": {
      border: "none",
      columnGap: 2,
      display: "flex",
      flexWrap: "wrap",
      maxWidth: "none",
      py: 1,
      textAlign: "start",
    },
    "& td:empty": { display: "none" },
    "& td[data-label]::before": { color: "fg.muted", content: "attr(data-label)", flex: "0 0 5.5rem" },
    "& tbody tr": { borderColor: "border", borderRadius: "sm", borderWidth: "1px", mb: 2 },
    // Of the head, what selects all.
    "& th[data-label], & thead:not(:has(th:not([data-label])))": { display: "none" },
  },
};

/** What a column draws. It is called, and is no component: another list of columns would mount that anew, and a dialog
 * that is open in a row would be gone. */
const drawn = <Context extends object>(column: ColumnDefTemplate<Context> | undefined, context: Context) =>
  typeof column === "function" ? (column(context) as ReactNode) : column;

/** Texts of users come in any length. */
const inCell = (words: ReactNode) => (typeof words === "string" ? <Words of={words} /> : words);

const alignOf = (meta?: { isNumber?: boolean }) => (meta?.isNumber ? "end" : "start");
const SORTED = { asc: "ascending", desc: "descending" } as const;
const SIGNS = { asc: "▲", desc: "▼" } as const;

/** An arrow, and a pale one where the rows are in another order; not part of the button's name. */
const arrow = (sorted: "asc" | "desc" | false) => ({
  "&::after": {
    color: "fg.muted",
    content: `"\u00a0${sorted ? SIGNS[sorted] : "↕"}" / ""`,
    opacity: sorted ? 1 : 0.6,
  },
});

function Head<One>({ header }: { header: Header<One, unknown> }) {
  const { column } = header;
  const words = drawn(column.columnDef.header, header.getContext());
  const sorted = column.getIsSorted();
  return (
    <Table.ColumnHeader
      data-label={wordsOf(column.columnDef.header)}
      role="columnheader"
      aria-sort={sorted ? SORTED[sorted] : undefined}
      textAlign={alignOf(column.columnDef.meta)}
      verticalAlign="bottom"
      whiteSpace="normal"
    >
      {column.getCanSort() ? (
        <Box asChild css={arrow(sorted)} cursor="pointer" textAlign="inherit">
          <button onClick={column.getToggleSortingHandler()} type="button">
            {words}
          </button>
        </Box>
      ) : (
        words
      )}
    </Table.ColumnHeader>
  );
}
