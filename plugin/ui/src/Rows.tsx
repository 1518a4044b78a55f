// Tables: TanStack Table knows the columns and their order, Chakra draws them.
import { Box, Table, Text } from "@chakra-ui/react";
import {
  type ColumnDef,
  type ColumnDefTemplate,
  type Header,
  type RowData,
  type SortingState,
  createColumnHelper,
  getCoreRowModel,
  getSortedRowModel,
  useReactTable,
} from "@tanstack/react-table";
import { type ReactNode, use, useState } from "react";
import { Given } from "./parts";

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

type Props<One> = {
  columns: (Column<One> | false | undefined)[];
  empty: string;
  keyOf: (one: One, index: number) => string;
  label: string;
  rows: One[];
  /** Whether the user may order the rows: only where all of them are here. */
  sorts?: boolean;
};

/** A table that scrolls sideways by itself where the window is narrow. */
export function Rows<One>({ columns, empty, keyOf, label, rows, sorts = false }: Props<One>) {
  const given = use(Given);
  const [sorting, setSorting] = useState<SortingState>([]);
  // eslint-disable-next-line react-hooks/incompatible-library -- nothing here is memoised by hand
  const table = useReactTable({
    columns: columns.filter(
      (one) => typeof one === "object" && !("accessorKey" in one && given.includes(String(one.accessorKey))),
    ) as Column<One>[],
    data: rows,
    enableSorting: sorts,
    getCoreRowModel: getCoreRowModel(),
    getRowId: keyOf,
    getSortedRowModel: getSortedRowModel(),
    onSortingChange: setSorting,
    state: { sorting },
  });
  if (rows.length === 0)
    return (
      <Text color="fg.muted" fontSize="sm" role="status">
        {empty}
      </Text>
    );
  return (
    <Table.ScrollArea aria-label={label} role="region" tabIndex={0}>
      <Table.Root aria-label={label} size="sm">
        <Table.Header>
          <Table.Row>
            {table.getFlatHeaders().map((header) => (
              <Head header={header} key={header.id} />
            ))}
          </Table.Row>
        </Table.Header>
        <Table.Body>
          {table.getRowModel().rows.map((row) => (
            <Table.Row key={row.id}>
              {row.getVisibleCells().map((cell) => (
                <Table.Cell
                  // A long key stays within its column.
                  css={{ overflowWrap: "anywhere" }}
                  key={cell.id}
                  maxW="22rem"
                  minW="6ch"
                  textAlign={alignOf(cell.column.columnDef.meta)}
                  verticalAlign="top"
                  whiteSpace="normal"
                >
                  {drawn(cell.column.columnDef.cell, cell.getContext())}
                </Table.Cell>
              ))}
            </Table.Row>
          ))}
        </Table.Body>
      </Table.Root>
    </Table.ScrollArea>
  );
}

/** What a column draws. It is called, and is no component: another list of columns would mount that anew, and a dialog
 * that is open in a row would be gone. */
const drawn = <Context extends object>(column: ColumnDefTemplate<Context> | undefined, context: Context) =>
  typeof column === "function" ? (column(context) as ReactNode) : column;

const alignOf = (meta?: { isNumber?: boolean }) => (meta?.isNumber ? "end" : "start");
const SORTED = { asc: "ascending", desc: "descending" } as const;
const SIGNS = { asc: "▲", desc: "▼" } as const;

function Head<One>({ header }: { header: Header<One, unknown> }) {
  const { column } = header;
  const words = drawn(column.columnDef.header, header.getContext());
  const sorted = column.getIsSorted();
  return (
    <Table.ColumnHeader
      aria-sort={sorted ? SORTED[sorted] : undefined}
      textAlign={alignOf(column.columnDef.meta)}
      whiteSpace="nowrap"
    >
      {column.getCanSort() ? (
        <Box asChild cursor="pointer">
          <button onClick={column.getToggleSortingHandler()} type="button">
            {words} <span aria-hidden="true">{sorted ? SIGNS[sorted] : ""}</span>
          </button>
        </Box>
      ) : (
        words
      )}
    </Table.ColumnHeader>
  );
}
