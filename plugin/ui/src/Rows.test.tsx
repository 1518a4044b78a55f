import { ChakraProvider, defaultSystem } from "@chakra-ui/react";
import { cleanup, render, screen, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { useState } from "react";
import { afterEach, expect, test } from "vitest";
import { selector, useSelection } from "./selecting";
import { IsOld } from "./Answered";
import { NUMBER, Rows, columnsOf } from "./Rows";

type Row = { key: string | null; message_id: string; size: number };

const column = columnsOf<Row>();
const COLUMNS = [
  column.accessor("key", { header: "Key" }),
  column.accessor("size", { header: "Size", ...NUMBER }),
];
const ROWS = [
  { key: "a", message_id: "1", size: 9 },
  { key: "b", message_id: "2", size: 100 },
  { key: null, message_id: "3", size: 20 },
];

afterEach(cleanup);

function Some({
  selects = false,
  rows = ROWS,
  sorts = false,
}: {
  selects?: boolean;
  rows?: Row[];
  sorts?: boolean;
}) {
  const selection = useSelection(rows.map((one) => one.message_id));
  return (
    <ChakraProvider value={defaultSystem}>
      <p>{selection.now.join(" ")} selected</p>
      <Rows
        columns={[selects && selector<Row>(selection), ...COLUMNS]}
        empty="None."
        keyOf={(one) => one.message_id}
        label="Some"
        rows={rows}
        sorts={sorts}
      />
    </ChakraProvider>
  );
}

const keys = () =>
  screen
    .getAllByRole("row")
    .slice(1)
    .map((row) => within(row).getAllByRole("cell")[0]?.textContent);

test("rows are ordered by the number in a column, and a screen reader is told so", async () => {
  render(<Some sorts />);
  const head = () => screen.getByRole("columnheader", { name: /^Size/ });
  expect(keys()).toEqual(["a", "b", ""]);
  expect(head().getAttribute("aria-sort")).toBeNull();
  await userEvent.click(within(head()).getByRole("button"));
  expect(keys()).toEqual(["b", "", "a"]);
  expect(head().getAttribute("aria-sort")).toBe("descending");
  await userEvent.click(within(head()).getByRole("button"));
  expect(keys()).toEqual(["a", "", "b"]);
});

test("a list with more pages offers no order of one page", () => {
  render(<Some />);
  expect(screen.queryByRole("button")).toBeNull();
});

test("an empty list says so", () => {
  render(<Some rows={[]} />);
  expect(screen.getByRole("status").textContent).toBe("None.");
  expect(screen.queryByRole("table")).toBeNull();
});

test("a row that is no longer shown is not selected", async () => {
  const { rerender } = render(<Some selects />);
  await userEvent.click(screen.getByRole("checkbox", { name: "Select all shown" }));
  expect(screen.getByText("1 2 3 selected")).toBeTruthy();
  await userEvent.click(screen.getByRole("checkbox", { name: "Select b" }));
  expect(screen.getByText("1 3 selected")).toBeTruthy();
  rerender(<Some selects rows={ROWS.slice(0, 2)} />);
  expect(screen.getByText("1 selected")).toBeTruthy();
});

function Typed() {
  const [text, setText] = useState("");
  return (
    <input
      aria-label="Typed"
      onChange={(event) => {
        setText(event.target.value);
      }}
      value={text}
    />
  );
}

test("a part of a row keeps its state when the list is drawn anew, with other columns", async () => {
  const list = () => (
    <ChakraProvider value={defaultSystem}>
      <Rows
        columns={[column.display({ cell: () => <Typed />, header: "Typed", id: "typed" })]}
        empty=""
        keyOf={(one) => one.message_id}
        label="Some"
        rows={ROWS.slice(0, 1)}
      />
    </ChakraProvider>
  );
  const { rerender } = render(list());
  await userEvent.type(screen.getByRole("textbox"), "half");
  rerender(list());
  expect(screen.getByRole<HTMLInputElement>("textbox").value).toBe("half");
});

test("rows of the question before cannot be selected", async () => {
  render(
    <IsOld value={true}>
      <Some selects />
    </IsOld>,
  );
  for (const name of ["Select all shown", "Select a"]) {
    const box = screen.getByRole<HTMLInputElement>("checkbox", { name });
    expect(box.disabled).toBe(true);
    await userEvent.click(box);
  }
  expect(screen.getByText("selected")).toBeTruthy();
});
