import { expect, it } from "vitest";
import { portions, told } from "./outcomes";

it("tells each kind of outcome with its number", () => {
  expect(
    told([
      { message_id: "1", outcome: "recalled" },
      { message_id: "2", outcome: "already_released" },
      { message_id: "3", outcome: "recalled" },
    ]),
  ).toBe("2 recalled: never delivered\n1 already released: it was too late");
});

it("tells why one was refused", () => {
  expect(told([{ detail: "The limit is 24 h.", message_id: "1", outcome: "refused" }])).toBe(
    "1 refused\nThe limit is 24 h.",
  );
});

it("takes a list in portions", () => {
  expect([...portions([1, 2, 3, 4, 5], 2)]).toEqual([[1, 2], [3, 4], [5]]);
});
