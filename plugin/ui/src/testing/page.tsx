// The page in a test: loaded as Airflow loads it, with an API that answers what the test says.
import { act, cleanup, configure, render, screen, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import axe from "axe-core";
import { createBrowserRouter, RouterProvider } from "react-router-dom";
import { afterEach, expect, vi } from "vitest";
import type { ReadPath, Reading, Schemas } from "../api";
import type { paths } from "../schema";
import { SHOP, WATCHERS } from "./shop";

type OfBroker = "/api/brokers/{connection_id}/";
type Json<T> = { content: { "application/json": T } };
type Acting<Asked, Said> = { post: { requestBody: Json<Asked>; responses: { 200: Json<Said> } } };
type ActPath = {
  [Path in keyof paths]: paths[Path] extends Acting<unknown, unknown>
    ? Path extends `${OfBroker}${infer Rest}`
      ? Rest
      : never
    : never;
}[keyof paths];
type Asked<Path extends ActPath> =
  paths[`${OfBroker}${Path}`] extends Acting<infer Body, unknown> ? Body : never;
type Said<Path extends ActPath> =
  paths[`${OfBroker}${Path}`] extends Acting<unknown, infer Answer> ? Answer : never;
type Answer<T> = T | Response | Promise<T | Response>;

/** The answers to calls that read, by path. */
export type Reads = {
  [Path in ReadPath]?: Reading<Path> | ((query: URLSearchParams) => Answer<Reading<Path>>);
};
/** What is answered to an action, by its path. */
export type Acts = { [Path in ActPath]?: Said<Path> | ((asked: Asked<Path>) => Answer<Said<Path>>) };

type Call = { body: unknown; path: string; query: Record<string, string> };

/** The page's own address: Airflow lies below a path, as behind a proxy. */
const ROOT = "http://localhost:3000/shop/";

/** What the API answers instead of what it was asked for. */
export const refused = (status: number, error: string, detail: string, headers = {}) =>
  new Response(JSON.stringify({ detail, error }), { headers, status });

/** No answer arrives. */
export const lost = () => Promise.reject(new TypeError("Failed to fetch"));

/** An answer that waits until it is given. */
export function later<T>() {
  let give: (answer: T) => void = () => undefined;
  const answer = new Promise<T>((resolve) => {
    give = resolve;
  });
  return { answer, give: (value: T) => act(async () => Promise.resolve(give(value))) };
}

// The limit of every wait. Only a broken page reaches it, however busy the machine.
configure({ asyncUtilTimeout: 30_000 });

const user = userEvent.setup({ pointerEventsCheck: 0 });
let dispose: (() => void) | undefined;
let unanswered: string[] = [];

Object.assign(globalThis, {
  ResizeObserver: class {
    disconnect = () => undefined;
    observe = () => undefined;
    unobserve = () => undefined;
  },
});
// Nor does jsdom capture pointers.
Object.assign(Element.prototype, { hasPointerCapture: () => false });

afterEach(() => {
  cleanup();
  dispose?.();
  vi.unstubAllGlobals();
  localStorage.clear();
  document.body.innerHTML = "";
  document.body.removeAttribute("style");
  expect(unanswered).toEqual([]);
  unanswered = [];
});

export type Rights = { may_act?: boolean; may_read_bodies?: boolean };
type More = {
  acts?: Acts;
  /** Beside the broker "shop". */
  brokers?: Schemas["BrokerChoice"][];
  /** Of the API beside that of brokers, and of Airflow's. */
  others?: Record<string, unknown>;
  /** Of Airflow's place that shows it. */
  place?: object;
  rights?: Rights;
  zone?: string;
};

/** Load the page at an address, again if it is on the screen already. */
export async function open(search: string, reads: Reads = {}, more: More = {}) {
  cleanup();
  dispose?.();
  const { acts = {}, brokers = [], others = {}, place = {}, rights = {}, zone = "UTC" } = more;
  const calls: Call[] = [];
  const shop = { connection_id: "shop", may_act: true, may_read_bodies: true, ...rights };
  const fixed: Record<string, unknown> = {
    "duewheel/api/brokers": {
      brokers: [shop, ...brokers],
      version: "1.0",
    } satisfies Schemas["BrokerChoices"],
    "duewheel/api/watchers": WATCHERS,
    ...others,
  };
  const answers = Object.entries<unknown>({ ...SHOP, ...reads });

  async function answer(input: URL, init: RequestInit = {}): Promise<Response> {
    const url = new URL(input);
    const path = url.href.replace(ROOT, "").replace(/\?.*/, "");
    const rest = path.replace(/^duewheel\/api\/brokers\/[^/]+\//, "");
    const body: unknown = typeof init.body === "string" ? JSON.parse(init.body) : undefined;
    calls.push({ body, path: rest, query: Object.fromEntries(url.searchParams) });
    const matches = ([known]: [string, unknown]) =>
      new RegExp(`^${known.replace(/\{\w+\}/, "[^/]+")}$`).test(rest);
    const found = (init.method === "POST" ? Object.entries<unknown>(acts) : answers).find(matches);
    const said = fixed[path] ?? found?.[1];
    if (said === undefined) unanswered.push(path);
    const withdrawn = new Promise((_, fail) =>
      init.signal?.addEventListener("abort", () => fail(new DOMException("Aborted", "AbortError"))),
    );
    const answered =
      typeof said === "function" ? (said as (asked: unknown) => unknown)(body ?? url.searchParams) : said;
    const given = await Promise.race([answered, withdrawn]);
    return given instanceof Response ? given : new Response(JSON.stringify(given));
  }
  vi.stubGlobal("fetch", answer);
  localStorage.setItem("timezone", JSON.stringify(zone));
  if (!document.querySelector("base")) document.head.insertAdjacentHTML("afterbegin", '<base href="/shop/">');
  history.replaceState(null, "", `/shop/plugin/duewheel${search}`);
  // As a page that is loaded: nothing is left of the one before.
  vi.resetModules();
  const { default: Page } = await import("../main");
  const router = createBrowserRouter([{ element: <Page {...place} />, path: "*" }], { basename: "/shop" });
  dispose = () => router.dispose();
  render(<RouterProvider router={router} />);
  const asked = (path: string) => calls.filter((one) => one.path === path);
  return {
    /** The bodies of the actions of a path. */
    acted: (path: string) => asked(path).map((one) => one.body),
    /** The queries of the calls of a path, without those of an action. */
    asked: (path: string) => asked(path).map((one) => one.query),
    calls,
    user,
  };
}

/** Another view, as Back and a link within the page lead to it. */
export const follow = (search: string) =>
  act(async () => {
    history.pushState(null, "", `/shop/plugin/duewheel${search}`);
    dispatchEvent(new PopStateEvent("popstate"));
    return Promise.resolve();
  });

export const button = (name: string | RegExp) => screen.findByRole("button", { name });
export const press = async (name: string | RegExp) => user.click(await button(name));
export const select = async (name: string) => user.click(await screen.findByRole("checkbox", { name }));
export const shown = (words: string | RegExp) => screen.findByText(words);

/** The values in the address. */
export const address = () => new URLSearchParams(location.search);

/** A field by its name, once it is shown. */
export const field = (name: string) =>
  vi.waitFor(() => {
    const all = document.querySelectorAll<HTMLInputElement>(`:is(input, select, textarea)[name=${name}]`);
    const last = [...all].at(-1);
    if (!last) throw new Error(`There is no field ${name}.`);
    return last;
  });

/** Fill a field, and press Enter. */
export async function enter(name: string, value: string) {
  await user.clear(await field(name));
  if (value !== "") await user.type(await field(name), value);
  await user.type(await field(name), "{Enter}");
}

/** The texts of the cells of a table, row by row, its head first. */
export async function rows(name: string): Promise<string[][]> {
  const table = await screen.findByRole("table", { name });
  return [...table.querySelectorAll("tr")].map((row) =>
    [...row.querySelectorAll("th, td")].map((cell) => (cell.textContent ?? "").trim()),
  );
}

/** The row of a table that has these words. */
export async function row(words: string | RegExp) {
  const found = (await screen.findAllByText(words))
    .map((one) => one.closest("tr"))
    .find((one) => one !== null);
  if (!found) throw new Error(`No row has ${String(words)}.`);
  return within(found);
}

/** The question that is open. */
export const dialog = async () => within(await screen.findByRole("alertdialog"));

/** What the dialog says of what it would do, or has done. */
export const told = async () =>
  (await dialog())
    .getAllByRole("status")
    .map((one) => one.textContent)
    .at(-1);

/** Confirm an action in its dialog. */
export const confirm = async (action: string) => {
  const button = (await dialog()).getByRole("button", { name: action });
  await vi.waitFor(() => expect(button.hasAttribute("disabled")).toBe(false));
  await user.click(button);
};

/** Close the dialog, once it has said how it went. */
export async function close() {
  const buttons = await (await dialog()).findAllByRole("button", { name: "Close" });
  if (buttons[0]) await user.click(buttons[0]);
  await vi.waitFor(() => expect(screen.queryByRole("alertdialog")).toBeNull());
}

/** What keeps people out who cannot see, or use no mouse. Colours are a matter of Chromium's. */
export async function hindrances(part = "[data-page=duewheel]") {
  const found = await axe.run(part, { rules: { "color-contrast": { enabled: false } } });
  return found.violations.map((each) => `${each.id}: ${each.nodes[0]?.html}`);
}
