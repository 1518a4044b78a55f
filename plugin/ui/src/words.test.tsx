import { render } from "@testing-library/react";
import { expect, test } from "vitest";
import { Words } from "./Words";

const drawn = (of: string) => render(<Words of={of} />).container;

test("the name of a topic breaks where its parts meet, and stays one text", () => {
  const name = drawn("mails.first_reminder");
  expect(name.innerHTML).toBe("mails.<wbr>first_<wbr>reminder");
  expect(name.textContent).toBe("mails.first_reminder");
});

test("only a part that no column could hold breaks inside", () => {
  expect(drawn("orders.placed").querySelector("span")).toBeNull();
  expect(drawn("reminder-of-the-last-payment").querySelector("span")).toBeNull();
  const long = drawn(`orders.${"K".repeat(17)}`).querySelector("span");
  expect(long?.textContent).toBe("K".repeat(17));
  expect(long?.style.overflowWrap).toBe("anywhere");
  expect(long?.style.minWidth).toBe("12ch");
  expect(drawn("K".repeat(40)).querySelector("span")?.style.minWidth).toBe("16ch");
});
