// Which columns of a list are shown is its user's choice, which the browser keeps.
import { act, screen, waitFor, within } from "@testing-library/react";
import { expect, test } from "vitest";
import * as page from "./testing/page";

const head = async (list: string) => (await page.rows(list))[0];
const box = (name: string) => screen.findByRole("menuitemcheckbox", { name });

test("a column is hidden and shown by the menu of its list, and the choice outlives the page", async () => {
  const { user } = await page.open("?view=leases");
  const all = await head("Leases");
  expect(all).toContain("Queue");
  await page.press("Columns of Leases");
  const menu = within(await screen.findByRole("menu", { name: "Columns of Leases" }));
  // The first column and the actions are always shown.
  const words = menu.getAllByRole("menuitemcheckbox").map((one) => one.textContent?.replace("✓", ""));
  expect(words).toEqual(all?.slice(1, -1));
  expect((await box("Queue")).getAttribute("aria-checked")).toBe("true");
  await user.click(await box("Queue"));
  expect(await head("Leases")).toEqual(all?.filter((one) => one !== "Queue"));
  // The menu stays for the next one.
  await user.click(await box("Consumer"));
  expect(await head("Leases")).toEqual(all?.filter((one) => !["Queue", "Consumer"].includes(one)));
  expect(await page.hindrances()).toEqual([]);

  await page.open("?view=leases");
  expect(await head("Leases")).not.toContain("Queue");
  await page.press("Columns (2 hidden) of Leases");
  expect((await box("Queue")).getAttribute("aria-checked")).toBe("false");
  await user.click(await box("Queue"));
  expect(await head("Leases")).toEqual(all?.filter((one) => one !== "Consumer"));
});

test("the menu is used by the keyboard alone", async () => {
  const { user } = await page.open("?view=topics");
  const opener = await page.button("Columns of Topics");
  opener.focus();
  await user.keyboard("{Enter}");
  const menu = await screen.findByRole("menu");
  // It takes the focus a frame after it is shown.
  await waitFor(() => expect(menu.contains(document.activeElement)).toBe(true));
  await user.keyboard("{ArrowDown}{Enter}");
  expect((await head("Topics"))?.slice(0, 2)).toEqual(["Topic", "Waiting"]);
  await user.keyboard("{Escape}");
  expect(document.activeElement).toBe(opener);
});

test("each list has its own choice, and a file has all columns", async () => {
  const { user } = await page.open("?view=topics");
  await page.press("Columns of Topics");
  await user.click(await box("Type"));
  expect(await head("Topics")).not.toContain("Type");
  await page.shown(/with all columns/);
  await page.follow("?view=retries");
  await page.button("Columns of Retries");
});

test("the first column and the actions are shown, whatever the browser has stored", async () => {
  localStorage.setItem("duewheel:groups:hidden-columns", '["group", "topic", "actions", "unknown"]');
  await page.open("?view=groups");
  const shown = await head("Consumer groups");
  expect([shown?.[0], shown?.[1], shown?.at(-1)]).toEqual(["Group", "Ready", "Actions"]);
});

test("the page of one thing shows all that is known of it, and has no menu", async () => {
  localStorage.setItem("duewheel:topics:hidden-columns", '["message_type"]');
  localStorage.setItem("duewheel:groups:hidden-columns", '["ready"]');
  await page.open("?view=topic&topic=orders");
  expect(await head("Topics")).toContain("Type");
  expect(screen.queryByRole("button", { name: /^Columns.* of Topics/ })).toBeNull();
  await page.open("?view=group&group=ship&topic=orders");
  expect(await head("Consumer groups")).toContain("Ready");
  expect(screen.queryByRole("button", { name: /^Columns.* of Consumer groups/ })).toBeNull();
});

test.each(["{", '{"ready": false}', "[1, null]"])("a choice of %s in the browser is none", async (stored) => {
  localStorage.setItem("duewheel:groups:hidden-columns", stored);
  await page.open("?view=groups");
  await page.button("Columns of Consumer groups");
});

test("a column that is hidden in another tab is hidden in this one", async () => {
  await page.open("?view=topics");
  expect(await head("Topics")).toContain("Type");
  localStorage.setItem("duewheel:topics:hidden-columns", '["message_type"]');
  await act(async () => Promise.resolve(window.dispatchEvent(new StorageEvent("storage"))));
  expect(await head("Topics")).not.toContain("Type");
});
